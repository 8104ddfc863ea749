"""Celery tasks of costs, on the twin's queue: minutes of work stand before no tick."""

from __future__ import annotations

import logging

from celery import shared_task
from django.utils import timezone
from kombu.exceptions import OperationalError

from routing.costs import values, work

_EXPIRES_S = 60.0

log = logging.getLogger(__name__)


@shared_task(name="costs.work")
def keep() -> None:
    """Fold days, record hours, make reports."""
    work.work(timezone.now)


@shared_task(name="costs.value")
def value() -> None:
    """Replay one recorded hour, and then the next task for what still waits."""
    if values.work(timezone.now):
        wake()


def wake() -> None:
    """Tell a worker that something may wait. A message that is lost is sent again by beat."""
    try:
        value.apply_async(expires=_EXPIRES_S, retry=False)
    except OperationalError as exc:
        log.warning("no worker was told of the value of decisions: %s", exc)
