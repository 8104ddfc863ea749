"""A plan that harms is taken back with its evidence, held for a time, and then left to the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from routing import commands, delivery, effect_checks, fleets, scheduler
from routing.core.jsonable import to_jsonable
from routing.core.scenario.tables import ScenarioError
from routing.models import Action, Decision, EffectCheck, Fleet, Hold, Policy, Tick
from telemetry import wire
from tests.console.page_case import plan
from tests.routing.cases import NOW_S, after, feed, make_fleet

pytestmark = pytest.mark.django_db

GATE = "f1/pd/gw-1"
EDGES = [0.05 * 1.1**i for i in range(80)]
V1_S, V2_S = 0.0, 600.0
DUE_S = effect_checks.SETTLES_S + effect_checks.WINDOW_S + 1.0


@dataclass
class Traffic:
    """A gate's counters; every ten seconds 30 requests, half of them remote."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    requests: float = 0.0
    errors: float = 0.0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(len(EDGES) + 1))

    def run(
        self, since_s: float, until_s: float, *, median_s: float = 1.0, errors: float = 0.0
    ) -> None:
        samples = []
        for at_s in np.arange(since_s, until_s, 10.0):
            drawn = median_s * np.exp(0.5 * self.rng.standard_normal(30))
            np.add.at(self.counts, np.searchsorted(EDGES, drawn), 1)
            self.requests += 30
            self.errors += 30 * errors
            samples.append(self._sample(NOW_S + float(at_s)))
        feed(samples)

    def _sample(self, at_s: float) -> wire.RouterSample:
        half = self.requests / 2
        return wire.RouterSample(
            id=GATE,
            kind="gate",
            at_s=at_s,
            epoch_s=NOW_S - 10_000.0,
            signals=wire.RouterSignals(
                requests_total={"local|short": half, "remote|long": half},
                errors_total={"local": self.errors},
                prompt_tokens_total=20_000.0 * self.requests,
                ttft_seconds={"local": wire.Histogram(EDGES, self.counts.tolist(), 0.0)},
            ),
        )


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


@pytest.fixture
def traffic() -> Traffic:
    """Ten minutes of it around the first plan."""
    made = Traffic()
    made.run(-200.0, 600.0)
    return made


def issue(
    fleet: Fleet, version: int, t: int, at_s: float, *, reason: str = "PrefillImbalance"
) -> Decision:
    """A plan as the loop issues one, run by the gate a second later."""
    decision = Decision.objects.create(
        fleet=fleet,
        epoch=1,
        version=version,
        plan=to_jsonable(plan(fleet.pk, version, t)),
        reason=reason,
        message="",
        created_at=after(at_s),
    )
    delivery.open_deliveries(decision, after(at_s))
    effect_checks.begin(decision, after(at_s))
    ack(fleet, version, at_s + 1.0)
    return decision


def ack(fleet: Fleet, version: int, at_s: float) -> None:
    delivery.record_ack(
        fleet=fleet,
        router=GATE,
        running=(1, version),
        state="running",
        error=None,
        transport="poll",
        now=after(at_s),
    )


def checked(at_s: float) -> list[str]:
    return [row.outcome for row in effect_checks.check_due(lambda: after(at_s))]


def ticked(fleet: Fleet, at_s: float) -> Tick:
    found = scheduler.run_tick(fleet.pk, now=after(at_s), tick_s=2.0)
    assert found is not None
    return found


def t_now(fleet: Fleet) -> int:
    newest = fleets.newest_adopted(fleet)
    assert newest is not None
    return int(newest.plan["clusters"]["pd"]["threshold_tokens"])


def good_then(fleet: Fleet, **second: Any) -> Decision:
    """v1, seen to be good, and then v2."""
    first = issue(fleet, 1, 4000, V1_S)
    assert checked(DUE_S - 5.0) == [], "not before it was seen long enough"
    assert checked(DUE_S) == ["good"]
    assert effect_checks.last_known_good(fleet) == first
    return issue(fleet, 2, 9000, V2_S, **second)


