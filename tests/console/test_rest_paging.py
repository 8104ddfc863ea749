"""Pages of lists: all rows, each once, whatever comes or goes meanwhile."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from django.test import Client

from routing.alerts.models import Receiver
from routing.models import Fleet, ManagedRouter
from routing.paging import Newest, Page
from tests.console.api_case import BASE, machine, send, strict
from tests.console.test_api_rights import api_views
from tests.routing.cases import NOW, make_fleet

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader() -> Client:
    return machine("read")


def receivers(*names: str) -> None:
    Receiver.objects.bulk_create(
        Receiver(name=name, kind="webhook", target="x", updated_at=NOW) for name in names
    )


def page(client: Client, address: str) -> dict[str, Any]:
    parts = urlsplit(address)
    answer = send(client, "get", f"{parts.path.removeprefix(BASE)}?{parts.query}")
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = strict(answer)
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [row["name"] for row in found["results"]]


def test_every_list_has_pages() -> None:
    """A list is what its name says and what has `results`."""
    without = [
        path
        for path, view in api_views()
        if getattr(view, "pagination_class", None) is not None
        and not issubclass(view.pagination_class, Newest | Page)
    ]
    assert not without


def test_forward_and_back(reader: Client) -> None:
    receivers(*"gbfaced")
    first = page(reader, f"{BASE}/receivers?limit=3")
    assert (names(first), first["count"], first["previous"]) == (list("abc"), 7, None)
    second = page(reader, first["next"])
    third = page(reader, second["next"])
    assert (names(second), names(third), third["next"]) == (list("def"), ["g"], None)
    back = page(reader, third["previous"])
    assert names(back) == list("def")
    again = page(reader, back["previous"])
    assert (names(again), again["previous"]) == (list("abc"), None)
    assert names(page(reader, back["next"])) == ["g"]


def test_rows_that_come_and_go_are_neither_repeated_nor_passed_over(reader: Client) -> None:
    receivers(*"bdfh")
    first = page(reader, f"{BASE}/receivers?limit=2")
    Receiver.objects.filter(pk="d").delete()
    receivers("a", "c", "g")
    assert names(page(reader, first["next"])) == ["f", "g"]


def test_rows_of_the_same_name_are_told_apart(reader: Client) -> None:
    fleet = make_fleet()
    for i in range(5):
        ManagedRouter.objects.create(
            fleet=fleet, cluster="pd", name="same", kind="gateway", url=f"http://{i}",
            state="sync", since=NOW,
        )  # fmt: skip
    seen: list[int] = []
    address = f"{BASE}/fleets/f1/managed-routers?limit=2"
    while address:
        found = page(reader, address)
        seen += [row["id"] for row in found["results"]]
        address = found["next"]
    assert len(seen) == len(set(seen)) == 5


def test_lists_that_are_no_rows_have_pages_too(reader: Client) -> None:
    make_fleet()
    Fleet.objects.filter(pk="f1").update(
        scenario=_with_links(Fleet.objects.get(pk="f1").scenario, 5)
    )
    seen: list[str] = []
    address = f"{BASE}/fleets/f1/links?limit=2"
    while address:
        found = page(reader, address)
        seen += [row["id"] for row in found["results"]]
        address = found["next"]
    assert seen == ["prfaas->pd", *(f"prfaas->pd{i}" for i in range(4))]
    last = page(reader, f"{BASE}/fleets/f1/links?limit=2&offset=4")
    assert [r["id"] for r in page(reader, last["previous"])["results"]] == seen[2:4]


def _with_links(scenario: dict[str, Any], n: int) -> dict[str, Any]:
    pd = scenario["clusters"][1]
    more = [{**pd, "name": f"pd{i}"} for i in range(n - 1)]
    links = [{**scenario["links"][0], "to": each["name"]} for each in [pd, *more]]
    load = {k: v for k, v in scenario["workload"].items()}
    rest = {k: v for k, v in scenario.items() if k != "workload"}
    workloads = [{**load, "cluster": each["name"]} for each in [pd, *more]]
    return {
        **rest, "clusters": [scenario["clusters"][0], pd, *more], "links": links,
        "workloads": workloads,
    }  # fmt: skip


def test_a_number_of_rows_to_leave_out_still_works_and_says_that_it_goes_away(
    reader: Client,
) -> None:
    receivers(*"abc")
    answer = send(reader, "get", "/receivers?offset=1&limit=1")
    assert names(strict(answer)) == ["b"]
    assert answer["Deprecation"].startswith("@")
    assert answer["Sunset"].endswith("GMT")
    assert 'rel="deprecation"' in answer["Link"]
    assert "Deprecation" not in send(reader, "get", "/receivers")
    assert "offset" not in strict(answer)["next"]


def forged(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "x", "é", "====", forged(1), forged([]), forged([["a"], 0]), forged([["a"], -1, False]),
        forged([["a"], 0, 1]), forged([["a", "b", "c"], 0, False]), forged([[None], 0, False]),
        forged([["a\0", "a"], 0, False]), forged([["a", 2**70], 0, False]),
        forged([[["a"], "a"], 0, False]), forged([["a", "b"], 2**40, False]), "A" * 4000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/receivers", "/fleets/f1/links", "/fleets/f1/managed-routers"])
def test_a_forged_cursor_is_not_found(reader: Client, path: str, cursor: str) -> None:
    make_fleet()
    answer = send(reader, "get", f"{path}?{urlencode({'cursor': cursor})}")
    assert answer.status_code in (200, 404)
    assert answer.status_code == 404 or path.endswith("links")
