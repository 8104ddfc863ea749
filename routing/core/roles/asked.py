"""What a person's change of roles would do, by the model at the traffic of the last look.

before      what runs, as it runs
after       the new roles at the t that runs: what holds while t is on its way
settled     the new roles at the t that suits them
loop_wants  the roles the loop would go on to, were they its own again; None: those asked for
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from routing.core import words
from routing.core.bottleneck import Roles
from routing.core.model.throughput import predict
from routing.core.roles.limits import least_decode
from routing.core.roles.model import (
    LARGE_FLEET,
    as_roles,
    best_roles,
    best_t,
    best_t_of,
    gain_of,
    roles_of,
)
from routing.core.scenario.document import Scenario
from routing.core.situation import Situation, survey
from routing.core.types import Memory, Observation, Params, Plan, Prediction


@dataclass(frozen=True)
class Outlook:
    """What is expected of a move of roles; `warnings` say what speaks against it."""

    before: Prediction
    after: Prediction
    settled: Prediction
    loop_wants: Roles | None = None
    warnings: tuple[str, ...] = ()


def outlook(
    observation: Observation,
    plan: Plan,
    memory: Memory,
    params: Params,
    scenario: Scenario,
    *,
    cluster: str,
    to: Roles,
) -> Outlook | None:
    """None where nothing is known of the cluster's traffic."""
    with np.errstate(all="ignore"):
        s = survey(observation, plan, memory, params, scenario)
        if s.model is None or s.current is None or cluster not in s.outlooks:
            return None
        settings = s.settings(s.clusters)
        moved = dataclasses.replace(settings[cluster], n_prefill=to[0], n_decode=to[1])
        return Outlook(
            before=s.current,
            after=predict(s.model, {**settings, cluster: moved}),
            settled=best_t_of(s, s.model, cluster, to, s.clusters),
            loop_wants=_loop_wants(s, cluster, to),
            warnings=_warnings(s, cluster, to),
        )


def _loop_wants(s: Situation, cluster: str, to: Roles) -> Roles | None:
    """In a fleet of many clusters nobody searches for what is only shown."""
    if s.model is None or len(s.outlooks) > LARGE_FLEET or s.params.roles_mode == "fixed":
        return None
    present = {name: roles_of(s, name) for name in s.outlooks} | {cluster: to}
    after = best_t(s, s.model, present)
    best = best_roles(s, s.model, present, [cluster])
    wants = as_roles(best.settings[cluster])
    worth = gain_of(s, after, best) >= s.params.roles_min_gain_ratio
    return wants if worth and wants != to else None


def _warnings(s: Situation, cluster: str, to: Roles) -> tuple[str, ...]:
    present, said = roles_of(s, cluster), []
    assert s.current is not None, "asked for only with a model of what runs"
    why = s.forbids_roles(cluster, present, to, s.current)
    if why:
        said.append(words.forbidden(cluster, present, to, why))
    least = least_decode(s, cluster, present)
    if to[1] < least:
        held = s.observation.pd[cluster].decode_kv_usage_ratio or 0.0
        said.append(words.after_state_full(cluster, held, held * present[1] / max(to[1], 1)))
    return tuple(said)
