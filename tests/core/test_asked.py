"""What is expected of roles that a person asks for, with t as it will really be in force."""

from __future__ import annotations

import dataclasses
import math

import pytest

from routing.core.roles.asked import Outlook, outlook
from routing.core.types import Freeze, HeldPlan, Memory, Observation, Params
from tests.core.asked import ACTIVE, scenario
from tests.core.cases import link, pd, plan, seen

TO = (4, 4)


def hold(
    threshold: int | None = 9800,
    *,
    cluster: str | None = "pd",
    mode: str | None = "threshold",
    until_s: float = 5000.0,
    owner: str = "ann",
) -> HeldPlan:
    return HeldPlan(cluster, mode, threshold, owner, "load test", until_s)


def expected(
    *holds: HeldPlan, observation: Observation | None = None, params: Params = ACTIVE
) -> Outlook:
    found = outlook(
        observation or seen(),
        plan(19_800),
        Memory(),
        dataclasses.replace(params, holds=holds),
        scenario(),
        cluster="pd",
        to=TO,
    )
    assert found is not None
    return found


def test_without_a_hold_t_goes_where_it_suits() -> None:
    found = expected()
    now, moved, suits = found.thresholds
    assert (found.held, found.stays) == ((), "")
    assert (now, moved) == (19_800.0, 19_800.0)
    assert suits > moved
    assert found.settled is not None
    assert found.settled.remote_fraction < found.after.remote_fraction


def test_a_held_t_is_what_the_new_roles_run_with() -> None:
    """Also one that no tick has adopted yet: it is in force before the roles are."""
    free, held = expected(), expected(hold())
    assert held.thresholds[:2] == (19_800.0, 9800.0)
    assert held.before == free.before
    assert held.after.remote_fraction > free.after.remote_fraction
    assert held.after.lambda_max_rps < free.after.lambda_max_rps
    [one] = held.held
    assert (one.plan.threshold_tokens, one.pin.owner, one.until_s) == (9800, "ann", 5000.0)


def test_what_suits_is_what_the_loop_would_choose_after_the_hold() -> None:
    free, held = expected(), expected(hold())
    assert (held.settled, held.thresholds[2]) == (free.settled, free.thresholds[2])
    assert held.loop_wants == free.loop_wants


def test_a_hold_of_everything_local_sends_nothing() -> None:
    found = expected(hold(None, mode="always_local"))
    assert found.thresholds[1] == math.inf
    assert found.after.remote_fraction == 0.0


def test_a_hold_without_t_keeps_the_one_that_runs() -> None:
    assert expected(hold(None)).thresholds[1] == 19_800.0


def test_holds_rule_one_after_the_other() -> None:
    """The cluster's own first, then that of every cluster, as the loop takes them."""
    own = hold(9800, until_s=2000.0)
    everyones = hold(6100, cluster=None, until_s=3000.0, owner="bea")
    found = expected(everyones, own, hold(7000, until_s=1500.0))
    ruled = [(one.plan.threshold_tokens, one.until_s) for one in found.held]
    assert ruled == [(7000, 1500.0), (9800, 2000.0), (6100, 3000.0)]
    assert expected(hold(until_s=999.0)).held == ()


@pytest.mark.parametrize(
    ("observation", "why"),
    [
        (seen(link=link(state="down", capacity_gbps=0.0)), "no link to a PrfaaS cluster is up"),
        (seen(pd=pd(age_s=900.0)), "No fresh reading of"),
        (
            dataclasses.replace(
                seen(), freezes=(Freeze("plans", "peak", "trading", 500.0, 5000.0),)
            ),
            "freeze peak until 1970-01-01 01:23:20 UTC: trading",
        ),
    ],
)
def test_where_the_loop_would_not_tune_t_nothing_is_said_to_suit(
    observation: Observation, why: str
) -> None:
    found = expected(observation=observation)
    assert why in found.stays
    assert found.settled is None
    assert len(found.thresholds) == 2
