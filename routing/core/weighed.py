"""The plans a pass weighed against each other, with what the model expects of each and why all but
one were not taken.

At most `MOST`: the running plan, the best thresholds, the step towards them, roles that were barred
or are wanted, and one instance more for either role of the cluster that limits, each at its best t.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from routing.core import words
from routing.core.bottleneck import Roles
from routing.core.roles.model import as_roles, best_t_of, more
from routing.core.situation import Situation
from routing.core.types import Alternative, ClusterPlan, Prediction, Verdict

MOST: Final = 8
MOST_NEIGHBOURED: Final = 32
"""Clusters of a fleet in which an instance more or less of one is still worth two optima."""
LONGEST: Final = 300
"""Characters of a text: a fleet of a hundred clusters must not fill the row of its tick."""


def explained(s: Situation, verdict: Verdict) -> Verdict:
    """The verdict with the plans that were weighed."""
    return dataclasses.replace(verdict, alternatives=_weighed(s, verdict)[:MOST])


def _weighed(s: Situation, verdict: Verdict) -> tuple[Alternative, ...]:
    if s.current is None:
        return verdict.alternatives
    adopts = verdict.action == "adopt"
    stay = _row(s, "stay", words.plans(s.clusters, s.clusters), s.current)
    if adopts:
        stay = dataclasses.replace(stay, why_not=f"changed: {verdict.reason}")
    rows = [stay]
    changed = {
        n: p for n, p in verdict.plan.clusters.items() if n in s.clusters and p != s.clusters[n]
    }
    aimed = {n: p for n, p in verdict.best_plan.items() if n in s.clusters}
    arrived = all(_same(verdict.plan.clusters[n], plan) for n, plan in aimed.items())
    if verdict.best is not None and aimed:
        row = _row(s, "best", words.plans(s.clusters, aimed), verdict.best)
        rows.append(dataclasses.replace(row, why_not="" if arrived else _not_yet(verdict)))
    if adopts and verdict.adopted is not None and not (arrived and aimed):
        rows.append(_row(s, "step", words.plans(s.clusters, changed), verdict.adopted))
    rows += verdict.alternatives
    if verdict.best is not None and verdict.reason != "RoleImbalance":
        rows += _neighbours(s, verdict.best, aimed)
    return tuple(
        dataclasses.replace(row, text=row.text[:LONGEST], why_not=row.why_not[:LONGEST])
        for row in rows
    )


def _not_yet(verdict: Verdict) -> str:
    if verdict.action == "hold":
        return f"{verdict.reason}: {verdict.message}"
    limits = ", ".join(dict.fromkeys(clamp.name for clamp in verdict.clamps))
    return f"reached in steps: {limits}" if limits else "another change comes first"


def _neighbours(
    s: Situation, best: Prediction, aimed: Mapping[str, ClusterPlan]
) -> list[Alternative]:
    """One instance more for prefill and for decode, in the cluster whose stage is the tightest."""
    name = s.tightest_cluster
    if name is None or s.model is None or len(s.outlooks) > MOST_NEIGHBOURED:
        return []
    present, cluster = as_roles(s.settings(s.clusters)[name]), s.cluster(name)
    rows = []
    for label, by in (("more_prefill", 1), ("more_decode", -1)):
        roles = (present[0] + by, present[1] - by)
        if roles[0] < cluster.min_prefill or roles[1] < cluster.min_decode:
            continue
        found = best_t_of(s, s.model, name, roles, {**s.clusters, **aimed}).prediction
        gain = more(found, best)
        row = _row(s, label, words.role_moves({name: present}, {name: roles}), found)
        rows.append(
            dataclasses.replace(row, why_not=_not_moved(s, name, present, roles, best, gain))
        )
    return rows


def _not_moved(
    s: Situation, name: str, present: Roles, roles: Roles, best: Prediction, gain: float
) -> str:
    if name not in s.movable:
        return "roles are not the loop's to move here"
    why = s.forbids_roles(name, present, roles, best)
    if why:
        return words.forbidden(name, present, roles, why)
    if gain < s.params.roles_min_gain_ratio:
        least = s.params.roles_min_gain_ratio
        return f"{gain:+.1%} against the best t at the present roles, a move takes {least:.0%}"
    return "within the dampers of roles"


def _row(s: Situation, name: str, text: str, expected: Prediction) -> Alternative:
    assert s.current is not None, "nothing is weighed without a model of what runs"
    return Alternative(
        name=name,  # type: ignore[arg-type]
        text=text,
        headroom=expected.headroom,
        remote_gbps=sum(expected.link_gbps.values()),
        gain_ratio=more(expected, s.current),
        bottleneck=expected.bottleneck,
    )


def _same(plan: ClusterPlan, other: ClusterPlan) -> bool:
    """Whether two plans route and share roles alike."""
    return (plan.mode, plan.threshold_tokens, plan.n_prefill, plan.n_decode) == (
        other.mode,
        other.threshold_tokens,
        other.n_prefill,
        other.n_decode,
    )
