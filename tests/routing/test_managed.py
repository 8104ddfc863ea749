"""What routers should list, were told, show: drift in one cycle, then adopted or overridden."""

from __future__ import annotations

from typing import Any

import pytest

from routing import managed_work, router_commands
from routing.adapters.surface import Listed
from routing.commands import Refused, Stale
from routing.models import Action, Fleet, ManagedRouter, RoleMove
from tests.routing.cases import after
from tests.routing.rebalancing import open_for
from tests.routing.routers_case import (
    BY,
    D0,
    D1,
    P0,
    P1,
    FakeRouter,
    RefusingRouter,
    act,
    clock,
    cycle,
    fleet_of,
    two_and_two,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, router: FakeRouter) -> Fleet:
    return fleet_of(monkeypatch, router)


def verbs() -> list[str]:
    rows = Action.objects.filter(verb__startswith="router.").order_by("id")
    return list(rows.values_list("verb", flat=True))


def test_what_a_router_lists_at_first_sight_is_desired_and_audited(fleet: Fleet) -> None:
    row = cycle(fleet, 0.0)
    assert (row.state, row.make_version, str(row)) == ("sync", "1.13.0", "f1/pd/r1")
    assert row.desired == {
        P0: {"role": "prefill", "status": "ready"},
        P1: {"role": "prefill", "status": "ready"},
        D0: {"role": "decode", "status": "ready"},
        D1: {"role": "decode", "status": "ready"},
    }
    [action] = Action.objects.filter(verb="router.adopt")
    assert (action.actor, action.after["desired"]) == ("system", row.desired)
    assert cycle(fleet, 2.0).version == row.version, "nothing new, nothing to decide on anew"


def test_a_change_by_hand_shows_in_one_cycle_and_a_second_one_names_another_writer(
    fleet: Fleet, router: FakeRouter
) -> None:
    """S-31."""
    before = cycle(fleet, 0.0)
    router.put(D1, "prefill")
    row = cycle(fleet, 2.0)
    assert (row.state, row.cause, row.other_writer) == ("drifted", "change", "")
    assert row.findings == [f"lists {D1} as prefill, not decode"]
    assert row.observed["workers"][D1]["role"] == "prefill"
    assert row.desired[D1]["role"] == "decode"
    assert row.version == before.version + 1
    assert row.since == after(2.0)
    row = cycle(fleet, 4.0)
    assert row.other_writer == "a person or program unknown"
    assert row.since == after(2.0), "it drifted then, not now"
    assert router.calls == [], "nobody's change is fought unasked"
    assert verbs() == ["router.adopt", "router.drift"]


def test_adopting_makes_what_is_there_desired(fleet: Fleet, router: FakeRouter) -> None:
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    row = act(cycle(fleet, 2.0), 3.0, "adopt")
    assert (row.desired[D1]["role"], row.desired_by, row.state) == ("prefill", "ada", "sync")
    row = cycle(fleet, 4.0)
    assert (row.state, row.findings, row.other_writer) == ("sync", [], "")
    assert router.calls == []
    action = Action.objects.filter(verb="router.adopt").latest("id")
    assert (action.actor, action.before["desired"][D1]["role"]) == ("ada", "decode")


def test_overriding_lists_again_what_is_desired_and_proves_it(
    fleet: Fleet, router: FakeRouter
) -> None:
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    router.put("http://127.0.0.1:9999", "prefill")
    row = act(cycle(fleet, 2.0), 3.0)
    assert (row.operation["state"], router.calls) == ("asked", [])
    row = cycle(fleet, 4.0)
    assert router.calls == [("list_as", D1, "decode"), ("cordon", "http://127.0.0.1:9999")]
    assert (row.operation["state"], row.state) == ("applied", "sync")
    assert row.operation["done"] == [f"list {D1} as decode", "cordon http://127.0.0.1:9999"]
    assert (row.last_applied, row.applied_at) == (row.desired, after(4.0))
    assert verbs()[-3:] == ["router.drift", "router.override", "router.override.end"]
    assert cycle(fleet, 6.0).state == "sync"


def test_yes_is_not_applied(fleet: Fleet, router: FakeRouter) -> None:
    """S-26: a router that answers yes and still shows the old list is never said to be done."""
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    router.lies = True
    act(cycle(fleet, 2.0), 3.0)
    for at_s in range(4, 124, 20):
        row = cycle(fleet, at_s)
        assert (row.operation["state"], row.state) == ("accepted", "applying")
        assert row.findings == [f"lists {D1} as prefill, not decode"]
    row = cycle(fleet, 124.0)
    assert (row.operation["state"], row.last_applied) == ("expired", row.desired)
    assert cycle(fleet, 126.0).state == "drifted"


def test_what_the_router_refuses_ends_as_failed_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router = RefusingRouter()
    for url, role in ((P0, "prefill"), (D0, "decode"), (D1, "decode")):
        router.put(url, role)  # type: ignore[arg-type]
    fleet = fleet_of(monkeypatch, router)
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    act(cycle(fleet, 2.0), 3.0)
    row = cycle(fleet, 4.0)
    assert row.operation["state"] == "failed"
    assert "is the last ready decode instance" in row.operation["error"]
    assert row.last_applied is None


