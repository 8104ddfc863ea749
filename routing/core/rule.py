"""The routing rule itself, for predictions, simulations and the request page.

A request whose *uncached* length is above t is prefilled remotely, every other one locally:

    remote  iff  mode is always_remote, or mode is threshold and uncached > t

A request of exactly t tokens stays local; t = 0 sends everything with an uncached token remote, and
is something else than no threshold at all. Blocks play no part: a prompt shorter than one follows
the same rule.
"""

from __future__ import annotations

from typing import Literal

from routing.core.types import ClusterPlan

Side = Literal["local", "remote"]


def side(uncached_tokens: int, plan: ClusterPlan) -> Side:
    """Where the plan prefills a request. Raises ValueError for a threshold plan without one."""
    if plan.mode == "always_local":
        return "local"
    if plan.mode == "always_remote":
        return "remote"
    if plan.threshold_tokens is None:
        raise ValueError("threshold_tokens is null in mode threshold: null is not 0")
    return "remote" if uncached_tokens > plan.threshold_tokens else "local"
