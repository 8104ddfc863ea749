"""The Celery task of forecasts, on the twin's queue: judging one is a minute of work."""

from __future__ import annotations

import logging

from celery import shared_task
from django.utils import timezone

from routing.forecast import forecasts
from routing.models import Fleet

log = logging.getLogger(__name__)


@shared_task(name="forecast.work")
def work() -> None:
    """Every fleet whose forecast is due; one that fails does not stop the others."""
    for fleet in Fleet.objects.select_related("policy").order_by("name"):
        try:
            forecasts.refresh(fleet, timezone.now())
        except Exception:
            log.exception("the forecast of fleet %s failed", fleet.pk)
