"""Moves of roles over routers of more than one make, with proof that what moved serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from django.db import OperationalError, connection, connections

from routing import commands, rebalance_driver, rebalance_effects
from routing.adapters import engines, http, places
from routing.models import Action, Fleet, Rebalance
from tests.routing import swapping_router
from tests.routing.cases import NOW, after, scenario
from tests.routing.lab_stack import LabStack, fleet_of
from tests.routing.rebalancing import (
    STEPS,
    ack,
    cancel,
    decide,
    drive,
    finish,
    move_of,
    open_for,
    steps_of,
    to_step,
    verbs_of,
    walk,
)
from tests.routing.swapping_router import SwappingRouter, agree

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def lab(lab: LabStack) -> Iterator[LabStack]:
    with swapping_router.registered():
        yield lab


@pytest.fixture
def swapping(lab: LabStack) -> SwappingRouter:
    return SwappingRouter(lab, lab.roles())


@pytest.fixture
def fleet(lab: LabStack, swapping: SwappingRouter) -> Fleet:
    """One stack that serves, and a router that takes out and puts in."""
    return fleet_of((), routers=[lab.routers()[0], swapping.entry()])


def shown_at(row: Rebalance) -> dict[str, tuple[str | None, str]]:
    """By router: what it showed of the instance last."""
    seen = move_of(row).routers.values()
    return {at["name"]: (at["role"], at["status"]) for at in seen}


def test_every_router_that_lists_it_is_told_and_shows_it(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter
) -> None:
    row = drive(open_for(fleet, (1, 3)), 1.0)
    assert swapping.told == [("out", "slow-1")]
    assert shown_at(row) == {"stack-1": ("prefill", "draining"), "swapping-2": (None, "out")}
    finish(row, 2.0)
    assert (row.state, lab.counts(), agree(lab, swapping)) == ("done", (1, 3), True)
    assert swapping.told == [("out", "slow-1"), ("decode", "slow-1")]
    assert steps_of(row) == [*STEPS, "done"]
    assert shown_at(row) == {"stack-1": ("decode", "ready"), "swapping-2": ("decode", "ready")}


def test_what_was_found_and_proven_is_kept(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter
) -> None:
    row = finish(open_for(fleet, (1, 3)), 1.0)
    before = row.preflight
    assert before["blast_radius"] == (
        "small/pd/slow-1 will decode and not prefill: 1 of 2 prefill instances are left, the 0 "
        "requests on it finish first, prefixes cached on it are lost, 2 routers are told."
    )
    assert before["pools"]["decode"] == {"n": 2, "n_left": 2, "requests": 0}
    assert [router["roles"] for router in before["routers"]] == ["live", "replace"]
    assert before["warnings"] == []
    idle, canary = move_of(row).evidence["idle"], move_of(row).evidence["canary"]
    assert idle["at_s"] - idle["since_s"] >= 1.0
    assert idle["engine_requests"] == 0
    assert canary["ok"]
    assert canary["seen"] is True, "its engine worked off tokens of it"
    assert (canary["n_served"], canary["error"]) == (1, "")
    assert canary["router"].startswith("stack-1 (http://")


def test_a_router_that_cannot_be_tried_refuses_for_all(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter
) -> None:
    """R-02: an unknown version is read and not changed; its own sentence says so."""
    swapping.version = "9"
    row = finish(open_for(fleet, (1, 3)), 1.0)
    assert row.state == "failed"
    assert row.reason == (
        f"swapping swapping-2 ({swapping.url}) takes no change of roles: version 9 was not tried "
        "(only 1): it is read, and not changed"
    )
    assert (row.moves.count(), swapping.told) == (0, [])
    assert (lab.counts(), lab.settled()) == ((2, 2), True)


@pytest.mark.parametrize("serves", [False, True])
def test_of_a_router_that_shows_nothing_a_canary_is_the_only_proof(
    lab: LabStack, swapping: SwappingRouter, serves: bool
) -> None:
    swapping.is_readable = False
    routers = [lab.routers()[0], swapping.entry(serves=serves)]
    row = finish(open_for(fleet_of((), routers=routers), (1, 3)), 1.0)
    who = f"swapping-2 ({swapping.url})"
    if not serves:
        assert row.state == "failed"
        assert row.reason.startswith(f"swapping {who} does not show what it lists, and takes no")
        return
    assert (row.state, agree(lab, swapping)) == ("done", True)
    assert move_of(row).evidence["canary"]["router"] == who
    assert row.preflight["warnings"] == [
        f"{who} does not show what it lists: a canary is all the proof there is"
    ]


def test_an_engine_that_cannot_switch_is_not_drained_for_it(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "its transfer backend nixl cannot be rebuilt for another role"
    monkeypatch.setattr(engines, "ability", lambda *_, **__: engines.Ability(False, why))
    row = finish(open_for(fleet, (1, 3)), 1.0)
    assert (row.state, row.moves.count(), swapping.told) == ("failed", 0, [])
    assert row.reason == f"small/pd/slow-1 ({lab.url('slow-1')}): {why}"


@pytest.mark.parametrize(
    ("router", "field", "value"),
    [
        ({"kind": "smgx", "url": "http://a"}, "kind", "smgx"),
        ({"kind": "stack", "url": "http://a", "leases_s": 3}, "leases_s", 3),
        ({"kind": "stack", "url": "http://a", "lease_s": -1}, "lease_s", -1),
    ],
)
def test_a_router_described_wrongly_is_refused_with_the_fleet(
    transactional_db: None, router: dict[str, Any], field: str, value: Any
) -> None:
    with pytest.raises(commands.Refused) as refused:
        fleet_of((), routers=[router])
    assert (refused.value.field, refused.value.value) == (f"clusters[1].routers[0].{field}", value)
    assert not Fleet.objects.exists()


def test_a_router_may_list_a_part_and_keeps_each_role(
    lab: LabStack, swapping: SwappingRouter
) -> None:
    """slow-2 moves: slow-1 is the last prefill that the other router has."""
    del swapping.workers[lab.url("slow-2")]
    fleet = fleet_of((), routers=[lab.routers()[0], swapping.entry()])
    row = finish(open_for(fleet, (1, 3)), 1.0)
    assert (row.state, move_of(row).instance) == ("done", "small/pd/slow-2")
    assert (lab.counts(), swapping.told) == ((1, 3), [])
    assert list(move_of(row).routers) == [lab.controls[0]]


@pytest.mark.parametrize("refused_by", ["engine", "router"])
def test_at_full_budget_a_decrease_that_is_refused_brings_no_increase(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter, refused_by: str
) -> None:
    """S-27: P + D is what there is, pass by pass, at every router."""
    if refused_by == "engine":
        lab.engines["slow-1"].roles = ("prefill",)
    else:
        swapping.refuses_to_drop = True
    row = open_for(fleet, (1, 3))
    for at_s in range(40):
        rebalance_driver.one_pass(row.pk, after(at_s))
        assert lab.counts() == (2, 2)
        assert ("decode", "slow-1") not in swapping.told
        [stack, _] = lab.listed()
        assert stack["slow-1"][0] == "prefill"
        for shown in (
            [role for role, status in stack.values() if status == "ready"],
            list(swapping.workers.values()),
        ):
            assert 2 <= shown.count("prefill") + shown.count("decode") <= 4
            assert {"prefill", "decode"} <= set(shown)
    row.refresh_from_db()
    assert row.state == "failed"
    what = "/pd_role_switch: answers 400" if refused_by == "engine" else "answers 409: not now"
    assert what in row.reason
    assert agree(lab, swapping)
    assert steps_of(row)[-2:] == ["restore", "restored"]


@pytest.mark.parametrize("through", ["stack", "swapping"])
def test_a_canary_that_fails_gives_the_old_role_back(
    lab: LabStack, swapping: SwappingRouter, through: str
) -> None:
    async def broken(request: web.Request) -> web.Response:
        return web.json_response({"error": "no decode instance"}, status=503)

    stack: dict[str, Any] = {"kind": "stack", "url": lab.controls[0]}
    if through == "stack":
        app = web.Application()
        app.router.add_post("/v1/completions", broken)
        stack["serves_at"] = lab.serve(app)
    swapping.answers_canaries = 503
    fleet = fleet_of((), routers=[stack, swapping.entry(serves=through == "swapping")])
    row = open_for(fleet, (1, 3))
    at_s = to_step(row, "verify")
    for i in range(2):
        drive(row, at_s + i)
        assert (row.state, move_of(row).step) == ("open", "verify")
        assert "/v1/completions: answers 503: no " in row.waiting_for
    finish(row, at_s + 2.0)
    assert row.state == "failed"
    assert row.reason.startswith(f"no canary got through {through}-")
    assert (lab.counts(), agree(lab, swapping)) == ((2, 2), True)
    assert steps_of(row) == ["cordon", "drain", "switch", "verify", "restore", "restored"]
    assert verbs_of(row) == ["rebalance.start", "rebalance.abort", "rebalance.end"]
    assert move_of(row).evidence["canary"]["n_failed"] == rebalance_effects.FAILS
    assert Action.objects.get(verb="rebalance.abort").reason == row.reason


def test_one_canary_that_fails_is_tried_again(lab: LabStack, swapping: SwappingRouter) -> None:
    routers = [{"kind": "stack", "url": lab.controls[0]}, swapping.entry(serves=True)]
    row = open_for(fleet_of((), routers=routers), (1, 3))
    at_s = to_step(row, "verify")
    swapping.answers_canaries = 503
    drive(row, at_s)
    assert swapping.told[-1] == ("decode", "slow-1"), "opened where it can be tried"
    assert lab.listed()[0]["slow-1"] == ("prefill", "draining"), "and nowhere else yet"
    swapping.answers_canaries = 200
    finish(row, at_s + 1.0)
    assert (row.state, agree(lab, swapping)) == ("done", True)
    canary = move_of(row).evidence["canary"]
    assert (canary["ok"], canary["seen"], canary["n_failed"]) == (True, False, 0)
    assert canary["n_served"] == swapping.n_canaries - 1 > 1, "asked on, as its engine had no part"


@pytest.mark.parametrize("step", STEPS)
def test_cancelled_at_any_step_both_show_the_same(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter, step: str
) -> None:
    row = open_for(fleet, (1, 3))
    at_s = to_step(row, step)
    cancel(row, at_s)
    finish(row, at_s)
    assert row.state == "cancelled"
    assert lab.counts() == ((1, 3) if step == "uncordon" else (2, 2))
    assert agree(lab, swapping)


@pytest.mark.parametrize("for_ever", [False, True])
def test_work_that_came_with_the_new_role_is_finished_before_it_goes_back(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter, for_ever: bool
) -> None:
    """And where it is not within the drain timeout, the role that all of it has is kept."""
    row = open_for(fleet, (1, 3), drain_timeout_s=30.0)
    at_s = to_step(row, "verify")
    ack(fleet, None, at_s=at_s)
    drive(row, at_s)
    assert lab.listed()[0]["slow-1"] == ("decode", "ready"), "open at one, and no gate follows"
    with lab.worker(0, "slow-1").prefilling():
        cancel(row, at_s)
        drive(row, at_s + 1.0)
        assert row.waiting_for == (
            "small/pd/slow-1 still has 1 request, and is decode until they are done."
        )
        assert lab.listed()[0]["slow-1"] == ("decode", "draining")
        if for_ever:
            finish(row, at_s + 31.0)
    if not for_ever:
        finish(row, at_s + 2.0)
    assert (row.state, agree(lab, swapping)) == ("cancelled", True)
    assert (move_of(row).step, lab.counts()) == (
        ("done", (1, 3)) if for_ever else ("restored", (2, 2))
    )


def test_one_that_somebody_puts_in_again_is_taken_out_again(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter
) -> None:
    row = open_for(fleet, (1, 3))
    at_s = to_step(row, "switch")
    swapping.workers[lab.url("slow-1")] = "prefill"
    finish(row, at_s)
    assert (row.state, agree(lab, swapping)) == ("done", True)
    outs = [told for told in swapping.told if told == ("out", "slow-1")]
    assert len(outs) == 2


def test_it_is_put_back_where_it_can_be_though_another_router_is_away(
    lab: LabStack, swapping: SwappingRouter
) -> None:
    """What one router was made to drop nobody else puts back."""
    fleet = fleet_of((), routers=[lab.routers()[0], swapping.entry()])
    row = open_for(fleet, (1, 3), deadline_s=60.0)
    at_s = to_step(row, "drain")
    away = [{"kind": "stack", "url": NOWHERE}, swapping.entry()]
    fleet_of((), routers=away)
    drive(row, at_s)
    assert row.waiting_for.startswith(f"{NOWHERE}/workers: does not answer")
    drive(row, 60.0)
    assert (row.state, row.ends_as) == ("aborting", "expired")
    assert swapping.roles()["slow-1"] == "prefill"


def test_with_its_engine_dead_it_is_put_back_as_it_was_in_the_end(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter
) -> None:
    row = open_for(fleet, (1, 3), deadline_s=60.0)
    at_s = to_step(row, "drain")
    lab.kill("slow-1")
    drive(row, at_s)
    drive(row, 60.0)
    assert "slow-1" not in swapping.roles()
    drive(row, 661.0)
    assert row.state == "failed"
    assert row.reason.startswith("small/pd/slow-1 could not be restored: http://")
    assert swapping.roles()["slow-1"] == "prefill", "its router's own checks decide about it"


def test_what_the_pool_that_gives_holds_must_fit_what_is_left(
    lab: LabStack, swapping: SwappingRouter
) -> None:
    document = scenario("small")
    document["profiles"]["h20"]["decode"] = {"batch": 6, "step_s": 0.025}
    document["clusters"][1] |= {
        "instances": 4,
        "start": {"n_prefill": 2, "threshold_tokens": 4000},
        "routers": [lab.routers()[0]],
    }
    fleet = commands.create_fleet(
        scenario=document, mode="active", actor="test", via="test", reason="", now=NOW
    )
    lab.load(14, output_tokens=1_500)
    row = drive(open_for(fleet, (3, 1)), 1.0)
    assert row.waiting_for == ("14 requests decode in pd, and the 1 instances left of 2 hold 6.")
    assert row.moves.count() == 0
    assert lab.answers() == [200] * 14
    finish(row, 2.0)
    assert (row.state, lab.counts()) == ("done", (3, 1))
    assert row.preflight["pools"]["decode"] == {"n": 2, "n_left": 1, "requests": 0, "holds": 6}


def test_a_pool_of_prefill_that_falls_behind_is_warned_of(lab: LabStack, fleet: Fleet) -> None:
    prefilling = [lab.worker(0, name).prefilling() for name in ("slow-1", "slow-1", "slow-2")]
    with prefilling[0], prefilling[1], prefilling[2]:
        row = open_for(fleet, (1, 3))
        rebalance_driver.one_pass(row.pk, after(1.0))
    row.refresh_from_db()
    assert row.moves.count() == 1
    [warning] = row.preflight["warnings"]
    assert warning.startswith("3 prompts on 2 prefill instances take the 1 left about ")
    assert warning.endswith(" over the 10 s of the SLO")


@pytest.mark.parametrize("change", ["slow-1 only", "both"])
def test_roles_that_are_labels_change_at_routers_only(
    lab: LabStack, swapping: SwappingRouter, change: str
) -> None:
    """vLLM's kv_both: the engine is not asked for anything but what is on it."""
    engines = {name: lab.url(name) for name in lab.engines}
    fleet = fleet_of(
        (), routers=[swapping.entry(serves=True)], engines=engines, role_switch="label"
    )
    row = finish(open_for(fleet, (1, 3)), 1.0)
    assert row.state == "done"
    assert lab.counts() == (2, 2), "no engine was switched"
    assert swapping.roles() == {
        "slow-1": "decode", "slow-2": "prefill", "slow-3": "decode", "slow-4": "decode",
    }  # fmt: skip
    assert steps_of(row) == [*STEPS, "done"]
    if change == "both":
        row = open_for(fleet, (2, 2), at_s=20.0)
        at_s = walk(row, 21.0, lambda: row.moves.filter(step="verify").exists())
        swapping.answers_canaries = 503
        finish(row, at_s)
        assert row.state == "failed"
        assert swapping.roles()["slow-1"] == "decode", "put back as what it was"


