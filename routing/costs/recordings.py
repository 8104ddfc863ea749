"""Hours of a fleet's own traffic, kept for the twin before ticks are forgotten. The one writer of
RecordedHour.

One hour in `EVERY_H` is kept: five goes into no day, so in five days each hour of the day had its
turn, and a month keeps some 149 of its 744.
"""

from __future__ import annotations

import datetime
from datetime import timedelta
from typing import Final

from routing import fleets
from routing.backtest_recordings import recorded
from routing.commands import Refused
from routing.core.scenario.tables import ScenarioError
from routing.costs.models import RecordedHour
from routing.models import Fleet

EVERY_H: Final = 5
KEPT: Final = timedelta(days=70)
"""A month and the one before it can be asked about."""
_HOUR_S: Final = 3600
_BACK: Final = timedelta(days=2, hours=12)
"""Ticks are kept for three days."""
_SETTLED: Final = timedelta(minutes=2)


def due(now: datetime.datetime, since: datetime.datetime) -> list[datetime.datetime]:
    """The hours after `since` that are kept and are over, ascending."""
    first = int(since.timestamp()) // _HOUR_S + 1
    last = int((now - _SETTLED).timestamp()) // _HOUR_S
    return [
        datetime.datetime.fromtimestamp(hour * _HOUR_S, datetime.UTC)
        for hour in range(first, last)
        if hour % EVERY_H == 0
    ]


def keep_newest(fleet: Fleet, now: datetime.datetime) -> int:
    """Keep the hours that are due and not there yet; how many."""
    wanted = due(now, now - _BACK)
    there = set(
        RecordedHour.objects.filter(fleet=fleet.pk, at__in=wanted).values_list("at", flat=True)
    )
    missing = [at for at in wanted if at not in there]
    for at in missing:
        recording, text = None, ""
        try:
            recording = recorded(fleet, fleets.scenario_of(fleet), at, at + timedelta(hours=1))
        except (Refused, ScenarioError) as exc:
            text = str(exc)[:300]
        RecordedHour.objects.get_or_create(
            fleet=fleet.pk, at=at, defaults={"recording": recording, "text": text}
        )
    return len(missing)


def prune(now: datetime.datetime) -> int:
    n, _ = RecordedHour.objects.filter(at__lt=now - KEPT).delete()
    return n