def test_an_override_never_goes_below_a_floor(fleet: Fleet, router: FakeRouter) -> None:
    """Both roles were exchanged by hand: to put one back first would leave no decode instance."""
    router.listed = {P0: Listed(P0, "prefill", "ready"), D0: Listed(D0, "decode", "ready")}
    cycle(fleet, 0.0)
    router.put(P0, "decode")
    router.put(D0, "prefill")
    row = cycle(fleet, 2.0)
    with pytest.raises(Refused, match="leaves 0 ready decode, below 1"):
        act(row, 3.0)
    assert router.calls == []


def test_an_override_lists_no_more_than_there_are(fleet: Fleet, router: FakeRouter) -> None:
    cycle(fleet, 0.0)
    desired = ManagedRouter.objects.get().desired
    more = {f"http://127.0.0.1:92{i:02d}": desired[D0] for i in range(3)}
    ManagedRouter.objects.update(desired={**desired, **more})
    row = cycle(fleet, 2.0)
    with pytest.raises(Refused, match="would list 7 instances of 4 there are"):
        act(row, 3.0)


def test_a_key_is_acted_on_once_and_answered_alike(fleet: Fleet, router: FakeRouter) -> None:
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    row = cycle(fleet, 2.0)
    first = act(row, 3.0, key="k1")
    again = router_commands.override(
        fleet="f1", router_id=row.pk, if_version=row.version, key="k1", now=after(3.5), **BY
    )
    assert again.repeated
    assert again.router.operation == first.operation
    assert verbs().count("router.override") == 1
    with pytest.raises(Refused, match="was used for router"):
        act(first, 3.6, "adopt", key="k1")
    with pytest.raises(Refused, match="was used by ada"):
        act(first, 3.6, key="k1", actor="bob")
    with pytest.raises(Refused, match="was used for another"):
        act(first, 3.6, key="k1", reason="something else")
    assert ManagedRouter.objects.get().operation == first.operation


def test_nobody_decides_on_what_they_have_not_seen(fleet: Fleet, router: FakeRouter) -> None:
    seen = cycle(fleet, 0.0)
    router.put(D1, "prefill")
    cycle(fleet, 2.0)
    with pytest.raises(Stale):
        act(seen, 3.0, "adopt")
    assert ManagedRouter.objects.get().desired[D1]["role"] == "decode"


def test_an_operation_is_cancelled_or_superseded(fleet: Fleet, router: FakeRouter) -> None:
    """S-57."""
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    act(cycle(fleet, 2.0), 3.0)
    router.away = True
    row = cycle(fleet, 4.0)
    assert (row.state, row.operation["state"], router.calls) == ("unreachable", "asked", [])
    router_commands.cancel(fleet="f1", router_id=row.pk, now=after(5.0), **BY)
    router.away = False
    row = cycle(fleet, 6.0)
    assert (row.operation["state"], router.calls) == ("cancelled", [])
    row = act(row, 7.0)
    row = act(row, 8.0, "adopt")
    assert (row.operation["state"], row.state) == ("superseded", "sync")
    cycle(fleet, 9.0)
    assert router.calls == []


def dies_in_a_step(
    monkeypatch: pytest.MonkeyPatch, router: FakeRouter, at_s: float, *, it_is_done: bool = False
) -> None:
    """A cycle ends while it tells the router a role, which that may have taken by then."""

    def killed(url: str, role: Any) -> None:
        if it_is_done:
            router.put(url, role)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(router, "list_as", killed)
        with pytest.raises(KeyboardInterrupt):
            managed_work.reconcile(clock(at_s))


def test_a_worker_that_died_in_a_step_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, fleet: Fleet, router: FakeRouter
) -> None:
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    act(cycle(fleet, 2.0), 3.0)

    dies_in_a_step(monkeypatch, router, 4.0)
    assert cycle(fleet, 6.0).operation["state"] == "sent", "the dead one may still be at it"
    assert router.calls == []
    row = cycle(fleet, 36.0)
    assert (row.operation["state"], router.calls) == ("applied", [("list_as", D1, "decode")])
    assert verbs().count("router.override") == 1


def test_a_worker_that_died_once_the_router_had_done_it_is_followed_too(
    monkeypatch: pytest.MonkeyPatch, fleet: Fleet, router: FakeRouter
) -> None:
    """Done and not written down: the next one finds nothing left to do, and says so once."""
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    act(cycle(fleet, 2.0), 3.0)

    dies_in_a_step(monkeypatch, router, 4.0, it_is_done=True)
    row = cycle(fleet, 36.0)
    assert (row.operation["state"], row.state, router.calls) == ("applied", "sync", [])
    assert verbs()[-2:] == ["router.override", "router.override.end"]


