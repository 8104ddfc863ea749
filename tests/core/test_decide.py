"""What the loop says, rule by rule: given, reason, and what happens to t."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from routing.core.decide import decide
from routing.core.jsonable import from_jsonable, to_jsonable
from routing.core.reasons import REASONS
from routing.core.scenario.document import parse_scenario
from routing.core.types import (
    ClusterPlan,
    HeldPlan,
    LengthHistogram,
    LinkMemory,
    Memory,
    Observation,
    Params,
    Plan,
    Verdict,
)
from tests.core.cases import (
    LINK,
    demo_document,
    demo_scenario,
    exact_histogram,
    link,
    pd,
    plan,
    seen,
)

SCENARIO = demo_scenario()
ACTIVE = Params(mode="active", band_ratio=0.0)
READY = Memory(gain_since_s=900.0)
"""A gain has shown for long enough at now = 1000."""


def says(
    observation: Observation | None = None,
    *,
    running: Plan | None = None,
    memory: Memory = READY,
    **params: Any,
) -> Verdict:
    return decide(
        observation or seen(),
        running or plan(4000),
        memory,
        dataclasses.replace(ACTIVE, **params),
        SCENARIO,
    )


def t_of(verdict: Verdict, cluster: str = "pd") -> int | None:
    return verdict.plan.clusters[cluster].threshold_tokens


def hold_of(**changes: Any) -> HeldPlan:
    facts: dict[str, Any] = {
        "cluster": "pd",
        "mode": "threshold",
        "threshold_tokens": 9000,
        "owner": "ada",
        "reason": "incident 7",
        "expires_at_s": 2000.0,
    }
    return HeldPlan(**{**facts, **changes})


STALE = LengthHistogram((1.0, 2.0), (0.0, 0.0, 0.0), 0.0, 5000.0)
DOWN = link(capacity_gbps=0.0, tx_gbps=0.0)
CONGESTED = link(capacity_gbps=5.8, tx_gbps=5.7)
JUST = Memory(gain_since_s=900.0, last_change_s=995.0)

# what, observation, reason, action, other arguments
RULES: list[tuple[str, Observation, str, str, dict[str, Any]]] = [
    ("paused", seen(), "Paused", "hold", {"mode": "paused"}),
    ("a hold", seen(), "Held", "adopt", {"holds": (hold_of(),)}),
    ("a hold in force", seen(), "Held", "hold", {"holds": (hold_of(threshold_tokens=4000),)}),
    ("a hold of the fleet", seen(), "Held", "adopt", {"holds": (hold_of(cluster=None),)}),
    (
        "a hold that is over",
        seen(),
        "PrefillImbalance",
        "adopt",
        {"holds": (hold_of(expires_at_s=1000.0),)},
    ),
    (
        "link could not be read",
        seen(link=link(state="failed", tx_gbps=None)),
        "StaleTelemetry",
        "hold",
        {},
    ),
    ("link of 0 Gbps", seen(link=link(capacity_gbps=0.0)), "LinkDown", "adopt", {}),
    ("t below its bound", seen(), "OutOfBounds", "adopt", {"t_min_tokens": 8000}),
    (
        "demand missing",
        seen(pd=pd(demand_rps=None, demand_state="missing")),
        "StaleTelemetry",
        "hold",
        {},
    ),
    (
        "demand failed",
        seen(pd=pd(demand_rps=None, demand_state="failed")),
        "StaleTelemetry",
        "hold",
        {},
    ),
    ("old gates", seen(pd=pd(age_s=16.0)), "StaleTelemetry", "hold", {}),
    (
        "no link reading",
        seen(link=link(state="missing", tx_gbps=None)),
        "StaleTelemetry",
        "hold",
        {},
    ),
    ("old link reading", seen(link=link(age_s=16.0)), "StaleTelemetry", "hold", {}),
    ("broken lengths", seen(pd=pd(lengths=STALE)), "StaleTelemetry", "hold", {}),
    ("no traffic", seen(pd=pd(demand_rps=0.0, demand_state="idle")), "NoTraffic", "hold", {}),
    (
        "no traffic ever",
        seen(pd=pd(demand_rps=0.0, demand_state="idle", lengths=None)),
        "NoTraffic",
        "hold",
        {},
    ),
    ("few requests", seen(pd=pd(lengths=exact_histogram(150))), "WarmingUp", "hold", {}),
    ("a gain, first seen", seen(), "GainPending", "hold", {"memory": Memory()}),
    ("a gain, too soon", seen(), "Dwell", "hold", {"memory": JUST}),
    ("a gain that lasted", seen(), "PrefillImbalance", "adopt", {}),
    ("at the best t", seen(), "Optimal", "hold", {"running": plan(19_500)}),
    (
        "idle link is no gap",
        seen(link=link(state="idle", tx_gbps=None)),
        "PrefillImbalance",
        "adopt",
        {},
    ),
    ("congested", seen(link=CONGESTED), "Congestion", "adopt", {"memory": Memory()}),
    ("congested, too high", seen(link=CONGESTED), "Congestion", "hold", {"running": plan(60_000)}),
    (
        "narrow, not congested",
        seen(link=link(capacity_gbps=9.0, tx_gbps=5.0)),
        "LinkLimit",
        "adopt",
        {},
    ),
    (
        "headroom to spare",
        seen(pd=pd(demand_rps=1.5)),
        "LeastRemote",
        "adopt",
        {"objective": "min_remote", "running": plan(19_500)},
    ),
    (
        "the hour is full",
        seen(),
        "RateLimited",
        "hold",
        {"max_changes_per_hour": 1, "memory": Memory(900.0, 900.0, changes_s=(900.0,))},
    ),
    (
        "pushed a second ago",
        seen(link=CONGESTED),
        "RateLimited",
        "hold",
        {"memory": Memory(last_change_s=999.0)},
    ),
    (
        "a noisy gain",
        seen(pd=pd(lengths=exact_histogram(200))),
        "WithinNoise",
        "hold",
        {"running": plan(18_300)},
    ),
]


@pytest.mark.parametrize(
    ("what", "observation", "reason", "action", "given"), RULES, ids=lambda v: str(v)[:24]
)
def test_a_rule(what, observation, reason, action, given) -> None:
    verdict = says(observation, **given)
    assert (verdict.reason, verdict.action) == (reason, action), verdict.message


@pytest.mark.parametrize(
    ("what", "observation", "reason", "action", "given"), RULES, ids=lambda v: str(v)[:24]
)
def test_every_verdict_explains_itself(what, observation, reason, action, given) -> None:
    """S-30: reason code, words, inputs, formula version, clamps, earliest next action."""
    verdict = says(observation, **given)
    assert verdict.reason in REASONS
    assert verdict.message.endswith(".")
    assert "\n" not in verdict.message
    assert verdict.formula
    if reason == "Paused":
        assert verdict.next_action_at_s is None
    else:
        assert verdict.next_action_at_s >= observation.now_s
    if action == "hold":
        assert verdict.plan == given.get("running", plan(4000))
    else:
        assert verdict.plan.version == 2
    if reason in ("PrefillImbalance", "Congestion", "GainPending", "Optimal", "WithinNoise"):
        assert verdict.current is not None
        assert verdict.best is not None
        assert verdict.best_plan["pd"].threshold_tokens > 0
    again = from_jsonable(Verdict, to_jsonable(verdict))
    assert again == verdict


def test_an_adoption_says_what_from_to_why_and_the_gain() -> None:
    verdict = says()
    assert t_of(verdict) == 6000
    for part in (
        "Raised t of pd from 4,000 to 6,000",
        "because remote prefill of prfaas limits",
        "+",
    ):
        assert part in verdict.message
    (clamp,) = verdict.clamps
    assert clamp.name == "t_max_step_factor"
    assert clamp.allowed == 6000
    assert verdict.adopted.lambda_max_rps > verdict.current.lambda_max_rps
    assert verdict.memory.changes_s == (1000.0,)


def test_a_message_stays_the_same_while_the_facts_do() -> None:
    first = says(seen(1000.0), running=plan(19_500))
    later = says(seen(1002.0), running=plan(19_500), memory=first.memory)
    assert first.message == later.message


def test_a_fresh_install_warms_up_and_pushes_nothing() -> None:
    """S-35: no gate has reported, nothing was ever measured; then the count rises."""
    nothing = pd(demand_rps=None, demand_state="missing", lengths=None, n_prefill=0, n_decode=0)
    unseen = seen(
        pd=dataclasses.replace(nothing, age_s=None),
        link=link(state="missing", tx_gbps=None, age_s=None),
    )
    verdict = says(unseen, running=plan(None), memory=Memory())
    assert (verdict.action, verdict.reason) == ("hold", "WarmingUp")
    assert "warming up 0 of 200" in verdict.message
    some = says(seen(pd=pd(lengths=exact_histogram(57))), memory=Memory())
    assert "warming up 57 of 200" in some.message
    assert some.next_action_at_s == pytest.approx(1000.0 + (200 - 57) / 2.5)


def test_a_hold_names_owner_reason_and_expiry() -> None:
    verdict = says(holds=(hold_of(expires_at_s=1_800_000_000.0),))
    assert t_of(verdict) == 9000
    for part in ("ada", "incident 7", "2027-01-15 08:00:00 UTC"):
        assert part in verdict.message
    waiting = says(running=plan(9000), holds=(hold_of(expires_at_s=1_800_000_000.0),))
    assert waiting.next_action_at_s == 1_800_000_000.0
    assert "ada" in waiting.message


def test_a_hold_goes_through_dwell_and_hour_but_not_through_bounds() -> None:
    full = Memory(last_change_s=998.0, changes_s=(998.0,))
    verdict = says(memory=full, max_changes_per_hour=1, holds=(hold_of(threshold_tokens=200_000),))
    assert (verdict.action, t_of(verdict)) == ("adopt", 131_072)
    assert verdict.clamps[0].name == "t_max_tokens"


def test_a_held_link_that_fails_stays_held() -> None:
    failed = seen(link=DOWN)
    verdict = says(failed, running=plan(9000), holds=(hold_of(),))
    assert (verdict.action, verdict.reason) == ("hold", "Held")


def test_an_advisory_loop_decides_the_same() -> None:
    assert says(mode="advisory").plan == says().plan


def test_a_silent_gate_is_a_warning_not_a_stop() -> None:
    verdict = says(seen(pd=pd(gates_silent=("prfaas-1t/pd/gw-2",))))
    assert verdict.action == "adopt"
    assert any("gw-2" in warning for warning in verdict.warnings)


def test_roles_are_carried_over_and_unseen_instances_assumed() -> None:
    verdict = says(seen(pd=pd(n_prefill=0, n_decode=0)))
    cluster = verdict.plan.clusters["pd"]
    assert (cluster.n_prefill, cluster.n_decode) == (3, 5)
    assert any("roles" in warning for warning in verdict.warnings)


def test_demand_above_capacity_is_said() -> None:
    verdict = says(seen(pd=pd(demand_rps=5.0)), running=plan(19_500))
    assert verdict.current.headroom < 1.0
    assert any("above" in warning for warning in verdict.warnings)


def test_lengths_are_the_windows_never_the_scenarios() -> None:
    """A scenario of tiny prompts beside a window of long ones: only the window counts."""
    document = demo_document()
    document["workload"]["lengths"].update(mu=6.0, sigma=0.5)
    verdict = decide(seen(), plan(4000), READY, ACTIVE, parse_scenario(document))
    assert verdict.best == says().best


class TestLinkDownAndBack:
    def run(self, readings, running=None):
        memory, running = Memory(), running or plan(20_000)
        verdicts = []
        for i, reading in enumerate(readings):
            verdict = decide(seen(1000.0 + 2 * i, link=reading), running, memory, ACTIVE, SCENARIO)
            running, memory = verdict.plan, verdict.memory
            verdicts.append(verdict)
        return verdicts

    def test_down_acts_in_the_same_tick_and_back_after_the_clear_time(self) -> None:
        down, up = DOWN, link(tx_gbps=0.0)
        verdicts = self.run([link()] * 2 + [down] * 5 + [up] * 40)
        acts = [
            (i, v.reason, v.plan.clusters["pd"].mode)
            for i, v in enumerate(verdicts)
            if v.action == "adopt"
        ]
        assert acts[:2] == [(2, "LinkDown", "always_local"), (37, "LinkBack", "threshold")]
        assert t_of(verdicts[37]) == 20_000
        assert len(acts) == 2
        waiting = verdicts[10]
        assert (waiting.action, waiting.reason) == ("hold", "LinkDown")

    def test_a_link_that_flaps_is_not_used_between(self) -> None:
        """S-39 for a failing link: up for less than the clear time is not back."""
        down, up = DOWN, link(tx_gbps=0.0)
        verdicts = self.run(([down] * 2 + [up] * 20) * 10)
        assert sum(v.action == "adopt" for v in verdicts) == 1

    def test_missing_telemetry_does_not_end_a_link_that_is_down(self) -> None:
        down = DOWN
        silent = link(state="missing", tx_gbps=None, age_s=None)
        verdicts = self.run([down] + [silent] * 60)
        assert sum(v.action == "adopt" for v in verdicts) == 1
        assert verdicts[-1].plan.clusters["pd"].mode == "always_local"

    def test_one_of_two_links_down_leaves_the_other(self) -> None:
        document = demo_document()
        document["clusters"].append({**document["clusters"][0], "name": "far"})
        document["links"].append({**document["links"][0], "from": "far"})
        both = {"prfaas": 0.5, "far": 0.5}
        healthy = seen()
        broken = dataclasses.replace(healthy, links={LINK: DOWN, "far->pd": link()})
        verdict = decide(broken, plan(20_000, remote=both), READY, ACTIVE, parse_scenario(document))
        cluster = verdict.plan.clusters["pd"]
        assert (verdict.reason, cluster.mode, cluster.remote) == (
            "LinkDown",
            "threshold",
            {"far": 1.0},
        )
        assert cluster.threshold_tokens == 20_000


def test_two_fleets_in_one_cluster_know_nothing_of_each_other() -> None:
    """S-34: separate t, memory and reasons; leaving one out changes nothing for the other."""
    long, short = exact_histogram(), exact_histogram()
    alone = says(seen(pd=pd(lengths=long)))
    other = dataclasses.replace(
        seen(pd=pd(lengths=short, demand_rps=0.0, demand_state="idle")), fleet="other"
    )
    beside = decide(
        other, dataclasses.replace(plan(9000), fleet="other"), Memory(), ACTIVE, SCENARIO
    )
    again = says(seen(pd=pd(lengths=long)))
    assert again == alone
    assert beside.plan.fleet == "other"
    assert (t_of(alone), t_of(beside), beside.reason) == (6000, 9000, "NoTraffic")


def test_two_pd_clusters_of_one_fleet_move_together() -> None:
    document = demo_document()
    document["clusters"][0]["instances"] = 8
    document["clusters"].append({**document["clusters"][1], "name": "pd2"})
    document["links"].append({**document["links"][0], "to": "pd2"})
    traffic = document.pop("workload")
    document["workloads"] = [{**traffic, "cluster": "pd"}, {**traffic, "cluster": "pd2"}]
    one = seen()
    two = dataclasses.replace(
        one,
        pd={"pd": pd(), "pd2": pd()},
        prefill={"prfaas": dataclasses.replace(one.prefill["prfaas"], n_prefill=8)},
        links={LINK: link(), "prfaas->pd2": link()},
    )
    running = plan(13_000)
    running = dataclasses.replace(
        running, clusters={"pd": running.clusters["pd"], "pd2": running.clusters["pd"]}
    )
    verdict = decide(two, running, READY, ACTIVE, parse_scenario(document))
    assert verdict.action == "adopt"
    for name in ("pd", "pd2"):
        assert 18_000 < t_of(verdict, name) < 20_000


def test_a_cluster_that_is_pinned_keeps_its_t_while_the_other_is_tuned() -> None:
    document = demo_document()
    document["clusters"].append({**document["clusters"][1], "name": "pd2"})
    document["links"].append({**document["links"][0], "to": "pd2"})
    traffic = document.pop("workload")
    document["workloads"] = [{**traffic, "cluster": "pd"}, {**traffic, "cluster": "pd2"}]
    two = dataclasses.replace(
        seen(), pd={"pd": pd(), "pd2": pd()}, links={LINK: link(), "prfaas->pd2": link()}
    )
    running = plan(9000)
    running = dataclasses.replace(
        running, clusters={"pd": running.clusters["pd"], "pd2": running.clusters["pd"]}
    )
    params = dataclasses.replace(ACTIVE, holds=(hold_of(),))
    verdict = decide(two, running, READY, params, parse_scenario(document))
    assert verdict.action == "adopt"
    assert t_of(verdict, "pd") == 9000
    assert t_of(verdict, "pd2") > 9000


def test_a_fleet_without_a_prfaas_cluster_says_so() -> None:
    document = demo_document()
    del document["links"]
    lone = dataclasses.replace(seen(), links={})
    verdict = decide(lone, plan(None), Memory(), ACTIVE, parse_scenario(document))
    assert (verdict.action, verdict.reason) == ("hold", "NoRemote")


def test_from_always_local_t_comes_down_in_steps() -> None:
    verdict = says(running=plan(None))
    cluster = verdict.plan.clusters["pd"]
    assert (cluster.mode, cluster.threshold_tokens) == ("threshold", 87_382)


def test_a_t_of_zero_can_be_left() -> None:
    """Zero is a threshold, not the absence of one."""
    verdict = says(running=plan(0), t_min_tokens=0)
    assert t_of(verdict) == 192
    assert isinstance(verdict.plan.clusters["pd"], ClusterPlan)


def test_memory_of_a_link_survives_in_json() -> None:
    memory = says(seen(link=CONGESTED)).memory
    assert isinstance(memory.links[LINK], LinkMemory)
    assert from_jsonable(Memory, to_jsonable(memory)) == memory
