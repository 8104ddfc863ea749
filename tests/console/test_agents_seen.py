"""Who may look at single fleets is told of no agent that reads only for others."""

from __future__ import annotations

import pytest
from django.test import Client

from console import agents_seen
from routing.rights import EVERYTHING, of_groups
from tests.console.api_case import person
from tests.console.onboarding_case import agent, refusal, source
from tests.console.test_approvals import member
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

MINE, OTHERS, BOTH, LINKS, NOBODYS = "mine-a", "others-a", "both-a", "links-a", "nobodys-a"
HIDDEN = (OTHERS, NOBODYS)
PAGES = ("/fleets/f1/fleet/", "/fleets/f1/onboarding/", "/fleets/f1/onboarding/?show=trouble")


@pytest.fixture(autouse=True)
def site() -> None:
    """Two fleets with a link of the same name, and agents of one, of the other, of both, of the
    link, and one whose sources belong to no fleet."""
    for fleet in ("f1", "f2"):
        make_fleet(fleet)
    for name in (MINE, OTHERS, BOTH, LINKS, NOBODYS):
        agent(name)
    source("f1/pd/d1", by=MINE, role="decode")
    source("f2/pd/d1", by=OTHERS, role="decode")
    source("f2/pd/gw-1", "router", by=OTHERS)
    source("f1/pd/d2", by=BOTH, role="decode")
    source("f2/pd/d2", by=BOTH, role="decode")
    source("prfaas->pd", "link", by=LINKS)
    source("elsewhere/pd/d1", by=NOBODYS, role="decode")
    source("a->b", "link", by=NOBODYS)
    refusal(422, name=OTHERS, error="others are refused")
    refusal(422, name=NOBODYS, error="nobody's is refused")
    refusal(422, name=MINE, error="mine is refused")


def text(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200, path
    return str(response.content.decode())


def test_an_agent_is_seen_by_who_may_look_at_one_of_its_fleets() -> None:
    assert agents_seen.by(of_groups(["viewer:f1"])) == {MINE, BOTH, LINKS}
    assert agents_seen.by(of_groups(["operator:f2"])) == {OTHERS, BOTH, LINKS}
    assert agents_seen.by(of_groups(["viewer:f1", "viewer:f2"])) == {MINE, OTHERS, BOTH, LINKS}
    assert agents_seen.by(of_groups(["viewer:gone"])) == frozenset()
    assert agents_seen.by(EVERYTHING) is None


@pytest.mark.parametrize("page", PAGES)
def test_pages_of_a_fleet_name_no_other_agents(page: str) -> None:
    shown = text(member("vera", "viewer:f1"), page)
    assert [name for name in HIDDEN if name in shown] == []
    assert MINE in shown
    if "onboarding" not in page:
        assert all(name in shown for name in (BOTH, LINKS))


def test_onboarding_tells_what_is_refused_of_ones_own_only() -> None:
    shown = text(member("vera", "viewer:f1"), PAGES[1])
    assert "mine is refused" in shown
    assert "others are refused" not in shown
    assert "nobody's is refused" not in shown.replace("&#x27;", "'")


def test_who_may_look_at_every_fleet_is_told_of_all() -> None:
    viewer = person("viewer")
    assert all(name in text(viewer, PAGES[0]) for name in (MINE, *HIDDEN, BOTH, LINKS))
    assert NOBODYS in text(viewer, PAGES[1]), "it may be one of this fleet, misspelt"
    assert all(name in text(viewer, "/onboarding/") for name in (MINE, *HIDDEN))


@pytest.mark.parametrize("path", ["/api/v1/fleets/f1/telemetry/sources"])
def test_rest_names_no_other_agents(path: str) -> None:
    shown = text(member("vera", "viewer:f1"), path)
    assert [name for name in HIDDEN if name in shown] == []
    assert MINE in shown
    assert NOBODYS in text(person("viewer"), path)


@pytest.mark.parametrize("query", [MINE, OTHERS, NOBODYS, "f2"])
def test_search_finds_nothing_of_other_fleets(query: str) -> None:
    vera = member("vera", "viewer:f1")
    found = vera.get("/search/", {"q": query}, headers={"accept": "application/json"}).json()
    assert found["rows"] == []


@pytest.mark.parametrize("path", ["/onboarding/", "/api/v1/telemetry/sources"])
def test_the_site_as_a_whole_is_for_who_may_look_at_every_fleet(path: str) -> None:
    assert member("vera", "viewer:f1").get(path).status_code == 403