def test_harm_is_held_at_the_last_known_good_plan_until_it_runs_out(
    fleet: Fleet, traffic: Traffic
) -> None:
    """S-56, by the machine: owner, reason, evidence and expiry; then automatic with an event."""
    second = good_then(fleet)
    traffic.run(V2_S + 10.0, V2_S + 300.0, median_s=3.0)
    at_s = V2_S + DUE_S
    assert checked(at_s) == ["harm"]
    assert checked(at_s + 2.0) == [], "once"
    hold = Hold.objects.get()
    assert (hold.owner, hold.cluster, hold.threshold_tokens) == ("system", "pd", 4000)
    assert hold.expires_at == after(at_s + effect_checks.REVERT_S)
    assert hold.reason.startswith("Back to plan 1.1: after 1.2 TTFT p90 rose from 1.")
    check = EffectCheck.objects.get(decision=second)
    assert check.hold == hold
    assert check.evidence["pd"]["after"]["ttft_p90_s"] > 1.5 * 1.9
    assert check.evidence["pd"]["before"]["requests"] == pytest.approx(570, abs=60)
    assert effect_checks.last_known_good(fleet) != second
    tick = ticked(fleet, at_s + 2.0)
    assert (tick.action, tick.reason, t_now(fleet)) == ("adopt", "Held", 4000)
    version = fleets.newest_adopted(fleet)
    for later_s in range(4, 40, 2):
        ticked(fleet, at_s + later_s)
    assert fleets.newest_adopted(fleet) == version, "the next ticks do not overwrite it"
    assert checked(at_s + 300.0) != ["harm"]
    ticked(fleet, at_s + effect_checks.REVERT_S + 10.0)
    expired = Action.objects.get(verb="hold.expire")
    assert (expired.actor, commands.open_holds(fleet, after(at_s + 3700.0))) == ("system", [])
    [harm] = Action.objects.filter(verb="plan.harm")
    assert (harm.target, harm.before, harm.after["held"]) == ("plan 1.2", {"good": "1.1"}, True)


def test_a_plan_that_harms_again_is_taken_back_for_twice_as_long(
    fleet: Fleet, traffic: Traffic
) -> None:
    second = good_then(fleet)
    hold = commands.place_hold(
        fleet="f1", cluster="pd", mode="threshold", threshold_tokens=4000, owner="system",
        expires_at=after(V1_S + 500.0), actor="system", via="scheduler", reason="before",
        now=after(V1_S + 300.0),
    )  # fmt: skip
    EffectCheck.objects.filter(decision__version=1).update(hold=hold)
    traffic.run(V2_S + 10.0, V2_S + 300.0, errors=0.1)
    assert checked(V2_S + DUE_S) == ["harm"]
    again = EffectCheck.objects.get(decision=second).hold
    assert again is not None
    assert again.expires_at == after(V2_S + DUE_S + 2 * effect_checks.REVERT_S)
    assert "errors rose from 0.0% to 10.0% of requests" in again.reason


@pytest.mark.parametrize(
    ("reason", "mode", "why"),
    [
        ("Held", "active", "a plan for Held is not the loop's own choice"),
        ("LinkDown", "active", "a plan for LinkDown is not the loop's own choice"),
        ("PrefillImbalance", "advisory", "the loop is advisory"),
    ],
)
def test_what_the_loop_did_not_choose_is_said_and_not_taken_back(
    fleet: Fleet, traffic: Traffic, reason: str, mode: str, why: str
) -> None:
    second = good_then(fleet, reason=reason)
    Policy.objects.update(mode=mode)
    traffic.run(V2_S + 10.0, V2_S + 300.0, median_s=3.0)
    assert checked(V2_S + DUE_S) == ["harm"]
    assert not Hold.objects.exists()
    assert EffectCheck.objects.get(decision=second).text.endswith(f"Not taken back: {why}.")
    assert Action.objects.get(verb="plan.harm").after["held"] is False


def test_a_person_who_holds_the_cluster_is_not_overruled(fleet: Fleet, traffic: Traffic) -> None:
    good_then(fleet)
    commands.place_hold(
        fleet="f1", cluster="pd", mode="threshold", threshold_tokens=9000, owner="ada",
        expires_at=after(V2_S + 3600.0), actor="ada", via="test", reason="mine",
        now=after(V2_S + 10.0),
    )  # fmt: skip
    traffic.run(V2_S + 10.0, V2_S + 300.0, median_s=3.0)
    assert checked(V2_S + DUE_S) == ["harm"]
    assert [hold.owner for hold in Hold.objects.all()] == ["ada"]
    assert "ada already holds pd" in EffectCheck.objects.get(decision__version=2).text


