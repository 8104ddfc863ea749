"""The timeline: what the loop did and did not do, filtered, page by page, and as a download."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from console import decisions, timeline
from console.context import Span
from console.timeline import Cursor, Filters
from routing import fleets
from routing.models import Decision, Fleet, Hold, Tick
from tests.console.page_case import busy_fleet, decision, tick
from tests.console.test_pages import text, words
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

HELD = "pd stays as it is: held by ana@site until 2026-11-30 12:00:00 UTC, an experiment."
BACK = (
    "pd runs t = 4,000: held by system until 2026-11-30 12:00:00 UTC, "
    "Back to plan 1.1: TTFT p90 rose from 1 s to 3 s."
)


def rows(client: Client, **query: str) -> list[str]:
    """Each row of the list as its words."""
    page = client.get(reverse("decisions", args=["f1"]), {"range": "1h", **query})
    assert page.status_code == 200
    body = page.content.decode()
    found = re.findall(r'<tr class="linked.*?</tr>', body, re.DOTALL)
    return [words(row) for row in found]


def past(fleet: Fleet, n: int, *, reasons: tuple[str, ...] = ("Dwell", "WithinNoise")) -> None:
    """`n` ticks, 2 s apart, whose reason changes with every fifth; the last was a second ago."""
    now = timezone.now()
    for i in range(n):
        at = now - timedelta(seconds=1 + 2 * (n - 1 - i))
        reason = reasons[i // 5 % len(reasons)]
        tick(fleet, at, reason=reason, message=f"{reason} since {i // 5}.")


def test_decisions_and_what_was_held_between_them_are_one_list(viewer: Client) -> None:
    busy_fleet()
    found = rows(viewer)
    tags = [re.search(r"\b(v\d|advised|kept)\b", row)[1] for row in found]
    assert tags == ["kept", "advised", "v2", "v1"]
    assert "t 6K tok → t 9K tok" in found[1]
    assert "t 4K tok → t 6K tok Raised t because local prefill" in found[2]
    assert "applied 2/2" in found[2]
    assert "by loop" in found[2]
    assert "headroom +5 %" in found[2]


def test_a_run_of_ticks_is_one_row_with_what_it_said_last_and_for_how_long(viewer: Client) -> None:
    fleet = make_fleet()
    past(fleet, 15)
    found = rows(viewer)
    assert len(found) == 3
    assert "Dwell since 2. Dwell for" in found[0]
    assert ", still" in found[0]
    assert "WithinNoise since 1. Within noise for 10 s" in found[1]
    assert "for 10 s" in found[1]
    assert "or longer" in found[2], "ticks before the oldest may be forgotten"


def test_the_earliest_next_action_is_told_of_what_goes_on_only(viewer: Client) -> None:
    fleet = make_fleet()
    now = timezone.now()
    until_s = (now + timedelta(seconds=90)).timestamp()
    for ago_s in (30, 28):
        at = now - timedelta(seconds=ago_s)
        tick(fleet, at, reason="RolesDwell", message="A.", next_action_at_s=until_s)
    tick(fleet, now - timedelta(seconds=4), reason="Optimal", message="B.")
    for ago_s in (2, 1):
        at = now - timedelta(seconds=ago_s)
        tick(fleet, at, reason="RolesDwell", message="A.", next_action_at_s=until_s)
    found = rows(viewer)
    told = f"Earliest next action {now + timedelta(seconds=90):%H:%M:%S} UTC"
    assert told in found[0]
    assert all("Earliest" not in row for row in found[1:])
    Tick.objects.update(at=timezone.now() - timedelta(minutes=3))
    assert all("Earliest" not in row for row in rows(viewer)), "the loop is silent: nobody acts"


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ({"kind": "pushed"}, ["v4", "v2", "v1"]),
        ({"kind": "adopted"}, ["v4", "v2", "v1"]),
        ({"kind": "advised"}, ["advised"]),
        ({"kind": "refused"}, []),
        ({"kind": "reverted"}, ["v4"]),
        ({"kind": "held"}, ["kept", "kept"]),
        ({"kind": "nonsense"}, ["kept", "v4", "kept", "advised", "v2", "v1"]),
        ({"reason": "Initial"}, ["v1"]),
        ({"reason": "WithinNoise"}, ["kept"]),
        ({"reason": "Initial", "kind": "advised"}, []),
        ({"actor": "loop"}, ["kept", "advised", "v2", "v1"]),
        ({"actor": "ana@site"}, ["kept"]),
        ({"actor": "system"}, ["v4"]),
        ({"q": "LOCAL prefill"}, ["v2"]),
        ({"q": "experiment"}, ["kept"]),
        ({"q": "100 %"}, ["kept"]),
        ({"q": "_"}, []),
        ({"cluster": "pd"}, ["v4", "kept", "v2", "v1", "advised"]),
        ({"cluster": "elsewhere"}, []),
    ],
)
def test_filters(viewer: Client, query: dict[str, str], left: list[str]) -> None:
    fleet = busy_fleet()
    now = timezone.now()
    Tick.objects.filter(action="hold").delete()
    at = now - timedelta(minutes=4)
    tick(fleet, at, reason="Held", message=HELD)
    decision(fleet, now - timedelta(minutes=2), 4, 4000, previous=6000, reason="Held", message=BACK)
    tick(fleet, now - timedelta(seconds=2), message="t is within 2 % of the best: 100 %.")
    found = rows(viewer, **query)
    tags = [re.search(r"\b(v\d|advised|kept)\b", row)[1] for row in found]
    assert sorted(tags) == sorted(left)


def test_a_plan_that_goes_back_says_to_which_and_who(viewer: Client) -> None:
    fleet = busy_fleet()
    at = timezone.now() - timedelta(minutes=1)
    decision(fleet, at, 3, 4000, previous=6000, reason="Held", message=BACK)
    [row] = rows(viewer, kind="reverted")
    assert "Held back to v1" in row
    assert "by system" in row


def test_no_match_leads_on_to_all(viewer: Client) -> None:
    busy_fleet()
    assert "No decision matches this filter" in text(
        viewer, "decisions", "f1", reason="Initial", kind="advised"
    )


def test_a_range_without_ticks_says_what_was_last(viewer: Client) -> None:
    fleet = make_fleet()
    tick(fleet, timezone.now() - timedelta(hours=2))
    found = text(viewer, "decisions", "f1")
    assert "No tick in the last 15m." in found
    assert "The last one was 2 h ago and said: t is within 2 % of the best." in found


def test_the_range_of_the_page_is_the_range_of_the_list(viewer: Client) -> None:
    fleet = busy_fleet()
    made = Decision.objects.get(version=2).created_at.timestamp()
    around = {"from": f"{made - 30:.0f}", "to": f"{made + 30:.0f}"}
    found = rows(viewer, **around)
    assert len(found) == 1
    assert "v2" in found[0]
    page = text(viewer, "decisions", fleet.pk, **around)
    assert "The range began under v1" in page


def test_pages_follow_each_other_without_gap_or_repeat(viewer: Client) -> None:
    fleet = make_fleet()
    past(fleet, 200)
    now = timezone.now()
    for version in range(1, 60):
        decision(fleet, now - timedelta(seconds=7 * version), 60 - version, 4000 + version)
    whole = rows_by_page(fleet, size=1000)
    for size in (1, 7, 50):
        assert rows_by_page(fleet, size=size) == whole
    assert rows_by_page(fleet, Filters(reason="Dwell"), size=3) == [
        row for row in whole if row[1] == "Dwell"
    ]
    times = [row[0] for row in whole]
    assert all(a >= b for a, b in pairwise(times))


def rows_by_page(
    fleet: Fleet, filters: Filters | None = None, *, size: int
) -> list[tuple[object, ...]]:
    since = timezone.now() - timedelta(hours=1)
    span = Span("1h", since, FAR, is_pinned=True)
    found = []
    for entry in timeline.every(fleet, span, filters or Filters(), size):
        if isinstance(entry, Decision):
            found.append((entry.created_at, entry.reason, entry.version))
        else:
            found.append((entry.since, entry.reason, entry.last_at, entry.message))
    return found


FAR = timezone.now() + timedelta(hours=1)


def test_the_list_pages_by_cursor(viewer: Client) -> None:
    fleet = make_fleet()
    now = timezone.now()
    for version in range(1, 62):
        decision(fleet, now - timedelta(seconds=10 * version), 62 - version, 4000 + version)
    first = viewer.get(reverse("decisions", args=["f1"]), {"kind": "pushed", "range": "1h"})
    [older] = re.findall(r'href="\?([^"]*before=[^"]*)"', first.content.decode())
    assert "v12" in words(first.content.decode())
    decision(fleet, now, 62, 5000)
    page = viewer.get(f"{reverse('decisions', args=['f1'])}?{older.replace('&amp;', '&')}")
    found = re.findall(r'<span class="tag">(v\d+)</span>', page.content.decode())
    assert found == [f"v{n}" for n in range(11, 0, -1)]
    assert "Newest" in words(page.content.decode())


@pytest.mark.parametrize("text", ["", "x", "1.2.3", "1.2.3.4", "9" * 30, "1.1.1.1.1", "-1.0.1.1"])
def test_what_is_no_cursor_is_the_first_page(viewer: Client, text: str) -> None:
    busy_fleet()
    assert Cursor.parse(text) is None
    assert len(rows(viewer, before=text)) == 4


def test_a_cursor_is_read_as_it_was_written() -> None:
    at = timezone.now()
    cursor = Cursor(at, 1, 42, at - timedelta(microseconds=1))
    assert Cursor.parse(str(cursor)) == cursor


def test_the_strip_has_steps_and_marks(viewer: Client) -> None:
    fleet = busy_fleet()
    now = timezone.now()
    span = Span("15m", now - timedelta(minutes=19), now, is_pinned=False)
    steps, began = decisions.steps_of(fleet, span, "pd")
    assert began is not None
    assert began.version == 1
    strip = decisions.strip(fleet, "pd", span, steps, began)
    assert strip["t_tokens"] == [4000, 6000]
    assert strip["n_prefill"] == [3, 3]
    assert strip["at_s"][0] == span.since.timestamp()
    assert [mark["text"] for mark in strip["marks"]] == ["v2 Prefill imbalance"]
    assert not strip["is_cut"]


def test_csv_holds_all_that_is_filtered_and_nothing_that_runs(viewer: Client) -> None:
    fleet = make_fleet()
    past(fleet, 15)
    at = timezone.now() - timedelta(minutes=5)
    row = decision(fleet, at, 1, 4000, message="=HYPERLINK(1)")
    Hold.objects.create(
        fleet=fleet, mode="threshold", owner="@ana", reason="x", expires_at=timezone.now()
    )
    answer = viewer.get(reverse("decisions", args=["f1"]), {"format": "csv", "range": "1h"})
    assert answer["Content-Disposition"] == 'attachment; filename="f1-decisions.csv"'
    found = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert [one["kind"] for one in found] == ["held", "held", "held", "pushed"]
    assert found[3]["message"] == "'=HYPERLINK(1)"
    assert found[3]["version"] == "1.1"
    assert found[3]["decision"] == str(row.pk)
    assert float(found[3]["gain_ratio"]) == pytest.approx(0.05)
    only = viewer.get(
        reverse("decisions", args=["f1"]), {"format": "csv", "range": "1h", "reason": "Dwell"}
    )
    assert len(list(csv.DictReader(io.StringIO(only.getvalue().decode())))) == 2


def test_json_is_the_same(viewer: Client) -> None:
    busy_fleet()
    answer = viewer.get(reverse("decisions", args=["f1"]), {"format": "json", "range": "1h"})
    found = json.loads(answer.getvalue())
    assert [one["kind"] for one in found] == ["held", "advised", "pushed", "pushed"]
    assert found[1]["version"] is None
    assert found[2]["changed"] == "t 4K tok → t 6K tok"
    empty = viewer.get(reverse("decisions", args=["f1"]), {"format": "json", "kind": "refused"})
    assert json.loads(empty.getvalue()) == []


def test_hostile_words_are_shown_and_do_nothing(viewer: Client) -> None:
    fleet = make_fleet()
    evil = "<script>alert(1)</script>\u202e" + "x" * 300
    tick(fleet, timezone.now(), message=evil, reason="Held")
    decision(fleet, timezone.now(), 1, 4000, message=evil)
    Hold.objects.create(
        fleet=fleet, mode="threshold", owner=evil[:150], reason=evil, expires_at=timezone.now()
    )
    page = viewer.get(reverse("decisions", args=["f1"]), {"q": evil, "actor": evil})
    assert "<script>alert" not in page.content.decode()


def test_the_page_asks_few_questions_whatever_there_is(viewer: Client, rf: RequestFactory) -> None:
    fleet = make_fleet()
    past(fleet, 100)
    now = timezone.now()
    for version in range(1, 60):
        decision(fleet, now - timedelta(seconds=2 * version), 60 - version, 4000 + version)
    request = rf.get("/", {"range": "1h"})
    with CaptureQueriesContext(connection) as asked:
        decisions.listed(request, fleet, fleets.scenario_of(fleet), now)
    assert len(asked) <= 7, [query["sql"][:90] for query in asked]
