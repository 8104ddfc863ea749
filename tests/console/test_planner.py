"""The planner: a form of the scenario's numbers, and the API that says what they would do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from routing.core.model.planner import plan_scenario
from routing.core.scenario.document import parse_scenario
from routing.models import Action, Fleet, Hold
from tests.console.api_case import conforms, machine, person, send, strict
from tests.console.page_case import busy_fleet, tick
from tests.console.test_pages import words
from tests.routing.backtesting import upload
from tests.routing.cases import make_fleet, scenario

pytestmark = pytest.mark.django_db
TEMPLATE = "/fleets/{fleet}/what-if"
ASK = "/fleets/f1/what-if"
PAGE = "/fleets/f1/planner/"


def entries(page: str) -> dict[str, str]:
    """Value of each named entry of the form."""
    found = re.findall(r'<input id="n-[^"]*" name="([^"]+)"[^>]* value="([^"]*)"', page)
    return dict(found)


def test_get_and_post_answer_alike_and_as_the_schema_says(fleet: Fleet) -> None:
    reader = machine("read")
    posted = conforms(
        send(
            reader,
            "post",
            ASK,
            {
                "numbers": {"pd.rate_rps": 4, "prfaas->pd.gbps": 9.5},
                "cluster": "pd",
                "least_headroom": 1.1,
                "most_instances": {"pd": 30},
            },
        ),
        TEMPLATE,
        "post",
    )
    query = "pd.rate_rps=4&prfaas-%3Epd.gbps=9.5&cluster=pd&least_headroom=1.1&pd.most_instances=30"
    asked = conforms(send(reader, "get", f"{ASK}?{query}"), TEMPLATE)
    assert asked == posted
    document = scenario()
    document["workload"]["rate_rps"] = 4
    document["links"][0]["gbps"] = 9.5
    want = json.loads(json.dumps(plan_scenario(parse_scenario(document))))
    assert asked["optimum"] == want
    assert asked["cheapest"]["searched"]["pd"] == [2, 30]


def test_an_answer_of_every_kind_is_as_the_schema_says(viewer: Client) -> None:
    busy_fleet()
    conforms(send(viewer, "get", ASK), TEMPLATE)
    conforms(send(viewer, "get", f"{ASK}?pd.lengths=recorded"), TEMPLATE)
    lost = conforms(send(viewer, "get", f"{ASK}?pd.rate_rps=200&pd.instances=2"), TEMPLATE)
    assert lost["sweep"]["ttft_now_s"] is None
    assert lost["running"]["why_not"]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("pd.rate_rps=lots", {"numbers": {"pd.rate_rps": "lots"}}, "pd.rate_rps"),
    ("pd.rate_rps=nan", {"numbers": {"pd.rate_rps": [1]}}, "pd.rate_rps"),
    ("pd.speed=1", {"numbers": {"pd.speed": 1}}, "pd.speed"),
    ("speed=1", {"speed": 1}, "speed"),
    ("cluster=nowhere", {"cluster": "nowhere"}, "cluster"),
    ("pd.lengths=recorded", {"numbers": {"pd.lengths": "recorded"}}, "pd.lengths"),
]


@pytest.mark.parametrize(("query", "body", "field"), WRONG, ids=[w[0] for w in WRONG])
def test_what_cannot_be_meant_is_422_by_its_name(
    fleet: Fleet, viewer: Client, query: str, body: dict[str, Any], field: str
) -> None:
    for response in (send(viewer, "get", f"{ASK}?{query}"), send(viewer, "post", ASK, body)):
        assert response.status_code == 422
        assert list(strict(response)["errors"]) == [field]


def test_a_number_given_twice_is_refused(fleet: Fleet, viewer: Client) -> None:
    response = send(viewer, "get", f"{ASK}?pd.rate_rps=3&pd.rate_rps=4")
    assert (response.status_code, list(strict(response)["errors"])) == (422, ["pd.rate_rps"])


def test_the_form_has_every_number_of_the_scenario_and_those_of_the_address(
    fleet: Fleet, viewer: Client
) -> None:
    plain = entries(viewer.get(PAGE).content.decode())
    assert plain == {
        "pd.rate_rps": "2.5",
        "pd.mu": "9.9",
        "pd.sigma": "1",
        "pd.output_tokens": "1024",
        "prfaas.instances": "4",
        "pd.instances": "8",
        "prfaas-&gt;pd.gbps": "100",
        "slo.tokens_per_s": "40",
        "slo.ttft_s": "10",
        "least_headroom": "1.2",
        "prfaas.most_instances": "8",
        "pd.most_instances": "16",
    }
    page = viewer.get(PAGE, {"pd.rate_rps": "4", "pd.mu": "<b>", "nowhere.gbps": "3"})
    body = page.content.decode()
    changed = entries(body)
    assert (changed["pd.rate_rps"], changed["pd.mu"]) == ("4", "&lt;b&gt;")
    assert {k: v for k, v in changed.items() if k not in ("pd.rate_rps", "pd.mu")} == {
        k: v for k, v in plain.items() if k not in ("pd.rate_rps", "pd.mu")
    }
    assert "also has nowhere.gbps, which this fleet does not have" in words(body)
    assert "Nothing measured yet" in words(body)


def test_what_gates_measured_can_be_taken_over(viewer: Client) -> None:
    tick(make_fleet(), timezone.now())
    page = viewer.get(PAGE).content.decode()
    assert 'data-use-measured="pd" data-rate="2.5"' in page
    assert re.search(r"Measured .*: 2\.50 req/s, lengths of 6 requests", words(page))


def test_without_a_trace_the_cache_budget_says_what_would_tell(
    fleet: Fleet, viewer: Client
) -> None:
    found = words(viewer.get(PAGE).content.decode())
    assert "No recorded prefixes to draw this from." in found
    assert "A trace with block hashes ( hash_ids , as Mooncake's) can" in found
    assert "manage.py simulate scenario.toml --trace trace.jsonl" in found


def test_with_a_trace_of_prefixes_the_cache_budget_asks_for_its_curve(
    fleet: Fleet, viewer: Client
) -> None:
    trace = upload(fleet, name="<mine>.jsonl")
    page = viewer.get(PAGE).content.decode()
    assert re.search(rf'<option value="{trace.pk}">&lt;mine&gt;\.jsonl, ', page)
    assert '"cache_budget": "/api/v1/fleets/f1/cache-budget"' in page
    assert 'id="chart-cache"' in page
    assert "No recorded prefixes" not in page


def test_looking_is_for_viewers_and_changes_nothing(fleet: Fleet, viewer: Client) -> None:
    before = Action.objects.count()
    assert viewer.get(PAGE).status_code == 200
    assert '"can_operate": false' in viewer.get(PAGE).content.decode()
    assert person("nobody").get(PAGE).status_code == 403
    assert Client().get(PAGE).status_code == 302
    assert viewer.get("/fleets/none/planner/").status_code == 404
    assert send(viewer, "get", ASK).status_code == 200
    assert Action.objects.count() == before


def test_the_rail_leads_here(fleet: Fleet, viewer: Client) -> None:
    page = viewer.get("/fleets/f1/").content.decode()
    assert f'<a href="{PAGE}"' in page
    assert re.search(rf'<a href="{PAGE}" aria-current="page"', viewer.get(PAGE).content.decode())


def test_what_the_page_offers_as_a_hold_shows_its_blast_radius_first() -> None:
    """The address that planner_show.js builds, in the form that exists for it."""
    busy_fleet()
    operator = person("operator")
    query = {
        "cluster": "pd",
        "span_s": "3600",
        "reason": "Planner: best t for 3 prefill / 5 decode at 2.50 req/s",
        "mode": "threshold",
        "threshold_tokens": "19813",
    }
    page = operator.get("/fleets/f1/hold/", query).content.decode()
    assert "Hold it" in words(page)
    assert 'name="threshold_tokens" value="19813"' in page
    assert not Hold.objects.exists()
