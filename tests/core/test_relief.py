"""When the band is wide: queues on one side only, or nothing is heard; and when it is not."""

from __future__ import annotations

import dataclasses

import pytest

from routing.core.decide import decide
from routing.core.relief import band_of, every_length
from routing.core.types import Memory, Params, Plan, Verdict
from tests.core.cases import demo_scenario, link, plan, seen

ACTIVE = Params(mode="active", band_ratio=0.2, roles_mode="fixed")
T = 19_500
EVERYTHING = every_length(ACTIVE)


def says(
    local: float | None,
    remote: float | None,
    *,
    running: Plan | None = None,
    memory: Memory | None = None,
    params: Params = ACTIVE,
    age_s: float = 0.5,
    **links: float,
) -> Verdict:
    """3 local and 4 remote prefill instances, each with so many requests waiting."""
    observation = seen(link=link(**links))
    pd = dataclasses.replace(
        observation.pd["pd"],
        queue_prefill=None if local is None else 3 * local,
        age_s=age_s,
    )
    there = dataclasses.replace(
        observation.prefill["prfaas"], queue_prefill=None if remote is None else 4 * remote
    )
    observation = dataclasses.replace(observation, pd={"pd": pd}, prefill={"prfaas": there})
    return decide(observation, running or banded(0.2), memory or Memory(), params, demo_scenario())


def banded(ratio: float) -> Plan:
    running = plan(T)
    cluster = running.clusters["pd"]
    cluster = dataclasses.replace(cluster, band=band_of(cluster, ratio))
    return dataclasses.replace(running, clusters={"pd": cluster})


def wide() -> Plan:
    running = plan(T)
    cluster = dataclasses.replace(running.clusters["pd"], band=EVERYTHING)
    return dataclasses.replace(running, clusters={"pd": cluster})


def is_wide(verdict: Verdict) -> bool:
    cluster = verdict.plan.clusters["pd"]
    assert cluster.band in (band_of(cluster, 0.2), EVERYTHING)
    return cluster.band == EVERYTHING


@pytest.mark.parametrize(
    ("local", "remote", "wide"),
    [
        pytest.param(8.0, 0.0, True, id="all local"),
        pytest.param(0.0, 8.0, True, id="all remote"),
        pytest.param(8.0, 2.0, True, id="nearly all local"),
        pytest.param(8.0, 2.1, False, id="both sides"),
        pytest.param(7.9, 0.0, False, id="a burst"),
        pytest.param(None, 8.0, False, id="local not measured"),
        pytest.param(8.0, None, False, id="remote not measured"),
    ],
)
def test_queues_on_one_side_widen_the_band(
    local: float | None, remote: float | None, wide: bool
) -> None:
    verdict = says(local, remote)
    assert is_wide(verdict) is wide
    assert (verdict.reason == "QueuesApart") is wide
    if wide:
        assert "8 requests wait for each" in verdict.message


@pytest.mark.parametrize(
    ("local", "remote", "stays"),
    [(0.6, 0.0, True), (0.4, 0.0, False), (6.0, 3.1, True), (3.9, 2.0, False), (3.9, 1.9, True)],
)
def test_a_wide_band_stays_until_queues_are_even_or_gone(
    local: float, remote: float, stays: bool
) -> None:
    verdict = says(local, remote, running=wide())
    assert is_wide(verdict) is stays
    if not stays:
        assert verdict.reason == "QueuesApart"
        assert "even again" in verdict.message


def test_a_band_does_not_close_right_after_a_change() -> None:
    now_s = says(0.0, 0.0).memory.smoothed_at_s
    assert now_s is not None
    late, soon = (Memory(last_change_s=now_s - ago_s) for ago_s in (60.0, 59.0))
    assert not is_wide(says(0.0, 0.0, running=wide(), memory=late))
    assert is_wide(says(0.0, 0.0, running=wide(), memory=soon))


@pytest.mark.parametrize(("age_s", "wide"), [(14.0, False), (29.0, False), (31.0, True)])
def test_gates_look_further_while_nothing_is_heard(age_s: float, wide: bool) -> None:
    assert is_wide(says(0.0, 0.0, age_s=age_s)) is wide


def test_nobody_is_relieved_over_a_congested_link() -> None:
    assert is_wide(says(9.0, 0.0, capacity_gbps=10.0, tx_gbps=9.9)) is False


@pytest.mark.parametrize(
    "params",
    [
        dataclasses.replace(ACTIVE, band_ratio=0.0),
        dataclasses.replace(ACTIVE, mode="paused"),
        dataclasses.replace(ACTIVE, mode="advisory"),
    ],
    ids=["no band", "paused", "advisory"],
)
def test_only_a_policy_that_acts_and_has_a_band_relieves(params: Params) -> None:
    running = banded(params.band_ratio)
    verdict = says(9.0, 0.0, running=running, params=params)
    assert verdict.plan.clusters["pd"].band == running.clusters["pd"].band


def test_nobody_is_relieved_blindly_over_a_congested_link() -> None:
    assert is_wide(says(0.0, 0.0, age_s=40.0, capacity_gbps=10.0, tx_gbps=9.9)) is False


def test_relief_leaves_half_of_the_changes_of_an_hour() -> None:
    now_s = says(0.0, 0.0).memory.smoothed_at_s
    assert now_s is not None
    for n, wide in ((29, True), (30, False)):
        memory = Memory(changes_s=tuple(now_s - 3000.0 + i for i in range(n)))
        assert is_wide(says(9.0, 0.0, memory=memory)) is wide


def test_a_wide_band_keeps_to_the_bounds_of_t() -> None:
    params = dataclasses.replace(ACTIVE, t_min_tokens=9000, t_max_tokens=30_000)
    verdict = says(9.0, 0.0, params=params)
    assert verdict.plan.clusters["pd"].band == (9000, 30_000)


def test_a_remote_that_gets_nothing_or_is_not_heard_is_no_other_side() -> None:
    observation = seen()
    pd = dataclasses.replace(observation.pd["pd"], queue_prefill=27.0)
    for there in (
        dataclasses.replace(observation.prefill["prfaas"], queue_prefill=0.0, age_s=5000.0),
        dataclasses.replace(observation.prefill["prfaas"], queue_prefill=80.0),
    ):
        idle = dataclasses.replace(observation.prefill["prfaas"], queue_prefill=0.0)
        now = dataclasses.replace(
            observation, pd={"pd": pd}, prefill={"prfaas": there, "idle": idle}
        )
        running = banded(0.2)
        cluster = running.clusters["pd"]
        cluster = dataclasses.replace(cluster, remote={"prfaas": 1.0, "idle": 0.0})
        running = dataclasses.replace(running, clusters={"pd": cluster})
        verdict = decide(now, running, Memory(), ACTIVE, demo_scenario())
        assert is_wide(verdict) is False
