"""The Celery task of windows."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from routing.windows import maintenance


@shared_task(name="windows.reconcile")
def reconcile() -> None:
    """One pass over what is worked on. A pass that is lost costs its interval."""
    maintenance.reconcile(timezone.now)
