"""The audit page: filters that stay, pages from a row on, all of it as a download."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from console import audit
from routing import audit as record
from routing.models import Action
from tests.console.test_pages import text, words

pytestmark = pytest.mark.django_db


def changes(n: int, **facts: str) -> None:
    for i in range(n):
        record.record(
            **{
                **{"actor": "ana", "via": "ui", "verb": "policy.change", "fleet": "f1"},
                **{"target": f"policy {i}", "reason": f"because {i}", **facts},
            },
            before={"mode": "active", "t_min_tokens": 512},
            after={"mode": "paused", "t_min_tokens": 1024, "version": i, "holds": 3},
        )


def test_the_newest_come_first_and_older_ones_follow(viewer: Client) -> None:
    changes(120)
    first = viewer.get(reverse("audit"))
    assert "policy 119" in words(first.content.decode())
    assert "policy 19 " not in words(first.content.decode())
    [older] = re.findall(r'href="(\?before=\d+)" rel="next"', first.content.decode())
    changes(3, target="new")
    second = words(viewer.get(f"{reverse('audit')}{older}").content.decode())
    assert "policy 19 " in second
    assert "policy 0 " in second
    assert "policy 20 " not in second
    assert "Newest" in second


def test_filters_stay_with_the_page_and_its_links(viewer: Client) -> None:
    changes(105)
    changes(2, actor="zoe", verb="hold.release", fleet="f2")
    page = viewer.get(reverse("audit"), {"actor": "ana", "q": "because"}).content.decode()
    assert "zoe" not in re.sub(r"<datalist.*?</datalist>", "", page, flags=re.DOTALL)
    assert 'name="actor" value="ana"' in page
    for link in re.findall(r'href="(\?[^"]*(?:format|before)=[^"]+)"', page):
        assert "actor=ana" in link
        assert "q=because" in link
    assert "No change matches this filter" in text(viewer, "audit", actor="nobody")
    assert "hold.release" in text(viewer, "audit", verb="hold.release", fleet="f2")


def test_what_changed_is_folded_after_the_first_fields(viewer: Client) -> None:
    changes(1)
    found = text(viewer, "audit")
    assert "mode active → paused" in found
    assert "2 more fields" in found
    assert "holds 3" in found


def test_csv_and_json_hold_every_row_of_the_filter(viewer: Client) -> None:
    changes(230)
    changes(1, actor="=cmd()", reason="-1+1", target="last")
    answer = viewer.get(reverse("audit"), {"format": "csv"})
    assert answer["Content-Disposition"] == 'attachment; filename="audit.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert len(rows) == Action.objects.count() == 231
    assert (rows[0]["actor"], rows[0]["reason"]) == ("'=cmd()", "'-1+1")
    assert json.loads(rows[1]["after"])["mode"] == "paused"
    found = json.loads(viewer.get(reverse("audit"), {"format": "json", "actor": "ana"}).getvalue())
    assert len(found) == 230
    assert found[0]["after"]["holds"] == 3
    assert found[0]["id"] > found[-1]["id"]


@pytest.mark.parametrize("before", ["", "x", "-1", "9" * 40])
def test_what_is_no_row_is_the_newest_page(viewer: Client, before: str) -> None:
    changes(1)
    assert "policy 0" in text(viewer, "audit", before=before)


def test_behind_the_oldest_there_is_nothing(viewer: Client) -> None:
    changes(1)
    assert "There is nothing older" in text(viewer, "audit", before="1")


def test_it_never_counts_nor_searches_all_its_rows(viewer: Client) -> None:
    changes(3)
    viewer.get(reverse("audit"))
    with CaptureQueriesContext(connection) as asked:
        viewer.get(reverse("audit"), {"actor": "ana"})
    mine = [one["sql"] for one in asked if "routing_action" in one["sql"]]
    assert len(mine) == 2
    assert all("LIMIT" in sql and "COUNT" not in sql and "DISTINCT" not in sql for sql in mine)


def test_what_changed_inside_a_document_is_told_by_its_path() -> None:
    before = {"scenario": {"links": [{"gbps": 10}], "model": {"a": 1}, "same": 1}, "mode": "x"}
    after = {"scenario": {"links": [{"gbps": 20}, {"gbps": 5}], "model": 3, "same": 1}, "mode": "y"}
    assert audit.inside(before, after) == [
        {"name": "scenario.links.0.gbps", "before": "10", "after": "20"},
        {"name": "scenario.links.1", "before": "nothing", "after": '{"gbps": 5}'},
        {"name": "scenario.model", "before": '{"a": 1}', "after": "3"},
    ]
    assert audit.inside(None, after) == []
    many = {"x": {str(i): i for i in range(100)}}
    assert len(audit.inside(many, {"x": {str(i): -i - 1 for i in range(100)}})) == 40