def test_without_a_plan_known_to_be_good_nothing_is_taken_back(fleet: Fleet) -> None:
    traffic = Traffic()
    traffic.run(V2_S - 200.0, V2_S)
    traffic.run(V2_S + 10.0, V2_S + 300.0, median_s=3.0)
    issue(fleet, 1, 4000, V2_S)
    assert checked(V2_S + DUE_S) == ["harm"]
    assert not Hold.objects.exists()
    assert "no earlier plan is known to be good" in EffectCheck.objects.get().text


def test_plans_in_quick_succession_are_one_change_compared_with_what_was_before(
    fleet: Fleet, traffic: Traffic
) -> None:
    good_then(fleet)
    traffic.run(V2_S + 10.0, V2_S + 70.0, median_s=2.0)
    issue(fleet, 3, 13_500, V2_S + 60.0)
    traffic.run(V2_S + 70.0, V2_S + 400.0, median_s=2.0)
    assert checked(V2_S + 60.0 + DUE_S) == ["harm"], "against v1, not against v2's own harm"
    assert [c.outcome for c in EffectCheck.objects.order_by("decision")] == [
        "good", "unknown", "harm",
    ]  # fmt: skip
    assert Hold.objects.get().threshold_tokens == 4000


def test_a_plan_not_applied_everywhere_is_not_known_good(fleet: Fleet, traffic: Traffic) -> None:
    first = issue(fleet, 1, 4000, V1_S)
    delivery.record_ack(
        fleet=fleet, router="f1/pd/gw-2", running=None, state="no_plan", error=None,
        transport="poll", now=after(2.0),
    )  # fmt: skip
    assert checked(DUE_S) == ["good"]
    assert effect_checks.last_known_good(fleet) is None
    delivery.record_ack(
        fleet=fleet, router="f1/pd/gw-2", running=(1, 1), state="running", error=None,
        transport="poll", now=after(DUE_S + 1.0),
    )  # fmt: skip
    assert effect_checks.last_known_good(fleet) == first


def test_a_check_nobody_made_in_time_says_nothing(fleet: Fleet, traffic: Traffic) -> None:
    issue(fleet, 1, 4000, V1_S)
    assert checked(V1_S + DUE_S + effect_checks.GIVEN_UP_S + 1.0) == ["unknown"]


def test_a_burst_after_a_plan_is_not_its_harm(fleet: Fleet, traffic: Traffic) -> None:
    """A minute of long queues raises the 90th percentile as much, and proves nothing."""
    second = good_then(fleet)
    traffic.run(V2_S + 10.0, V2_S + 100.0)
    traffic.run(V2_S + 100.0, V2_S + 160.0, median_s=6.0)
    traffic.run(V2_S + 160.0, V2_S + 300.0)
    assert checked(V2_S + DUE_S) == ["unknown"]
    text = EffectCheck.objects.get(decision=second).text
    assert text.startswith("pd: TTFT p90 rose from 1.")
    assert text.endswith("but not for as long as was looked.")
    assert not Hold.objects.exists()


def test_a_check_that_fails_stops_no_other(
    fleet: Fleet, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_fleet("f2")
    broken = Decision.objects.create(
        fleet=other, epoch=1, version=1, plan={}, message="", created_at=after(V1_S - 1.0)
    )
    effect_checks.begin(broken, after(V1_S - 1.0))
    issue(fleet, 1, 4000, V1_S)
    scenario_of = fleets.scenario_of

    def only_f1(asked: Fleet) -> Any:
        if asked.pk == "f2":
            raise ScenarioError("clusters", None, "cannot be meant any more")
        return scenario_of(asked)

    monkeypatch.setattr(fleets, "scenario_of", only_f1)
    assert checked(V1_S + DUE_S) == ["good"]
    assert EffectCheck.objects.get(decision=broken).outcome == "pending"
