"""Which clusters cannot be judged now, and why: the others go on without them.

A cluster with a gap is left as it runs. What it asks of shared stages still counts as far as it is
known; where it is not, clusters that send to the same PrfaaS clusters may send less there, not more
(`Situation.unsure_remotes`). What was never measured asks for nothing: it is not there yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from routing.core import words
from routing.core.links.state import LinkView
from routing.core.model.lengths import usable
from routing.core.types import Params, PdObservation

GapReason = Literal["StaleTelemetry", "BelowQuorum", "WarmingUp"]
PRECEDENCE: tuple[GapReason, ...] = ("StaleTelemetry", "BelowQuorum", "WarmingUp")


@dataclass(frozen=True)
class Gap:
    """`missing` names what is not read (StaleTelemetry), `text` is the whole sentence."""

    reason: GapReason
    text: str
    missing: tuple[str, ...] = ()
    next_at_s: float | None = None

    @staticmethod
    def together(gaps: Sequence[Gap]) -> Gap:
        """The gravest of several, naming all that is not read."""
        first = min(gaps, key=lambda gap: PRECEDENCE.index(gap.reason))
        missing = tuple(dict.fromkeys(part for gap in gaps for part in gap.missing))
        return stale(missing) if first.reason == "StaleTelemetry" else first


def stale(missing: tuple[str, ...]) -> Gap:
    text = f"No fresh reading of {', '.join(missing)}: the plan stays."
    return Gap("StaleTelemetry", text, missing)


def gap_of(
    name: str,
    seen: PdObservation,
    demand_rps: float | None,
    links: Mapping[str, LinkView],
    params: Params,
    now_s: float,
) -> Gap | None:
    """What of a cluster is not known well enough; `links` are those it may send over.

    Missing or old inputs come first. What was never measured is warm-up, not an outage.
    """
    missing: list[str] = []
    if demand_rps is None:
        if was_measured(seen):
            missing.append(f"demand of {name} ({seen.demand_state})")
    elif seen.age_s is not None and seen.age_s > params.stale_after_s:
        missing.append(f"gates of {name}")
    elif demand_rps > 0.0 and seen.lengths is not None and not usable(seen.lengths):
        missing.append(f"lengths of {name}")
    if demand_rps:
        missing += [f"link {link}" for link, view in sorted(links.items()) if not view.known]
    if missing:
        return stale(tuple(missing))
    if demand_rps == 0.0:
        return None
    n_gates = seen.n_gates
    n_heard = None if n_gates is None else n_gates - len(seen.gates_silent)
    if demand_rps and n_heard is not None and n_heard < params.quorum_ratio * (n_gates or 0):
        return Gap("BelowQuorum", words.few_gates(name, n_heard, n_gates or 0))
    needed, lengths = params.min_requests, seen.lengths
    counted = 0 if lengths is None else int(lengths.n_seen)
    if demand_rps is None or lengths is None or counted < needed:
        left_s = (needed - counted) / demand_rps if demand_rps else params.t_gain_hold_s
        text = words.warming_up(name, counted, needed)
        return Gap("WarmingUp", text, next_at_s=now_s + max(left_s, 0.0))
    return None


def was_measured(seen: PdObservation) -> bool:
    """Whether the cluster was ever heard of."""
    return seen.lengths is not None or seen.age_s is not None
