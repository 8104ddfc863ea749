"""What the frame around every page tells and offers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client, RequestFactory

from console.context import nav, span_of
from console.roles import Role
from routing.models import Fleet, Policy
from tests.console.api_case import person
from tests.console.page_case import busy_fleet

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.fixture
def operator() -> Client:
    return person("operator")


def html(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200, path
    return str(response.content.decode())


def stop(page: str) -> str | None:
    found = re.search(r'<a class="button danger stop" href="([^"]+)"', page)
    return found[1] if found else None


@pytest.mark.django_db
def test_every_page_of_the_rail_has_a_letter_of_its_own(fleet: Fleet) -> None:
    role = Role("operator", "", frozenset({"read", "operate"}))
    pages = nav(fleet.pk, None, role, counts={})
    letters = {page["icon"]: page["key"] for page in pages}
    assert all(re.fullmatch("[a-z]", letter) for letter in letters.values()), letters
    assert len(set(letters.values())) == len(letters)
    assert letters["overview"] == "o"
    assert letters["decisions"] == "d"
    assert letters["planner"] == "p"
    groups = [(str(page["group"]), page["icon"]) for page in pages if page["group"]]
    assert groups == [
        ("Watch", "overview"),
        ("Change", "control"),
        ("Plan", "planner"),
        ("Site", "onboarding"),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/", "/audit/", "/search/", "/fleets/f1/decisions/"])
def test_stop_leads_to_the_page_that_asks(operator: Client, path: str) -> None:
    busy_fleet()
    busy_fleet("f2")
    html(operator, "/fleets/f1/")
    page = html(operator, path)
    assert stop(page) == "/fleets/f1/mode/?to=paused"
    names_it = 'class="wide stop-fleet">f1<' in page
    assert names_it is not path.startswith("/fleets/"), "the last fleet is named elsewhere"


@pytest.mark.django_db
def test_nobody_stops_what_is_paused_or_not_theirs(operator: Client, viewer: Client) -> None:
    busy_fleet()
    assert stop(html(viewer, "/fleets/f1/")) is None
    Policy.objects.update(mode="paused")
    assert stop(html(operator, "/fleets/f1/")) is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["", "fleet/", "decisions/", "routers/", "findings/", "backtests/"]
)
def test_curl_names_a_call_that_answers(viewer: Client, path: str) -> None:
    busy_fleet()
    page = html(viewer, f"/fleets/f1/{path}")
    url = re.search(r'data-share="curl" data-url="([^"]+)"', page)
    assert url is not None
    assert viewer.get(url[1]).status_code == 200


@pytest.mark.django_db
def test_a_wall_display_is_asked_for_in_the_address(viewer: Client) -> None:
    busy_fleet()
    assert '<body data-page="overview" class="wall"' in html(viewer, "/fleets/f1/?wall=1")
    assert 'class="wall"' not in html(viewer, "/fleets/f1/?wall=yes")


@pytest.mark.parametrize(
    ("query", "since_s", "until_s", "is_pinned"),
    [
        ({}, -900, 0, False),
        ({"range": "1h"}, -3600, 0, False),
        ({"range": "century"}, -900, 0, False),
        ({"from": "1767348000", "to": "1767351600"}, None, None, True),
        ({"range": "1h", "from": "10", "to": "5"}, -3600, 0, False),
        ({"from": "1", "to": ""}, -900, 0, False),
        ({"from": "nan", "to": "inf"}, -900, 0, False),
        ({"from": "1e300", "to": "1e301"}, -900, 0, False),
    ],
)
def test_the_range_of_the_address(
    rf: RequestFactory,
    query: dict[str, str],
    since_s: float | None,
    until_s: float | None,
    is_pinned: bool,
) -> None:
    span = span_of(rf.get("/", query), NOW)
    assert span.is_pinned is is_pinned
    if since_s is None or until_s is None:
        assert (span.since.timestamp(), span.until.timestamp()) == (1767348000, 1767351600)
    else:
        assert span.since == NOW + timedelta(seconds=since_s)
        assert span.until == NOW + timedelta(seconds=until_s)
