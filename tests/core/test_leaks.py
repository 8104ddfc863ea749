"""S-42: KV that nothing uses is a leak and not load."""

from __future__ import annotations

import math
from typing import Any

import pytest

from routing.core.leaks import LEASE_S, KvUse, held_since, suspected


def use(**changes: Any) -> KvUse:
    facts = {"instance": "f/pd/d0", "running": 0.0, "waiting": 0.0, "kv_usage_ratio": 0.6}
    return KvUse(**{**facts, **changes})


def after(held_s: float, *uses: KvUse) -> list[str]:
    """Instances suspected after `uses`, the last of them `held_s` after the first."""
    since: dict[str, float] = {}
    for i, seen in enumerate(uses):
        now_s = 1000.0 + held_s * i / max(len(uses) - 1, 1)
        since = held_since([seen], since, now_s)
    return [leak.instance for leak in suspected([uses[-1]], since, 1000.0 + held_s)]


@pytest.mark.parametrize(
    ("what", "held_s", "uses", "suspects"),
    [
        ("S-42 60 % for longer than the lease", LEASE_S + 1, [use(), use()], True),
        ("not yet", LEASE_S, [use(), use()], False),
        ("a request runs", 900.0, [use(running=1.0), use(running=1.0)], False),
        ("a request waits", 900.0, [use(waiting=1.0), use(waiting=1.0)], False),
        ("hardly anything held", 900.0, [use(kv_usage_ratio=0.05)] * 2, False),
        ("was busy meanwhile", 900.0, [use(), use(running=3.0), use()], False),
        ("was silent meanwhile", 900.0, [use(), use(running=None), use()], True),
        ("is silent now", 900.0, [use(), use(kv_usage_ratio=None)], False),
        ("reads what cannot be", 900.0, [use(kv_usage_ratio=math.nan)] * 2, False),
    ],
)
def test_s42_suspected(what: str, held_s: float, uses: list[KvUse], suspects: bool) -> None:
    assert after(held_s, *uses) == (["f/pd/d0"] if suspects else [])


def test_s42_the_warning_names_instance_share_and_lease() -> None:
    (leak,) = suspected([use()], {"f/pd/d0": 0.0}, 500.0)
    assert leak.warning == (
        "f/pd/d0 runs nothing and holds 60% of its KV memory for longer than the lease of 480 s: "
        "suspected leak, not load"
    )


def test_a_clock_set_back_starts_the_wait_anew() -> None:
    assert held_since([use()], {"f/pd/d0": 5000.0}, 1000.0) == {"f/pd/d0": 1000.0}
