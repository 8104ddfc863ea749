"""Did a change of t do anything? The remote share that gates count is held against the model's.

A plan can be acknowledged and change nothing: a gate that routes by another rule, a cache that was
never heard of, a stack that takes everything. So the share seen when t changed is remembered until
half of what the change should bring has shown. What has not shown after `SHOWS_WITHIN_S` is said as
a warning. Several changes in a row are one, counted from the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from routing.core.model.fleetmodel import threshold_of
from routing.core.model.lengths import Lengths
from routing.core.model.uncertainty import Outlook
from routing.core.types import Awaited, ClusterPlan, Memory, PdObservation

SHOWS_WITHIN_S = 300.0
LEAST_CHANGE = 0.05
"""Of all requests; less drowns in the noise of a minute's share."""
SHOWN_RATIO = 0.5


def awaiting(
    memory: Memory,
    changed: Mapping[str, ClusterPlan],
    running: Mapping[str, ClusterPlan],
    seen: Mapping[str, PdObservation],
    now_s: float,
) -> Memory:
    """`memory` with the clusters whose t changes now."""
    awaited = dict(memory.awaited)
    for name, plan in changed.items():
        share = _share(seen[name]) if name in seen else None
        if share is not None and threshold_of(plan) != threshold_of(running[name]):
            awaited.setdefault(name, Awaited(now_s, share))
    return dataclasses.replace(memory, awaited=awaited)


@dataclass(frozen=True)
class Effect:
    """What a change of t of one cluster should bring, and what came: remote shares, of all
    requests. None where nobody tells it now."""

    cluster: str
    since_s: float
    before: float
    share: float | None
    expected: float | None

    @property
    def has_shown(self) -> bool:
        if self.share is None or self.expected is None:
            return False
        wanted, came = self.expected - self.before, self.share - self.before
        return abs(wanted) < LEAST_CHANGE or came / wanted >= SHOWN_RATIO

    def is_overdue(self, now_s: float) -> bool:
        """Neither shown nor unknown, and it had its time."""
        known = self.share is not None and self.expected is not None
        return known and not self.has_shown and now_s - self.since_s >= SHOWS_WITHIN_S

    @property
    def warning(self) -> str:
        return (
            f"{self.cluster}: the change of t shows no effect, {self.share:.0%} of requests are "
            f"remote after {self.before:.0%} before it, where {self.expected:.0%} were expected"
        )


def effect_of(
    cluster: str,
    since: Awaited,
    plan: ClusterPlan,
    seen: PdObservation,
    lengths: Lengths | None,
) -> Effect:
    """What there is to see of it now; `lengths` are those of the cluster's requests."""
    expected = None if lengths is None else 1.0 - float(lengths.cdf([threshold_of(plan)])[0])
    return Effect(cluster, since.since_s, since.before, _share(seen), expected)


def overdue(
    memory: Memory,
    running: Mapping[str, ClusterPlan],
    seen: Mapping[str, PdObservation],
    outlooks: Mapping[str, Outlook],
    now_s: float,
) -> tuple[Memory, tuple[str, ...]]:
    """`memory` without what has shown, and a warning for what should have by now."""
    awaited, said = dict(memory.awaited), []
    for name, since in memory.awaited.items():
        plan, known = running.get(name), outlooks.get(name)
        if plan is None or name not in seen:
            del awaited[name]
            continue
        lengths = None if known is None else known.lengths
        effect = effect_of(name, since, plan, seen[name], lengths)
        if effect.has_shown:
            del awaited[name]
        elif effect.is_overdue(now_s):
            said.append(effect.warning)
    return dataclasses.replace(memory, awaited=awaited), tuple(said)


def _share(seen: PdObservation) -> float | None:
    share = seen.remote_share
    return share if share is not None and 0.0 <= share <= 1.0 else None
