"""Moves of roles that are not allowed, and what the verdict says of them.

A limit stands beside the gain: too few instances read to judge by, or a bottleneck that the move
would make tighter. The barred move is named with what the model expects of it, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from routing.core import words
from routing.core.bottleneck import Roles
from routing.core.model.optimize import Optimum
from routing.core.model.throughput import FleetModel
from routing.core.roles.model import best_t, more
from routing.core.situation import Situation
from routing.core.types import Alternative, Clamp

MOST_DECODE_KV_RATIO = 0.80
"""What decode's KV cache may be filled to after one of its instances was taken. Above it engines
begin to preempt with the next burst."""


@dataclass(frozen=True)
class Barred:
    """Moves that are not allowed: reason and words per cluster, limits, and what they would do."""

    bars: Mapping[str, tuple[str, str]]
    clamps: tuple[Clamp, ...] = ()
    weighed: tuple[Alternative, ...] = ()

    @staticmethod
    def among(
        s: Situation,
        model: FleetModel,
        base: Optimum,
        present: Mapping[str, Roles],
        stepped: Mapping[str, Roles],
    ) -> Barred:
        """Those of `stepped` that must not be asked for now."""
        bars = {n: why for n, to in stepped.items() if (why := _bar(s, n, present[n], to, base))}
        if not bars:
            return Barred({})
        moves = {name: stepped[name] for name in bars}
        after = best_t(s, model, {**present, **moves}).prediction
        clamps = tuple(
            Clamp(_limit(s, name, reason), float(stepped[name][0]), float(present[name][0]))
            for name, (reason, _) in bars.items()
        )
        row = Alternative(
            name="forbidden",
            text=words.role_moves(present, moves),
            headroom=after.headroom,
            remote_gbps=sum(after.link_gbps.values()),
            gain_ratio=more(after, base.prediction),
            bottleneck=after.bottleneck,
            why_not="; ".join(why for _, why in list(bars.values())[:3]),
        )
        return Barred(bars, clamps, (row,))


def _limit(s: Situation, name: str, reason: str) -> str:
    limits = {"BelowQuorum": "quorum_ratio", "AfterStateFull": "decode_kv_usage_ratio"}
    return limits.get(reason) or f"bottleneck_{s.bottlenecks[name].label}"


def _bar(
    s: Situation, name: str, before: Roles, after: Roles, base: Optimum
) -> tuple[str, str] | None:
    """Reason and words for why these roles must not be asked for now; None if they may."""
    seen, n_described = s.observation.pd[name], s.cluster(name).instances
    n_read = sum(before) - len({*seen.prefill_silent, *seen.decode_silent})
    if n_read < s.params.quorum_ratio * max(n_described, sum(before)):
        return "BelowQuorum", words.below_quorum(name, n_read, n_described)
    why = s.forbids_roles(name, before, after, base.prediction)
    if why:
        return "BottleneckForbids", words.forbidden(name, before, after, why)
    # What decode holds now has to fit into those that are left, whatever the model expects.
    held = _held(s, name)
    if held is not None and after[1] < least_decode(s, name, before):
        expected = held * before[1] / max(after[1], 1)
        return "AfterStateFull", words.after_state_full(name, held, expected)
    return None


def _held(s: Situation, name: str) -> float | None:
    held = s.observation.pd[name].decode_kv_usage_ratio
    return held if held is not None and 0.0 < held <= 1.0 else None


def least_decode(s: Situation, name: str, before: Roles) -> int:
    """The fewest decode instances that what decode's KV cache holds now still fits into."""
    held = _held(s, name)
    if held is None:
        return 1
    return min(max(math.ceil(held * before[1] / MOST_DECODE_KV_RATIO - 1e-9), 1), before[1])


def after_step(
    s: Situation, model: FleetModel, present: Mapping[str, Roles], stepped: Mapping[str, Roles]
) -> Optimum:
    """The state after the step, were the instances nobody knows of to carry nothing more."""
    return best_t(s, model, {**present, **_without_unknown(s, present, stepped)})


def _without_unknown(
    s: Situation, present: Mapping[str, Roles], stepped: Mapping[str, Roles]
) -> dict[str, Roles]:
    """`stepped` if the silent and the young instances of a shrinking role carry nothing more.

    Those of the growing role count as they are: for growing, not knowing is no need.
    """
    found = {}
    for name, (n_prefill, n_decode) in stepped.items():
        seen = s.observation.pd[name]
        if n_decode < present[name][1]:
            n_decode = max(n_decode - len({*seen.decode_silent, *seen.decode_warming}), 1)
        else:
            n_prefill = max(n_prefill - len({*seen.prefill_silent, *seen.prefill_warming}), 1)
        found[name] = (n_prefill, n_decode)
    return found
