"""Lists of fleets, instances and links: sorted, narrowed, paged by the server, in few queries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from console import fleet_list
from console.fleet_list import Facts
from console.listing import Column, listing, ordered
from routing import fleets
from routing.core.types import LinkMemory, Memory
from routing.models import Fleet, Hold, ManagedRouter
from telemetry import wire
from tests.console import drill_case
from tests.console.drill_case import instance, land, large_fleet, link, now_s
from tests.console.page_case import prediction, tick
from tests.console.test_pages import text, words
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

MOST_QUERIES = 12
COLUMNS = (
    Column("name", "Name", lambda row: row[0], is_name=True),
    Column("n", "N", lambda row: row[1], is_number=True),
    Column("rare", "Rare", lambda row: row[1], is_usual=False),
)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", "abc"),
        ("-name", "cba"),
        ("n", "cab"),
        ("-n", "acb"),
        ("nonsense", "abc"),
    ],
)
def test_a_list_is_sorted_as_asked_and_what_is_unknown_stands_last(sort: str, order: str) -> None:
    rows = [("a", 1.0), ("b", None), ("c", 2.0)]
    found = listing(rows, COLUMNS, QueryDict(f"sort={sort}"), all_total=3, per_page=10)
    assert "".join(name for name, _n in found.rows) == order


def test_equal_rows_keep_their_order_either_way() -> None:
    rows = [("a", 1.0), ("b", 1.0), ("c", 1.0)]
    assert ordered(rows, COLUMNS[1], is_turned=False) == rows
    assert ordered(rows, COLUMNS[1], is_turned=True) == rows


def test_a_click_on_the_sorted_column_turns_it_round() -> None:
    heads = listing([], COLUMNS, QueryDict("sort=n"), all_total=0, per_page=10).heads
    assert [(head.sorted, head.next) for head in heads] == [("", "name"), ("descending", "-n")]


@pytest.mark.parametrize(
    ("page", "number", "first", "last"),
    [("", 1, 1, 10), ("3", 3, 21, 25), ("999", 3, 21, 25), ("-1", 1, 1, 10), ("x", 1, 1, 10)],
)
def test_a_page_that_is_not_there_is_the_nearest(
    page: str, number: int, first: int, last: int
) -> None:
    rows = [(f"{i:02d}", None) for i in range(25)]
    found = listing(rows, COLUMNS, QueryDict(f"page={page}"), all_total=25, per_page=10)
    assert (found.number, found.first, found.last, found.pages) == (number, first, last, 3)


def test_chosen_columns_are_shown_and_the_name_always() -> None:
    def shown(query: str) -> set[str]:
        return set(listing([], COLUMNS, QueryDict(query), all_total=0, per_page=10).shown)

    assert shown("") == {"name", "n"}
    assert shown("col=rare") == {"name", "rare"}
    assert shown("col=nonsense") == {"name", "n"}


def test_forms_keep_what_they_do_not_change() -> None:
    query = QueryDict("q=a&cluster=pd&sort=n&col=n&page=3&format=csv")
    found = listing([], COLUMNS, query, all_total=0, per_page=10)
    assert found.narrowed_by == (("q", "a"), ("cluster", "pd"))
    assert found.arranged_by == (("sort", "n"), ("col", "n"))


def some_instances(fleet: str = "f1") -> None:
    at_s = now_s() - 1.0
    queues = {"pd/a": 5.0, "pd/b": None, "pd/c": 9.0, "prfaas/d": 0.0}
    land(
        instance(f"{fleet}/{name}", at_s, role="prefill" if name > "pd/b" else "decode",
                 signals={"requests_waiting": n})
        for name, n in queues.items()
    )  # fmt: skip


def names(client: Client, **query: Any) -> list[str]:
    """Instances in the order of the page."""
    page = client.get(reverse("instances", args=["f1"]), query).content.decode()
    body = page[page.index("<tbody>") : page.index("</tbody>")] if "<tbody>" in page else ""
    return [words(part.split("</a>")[0].split(">", 1)[1]) for part in body.split("<th ")[1:]]


def test_instances_are_sorted_by_any_column(fleet: Fleet, viewer: Client) -> None:
    some_instances()
    assert names(viewer) == ["pd/ a", "pd/ b", "pd/ c", "prfaas/ d"]
    assert names(viewer, sort="waiting") == ["pd/ c", "pd/ a", "prfaas/ d", "pd/ b"]
    assert names(viewer, sort="-waiting") == ["prfaas/ d", "pd/ a", "pd/ c", "pd/ b"]
    for sort in ("cluster", "role", "state", "age", "kv", "running", "ttft", "prompt", "engine"):
        assert len(names(viewer, sort=sort)) == 4


def test_instances_are_narrowed_by_cluster_role_state_and_words(
    fleet: Fleet, viewer: Client
) -> None:
    some_instances()
    assert names(viewer, cluster="prfaas") == ["prfaas/ d"]
    assert names(viewer, role="decode") == ["pd/ a", "pd/ b"]
    assert names(viewer, q="PD/C") == ["pd/ c"]
    assert names(viewer, state="down") == []
    land([instance("f1/pd/a", now_s(), state="down", error="connection refused")], agent="b")
    assert names(viewer, state="down") == ["pd/ a"]
    found = text(viewer, "instances", "f1", state="slow")
    assert "No instance matches this filter" in found
    assert "Show all 4" in found


def test_a_list_without_instances_says_how_to_begin(fleet: Fleet, viewer: Client) -> None:
    found = text(viewer, "instances", "f1")
    assert "No agent has reported an instance of this fleet" in found
    assert "python -m telemetry.agent --config agent.toml" in found


def test_the_median_time_to_first_token_is_that_of_the_last_minute(
    fleet: Fleet, viewer: Client
) -> None:
    def reading(ago_s: float, counts: list[float]) -> wire.InstanceSample:
        histogram = wire.Histogram(drill_case.EDGES, counts, 1.0)
        return instance("f1/pd/a", now_s() - ago_s, signals={"ttft_seconds": histogram})

    land([reading(50.0, [100.0, 0.0, 0.0, 0.0, 0.0, 0.0])])
    land([reading(1.0, [100.0, 0.0, 10.0, 0.0, 0.0, 0.0])])
    assert "650 ms" in text(viewer, "instances", "f1", col="ttft")


def test_instances_as_csv_are_what_the_filter_leaves_and_harmless(
    fleet: Fleet, viewer: Client
) -> None:
    land([instance(f"f1/pd/{drill_case.FORMULA}", now_s()), instance("f1/pd/a", now_s())])
    answer = viewer.get(reverse("instances", args=["f1"]), {"format": "csv", "q": "hyper"})
    lines = b"".join(answer).decode().splitlines()
    assert lines[0].startswith("cluster,instance,role,state,read_at,age_s,requests_running")
    assert len(lines) == 2
    assert lines[1].startswith("pd,'=HYPERLINK(1),decode,")


HOSTILE = (drill_case.HOSTILE, drill_case.RTL, "a/b?c=d&e#f%2F../..", "x" * 280, "q,\"'\n;")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_shown_as_it_is_and_leads_to_its_page(
    fleet: Fleet, viewer: Client, name: str
) -> None:
    land([instance(f"f1/pd/{name}", now_s())])
    page = viewer.get(reverse("instances", args=["f1"])).content.decode()
    assert "<img src=x" not in page
    href = page.split('<a class="row" href="')[1].split('"')[0].replace("&amp;", "&")
    own = viewer.get(href)
    assert own.status_code == 200
    assert "<img src=x" not in own.content.decode()
    samples = viewer.get(reverse("samples", args=["f1"]), {"kind": "instance", "id": f"pd/{name}"})
    assert "1 sample" in words(samples.content.decode())


def judged(fleet: Fleet, **labels: Any) -> None:
    memory = {name: LinkMemory(label=label) for name, label in labels.items()}
    tick(fleet, timezone.now(), memory=Memory(links=memory))


def test_links_are_sorted_narrowed_and_told_with_their_state(viewer: Client) -> None:
    fleet = large_fleet(n_instances=8, n_links=4)
    ids = [each.id for each in fleets.scenario_of(fleet).links]
    at_s = now_s()
    land([link(ids[0], at_s), link(ids[1], at_s, signals={"tx_gbps": 90.0})])
    judged(fleet, **{ids[0]: "clear", ids[1]: "congested"})
    assert ids == ["site-000->pd", "pd->site-000", "site-001->pd", "pd->site-001"]
    found = text(viewer, "links", "f1", sort="use")
    assert found.index("pd → site-000") < found.index("site-000 → pd") < found.index("never read")
    assert "90 %" in found
    assert "1 link of 4" in text(viewer, "links", "f1", state="congested")
    assert "2 links of 4" in text(viewer, "links", "f1", state="unread")
    assert "2 links of 4" in text(viewer, "links", "f1", cluster="site-001")
    assert "1 link of 4" in text(viewer, "links", "f1", q="site-000 → pd")
    assert "No link matches" in text(viewer, "links", "f1", q="nowhere")


def test_links_as_csv(viewer: Client) -> None:
    fleet = large_fleet(n_instances=8, n_links=2)
    land([link("site-000->pd", now_s())])
    answer = viewer.get(reverse("links", args=[fleet.pk]), {"format": "csv"})
    lines = b"".join(answer).decode().splitlines()
    assert lines[0].startswith("link,state,breaker,tx_gbps,capacity_gbps,utilisation_ratio")
    assert lines[2].startswith("site-000->pd,not judged yet,,40.0,100.0,0.4,0.001,0.005")


@pytest.mark.parametrize(
    ("facts", "tone", "says"),
    [
        ({}, "good", "healthy"),
        ({"tick_at": None}, "off", "the loop has not run yet"),
        ({"age_s": 60.0}, "bad", "loop silent since"),
        ({"age_s": -60.0}, "bad", "clock set back"),
        ({"n_drifted": 1}, "bad", "1 router drifted"),
        ({"n_drifted": 2, "n_held": 1}, "bad", "2 routers drifted"),
        ({"n_firing": 3}, "bad", "3 alerts fire"),
        ({"n_overridden": 1}, "bad", "1 gate overridden by hand"),
        ({"n_unreachable": 1}, "bad", "1 router unreachable"),
        ({"headroom": 0.9}, "bad", "demand is above capacity"),
        ({"n_held": 1}, "warn", "1 hold"),
        ({"mode": "paused"}, "warn", "paused"),
    ],
)
def test_the_state_of_a_fleet_is_the_gravest_of_what_is_wrong(
    facts: dict[str, Any], tone: str, says: str
) -> None:
    now = timezone.now()
    age_s = facts.pop("age_s", 1.0)
    given = {"mode": "active", "tick_at": now - timedelta(seconds=age_s), **facts}
    row = fleet_list.row_of(Facts(name="f", **given), now, stale_s=6.0)
    assert row.mark.tone == tone
    assert row.mark.text.startswith(says)


def test_fleets_in_trouble_come_first_and_each_says_what_it_is(viewer: Client) -> None:
    now = timezone.now()
    for name in ("calm", "drifting", "held", "new"):
        fleet = make_fleet(name)
        if name != "new":
            tick(fleet, now, current=prediction(1.5))
    ManagedRouter.objects.create(
        fleet_id="drifting", cluster="pd", name="r", kind="smg", url="u", state="drifted", since=now
    )
    Hold.objects.create(
        fleet_id="held", mode="always_local", owner="op", reason="r",
        expires_at=now + timedelta(hours=1),
    )  # fmt: skip
    found = text(viewer, "overview")
    order = [found.index(name) for name in ("1 router drifted", "1 hold", "the loop has not run")]
    assert order == sorted(order)
    assert "×1.50" in found
    assert "t is within 2 % of the best" in found
    only = text(viewer, "overview", state="good")
    assert "1 fleet of 4" in only
    assert "No fleet matches" in text(viewer, "overview", q="nothing")


def count(client: Client, name: str, *args: Any, **query: Any) -> int:
    address = reverse(name, args=args)
    client.get(address, query)
    with CaptureQueriesContext(
        connection,
    ) as found:
        assert client.get(address, query).status_code == 200
    return len(found)


def test_a_hundred_fleets_take_as_few_queries_as_two(viewer: Client) -> None:
    for i in range(2):
        tick(make_fleet(f"f{i}"), timezone.now())
    two = count(viewer, "overview")
    for i in range(2, 100):
        tick(make_fleet(f"f{i}"), timezone.now())
    assert count(viewer, "overview") == two <= MOST_QUERIES
    assert "1 to 50 of 100, page 1 of 2" in text(viewer, "overview")


def test_three_thousand_instances_and_three_hundred_links_take_few_queries(viewer: Client) -> None:
    fleet = large_fleet()
    at_s = now_s() - 1.0
    land(instance(f"f1/pd/e-{i:04d}", at_s) for i in range(3000))
    land(link(each.id, at_s) for each in fleets.scenario_of(fleet).links)
    tick(fleet, timezone.now())
    assert count(viewer, "instances", "f1") <= MOST_QUERIES
    assert count(viewer, "instances", "f1", sort="ttft", q="e-1", page="5") <= MOST_QUERIES
    assert count(viewer, "links", "f1", sort="use") <= MOST_QUERIES
    assert "1 to 50 of 3000, page 1 of 60" in text(viewer, "instances", "f1")
    assert "1 to 50 of 300, page 1 of 6" in text(viewer, "links", "f1")
