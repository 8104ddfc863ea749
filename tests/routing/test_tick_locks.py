"""A tick holds no table of readings while it decides: partitions come and go meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from routing import scheduler
from routing.core.types import Observation
from routing.models import Tick
from tests.routing.cases import NOW, make_fleet


@pytest.mark.django_db(transaction=True)
def test_readings_are_read_outside_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    make_fleet()
    inside = []
    observe = scheduler.observe

    def watched(*given: Any, **more: Any) -> Observation:
        inside.append(connection.in_atomic_block)
        return observe(*given, **more)

    monkeypatch.setattr(scheduler, "observe", watched)
    scheduler.run_tick("f1", now=NOW, tick_s=2.0)
    assert inside == [False]


@pytest.mark.django_db(transaction=True)
def test_a_tick_that_was_overtaken_observes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it saw belonged to the tick before; the one that came between changed what counts."""
    fleet = make_fleet()
    observe = scheduler.observe
    seen_at_s = []

    def overtaken(*given: Any, **more: Any) -> Observation:
        seen_at_s.append(more["at_s"])
        if len(seen_at_s) == 1:
            scheduler.run_tick("f1", now=NOW, tick_s=2.0)
        return observe(*given, **more)

    monkeypatch.setattr(scheduler, "observe", overtaken)
    later = NOW.__class__.fromtimestamp(NOW.timestamp() + 2.0, NOW.tzinfo)
    scheduler.run_tick("f1", now=later, tick_s=2.0)
    late_s, early_s = later.timestamp(), NOW.timestamp()
    assert seen_at_s == [late_s, early_s, late_s]
    assert Tick.objects.filter(fleet=fleet).count() == 2
