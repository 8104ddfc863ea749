"""The Celery task of jobs."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from routing.jobs import runs


@shared_task(name="jobs.work")
def work() -> None:
    """One pass: what is due is done. A pass that is lost costs its interval."""
    runs.work(timezone.now)
