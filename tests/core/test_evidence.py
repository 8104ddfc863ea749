"""What counts as evidence: the state after a step, quorum, and a zero that was read."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core.model.lengths import LogNormalLengths
from routing.core.scenario.document import parse_scenario
from routing.core.types import Observation, Verdict
from tests.core.asked import GAINED, roles, says, scenario
from tests.core.cases import demo_document, exact_histogram, pd, plan, seen

# n instances decode at 70 %; those silent, those warming; whether one is taken for prefill
AFTER_STATE = [
    (2, 0, 0, False),
    (3, 0, 0, False),
    (10, 0, 0, True),
    (10, 1, 0, True),
    (10, 3, 0, False),
    (10, 0, 3, False),
]


@pytest.mark.parametrize(("n", "silent", "warming", "taken"), AFTER_STATE)
def test_s24_the_state_after_a_decrease_decides_for_any_pool_size(
    n: int, silent: int, warming: int, taken: bool
) -> None:
    """As many prefill, locally and 96 % busy: decode would be at 1.40 without one of two, at 1.05
    without one of three, at .78 without one of ten. Who is silent or has just started may be full.
    """
    names = tuple(f"d{i}" for i in range(n))
    document = demo_document()
    document["links"], document["clusters"] = [], document["clusters"][1:]
    document["clusters"][0].update(instances=2 * n, control_urls=["http://stack"])
    found = pd(
        n_prefill=n,
        n_decode=n,
        demand_rps=0.70 * n * 0.78125,
        lengths=exact_histogram(5000.0, LogNormalLengths(9.05, 0.5, 128, 131_072)),
        decode_silent=names[:silent],
        decode_warming=names[:warming],
    )
    alone = Observation(1000.0, "prfaas-1t", {"pd": found}, {}, {})
    running = plan(None, n_prefill=n, n_decode=n)
    verdict = says(alone, running=running, described=parse_scenario(document))
    assert verdict.current is not None
    used = {stage.name: stage.utilisation_ratio for stage in verdict.current.stages}
    assert used["decode:pd"] == pytest.approx(0.70, abs=0.01)
    assert used["local_prefill:pd"] == pytest.approx(0.96, abs=0.02)
    assert (roles(verdict)[1] < n) is taken, verdict.message


class TestQuorum:
    """S-29, B8: one silent instance stops nothing, most of them stop roles."""

    def verdict(self, n_silent: int, **params: Any) -> Verdict:
        silent = tuple(f"prfaas-1t/pd/h20-{i}" for i in range(n_silent))
        observation = seen(pd=pd(n_prefill=8, n_decode=2, prefill_silent=silent))
        running = plan(19_800, n_prefill=8, n_decode=2)
        return says(observation, running=running, described=scenario(instances=10), **params)

    @pytest.mark.parametrize("n_silent", [0, 1])
    def test_one_of_ten_silent_and_a_decision_with_the_assumption_said(self, n_silent) -> None:
        verdict = self.verdict(n_silent)
        assert (verdict.reason, roles(verdict)) == ("RoleImbalance", (6, 4)), verdict.message
        assert any("taken as full" in said for said in verdict.warnings) is bool(n_silent)

    def test_below_the_quorum_roles_stay_and_it_says_how_many_are_read(self) -> None:
        verdict = self.verdict(6)
        assert (verdict.reason, roles(verdict)) == ("BelowQuorum", (8, 2)), verdict.message
        assert "only 4 of the 10 instances" in verdict.message
        assert [c.name for c in verdict.clamps] == ["quorum_ratio"]
        assert any(a.name == "forbidden" for a in verdict.alternatives)

    def test_the_quorum_is_a_knob(self) -> None:
        assert roles(self.verdict(1, quorum_ratio=1.0)) == (8, 2)

    def test_instances_nobody_reads_any_more_count_as_not_read(self) -> None:
        """Silent for a minute they leave the pool, not the fleet."""
        observation = seen(pd=pd(n_prefill=3, n_decode=1))
        running = plan(19_800, n_prefill=3, n_decode=1)
        verdict = says(observation, running=running, described=scenario(instances=10))
        assert (verdict.reason, roles(verdict)) == ("BelowQuorum", (3, 1)), verdict.message

    @pytest.mark.parametrize(
        ("n_gates", "silent", "reason"),
        [
            (None, ("a", "b"), "PrefillImbalance"),
            (2, ("a",), "PrefillImbalance"),
            (3, ("a", "b"), "BelowQuorum"),
        ],
        ids=["nobody counted gates", "half are heard", "one of three is heard"],
    )
    def test_t_needs_half_of_the_gates(self, n_gates, silent, reason) -> None:
        observation = seen(pd=pd(n_gates=n_gates, gates_silent=silent))
        verdict = says(observation, running=plan(4000), memory=GAINED, roles_mode="fixed")
        assert verdict.reason == reason, verdict.message


class TestIdle:
    """R-01: only a zero that was read lets a move under way be called back, or nothing be done."""

    @pytest.mark.parametrize(
        ("state", "demand", "reason"),
        [
            ("idle", 0.0, "NoTraffic"),
            ("value", 0.0, "NoTraffic"),
            ("missing", None, "StaleTelemetry"),
            ("failed", None, "StaleTelemetry"),
            ("failed", 0.0, "StaleTelemetry"),
            ("value", float("nan"), "StaleTelemetry"),
        ],
    )
    def test_a_state_of_demand(self, state, demand, reason) -> None:
        verdict = says(seen(pd=pd(demand_rps=demand, demand_state=state)))
        assert (verdict.action, verdict.reason) == ("hold", reason)
