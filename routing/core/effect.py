"""Did a change of t do anything? The remote share that gates count is held against the model's.

A plan can be acknowledged and change nothing: a gate that routes by another rule, a cache that was
never heard of, a stack that takes everything. So the share seen when t changed is remembered until
half of what the change should bring has shown. What has not shown after `SHOWS_WITHIN_S` is said as
a warning. Several changes in a row are one, counted from the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from routing.core.model.fleetmodel import threshold_of
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
        share = _share(seen[name])
        if share is None or known is None:
            continue  # nobody tells: neither shown nor overdue
        expected = 1.0 - float(known.lengths.cdf([threshold_of(plan)])[0])
        wanted, came = expected - since.before, share - since.before
        if abs(wanted) < LEAST_CHANGE or came / wanted >= SHOWN_RATIO:
            del awaited[name]
        elif now_s - since.since_s >= SHOWS_WITHIN_S:
            said.append(
                f"{name}: the change of t shows no effect, {share:.0%} of requests are remote "
                f"after {since.before:.0%} before it, where {expected:.0%} were expected"
            )
    return dataclasses.replace(memory, awaited=awaited), tuple(said)


def _share(seen: PdObservation) -> float | None:
    share = seen.remote_share
    return share if share is not None and 0.0 <= share <= 1.0 else None
