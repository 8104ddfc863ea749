"""Every page of a site with 3,000 engines, 300 links, 200 gates and 100 fleets: what it asks the
database, how much it answers, and that nothing odd shows. Times are the bench's (`bench/pages`).

A page that nobody lists here fails `test_every_page_is_listed` by name.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
import pytest_django
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, reverse

from console import pages
from routing.alerts.models import Incident, Silence
from routing.approvals.models import Proposal
from routing.models import Backtest, Decision, Hold, ManagedRouter, Rebalance, Tick
from routing.windows.models import Maintenance
from telemetry.models import ApiToken
from tests.console import big_site
from tests.console.api_case import person
from tests.console.big_people import HOSTILE, MARKUP, RIGHT_TO_LEFT
from tests.telemetry.rows import clear_landing

pytestmark = pytest.mark.django_db
MOST_QUERIES = 12
MOST_KB = 250


@dataclass(frozen=True)
class Look:
    """A page as it is opened: its query, and what it may cost at most."""

    query: str = ""
    queries: int = MOST_QUERIES
    kb: int = MOST_KB


FAR, NEAR, GATE = "prfaas-0", "pd-01", "pd-00/gw-3"
LINK = quote(f"{FAR}->{big_site.ODD_PD}", safe="")
LOOKS: dict[str, tuple[Look, ...]] = {
    "fleet-overview": (Look(),),
    "fleet": (Look(), Look("?page=3&q=h20")),
    **dict.fromkeys(("rebalance-new", "roll-back"), (Look(queries=13),)),
    "planner": (Look(), Look(f"?cluster={NEAR}&pd-02.rate_rps=3")),
    "tokens": (Look(kb=350),),
    "search": (Look(), Look("?q=pd")),
    "instances": (Look(), Look("?sort=-queue&page=30"), Look(f"?q={quote(HOSTILE[2])}")),
    "instance": (
        Look(f"?id={NEAR}/h20-003"),
        Look(f"?id=pd-00/{quote(MARKUP, safe='')}"),
    ),
    "links": (Look(), Look("?sort=-use&page=2")),
    "link": (Look(f"?id={LINK}"),),
    "cluster": (Look(f"?id={quote(big_site.ODD_PD, safe='')}"), Look(f"?id={FAR}")),
    "router": (Look(f"?id={quote(GATE, safe='')}"),),
    "samples": (Look(f"?kind=instance&id={NEAR}/h20-003"), Look(f"?kind=link&id={LINK}")),
    "routers": (Look(), Look("?show=trouble&page=2&gates=2"), Look("?q=pd-0")),
    "gate-adopt": (Look(f"?router={big_site.FLEET}/{GATE}"),),
    "gate-release": (Look(f"?router={big_site.FLEET}/{GATE}"),),
    "router-on-drift": (Look("?to=override"),),
    "request": (Look("?total=30000"),),
    "mode": (Look("?to=paused"),),
    "reset-breaker": (Look(f"?link={LINK}"),),
    "decisions-diff": (Look("?a=118&b=119"),),
    "cancel-delivery": (Look(f"?router={big_site.FLEET}/{GATE}"),),
    "costs": (Look(), Look("?list=links&sort=-egress&page=2"), Look("?list=days")),
    "forecast": (Look(), Look(f"?cluster={quote(big_site.ODD_PD)}&page=3")),
    "approvals": (Look(), Look("?state=open&page=2"), Look(f"?by={quote(RIGHT_TO_LEFT)}")),
    "audit": (Look(), Look("?q=drill&page=3")),
}
"""By the name of the address; those that are not here are opened once, at the usual limits. A
limit above the usual one is what a page takes now, and may only come down."""
ASKS = {
    **dict.fromkeys(
        ("login", "logout", "oidc-login", "oidc-callback", "account"), "shows no fleet"
    ),
    **dict.fromkeys(
        (
            *("start-backtest", "cancel-backtest", "acknowledge", "end-silence"),
            *("signals-csv", "run-job", "approve", "reject", "withdraw", "break-glass"),
            *("cost-make", "cost-value", "cost-table", "cost-sheet"),
            *("ask-profile-fit", "apply-profile-fit"),
        ),
        "answers a form, or is a file",
    ),
    **dict.fromkeys(("revoke-token", "rotate-token"), "an administrator's"),
    **dict.fromkeys(
        (
            *("people", "person", "new-person", "person-join", "person-leave"),
            *("person-activate", "person-password", "person-unlock"),
        ),
        "an administrator's",
    ),
    **dict.fromkeys(
        ("receiver", "new-receiver", "test-receiver", "forget-receiver"), "an administrator's"
    ),
    **dict.fromkeys(("new-window", "window", "override-freeze"), "an administrator's"),
    "document": "an administrator's, and shows only what is sent",
    **dict.fromkeys(("rebalance-asked",), "of a hold of roles, of which there is one at a time"),
}
"""Pages that neither list anything nor show a fleet, with the reason."""
ARGUMENTS: dict[str, Any] = {
    "decision_id": lambda: Decision.objects.filter(version__isnull=False).latest("pk").pk,
    "seq": lambda: Tick.objects.filter(fleet=big_site.FLEET, decision=None).latest("seq").seq,
    "hold_id": lambda: Hold.objects.order_by("pk")[0].pk,
    "rebalance_id": lambda: Rebalance.objects.filter(finished_at=None)[0].pk,
    "router_id": lambda: ManagedRouter.objects.filter(state="drifted").order_by("pk")[0].pk,
    "backtest_id": lambda: Backtest.objects.latest("pk").pk,
    "incident_id": lambda: Incident.objects.order_by("pk")[0].pk,
    "silence_id": lambda: Silence.objects.order_by("pk")[0].pk,
    "proposal_id": lambda: Proposal.objects.filter(state="open").order_by("pk")[0].pk,
    "token_id": lambda: ApiToken.objects.filter(revoked_at=None)[0].pk,
    "name": lambda: "rule-00",
    "job.name": lambda: "job-00",
    "maintenance_id": lambda: Maintenance.objects.order_by("pk")[0].pk,
    "fleet": lambda: big_site.FLEET,
}


def named(entries: list[URLPattern | URLResolver] | None = None) -> Iterator[URLPattern]:
    """The addresses of pages, also of those that are included."""
    for entry in pages.urlpatterns if entries is None else entries:
        if isinstance(entry, URLResolver):
            yield from named(entry.url_patterns)
        else:
            yield entry


@pytest.fixture(scope="module")
def site(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[big_site.Site]:
    """Made once for all tests of this module; each of them is rolled back, this is flushed."""
    with django_db_blocker.unblock():
        yield big_site.make()
        clear_landing()
        call_command("flush", verbosity=0, interactive=False)


@pytest.fixture
def operator(site: big_site.Site, db: None) -> Client:
    return person("operator")


def _address(pattern: URLPattern, query: str) -> str:
    known = {
        name: ARGUMENTS.get(f"{pattern.name}.{name}", ARGUMENTS[name])()
        for name in pattern.pattern.converters
    }
    return reverse(pattern.name, kwargs=known) + query


def addresses() -> dict[str, str]:
    """Every page that is tested here, by its name and query: for the bench of pages."""
    return {
        f"{pattern.name}{look.query}": _address(pattern, look.query)
        for pattern in named()
        if pattern.name not in ASKS
        for look in LOOKS.get(pattern.name, (Look(),))
    }


def test_every_page_is_listed() -> None:
    names = {pattern.name for pattern in named()}
    assert ASKS.keys() <= names
    assert LOOKS.keys() <= names - ASKS.keys()


@pytest.mark.parametrize(
    ("name", "look"),
    [
        pytest.param(pattern.name, look, id=f"{pattern.name}{look.query[:40]}")
        for pattern in named()
        if pattern.name not in ASKS
        for look in LOOKS.get(pattern.name, (Look(),))
    ],
)
def test_a_page_of_the_large_site(
    site: big_site.Site, operator: Client, name: str, look: Look
) -> None:
    """The second time it is opened, as anybody opens it who works with it."""
    [pattern] = [one for one in named() if one.name == name]
    address = _address(pattern, look.query)
    assert operator.get(address).status_code == 200
    with CaptureQueriesContext(connection) as asked:
        response = operator.get(address)
    page = response.content.decode()
    assert len(asked) <= look.queries, [query["sql"][:120] for query in asked]
    assert len(page) <= look.kb * 1000
    assert MARKUP not in page
    # "None: no decision of it is kept" is English, and a knob's default may be None.
    assert not re.search(r"(?<!= )\bNone\b(?!:)|\b(nan|NaN|undefined)\b", _text(page))


def _text(page: str) -> str:
    """What people read, and what is told on hover."""
    spoken = re.findall(r'\b(?:title|aria-label|alt|placeholder)="([^"]*)"', page)
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return html.unescape(" ".join([*spoken, re.sub(r"<[^>]*>", " ", page)]))


def test_a_list_of_decisions_is_small_over_rest(site: big_site.Site, operator: Client) -> None:
    """50 decisions with 200 gates each: counts, and the routers that do not run it."""
    address = f"/api/v1/fleets/{big_site.FLEET}/decisions?limit=50"
    with CaptureQueriesContext(connection) as asked:
        body = operator.get(address).json()
    assert len(asked) <= MOST_QUERIES
    [row] = [one for one in body["results"] if one["delivery"]["state"] == "expired"][:1]
    assert row["delivery"]["n_routers"] == len(site.plant.gates)
    shown = row["delivery"]["routers"]
    assert len(shown) == 10
    assert {one["state"] for one in shown} == {"expired"}
