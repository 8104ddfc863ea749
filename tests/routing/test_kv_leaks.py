"""S-42 through stored rows: a leak is told with every tick, and moves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from routing import fleets, scheduler
from routing.models import Fleet
from routing.observe import observe
from telemetry import store, wire
from tests.routing.cases import NOW_S, after, feed, make_fleet, traffic

pytestmark = pytest.mark.django_db

LEAKING = {"requests_running": 0.0, "requests_waiting": 0.0, "kv_cache_usage_ratio": 0.6}


def readings(
    since_s: int, until_s: int = 0, path: str = "f1/pd/d7", **signals: Any
) -> list[wire.InstanceSample]:
    """One every 10 s, times relative to NOW."""
    return [
        wire.InstanceSample(
            id=path,
            role="decode",
            engine="vllm",
            at_s=NOW_S + at_s,
            signals=wire.InstanceSignals(**{**LEAKING, **signals}),
        )
        for at_s in range(since_s, until_s, 10)
    ]


def told(fleet: Fleet) -> tuple[str, ...]:
    return observe(fleet.pk, fleets.scenario_of(fleet), at_s=NOW_S).kv_leaks


@pytest.mark.parametrize(
    ("what", "samples", "suspected"),
    [
        ("held for nine minutes", readings(-540), True),
        ("held for seven", readings(-420), False),
        (
            "a request ran meanwhile",
            [*readings(-540, -240), *readings(-240, -200, requests_running=1.0), *readings(-200)],
            False,
        ),
        ("hardly anything held", readings(-540, kv_cache_usage_ratio=0.05), False),
        ("it is busy", readings(-540, requests_running=4.0), False),
        ("running is not measured", readings(-540, requests_running=None), False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_s42_what_is_suspected(
    what: str, samples: list[wire.InstanceSample], suspected: bool
) -> None:
    fleet = make_fleet()
    feed(samples)
    assert len(told(fleet)) == suspected


def test_only_the_one_that_leaks_is_named() -> None:
    fleet = make_fleet()
    feed(readings(-540))
    feed(readings(-540, path="f1/pd/d70", requests_running=2.0))
    assert [text.split()[0] for text in told(fleet)] == ["f1/pd/d7"]


def test_s42_it_is_a_warning_of_the_verdict_and_no_load() -> None:
    fleet = make_fleet()
    traffic()
    feed(readings(-540, kv_cache_usage_ratio=0.98))
    # The others tell that they are empty: who tells nothing would be taken as full.
    others = store.latest("instance", prefix="f1/pd/", now_s=NOW_S)
    feed(
        wire.InstanceSample(
            id=other.path,
            role=other.role,
            engine=other.engine,
            epoch_s=other.epoch_s,
            at_s=NOW_S - 1.0,
            signals=wire.InstanceSignals(kv_cache_usage_ratio=0.0),
        )
        for other in others
        if other.path != "f1/pd/d7"
    )
    scheduler.run_tick("f1", now=after(0.0), tick_s=2.0)
    tick = scheduler.run_tick("f1", now=after(2.0), tick_s=2.0)
    assert tick is not None
    assert any("suspected leak, not load" in text for text in tick.verdict["warnings"])
    assert tick.observed["pd"]["pd"]["decode_kv_usage_ratio"] == 0.0
    newest = fleets.newest_adopted(fleet)
    assert newest is not None
    assert newest.reason == "Initial", "nothing moved for it"
