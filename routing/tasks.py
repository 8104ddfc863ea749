"""Celery tasks of the loop: ask which fleets there are, call one function for each, log."""

from __future__ import annotations

import datetime
import logging
import threading

from celery import shared_task
from django.conf import settings
from django.utils import timezone
from kombu.exceptions import OperationalError

from routing import (
    backtest_work,
    backtests,
    delivery,
    effect_checks,
    managed_work,
    rebalance_driver,
    scheduler,
)
from routing.alone import alone
from routing.models import Fleet

TICKS_KEPT = datetime.timedelta(days=3)
"""About 4 KB a tick: at one every 2 s this is half a gigabyte for each fleet."""
ROUTERS_KEPT = datetime.timedelta(hours=24)
"""A gate that is silent for a day was retired, not restarted."""
TWIN_PROCESSES = 2
"""Of the worker of queue `twin`, as `manage.py up` starts it."""
SWEEP_S = 5.0

_RECONCILED = (delivery.expire, effect_checks.check_due, managed_work.reconcile)
"""Routers last: they may take long."""
_DRIVES, _RECONCILES = threading.Lock(), threading.Lock()

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
    with alone(_DRIVES) as mine:
        if mine:
            rebalance_driver.drive(timezone.now)


@shared_task(name="routing.reconcile")
def reconcile() -> None:
    """One cycle over what was sent: routers of other makes, late deliveries, effects of plans."""
    with alone(_RECONCILES) as mine:
        for part in _RECONCILED if mine else ():
            try:
                part(timezone.now)
            except Exception:
                log.exception("%s failed and is tried again", part.__name__)


@shared_task(name="routing.backtest")
def backtest() -> None:
    """One run of a backtest, whichever is next, and then the next task for what still waits."""
    if backtest_work.work(timezone.now):
        wake_twin(1)


@shared_task(name="routing.backtests_swept")
def backtests_swept() -> None:
    """Runs whose worker died, or whose message got lost, find another."""
    wake_twin(backtests.sweep(timezone.now()))


def wake_twin(n: int) -> None:
    """Tells up to `TWIN_PROCESSES` workers that something may wait for them. A message that is lost
    is sent again by the sweep, and one that nobody takes expires, so that they never pile up."""
    for _ in range(min(n, TWIN_PROCESSES)):
        try:
            backtest.apply_async(expires=SWEEP_S, retry=False)
        except OperationalError as exc:
            log.warning("the twin's workers were not told of backtests: %s", exc)
            return


@shared_task(name="routing.prune")
def prune() -> None:
    """Forget ticks past their time, unless they decided something, and gates that are gone."""
    deleted = scheduler.prune_ticks(timezone.now() - TICKS_KEPT)
    if deleted:
        log.info("%d ticks older than %d days deleted", deleted, TICKS_KEPT.days)
    forgotten = delivery.forget_routers(timezone.now() - ROUTERS_KEPT)
    if forgotten:
        log.info("%d gates not heard of for %s forgotten", forgotten, ROUTERS_KEPT)
    old = backtests.prune(timezone.now() - backtests.KEPT)
    if old:
        log.info("%d backtests older than %d days forgotten", old, backtests.KEPT.days)
