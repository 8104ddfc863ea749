"""One pass over what is kept of costs: days folded, hours recorded, reports made."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from typing import Final

from routing.costs import recordings, reports, usage
from routing.models import Fleet

Clock = Callable[[], datetime.datetime]

_PARTS: Final[tuple[Callable[[Fleet, datetime.datetime], object], ...]] = (
    usage.fold_newest,
    recordings.keep_newest,
    reports.refresh,
)

log = logging.getLogger(__name__)


def work(clock: Clock) -> int:
    """Every fleet in turn; one that fails is logged and does not stop the others."""
    fleets = Fleet.objects.select_related("policy").order_by("name")
    n = 0
    for fleet in fleets:
        for part in _PARTS:
            try:
                part(fleet, clock())
            except Exception:
                log.exception("%s of fleet %s failed", part.__name__, fleet.pk)
        n += 1
    recordings.prune(clock())
    return n