def test_without_a_name_for_its_engines_nothing_is_known_of_a_router(
    lab: LabStack, swapping: SwappingRouter
) -> None:
    row = finish(open_for(fleet_of((), routers=[swapping.entry()]), (1, 3)), 1.0)
    assert row.state == "failed"
    assert row.reason == f"{swapping.url} lists no instance of small/pd"
    assert swapping.told == []


def test_engines_are_asked_with_their_key_and_told_what_they_want(
    lab: LabStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None, Any]] = []
    plain = http.ask

    def ask(method: str, url: str, **how: Any) -> Any:
        key = (how.get("headers") or {}).get("Authorization")
        asked.append((url.rpartition("/")[2], key, how.get("body")))
        return plain(method, url, **how)

    monkeypatch.setattr(http, "ask", ask)
    monkeypatch.setenv(places.FOLDER_SETTING, str(tmp_path))
    (tmp_path / "engines.key").write_text("secret\n")
    told = {"engine_token_file": "engines.key", "decode_cuda_graph_memory_gb": 2.5}
    fleet = fleet_of((), routers=lab.routers(), **told)
    row = finish(open_for(fleet, (1, 3)), 1.0)
    assert row.state == "done"
    assert {key for call, key, _ in asked if call == "loads"} == {"Bearer secret"}
    [switched] = [body for call, _, body in asked if call == "pd_role_switch"]
    assert switched == {"new_role": "decode", "decode_cuda_graph_memory_gb": 2.5}