def test_an_old_list_after_a_silence_is_a_restart_and_no_other_writer(
    fleet: Fleet, router: FakeRouter
) -> None:
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    act(cycle(fleet, 2.0), 3.0, "adopt")
    router.away = True
    row = cycle(fleet, 4.0)
    assert (row.state, row.away_since) == ("unreachable", after(4.0))
    assert row.findings == ["http://127.0.0.1:9300: does not answer"]
    router.away = False
    router.put(D1, "decode")
    for at_s in (6.0, 8.0):
        row = cycle(fleet, at_s)
        assert (row.state, row.cause, row.other_writer) == ("drifted", "restart", "")
    assert "it restarted with an old one" in row.findings[-1]


def test_a_new_process_is_a_restart_too(fleet: Fleet, router: FakeRouter) -> None:
    router.facts = {"started_at_s": 100.0}
    cycle(fleet, 0.0)
    router.facts = {"started_at_s": 200.0}
    del router.listed[D1]
    assert cycle(fleet, 2.0).cause == "restart"


def test_a_foreign_marker_is_said_at_once(fleet: Fleet, router: FakeRouter) -> None:
    router.facts = {"other_writer": "the manifest /etc/smg/discovery.json"}
    row = cycle(fleet, 0.0)
    assert row.other_writer == "the manifest /etc/smg/discovery.json"
    assert row.findings == ["its list is also written by the manifest /etc/smg/discovery.json"]


def test_the_policy_override_puts_back_but_does_not_fight_for_ever(
    fleet: Fleet, router: FakeRouter
) -> None:
    row = cycle(fleet, 0.0)
    router_commands.set_on_drift(
        fleet="f1", router_id=row.pk, on_drift="override", now=after(1.0), **BY
    )
    for i in range(3):
        router.put(D1, "prefill")
        row = cycle(fleet, 2.0 + 2 * i)
        assert (row.operation["state"], row.operation["by"]) == ("applied", "system")
        assert router.listed[D1].role == "decode"
    router.put(D1, "prefill")
    row = cycle(fleet, 10.0)
    assert (row.state, len(router.calls)) == ("drifted", 3)
    assert "left as it is until a person" in row.findings[-1]
    row = cycle(fleet, 620.0)
    assert router.listed[D1].role == "decode", "and it tries again when that was long ago"


def test_a_version_nobody_tried_is_read_only(fleet: Fleet, router: FakeRouter) -> None:
    router.version = "2.0.0"
    row = cycle(fleet, 0.0)
    assert (row.state, row.make_version) == ("read_only", "2.0.0")
    assert row.findings == ["version 2.0.0 was not tried: it is read, and not changed"]
    router.put(D1, "prefill")
    row = cycle(fleet, 2.0)
    assert row.state == "drifted", "what it lists is shown all the same"
    with pytest.raises(Refused, match="was not tried"):
        act(row, 3.0)
    assert act(row, 3.0, "adopt").desired[D1]["role"] == "prefill"


def test_a_move_of_roles_is_no_drift_and_its_end_is_desired(
    fleet: Fleet, router: FakeRouter
) -> None:
    cycle(fleet, 0.0)
    row = open_for(fleet, (1, 3))
    move = RoleMove.objects.create(
        rebalance=row, seq=1, instance="f1/pd/p1", url=P1, from_role="prefill", to_role="decode",
        step="drain", step_since=after(1.0),
    )  # fmt: skip
    router.put(P1, "prefill", "draining")
    found = cycle(fleet, 2.0)
    assert (found.state, found.findings) == ("applying", [])
    with pytest.raises(Refused, match="a rebalance moves"):
        act(found, 2.5)
    router.put(P1, "decode")
    move.step, move.finished_at = "done", after(3.0)
    move.save()
    row.state, row.finished_at = "done", after(3.0)
    row.save()
    found = cycle(fleet, 4.0)
    assert (found.state, found.desired[P1]["role"]) == ("sync", "decode")
    assert found.last_applied[P1]["role"] == "decode"
    router.put(P1, "prefill")
    assert cycle(fleet, 6.0).findings == [f"lists {P1} as prefill, not decode"]


def test_a_router_the_scenario_names_no_more_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, fleet: Fleet
) -> None:
    cycle(fleet, 0.0)
    fleet_of(monkeypatch)
    managed_work.reconcile(clock(2.0))
    assert not ManagedRouter.objects.exists()
    assert verbs()[-1] == "router.forget"


def test_one_router_that_is_away_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = two_and_two(url="http://127.0.0.1:9301", away=True)
    alive = two_and_two(url="http://127.0.0.1:9302")
    fleet = fleet_of(monkeypatch, dead, alive)
    assert cycle(fleet, 0.0).state == "unreachable"
    assert ManagedRouter.objects.get(name="r2").state == "sync"


def test_settings_that_cannot_be_meant_are_shown_and_not_raised(fleet: Fleet) -> None:
    def refuse(kind: str, settings: Any) -> Any:
        raise ValueError("url = 3: expected str")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("routing.managed_sites.surface_of", refuse)
        row = cycle(fleet, 0.0)
    assert (row.state, row.findings) == ("unreachable", ["url = 3: expected str"])
