"""Small moves on one cluster's plan that forced changes and tuning share."""

from __future__ import annotations

import dataclasses

from routing.core.types import Clamp, ClusterPlan, Mode, Params

KEPT_RATIO = 0.1
"""Of an hour's changes, for links that fail: tuning must not use up what safety may need."""


def kept_for_failures(limit: int) -> int:
    """How many of `limit` changes an hour tuning leaves alone: a tenth, one at least, never all."""
    return min(max(round(KEPT_RATIO * limit), 1), max(limit - 1, 0))


def changed_to(
    plan: ClusterPlan, mode: Mode, threshold: int | None, remote: dict[str, float] | None = None
) -> ClusterPlan:
    """The cluster's plan with another mode or t; a band belongs to its t and goes with it."""
    return dataclasses.replace(
        plan,
        mode=mode,
        threshold_tokens=threshold,
        band=plan.band if threshold == plan.threshold_tokens else None,
        remote=plan.remote if remote is None else remote,
    )


def into_bounds(params: Params, wanted: float, clamps: list[Clamp]) -> int:
    allowed = round(min(max(wanted, params.t_min_tokens), params.t_max_tokens))
    if allowed != wanted:
        name = "t_min_tokens" if allowed > wanted else "t_max_tokens"
        clamps.append(Clamp(name, float(wanted), float(allowed)))
    return allowed


def t_of(plan: ClusterPlan, params: Params) -> float:
    """Where a step starts: a mode without a threshold stands at the bound it amounts to."""
    if plan.mode == "always_local":
        return float(params.t_max_tokens)
    if plan.mode == "always_remote" or plan.threshold_tokens is None:
        return float(params.t_min_tokens)
    return float(plan.threshold_tokens)
