"""A freeze in the life of a fleet: the loop, people, jobs, moves of roles, who may override it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from routing import commands, link_breakers, router_commands
from routing.audit import SYSTEM
from routing.commands import Refused, Stale
from routing.jobs import runs
from routing.jobs.models import JobRun
from routing.models import Action, Decision, Fleet, Policy, Tick
from routing.replay import verify
from routing.windows import in_force, windows
from routing.windows.models import Override, Window
from routing.windows.refusing import FrozenNow
from tests.routing import test_rebalance_by_hand as by_hand
from tests.routing.cases import NOW, after, make_fleet
from tests.routing.jobs import case as jobs_case
from tests.routing.test_scheduler import hold, run_with_traffic
from tests.routing.windows.case import BY, FREEZE, now_on, put

pytestmark = pytest.mark.django_db


def plans() -> list[tuple[str, float]]:
    """Of each plan pushed its reason and second."""
    rows = Decision.objects.filter(version__isnull=False).order_by("version")
    return [(row.reason, (row.created_at - NOW).total_seconds()) for row in rows]


def mode(wanted: str, **options: Any) -> Policy:
    version = Policy.objects.get().version
    options = {"now": after(60.0)} | BY | options
    return commands.set_policy(fleet="f1", changes={"mode": wanted}, if_version=version, **options)


def test_the_loop_decides_and_does_not_push_until_it_ends() -> None:
    make_fleet()
    document = FREEZE | {
        "when": {"zone": "UTC", "from": "2026-11-29 12:00", "to": "2026-11-29 12:01"}
    }
    put(document, now=after(-1.0))
    run_with_traffic(80.0)
    assert plans()[0] == ("Initial", 0.0), "gates need a plan to run at all"
    reason, at_s = plans()[1]
    assert (reason, at_s) == ("PrefillImbalance", 60.0), "the first second after it"
    held = Tick.objects.filter(reason="Frozen").order_by("seq")
    assert held.count() > 5
    said = held[0].verdict
    assert said["message"].startswith(
        "Kept back by freeze black-friday until 2026-11-29 12:01:00 UTC: peak trading. Without it: "
    )
    assert said["best_plan"]["pd"]["threshold_tokens"] > 4000
    assert not Decision.objects.filter(tick__reason="Frozen").exists()


def test_the_ticks_of_a_freeze_are_decided_again_alike() -> None:
    fleet = make_fleet()
    now_on()
    run_with_traffic(60.0)
    found = verify(Fleet.objects.get(pk=fleet.pk), after(-10.0), after(100.0))
    assert Tick.objects.filter(reason="Frozen").exists()
    assert (found.n_different, found.differences) == (0, ())
    assert found.n_equal > 20
    windows.delete(name="black-friday", if_version=None, actor="ada", via="test", reason="")
    assert verify(Fleet.objects.get(pk=fleet.pk), after(-10.0), after(100.0)).n_different == 0


def test_people_are_refused_and_told_until_when() -> None:
    fleet = make_fleet()
    now_on()
    with pytest.raises(FrozenNow) as caught:
        hold(9000, at_s=60.0)
    assert caught.value.message == (
        "f1 is frozen by black-friday until 2026-11-29 12:10 UTC: peak trading"
    )
    refused: list[Callable[[], object]] = [
        lambda: commands.set_policy(
            fleet="f1",
            changes={"knobs": {"band_ratio": 0.1}},
            if_version=1,
            now=after(60.0),
            **BY,
        ),
        lambda: commands.raise_epoch(fleet="f1", now=after(60.0), **BY),
        lambda: link_breakers.reset(fleet=fleet, link="prfaas->pd", now=after(60.0), **BY),
        lambda: commands.create_fleet(
            scenario=fleet.scenario | {"baselines": {}}, now=after(60.0), **BY
        ),
    ]
    for ask in refused:
        with pytest.raises(FrozenNow):
            ask()
    assert not Action.objects.filter(actor="ada").exclude(verb__startswith="window").exists()
    hold(9000, at_s=600.0)


def test_the_kill_switch_always_works_and_its_release_waits() -> None:
    make_fleet()
    now_on()
    assert mode("advisory").mode == "advisory"
    assert mode("paused").mode == "paused"
    with pytest.raises(FrozenNow):
        mode("active")
    assert mode("active", now=after(600.0)).mode == "active"


def test_what_holds_already_may_be_released_extended_and_rolled_back_to() -> None:
    make_fleet()
    run_with_traffic(30.0)
    hold(9000, at_s=31.0)
    now_on()
    held = commands.open_holds(Fleet.objects.get(), after(60.0))[0]
    commands.extend_hold(hold_id=held.pk, expires_at=after(7200.0), now=after(60.0), **BY)
    commands.release_hold(hold_id=held.pk, now=after(61.0), **BY)
    first = Decision.objects.get(version=1)
    placed = router_commands.roll_back(
        decision_id=first.pk, owner="ada", expires_at=after(3600.0), now=after(62.0), **BY
    )
    assert [each.threshold_tokens for each in placed] == [4000]


def test_the_console_itself_may_take_back_what_did_harm() -> None:
    make_fleet()
    now_on()
    assert in_force.forbids("f1", ["people"], actor=SYSTEM, now=after(60.0)) is None
    assert in_force.forbids("f1", ["people"], actor="ada", now=after(60.0)) is not None


def test_a_freeze_of_every_fleet_and_one_of_another() -> None:
    make_fleet()
    make_fleet("f2")
    now_on(fleet="")
    assert {in_force.everything(name, after(60.0))["roles"].name for name in ("f1", "f2")} == {
        "black-friday"
    }
    put(Window.objects.get().document | {"fleet": "f2"})
    assert in_force.everything("f1", after(60.0)) == {}
    assert in_force.everything("f2", after(60.0)).keys() == {"plans", "roles", "people"}


def test_switched_off_it_forbids_nothing() -> None:
    make_fleet()
    row = now_on()
    put(row.document, enabled=False)
    assert in_force.everything("f1", after(60.0)) == {}


def test_one_that_can_no_longer_be_read_stops_nobody() -> None:
    make_fleet()
    now_on()
    Window.objects.update(document={"name": "black-friday", "of": 7})
    assert in_force.everything("f1", after(60.0)) == {}
    run_with_traffic(4.0)


def test_an_administrator_overrides_it_for_a_while_and_alone() -> None:
    make_fleet()
    now_on()
    windows.override(
        fleet="f1", for_s=120.0, actor="root", via="test", reason="incident 7", now=after(60.0)
    )
    as_root = {**BY, "actor": "root"}
    mode("advisory", **as_root)
    assert mode("active", **as_root, now=after(179.0)).mode == "active"
    with pytest.raises(FrozenNow):
        hold(9000, at_s=61.0)
    with pytest.raises(FrozenNow):
        commands.raise_epoch(fleet="f1", now=after(180.0), **as_root)
    action = Action.objects.get(verb="freeze.override")
    assert (action.actor, action.target, action.reason) == ("root", "black-friday", "incident 7")
    assert action.after == {
        "override": Override.objects.get().pk,
        "ends_at": after(180.0).isoformat(),
    }


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"reason": " "}, "reason"),
        ({"for_s": 0.0}, "for_s"),
        ({"for_s": 3601.0}, "for_s"),
        ({"fleet": "nowhere"}, "fleet"),
        ({"now": after(600.0)}, "fleet"),
    ],
)
def test_an_override_that_cannot_be_meant(asked: dict[str, Any], field: str) -> None:
    make_fleet()
    now_on()
    facts = {"fleet": "f1", "for_s": 60.0, "now": after(60.0)} | BY | asked
    with pytest.raises(Refused) as caught:
        windows.override(**facts)
    assert caught.value.field == field
    assert not Override.objects.exists()


def test_a_job_that_is_due_in_it_is_skipped_with_the_reason() -> None:
    make_fleet()
    lasts = {"zone": "UTC", "from": "2026-11-29 12:29", "to": "2026-11-29 12:31"}
    put(FREEZE | {"of": ["people"], "when": lasts})
    hold_local = {"kind": "plan", "mode": "always_local", "for_s": 3600}
    jobs_case.put(jobs_case.ADVISE | {"do": hold_local})
    runs.work(lambda: after(1800.0))
    row = JobRun.objects.get()
    assert (row.state, row.text) == (
        "skipped",
        "f1 is frozen by black-friday until 2026-11-29 12:31 UTC: peak trading",
    )
    assert Action.objects.get(verb="job.skip").reason == row.text


def test_a_job_that_only_calms_the_loop_is_done() -> None:
    make_fleet()
    now_on()
    jobs_case.put(jobs_case.ADVISE | {"when": jobs_case.ADVISE["when"] | {"at": "13:05"}})
    runs.work(lambda: after(300.0))
    assert JobRun.objects.get().state == "done"


def test_a_freeze_of_roles_refuses_moves_and_lets_people_hold_t() -> None:
    by_hand.fleet.__wrapped__()  # type: ignore[attr-defined]
    now_on(of=["roles"])
    with pytest.raises(FrozenNow, match="frozen by black-friday"):
        by_hand.ask()
    hold(9000, at_s=26.0)


def test_windows_are_kept_by_version_and_audited() -> None:
    make_fleet()
    row = put(FREEZE)
    assert (row.version, row.ends_at) == (1, after(180.0))
    with pytest.raises(Stale):
        put(FREEZE | {"reason": "other"}, if_version=7)
    put(FREEZE | {"reason": "other"}, if_version=1)
    with pytest.raises(Refused, match="no fleet of this console"):
        put(FREEZE | {"fleet": "nowhere"})
    windows.delete(name="black-friday", if_version=2, actor="ada", via="test", reason="over")
    verbs = Action.objects.filter(verb__startswith="window").order_by("pk")
    assert list(verbs.values_list("verb", flat=True)) == [
        "window.create",
        "window.update",
        "window.delete",
    ]


def test_a_move_begun_before_it_stops_between_two_instances_and_one_begun_in_it_goes_on() -> None:
    make_fleet()
    now_on()
    assert in_force.stops_moves("f1", after(-30.0), after(60.0)) is not None
    assert in_force.stops_moves("f1", after(30.0), after(60.0)) is None
    assert in_force.stops_moves("f1", after(-30.0), after(600.0)) is None
