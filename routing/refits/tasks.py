"""The Celery task of fits, on the twin's queue."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from routing.refits import proposals


@shared_task(name="refits.work")
def work() -> None:
    """Fit what is queued."""
    proposals.work(timezone.now)
