"""Decisions of Dynamo's planner, from its etcd to the row of its router and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from routing import commands, fleets, managed_work, planner_handshake, rebalance_plan
from routing.adapters.dynamo_planner import Planner
from routing.core.scenario.tables import ScenarioError
from routing.models import Action, Fleet, Rebalance
from routing.router_settings import checked
from tests.routing.cases import make_fleet
from tests.routing.fake_etcd import FakeEtcd
from tests.routing.fake_router import serving
from tests.routing.routers_case import clock, cycle
from tests.routing.test_adapters_dynamo import Frontend, card

pytestmark = pytest.mark.django_db
DONE = "v1/dynamo/planner/scaled_decision_id"
Make = Callable[..., Fleet]


class Site(Frontend):
    """A frontend whose workers are started and ended by whoever runs the site."""

    def runs(self, n_prefill: int, n_decode: int) -> None:
        for id in list(self.cards):
            del self.cards[id]
            (self.store / f"dynamo%2F{id}").unlink()
        self.advertise(*(card(100 + i, "prefill") for i in range(n_prefill)))
        self.advertise(*(card(200 + i, "decode") for i in range(n_decode)))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("CONSOLE_ROUTERS_DIR", str(tmp_path))
    site = Site(tmp_path)
    site.runs(2, 2)
    return site


@pytest.fixture
def store() -> FakeEtcd:
    store = FakeEtcd()
    store.namespace = "dynamo"
    return store


@pytest.fixture
def make(site: Site, store: FakeEtcd) -> Iterator[Make]:
    with serving(site) as url, serving(store) as etcd:  # type: ignore[arg-type]
        router = {"kind": "dynamo", "name": "r1", "url": url, "store": "store"}
        router["planner_etcd_url"] = etcd

        def fleet(*, acts: bool = True, mode: str = "active", **pd: Any) -> Fleet:
            named = [{**router, "act_for_planner": True} if acts else router]
            start = {"n_prefill": 2, "threshold_tokens": 4000}
            pd = {"instances": 6, "start": start, "routers": named, **pd}
            return make_fleet(mode=mode, pd=pd)

        yield fleet


def decide(store: FakeEtcd, id: int, n_prefill: int, n_decode: int) -> None:
    store.write(
        together=True, num_prefill_workers=n_prefill, num_decode_workers=n_decode, decision_id=id
    )


def reported(store: FakeEtcd) -> str | None:
    return store.values.get(DONE, (None, 0))[0]


def chain() -> list[str]:
    told = Action.objects.filter(verb__startswith="planner.").order_by("id")
    return list(told.values_list("verb", flat=True))


def test_a_decision_is_shown_until_it_is_done_and_then_reported_once(
    make: Make, site: Site, store: FakeEtcd
) -> None:
    fleet = make()
    assert cycle(fleet, 0.0).state == "read_only"
    decide(store, 0, 1, 3)
    row = cycle(fleet, 2.0)
    assert (row.state, reported(store)) == ("pending_restart", None)
    assert row.observed["decided"]["what"] == (
        "decision 0 of its planner, 1 prefill and 3 decode workers"
    )
    assert row.observed["decided"]["content"] == (
        "start 1: --disaggregation-mode decode\nend 1 of 2 (SIGTERM): prefill\n"
    )
    assert any("waits until these are started and ended" in said for said in row.findings)

    site.runs(2, 3)
    row = cycle(fleet, 4.0)
    assert row.observed["decided"]["content"] == "end 1 of 2 (SIGTERM): prefill\n"
    assert (row.state, reported(store)) == ("pending_restart", None), "half of it is not done"

    site.runs(1, 3)
    cycle(fleet, 6.0)
    assert reported(store) == "0"
    revision = store.revision
    row = cycle(fleet, 8.0)
    assert (row.state, row.observed["decided"], row.other_writer) == ("read_only", None, "")
    assert (store.revision, chain()) == (revision, ["planner.report", "planner.report.end"])
    [sent, ended] = Action.objects.filter(verb__startswith="planner.").order_by("id")
    assert (sent.before, sent.after["n_prefill"]) == ({"n_prefill": 1, "n_decode": 3}, 1)
    assert ended.after == {"ours": {"id": 0, "revision": revision}}

    decide(store, 1, 1, 3)
    cycle(fleet, 10.0)
    assert reported(store) == "1", "what asks for what is there is done"


def test_workers_that_come_and_go_are_no_drift_there(make: Make, site: Site) -> None:
    fleet = make()
    cycle(fleet, 0.0)
    site.runs(3, 1)
    for at_s in (2.0, 4.0):
        row = cycle(fleet, at_s)
        assert (row.state, row.n_drifted, row.other_writer) == ("read_only", 0, "")
    assert row.desired.keys() == row.observed["workers"].keys()
    newest = Action.objects.filter(verb="router.adopt").latest("id")
    assert newest.reason == "its planner decides which workers there are"


def test_it_is_off_unless_the_router_says_so(make: Make, store: FakeEtcd) -> None:
    fleet = make(acts=False)
    decide(store, 0, 2, 2)
    row = cycle(fleet, 0.0)
    assert (reported(store), chain()) == (None, [])
    assert any("decides nothing more until" in said for said in row.findings)


@pytest.mark.parametrize("mode", ["advisory", "paused"])
def test_a_fleet_that_is_not_active_reports_nothing(make: Make, store: FakeEtcd, mode: str) -> None:
    decide(store, 0, 2, 2)
    row = cycle(make(mode=mode), 0.0)
    assert (reported(store), chain()) == (None, [])
    assert any(f"not reported while the fleet is {mode}" in said for said in row.findings)


@pytest.mark.parametrize(
    ("counts", "pd", "why"),
    [
        ((2, 1), {"min_decode": 2}, "1 decode is below min_decode = 2"),
        ((3, 4), {}, "3 + 4 is more than the 6 instances"),
        ((2, 1), {"pinned": True}, "its roles stay"),
    ],
)
def test_a_decision_beyond_a_limit_is_refused_and_never_reported(
    make: Make,
    site: Site,
    store: FakeEtcd,
    counts: tuple[int, int],
    pd: dict[str, Any],
    why: str,
) -> None:
    fleet = make(**pd)
    decide(store, 0, *counts)
    for at_s in (0.0, 2.0):
        row = cycle(fleet, at_s)
        assert (row.observed["decided"], reported(store), chain()) == (None, None, [])
        assert any("refused and not reported" in said and why in said for said in row.findings)
        site.runs(*counts)


@pytest.mark.parametrize("dies_at", ["before it is sent", "sent", "noted"])
def test_a_worker_that_dies_anywhere_leaves_one_report(
    make: Make, store: FakeEtcd, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    fleet = make()
    decide(store, 7, 2, 2)
    report_done, record = Planner.report_done, planner_handshake.audit.record

    def dies(*args: Any, **kwargs: Any) -> Any:
        if dies_at == "sent":
            report_done(*args, **kwargs)
        raise RuntimeError("killed")

    def records(**kwargs: Any) -> Any:
        if kwargs["verb"].startswith("planner.") and dies_at == "noted":
            monkeypatch.setattr(planner_handshake.audit, "record", record)
            raise RuntimeError("killed")
        return record(**kwargs)

    monkeypatch.setattr(planner_handshake.audit, "record", records)
    if dies_at != "noted":
        monkeypatch.setattr(Planner, "report_done", dies)
    managed_work.reconcile(clock(0.0))
    assert reported(store) == ("7" if dies_at == "sent" else None)
    monkeypatch.setattr(Planner, "report_done", report_done)
    for at_s in (2.0, 4.0, 6.0):
        row = cycle(fleet, at_s)
    assert (reported(store), row.other_writer) == ("7", "")
    assert chain() == ["planner.report", "planner.report.end"]
    newest = Action.objects.filter(verb="planner.report.end").latest("id")
    assert newest.after["ours"] == {"id": 7, "revision": store.values[DONE][1]}
    decide(store, 8, 2, 2)
    cycle(fleet, 8.0)
    assert reported(store) == "8", "it is not taken for another's"


def test_another_actor_is_named_and_not_joined(make: Make, site: Site, store: FakeEtcd) -> None:
    fleet = make()
    decide(store, 3, 2, 3)
    cycle(fleet, 0.0)
    store.write(scaled_decision_id=3)
    decide(store, 4, 2, 2)
    row = cycle(fleet, 2.0)
    assert (reported(store), chain()) == ("3", [])
    assert row.other_writer == "whoever reports to its planner"
    assert any("not by this console" in said and f"delete {DONE}" in said for said in row.findings)

    del store.values[DONE]
    cycle(fleet, 4.0)
    row = cycle(fleet, 6.0)
    assert (reported(store), row.other_writer) == ("4", "")


def test_a_planner_that_decides_anew_just_then_is_answered_of_the_new(
    make: Make, store: FakeEtcd
) -> None:
    fleet = make()
    decide(store, 0, 2, 2)
    heard = store._txn

    def meanwhile(body: Any) -> Any:
        store.at["POST /v3/kv/txn"] = heard
        decide(store, 1, 2, 2)
        return heard(body)

    store.at["POST /v3/kv/txn"] = meanwhile
    row = cycle(fleet, 0.0)
    assert reported(store) is None
    assert any("was written meanwhile" in said for said in row.findings)
    row = cycle(fleet, 2.0)
    assert (reported(store), chain()) == ("1", ["planner.report", "planner.report.end"] * 2)
    assert row.other_writer == ""


def test_a_store_that_forgets_is_asked_again(make: Make, store: FakeEtcd) -> None:
    fleet = make()
    decide(store, 0, 2, 2)
    store.heeds = False
    row = cycle(fleet, 0.0)
    assert any("shows none" in said for said in row.findings)
    store.heeds = True
    cycle(fleet, 2.0)
    assert (reported(store), chain()) == ("0", ["planner.report", "planner.report.end"])


def test_workers_without_a_role_are_not_counted_as_none(
    make: Make, site: Site, store: FakeEtcd
) -> None:
    fleet = make()
    decide(store, 0, 2, 2)
    site.advertise(card(300, "other"))
    row = cycle(fleet, 0.0)
    assert reported(store) is None
    assert any("shows no role yet" in said for said in row.findings)


def test_workers_lost_after_the_report_are_said(make: Make, site: Site, store: FakeEtcd) -> None:
    fleet = make()
    decide(store, 0, 2, 2)
    cycle(fleet, 0.0)
    site.runs(2, 1)
    row = cycle(fleet, 2.0)
    assert any("has come to 2 prefill and 1 decode" in said for said in row.findings)


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_once_report_once(make: Make, store: FakeEtcd) -> None:
    fleet = make()
    decide(store, 0, 2, 2)
    held, over = threading.Event(), threading.Event()
    [router] = fleets.scenario_of(fleet).clusters[1].routers
    name = f"planner dynamo in {router.settings['planner_etcd_url']}"

    def other() -> None:
        with connection.cursor() as cursor:
            lock = [planner_handshake._LOCK, name]
            cursor.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", lock)
            held.set()
            over.wait(20)
            cursor.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", lock)
        connection.close()

    worker = threading.Thread(target=other)
    worker.start()
    try:
        assert held.wait(20)
        cycle(fleet, 0.0)
        assert (reported(store), chain()) == (None, [])
    finally:
        over.set()
        worker.join()
    cycle(fleet, 2.0)
    assert (reported(store), chain()) == ("0", ["planner.report", "planner.report.end"])


def test_roles_of_such_a_cluster_are_not_the_loops(make: Make) -> None:
    scenario = fleets.scenario_of(make())
    cluster = scenario.cluster("pd")
    assert cluster is not None
    assert cluster.follows_planner
    wanted = Rebalance(cluster="pd", to_n_prefill=3, to_n_decode=3)
    refused = rebalance_plan.refused(wanted, cluster)
    assert refused is not None
    assert "the planner of a router of pd decides its roles" in refused.reason


@pytest.mark.parametrize("missing", ["planner_etcd_url", "store"])
def test_it_takes_a_planner_and_something_to_count_by(make: Make, missing: str) -> None:
    fleet = make()
    document = fleet.scenario
    del document["clusters"][1]["routers"][0][missing]
    with pytest.raises((ScenarioError, commands.Refused), match="act_for_planner = true: needs"):
        checked(fleets.scenario_of(Fleet(pk="f1", scenario=document)))
