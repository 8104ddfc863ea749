"""Search and commands: what is found, in which order, by whom, at which price."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_django
from django.test import Client

from console import search
from console.search import Row, ranked
from routing import commands
from routing.models import ManagedRouter, Tick
from telemetry.models import Source
from tests.console.api_case import person
from tests.console.page_case import busy_fleet
from tests.routing.cases import make_fleet, scenario

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    return person("operator")


def ask(client: Client, query: str, **more: str) -> list[dict[str, Any]]:
    answer = client.get("/search/", {"q": query, **more}, headers={"accept": "application/json"})
    assert answer.status_code == 200
    return answer.json()["rows"]


def labels(rows: list[dict[str, Any]], kind: str | None = None) -> list[str]:
    return [row["label"] for row in rows if kind is None or row["kind"] == kind]


def test_it_needs_a_login_and_a_group() -> None:
    assert Client().get("/search/").status_code == 302
    assert person("nobody").get("/search/").status_code == 403


def test_without_a_query_it_lists_pages_and_what_could_be_done(operator: Client) -> None:
    make_fleet()
    rows = ask(operator, "")
    assert labels(rows, "page")[:2] == ["Overview", "Fleet"]
    assert labels(rows, "action")[:3] == [
        "Pause fleet f1",
        "Only advise in fleet f1",
        "Hold the plan",
    ]
    assert len(rows) <= search.MOST_ROWS
    assert {row["kind"] for row in rows} == {"page", "action"}


@pytest.mark.parametrize(
    ("query", "kind", "label"),
    [
        ("f1", "fleet", "f1"),
        ("prfaas", "cluster", "prfaas"),
        ("prfaas pd", "link", "prfaas → pd"),
        ("prfaas->pd", "link", "prfaas → pd"),
        ("D1", "instance", "pd/d1"),
        ("pd/d1", "instance", "pd/d1"),
        ("instance d1 decode", "instance", "pd/d1"),
        ("gw-2", "gate", "pd/gw-2"),
        ("sgl", "router", "pd/sgl-1"),
        ("v2", "decision", "v2 Prefill imbalance"),
        ("2", "decision", "v2 Prefill imbalance"),
        ("initial", "decision", "v1 Initial"),
        ("pause", "action", "Pause fleet f1"),
        ("stop", "action", "Pause fleet f1"),
        ("kill switch", "action", "Pause fleet f1"),
        ("hold plan", "action", "Hold the plan"),
        ("revert v2", "action", "Revert v2"),
        ("signals", "page", "Signals"),
    ],
)
def test_what_is_searched(operator: Client, query: str, kind: str, label: str) -> None:
    fleet = busy_fleet()
    Source.objects.create(
        kind="instance",
        path="f1/pd/d1",
        role="decode",
        agent="a",
        last_seen_at=Tick.objects.latest("seq").at,
    )
    ManagedRouter.objects.create(
        fleet=fleet,
        cluster="pd",
        name="sgl-1",
        kind="sglang",
        url="http://sgl:1",
        state="sync",
        since=Tick.objects.latest("seq").at,
    )
    rows = ask(operator, query)
    assert label in labels(rows, kind), rows
    assert all(operator.get(row["url"].partition("#")[0]).status_code == 200 for row in rows[:3])


def test_a_viewer_sees_no_action(viewer: Client) -> None:
    busy_fleet()
    for query in ("", "pause", "revert v2", "v2", "hold"):
        rows = ask(viewer, query)
        assert labels(rows, "action") == []
        assert not any(
            part in row["url"] for row in rows for part in ("/mode/", "/hold/", "/rollback/")
        )
    assert labels(ask(viewer, "v2"), "decision") == ["v2 Prefill imbalance"]


def test_the_shown_fleets_things_come_first(operator: Client) -> None:
    make_fleet("f1")
    make_fleet("f2")
    for fleet in ("f1", "f2"):
        rows = ask(operator, "prfaas", fleet=fleet)
        assert rows[0]["url"].startswith(f"/fleets/{fleet}/")
        assert rows[0]["detail"] == f"prefill, fleet {fleet}"
        assert {row["url"].split("/")[2] for row in rows if row["kind"] == "cluster"} == {
            "f1",
            "f2",
        }


@pytest.mark.parametrize("query", ["%", "_", "\\", "%%%", "a" * 500, "'; DROP", "\u202e", "🤖 x"])
def test_no_sign_means_anything_else_than_itself(operator: Client, query: str) -> None:
    busy_fleet()
    assert ask(operator, query) == []


def test_hostile_names_stay_names(operator: Client) -> None:
    make_fleet()
    name = '<img src=x onerror="alert(1)">' + "x" * 200
    now = make_fleet("f2").created_at
    Source.objects.create(
        kind="instance", path=f"f1/pd/{name}", role="decode", agent="a", last_seen_at=now
    )
    rows = ask(operator, "onerror")
    assert labels(rows) == [f"pd/{name}"]
    page = operator.get("/search/", {"q": "onerror"}).content.decode()
    assert "<img" not in page


def test_a_large_site_costs_six_queries_and_answers_twenty_rows(
    operator: Client, django_assert_max_num_queries: pytest_django.DjangoAssertNumQueries
) -> None:
    fleet = busy_fleet()
    for i in range(2, 31):
        commands.create_fleet(
            scenario=scenario(f"f{i}"),
            mode="active",
            actor="test",
            via="test",
            reason="",
            now=fleet.created_at,
        )
    Source.objects.bulk_create(
        Source(
            kind="instance",
            path=f"f1/pd/node-{i:04}",
            role="decode",
            agent="a",
            last_seen_at=fleet.created_at,
        )
        for i in range(3000)
    )
    for query in ("", "node", "pd", "f", "v2", "pause"):
        with django_assert_max_num_queries(6):
            rows = ask(operator, query)
        assert 0 < len(rows) <= 20, query


def test_the_page_lists_the_same_without_scripts(viewer: Client) -> None:
    busy_fleet()
    page = viewer.get("/search/", {"q": "v2"}).content.decode()
    assert "v2 Prefill imbalance" in page
    assert "Nothing holds every word" in viewer.get("/search/", {"q": "zzz"}).content.decode()


def row(label: str, kind: str = "instance", fleet: str = "f1") -> Row:
    return Row(kind, label, "", f"/fleets/{fleet}/x")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pd"], ["pd", "pd-2", "a/pd", "xpd"]),
        (["pd", "2"], ["pd-2"]),
        (["nothing"], []),
    ],
)
def test_the_best_match_is_first(words: list[str], expected: list[str]) -> None:
    rows = [row("xpd"), row("a/pd"), row("pd-2"), row("pd"), row("other")]
    assert [one.label for one in ranked(rows, words, "f1")] == expected


def test_one_kind_does_not_crowd_out_the_others() -> None:
    rows = [row(f"pd-{i}") for i in range(50)] + [row("pd-z", "cluster")]
    kinds = [one.kind for one in ranked(rows, ["pd"], "f1")]
    assert kinds.count("instance") == search.MOST_OF_A_KIND
    assert "cluster" in kinds
