"""The Celery task of what the API remembers."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from routing.repeats import KEPT
from routing.rest import events, once


@shared_task(name="rest.prune")
def prune() -> None:
    """Forget what is past its time."""
    now = timezone.now()
    events.forget(now)
    once.forget(now - KEPT)
