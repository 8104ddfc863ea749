"""From a decision to proof: documents, acks, and sentences about routers that do otherwise."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from routing import commands, delivery, fleets, router_states, scheduler
from routing.models import Action, Decision, Delivery, Fleet, RouterState
from tests.routing.cases import NOW, Gate, after, feed, make_fleet

pytestmark = pytest.mark.django_db

GW = "f1/pd/gw-1"


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def issue(fleet: Fleet, threshold_tokens: int | None, *, at: datetime.datetime) -> Decision:
    """The next plan, through a hold: independent of what the model would choose."""
    for hold in commands.open_holds(fleet, at):
        commands.release_hold(hold_id=hold.pk, actor="t", via="test", reason="next", now=at)
    commands.place_hold(
        fleet=fleet.pk,
        mode="always_local" if threshold_tokens is None else "threshold",
        threshold_tokens=threshold_tokens,
        owner="t",
        reason="test",
        expires_at=at + datetime.timedelta(hours=1),
        actor="t",
        via="test",
        now=at,
    )
    scheduler.run_tick(fleet.pk, now=at, tick_s=2.0)
    decision = fleets.newest_adopted(fleet)
    assert decision is not None
    return decision


def first(fleet: Fleet) -> Decision:
    scheduler.run_tick(fleet.pk, now=NOW, tick_s=2.0)
    decision = fleets.newest_adopted(fleet)
    assert decision is not None
    return decision


def ack(fleet: Fleet, running: Any, *, at: datetime.datetime, **values: Any) -> None:
    delivery.record_ack(
        **{
            "fleet": fleet,
            "router": GW,
            "running": running,
            "state": "running" if running else "no_plan",
            "error": None,
            "transport": "socket",
            "now": at,
            **values,
        }
    )


def states() -> dict[tuple[int, str], str]:
    return {(d.decision.version, d.router): d.state for d in Delivery.objects.all()}


def test_the_document_says_what_routers_need(fleet: Fleet) -> None:
    document = delivery.document(first(fleet))
    assert document == {
        "fleet": "f1",
        "epoch": 1,
        "version": 1,
        "issued_at_s": NOW.timestamp(),
        "reason": "Initial",
        "clusters": {
            "pd": {
                "mode": "threshold",
                "threshold_tokens": 4000,
                "band": [3333, 4800],
                "cache_mode": "scarce",
                "moves": {},
                "remote": {"prfaas": 1.0},
                "max_remote_in_flight": None,
                "n_prefill": 3,
                "n_decode": 5,
                "transport": {"prfaas": {"connections": 19, "pacing_gbps": 95.0}},
            }
        },
    }


def test_without_a_threshold_there_is_no_band(fleet: Fleet) -> None:
    first(fleet)
    cluster = delivery.document(issue(fleet, None, at=after(2)))["clusters"]["pd"]
    assert (cluster["mode"], cluster["threshold_tokens"], cluster["band"]) == (
        "always_local",
        None,
        None,
    )


def test_a_delivery_goes_from_sent_to_applied(fleet: Fleet) -> None:
    ack(fleet, None, at=after(-5))
    decision = first(fleet)
    assert states() == {(1, GW): "sent"}
    assert delivery.summaries([decision])[decision.pk]["state"] == "sent"
    ack(fleet, (1, 1), at=after(1))
    assert states() == {(1, GW): "applied"}
    summary = delivery.summaries([decision])[decision.pk]
    assert (summary["state"], summary["n_applied"], summary["n_routers"]) == ("applied", 1, 1)
    assert Delivery.objects.get().applied_at == after(1)


def test_applied_means_every_gate(fleet: Fleet) -> None:
    for router in (GW, "f1/pd/gw-2"):
        ack(fleet, None, at=NOW, router=router)
    decision = first(fleet)
    ack(fleet, (1, 1), at=after(1))
    assert delivery.summaries([decision])[decision.pk]["state"] == "sent"
    ack(fleet, (1, 1), at=after(2), router="f1/pd/gw-2")
    assert delivery.summaries([decision])[decision.pk]["state"] == "applied"


def test_of_many_routers_a_list_shows_those_first_that_do_not_run_it(fleet: Fleet) -> None:
    names = [f"f1/pd/gw-{n}" for n in range(1, 6)]
    for router in names:
        ack(fleet, None, at=NOW, router=router)
    decision = first(fleet)
    for router in names[:4]:
        ack(fleet, (1, 1), at=after(1), router=router)
    counted = {"state": "sent", "n_applied": 4, "n_routers": 5}
    assert delivery.counts([decision])[decision.pk] == counted
    found = delivery.summaries([decision], most_routers=2)[decision.pk]
    assert [row["router"] for row in found.pop("routers")] == [names[4], names[0]]
    assert found == counted


def test_a_heartbeat_does_not_apply_twice(fleet: Fleet) -> None:
    first(fleet)
    ack(fleet, (1, 1), at=after(1))
    ack(fleet, (1, 1), at=after(6))
    assert Delivery.objects.get().applied_at == after(1)
    assert RouterState.objects.get().last_seen_at == after(6)


def test_a_refusal_is_a_failed_delivery_with_its_reason(fleet: Fleet) -> None:
    first(fleet)
    ack(fleet, (1, 1), at=after(1))
    decision = issue(fleet, 8_000, at=after(2))
    ack(fleet, (1, 1), at=after(3), state="refused", error="no such cluster")
    summary = delivery.summaries([decision])[decision.pk]
    assert summary["state"] == "failed"
    assert summary["routers"][0]["error"] == "no such cluster"
    assert states()[1, GW] == "applied", "what ran before stays proven"


def test_a_newer_plan_supersedes_one_that_was_not_applied_yet(fleet: Fleet) -> None:
    ack(fleet, None, at=NOW)
    first(fleet)
    issue(fleet, 8_000, at=after(2))
    assert states() == {(1, GW): "superseded", (2, GW): "sent"}
    ack(fleet, (1, 2), at=after(3))
    assert states()[2, GW] == "applied"


def test_a_router_that_joins_later_is_expected_to_run_the_newest(fleet: Fleet) -> None:
    decision = first(fleet)
    assert delivery.summaries([decision])[decision.pk]["state"] == "unclaimed"
    ack(fleet, None, at=after(600))
    assert states() == {(1, GW): "sent"}


def test_a_router_not_heard_of_is_not_waited_for(fleet: Fleet) -> None:
    ack(fleet, None, at=after(-300))
    first(fleet)
    assert states() == {}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("router", {"router": "gw-1"}),
        ("router", {"router": "f2/pd/gw-1"}),
        ("router", {"router": "f1/prfaas/gw-1"}),
        ("router", {"router": "f1/pd/" + "x" * 300}),
        ("state", {"state": "fine"}),
    ],
)
def test_an_ack_that_cannot_be_meant_names_its_field(
    fleet: Fleet, field: str, values: dict[str, Any]
) -> None:
    with pytest.raises(delivery.AckError) as refused:
        ack(fleet, (1, 1), at=NOW, **values)
    assert refused.value.field == field
    assert not RouterState.objects.exists()


def findings(fleet: Fleet, *, at: datetime.datetime) -> list[str]:
    return [text for row in router_states.routers(fleet, at) for text in row["findings"]]


def test_a_router_that_runs_the_plan_is_not_remarked_upon(fleet: Fleet) -> None:
    first(fleet)
    ack(fleet, (1, 1), at=after(1))
    feed([Gate(plan=(1, 1)).sample(NOW.timestamp() + 1)])
    assert findings(fleet, at=after(12)) == []


@pytest.mark.parametrize(
    ("running", "state", "ack_at_s", "look_at_s", "sentence"),
    [
        ((1, 9), "running", 1, 12, "another console"),
        ((2, 1), "running", 1, 12, "raise the epoch"),
        (None, "no_plan", 12, 12, "runs no plan; 1.1 was issued 12 s ago"),
        ((1, 1), "running", 1, 60, "has not been heard of for 59 s"),
        (None, "refused", 12, 12, "refused the plan"),
    ],
)
def test_drift_is_said_in_a_sentence(
    fleet: Fleet, running: Any, state: str, ack_at_s: float, look_at_s: float, sentence: str
) -> None:
    first(fleet)
    ack(fleet, running, at=after(ack_at_s), state=state)
    assert any(sentence in text for text in findings(fleet, at=after(look_at_s)))


def test_a_plan_just_issued_is_not_late_yet(fleet: Fleet) -> None:
    ack(fleet, None, at=after(1))
    first(fleet)
    assert findings(fleet, at=after(2)) == []


def test_the_scraped_version_is_a_second_witness(fleet: Fleet) -> None:
    first(fleet)
    ack(fleet, (1, 1), at=after(20))
    feed([Gate(plan=(1, 0)).sample(NOW.timestamp() + 20)])
    assert findings(fleet, at=after(21)) == [f"{GW} acks one plan and its metrics show another"]


def test_a_gate_that_only_reports_telemetry_is_listed(fleet: Fleet) -> None:
    feed([Gate().sample(NOW.timestamp())])
    [row] = router_states.routers(fleet, after(1))
    assert row["state"] == "never_acked"
    assert "never asked this console" in row["findings"][0]


def test_a_router_of_another_make_takes_no_plan_and_is_not_asked_for_one(fleet: Fleet) -> None:
    feed([Gate("f1/pd/epp", kind="llm-d").sample(NOW.timestamp())])
    assert router_states.routers(fleet, after(1)) == []


def test_what_postgresql_cannot_store_does_not_end_an_ack(fleet: Fleet) -> None:
    """A null character in the error is dropped; in the name it is no name."""
    said = {"fleet": fleet, "running": None, "state": "no_plan", "transport": "socket", "now": NOW}
    delivery.record_ack(router=GW, error="a\0b", **said)
    assert RouterState.objects.get(router=GW).error == "ab"
    with pytest.raises(delivery.AckError, match="FLEET/CLUSTER/NAME"):
        delivery.record_ack(router="f1/pd/g\0w", error=None, **said)


def test_a_gate_that_is_gone_for_a_day_no_longer_counts(fleet: Fleet) -> None:
    """S-20 for routers: a retired gate must not keep a decision unfinished for ever."""
    decision = first(fleet)
    ack(fleet, (1, 1), at=after(1))
    ack(fleet, None, at=after(1), router="f1/pd/gw-2", state="refused", error="not mine")
    summary = delivery.summaries([decision])[decision.pk]
    assert (summary["n_applied"], summary["n_routers"]) == (1, 2)

    ack(fleet, (1, 1), at=after(90_000))
    assert delivery.forget_routers(after(3_600)) == 1
    summary = delivery.summaries([decision])[decision.pk]
    assert (summary["state"], summary["n_applied"], summary["n_routers"]) == ("applied", 1, 1)
    assert [r.router for r in RouterState.objects.all()] == [GW]


def summary(decision: Decision) -> dict[str, Any]:
    return delivery.summaries([decision])[decision.pk]


def silent_gate(fleet: Fleet) -> Decision:
    """A plan that waits for a gate which was heard of a moment before it was pushed."""
    first(fleet)
    ack(fleet, (1, 1), at=after(1))
    return issue(fleet, 9000, at=after(10))


def cancel(decision: Decision, router: str = GW, reason: str = "rack is down") -> None:
    delivery.cancel(decision, router=router, actor="ada", via="test", reason=reason, now=after(30))


def test_an_operator_stops_waiting_for_a_gate_that_does_not_answer(fleet: Fleet) -> None:
    """S-57."""
    decision = silent_gate(fleet)
    assert summary(decision)["state"] == "sent"
    cancel(decision)
    [row] = summary(decision)["routers"]
    assert (row["state"], row["error"]) == ("cancelled", "ada: rack is down")
    action = Action.objects.get(verb="delivery.cancel")
    assert (action.actor, action.target) == ("ada", f"plan 1.2 to {GW}")
    assert (action.before, action.after) == ({"state": "sent"}, {"state": "cancelled"})


@pytest.mark.parametrize(
    ("router", "reason", "field"),
    [(GW, " ", "reason"), ("f1/pd/nobody", "x", "router")],
)
def test_what_is_not_waited_for_cannot_be_cancelled(
    fleet: Fleet, router: str, reason: str, field: str
) -> None:
    decision = silent_gate(fleet)
    with pytest.raises(commands.Refused) as refused:
        cancel(decision, router, reason)
    assert refused.value.field == field
    ack(fleet, (1, 2), at=after(20))
    with pytest.raises(commands.Refused, match="is not waited for: it is applied"):
        cancel(decision)
    assert not Action.objects.filter(verb="delivery.cancel").exists()


def test_a_cancelled_wait_is_not_overtaken_and_proof_still_counts(fleet: Fleet) -> None:
    decision = silent_gate(fleet)
    cancel(decision)
    newer = issue(fleet, 7000, at=after(40))
    assert summary(decision)["state"] == "cancelled"
    ack(fleet, (1, 1), at=after(200))
    assert delivery.newest_document(fleet)["version"] == newer.version
    ack(fleet, (1, 2), at=after(201))
    assert summary(decision)["state"] == "applied", "it did run it"
