"""Celery tasks of the loop: ask which fleets there are, call one function for each, log."""

from __future__ import annotations

import datetime
import logging

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from routing import delivery, rebalance_driver, scheduler
from routing.models import Fleet

TICKS_KEPT = datetime.timedelta(days=3)
"""About 4 KB a tick: at one every 2 s this is half a gigabyte for each fleet."""
ROUTERS_KEPT = datetime.timedelta(hours=24)
"""A gate that is silent for a day was retired, not restarted."""

log = logging.getLogger(__name__)


@shared_task(name="routing.tick")
def tick() -> None:
    """One pass for every fleet. A fleet that fails is logged and does not stop the others."""
    for name in Fleet.objects.values_list("name", flat=True).order_by("name"):
        try:
            scheduler.run_tick(name, now=timezone.now(), tick_s=settings.ENV["CONSOLE_TICK_S"])
        except Exception:
            log.exception("the tick of fleet %s failed", name)


@shared_task(name="routing.rebalance")
def rebalance() -> None:
    """Take every rebalance under way as far as it goes now."""
    rebalance_driver.drive(timezone.now)


@shared_task(name="routing.prune")
def prune() -> None:
    """Forget ticks past their time, unless they decided something, and gates that are gone."""
    deleted = scheduler.prune_ticks(timezone.now() - TICKS_KEPT)
    if deleted:
        log.info("%d ticks older than %d days deleted", deleted, TICKS_KEPT.days)
    forgotten = delivery.forget_routers(timezone.now() - ROUTERS_KEPT)
    if forgotten:
        log.info("%d gates not heard of for %s forgotten", forgotten, ROUTERS_KEPT)
