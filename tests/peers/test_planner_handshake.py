"""The planner handshake end to end: Dynamo's own planner side over a real etcd, its frontend and
workers, and the console's cycle between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from routing.models import Action, ManagedRouter
from tests import servers
from tests.peers import dynamo_fleet, etcd_server, planner_side
from tests.routing.cases import make_fleet
from tests.routing.routers_case import cycle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.django_db(transaction=True)]


def test_a_decision_of_dynamos_planner_is_reported_once_its_workers_run(tmp_path: Path) -> None:
    with etcd_server.serving(tmp_path) as etcd, planner_side.deciding(etcd, "dynamo") as planner:
        site = dynamo_fleet.Fleet(tmp_path, etcd_url=etcd)
        try:
            _carried_out(site, etcd, planner)
        finally:
            site.close()


def _carried_out(site: dynamo_fleet.Fleet, etcd: str, planner: Callable[[str], str]) -> None:
    site.worker("prefill")
    first = site.worker("decode")
    site.wait(site.serves, "requests come through")
    router = {"kind": "dynamo", "name": "r1", "url": site.url, "etcd_url": etcd}
    router |= {"planner_etcd_url": etcd, "act_for_planner": True}
    pd = {"instances": 4, "start": {"n_prefill": 2, "threshold_tokens": 4000}, "routers": [router]}
    fleet = make_fleet(pd=pd)
    at_s = 0.0

    def row() -> ManagedRouter:
        nonlocal at_s
        at_s += 2.0
        return cycle(fleet, at_s)

    def lists(n: int) -> bool:
        return len(row().observed["workers"]) == n

    assert row().state == "read_only"
    assert planner("1 2") == "decided"
    waiting = row()
    assert waiting.state == "pending_restart"
    assert waiting.observed["decided"]["content"] == "start 1: --disaggregation-mode decode\n"
    assert planner("ready") == "False"

    site.worker("decode")
    site.wait(lambda: lists(3), "the new worker is listed")
    site.wait(lambda: planner("ready") == "True", "the planner sees the report")

    assert planner("1 1") == "decided"
    assert row().observed["decided"]["content"] == "end 1 of 2 (SIGTERM): decode\n"
    assert planner("ready") == "False"
    servers.end(first)
    site.wait(lambda: lists(2), "the old worker is gone")
    site.wait(lambda: planner("ready") == "True", "the planner sees the second report")
    last = row()
    assert (last.state, last.other_writer, last.observed["decided"]) == ("read_only", "", None)
    verbs = Action.objects.filter(verb__startswith="planner.").order_by("id")
    pair = ["planner.report", "planner.report.end"]
    assert list(verbs.values_list("verb", flat=True)) == pair * 2