def test_a_worker_that_lost_its_lock_while_it_looked_does_nothing(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = open_for(fleet, (1, 3))
    to_step(row, "cordon")
    plain = rebalance_driver.rebalance_looks.read

    def cut(*args: Any) -> Any:
        found = plain(*args)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            [pid] = cursor.fetchone()
        other = connections.create_connection("default")
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
        other.close()
        return found

    monkeypatch.setattr(rebalance_driver.rebalance_looks, "read", cut)
    with pytest.raises(OperationalError):
        rebalance_driver.one_pass(row.pk, after(5.0))
    monkeypatch.undo()
    connection.close()
    assert (swapping.told, lab.settled()) == ([], True)
    finish(row, 6.0)
    assert (row.state, agree(lab, swapping)) == ("done", True)


def test_a_plan_that_came_while_it_looked_stops_the_next_effect(
    lab: LabStack, fleet: Fleet, swapping: SwappingRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = open_for(fleet, (1, 3))
    at_s = to_step(row, "switch")
    plain = rebalance_driver.next_act

    def late(*args: Any) -> Any:
        monkeypatch.undo()
        decide(fleet, (2, 2), at_s=at_s)
        return plain(*args)

    monkeypatch.setattr(rebalance_driver, "next_act", late)
    finish(row, at_s)
    assert (row.state, row.reason) == ("cancelled", "plan 1.2 wants 2 prefill and 2 decode")
    assert (lab.counts(), agree(lab, swapping)) == ((2, 2), True)
    assert steps_of(row) == ["cordon", "drain", "switch", "restore", "restored"]
