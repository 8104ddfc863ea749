"""KV memory that nothing uses: a leak, not load.

A request that leaves while its KV waits to be fetched may leave the blocks behind; engines free
them when a lease ends (vLLM's NIXL connector: 480 s), and some never do (field report D3). Such an
instance looks half full and does nothing. It is told, and it is no reason to add instances or to
move roles: more instances would leak as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LEASE_S = 480.0
LEAK_USAGE_RATIO = 0.2
"""An idle engine without cached prefixes in the figure stands at a few percent; requests that
wait for their KV to be fetched hold more only as long as the lease."""


@dataclass(frozen=True)
class KvUse:
    """One instance now: requests it runs, requests that wait, the used part of its KV memory.

    None is not measured, and then nothing is suspected of it.
    """

    instance: str
    running: float | None
    waiting: float | None
    kv_usage_ratio: float | None


@dataclass(frozen=True)
class Leak:
    instance: str
    kv_usage_ratio: float
    since_s: float
    lease_s: float

    @property
    def warning(self) -> str:
        return (
            f"{self.instance} runs nothing and holds {self.kv_usage_ratio:.0%} of its KV memory "
            f"for longer than the lease of {self.lease_s:g} s: suspected leak, not load"
        )


def held_since(
    instances: Iterable[KvUse], before: Mapping[str, float], now_s: float
) -> dict[str, float]:
    """Since when each instance has held KV for nothing, of those that do; `before`: the last pass.

    An instance that was not measured keeps its time: silence does not free memory.
    """
    since = {}
    for seen in instances:
        idle = _idle_and_holding(seen)
        if idle or (idle is None and seen.instance in before):
            since[seen.instance] = min(before.get(seen.instance, now_s), now_s)
    return since


def suspected(
    instances: Iterable[KvUse], since: Mapping[str, float], now_s: float, lease_s: float = LEASE_S
) -> list[Leak]:
    """The instances that hold KV for nothing for longer than `lease_s`, and do so now."""
    return [
        Leak(seen.instance, seen.kv_usage_ratio or 0.0, since[seen.instance], lease_s)
        for seen in instances
        if _idle_and_holding(seen)
        and seen.instance in since
        and now_s - since[seen.instance] > lease_s
    ]


def _idle_and_holding(seen: KvUse) -> bool | None:
    measured = (seen.running, seen.waiting, seen.kv_usage_ratio)
    if any(value is None or not 0.0 <= value < math.inf for value in measured):
        return None
    idle = seen.running == 0.0 and seen.waiting == 0.0
    return idle and (seen.kv_usage_ratio or 0.0) >= LEAK_USAGE_RATIO
