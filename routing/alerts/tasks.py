"""Celery tasks of alerts: one look at all rules; what is to be told, sent."""

from __future__ import annotations

import random
import threading

from celery import shared_task
from django.utils import timezone

from routing.alerts import passes, telling
from routing.alone import alone

_DELIVERS = threading.Lock()
_rng = random.Random()


@shared_task(name="alerts.look")
def look() -> None:
    passes.look(timezone.now)


@shared_task(name="alerts.deliver")
def deliver() -> None:
    """What hangs is waited for by one of them; the next pass goes on where it ends."""
    with alone(_DELIVERS) as mine:
        if mine:
            telling.deliver(timezone.now, _rng)
