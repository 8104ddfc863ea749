"""Pages that look: who may open them, what an empty one says, what a full one shows."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest
import pytest_django
from django.db import OperationalError
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from console.api import failed
from routing.models import Decision, Delivery, Tick
from telemetry.models import Agent
from tests.console.api_case import person
from tests.console.page_case import busy_fleet, decision, tick
from tests.routing import cases
from tests.routing.cases import feed, make_fleet

pytestmark = pytest.mark.django_db

FLEET_PAGES = ("fleet-overview", "fleet", "decisions")


def text(client: Client, name: str, *args: object, **query: str) -> str:
    """The visible words of a page that answers 200."""
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200, response.status_code
    return words(response.content.decode())


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


@pytest.mark.parametrize("name", ["overview", "audit", "tokens", *FLEET_PAGES])
def test_a_page_needs_a_login_and_leads_back_to_itself(name: str) -> None:
    path = reverse(name, args=["f1"] if name in FLEET_PAGES else [])
    response = Client().get(path)
    assert (response.status_code, response["Location"]) == (302, f"/login/?next={path}")


def test_the_login_page_works_without_scripts_and_without_a_fleet() -> None:
    client = person("viewer")
    client.logout()
    page = client.get("/login/").content.decode()
    assert 'name="password"' in page
    assert 'name="csrfmiddlewaretoken"' in page
    refused = client.post("/login/", {"username": "viewer", "password": "wrong"})
    assert "Name or password is not right" in refused.content.decode()


def test_guessing_locks_the_account_and_says_how_to_unlock_it(
    settings: pytest_django.Settings,
) -> None:
    settings.AXES_FAILURE_LIMIT = 2
    person("viewer")
    answers = [
        Client().post("/login/", {"username": "viewer", "password": "guess"}) for _ in range(3)
    ]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert "manage.py axes_reset" in words(answers[-1].content.decode())


@pytest.mark.parametrize("name", ["overview", "audit", "fleet-overview", "fleet", "decisions"])
def test_an_account_in_no_group_sees_nothing(name: str) -> None:
    make_fleet()
    response = person("nobody").get(reverse(name, args=["f1"] if name in FLEET_PAGES else []))
    assert response.status_code == 403
    assert "in no group" in words(response.content.decode())


def test_signing_out_is_a_post(viewer: Client) -> None:
    make_fleet()
    assert viewer.get("/logout/").status_code == 405
    assert viewer.post("/logout/")["Location"] == "/login/"
    assert viewer.get("/").status_code == 302


def test_without_a_fleet_the_first_page_names_the_command_that_makes_one(viewer: Client) -> None:
    found = text(viewer, "overview")
    assert "No fleet is described yet" in found
    assert "python3 -m uv run manage.py fleet apply scenario.toml" in found


def test_one_fleet_is_shown_at_once_and_the_query_goes_along(viewer: Client) -> None:
    make_fleet()
    assert viewer.get("/?range=1h")["Location"] == "/fleets/f1/?range=1h"


def test_of_several_fleets_one_is_chosen(viewer: Client) -> None:
    make_fleet("f1")
    make_fleet("f2", mode="paused")
    found = text(viewer, "overview")
    assert "f1 ACTIVE" in found
    assert "f2 PAUSED" in found


@pytest.mark.parametrize(
    ("name", "says", "command"),
    [
        (
            "fleet-overview",
            "No agent has reported",
            "python -m telemetry.agent --config agent.toml",
        ),
        ("fleet-overview", "No gate has asked for a plan", "python -m routing.gate --config"),
        ("fleet", "No agent has reported an instance", "python -m telemetry.agent --config"),
        ("fleet", "every gate sends everything local", "python -m routing.gate --config"),
        ("decisions", "No decision yet", "python3 -m uv run manage.py up"),
    ],
)
def test_an_empty_page_says_what_is_missing_and_the_next_command(
    viewer: Client, name: str, says: str, command: str
) -> None:
    make_fleet()
    found = text(viewer, name, "f1")
    assert says in found
    assert command in found


def test_a_page_of_an_unknown_fleet_is_not_found(viewer: Client) -> None:
    for name in FLEET_PAGES:
        assert viewer.get(reverse(name, args=["nope"])).status_code == 404


def test_the_overview_shows_the_last_decisions_and_what_its_scripts_need(viewer: Client) -> None:
    busy_fleet()
    page = viewer.get("/fleets/f1/").content.decode()
    found = words(page)
    assert "v2 t 4K tok → t 6K tok" in found
    assert "applied 2/2" in found
    assert "advised t 6K tok → t 9K tok" in found
    assert "not pushed" in found
    assert '"slo_ttft_s": 10.0' in page
    assert '"was": "t 4K tok"' in page


@pytest.mark.parametrize(
    ("mode", "chip"), [("active", "ACTIVE"), ("advisory", "ADVISORY"), ("paused", "PAUSED")]
)
def test_the_mode_is_worded_on_every_page(viewer: Client, mode: str, chip: str) -> None:
    busy_fleet(mode=mode)
    viewer.get("/fleets/f1/")
    for name in (*FLEET_PAGES, "audit"):
        assert chip in text(viewer, name, *(["f1"] if name in FLEET_PAGES else []))


def test_the_truth_line_tells_what_is_stale_since_when(viewer: Client) -> None:
    busy_fleet()
    at = timezone.now()
    Agent.objects.create(name="fresh", boot=1, last_seq=1, last_seen_at=at)
    Agent.objects.create(name="gone", boot=1, last_seq=1, last_seen_at=at - timedelta(minutes=5))
    found = text(viewer, "fleet-overview", "f1")
    assert "1/2 agents fresh" in found
    assert "2/2 gates on v2" in found
    Tick.objects.filter(fleet="f1").update(at=at - timedelta(minutes=2))
    assert f"loop silent since {at - timedelta(minutes=2):%H:%M:%S}" in text(
        viewer, "fleet-overview", "f1"
    )


def test_a_decision_says_what_why_how_far_and_what_came_of_it(viewer: Client) -> None:
    busy_fleet()
    page = viewer.get(reverse("decision", args=["f1", Decision.objects.get(version=2).pk]))
    found = words(page.content.decode())
    assert "900 requests seen in all" in page.content.decode()
    for expected in (
        "Raised t because local prefill was 14 % busier than remote.",
        "Prefill imbalance",
        "Threshold t 4K tok 6K tok",
        "pd/gw-1 applied",
        "after 120 ms",
        "Running pd t = 4,000, 3/5 ×1.20",
        "Adopted pd t = 6,000, 3/5 ×1.26 +5 %",
        "chosen",
        "Forbidden pd 3/5 → 4/4",
        "decode limits, which forbids adding prefill",
        "pd: decode (Decode pd)",
        "KV memory is used",
        "Local prefill pd",
        "Largest step of t : wanted 19.8K, allowed 6K",
        "Demand 2.50 req/s",
        "after 1 min",
        "It is the plan in force",
        "+5 %",
    ):
        assert expected in found, expected


def around_binds(viewer: Client, row: Decision) -> str:
    found = text(viewer, "decision", "f1", row.pk)
    return found[found.index("What binds") : found.index("Inputs")]


def test_what_binds_says_whose_it_is_and_shows_both_plans(viewer: Client) -> None:
    busy_fleet()
    row = Decision.objects.get(version=2)
    row.tick.verdict["warnings"] = ["demand is above what the running plan carries"]
    row.tick.save()
    found = around_binds(viewer, row)
    signs, stages = found.split("Stages, by the model")
    assert "Signs, of the plan that ran before pd: decode (Decode pd)" in signs
    assert "demand is above what the running plan carries" in signs
    assert "Before: the plan that ran, carries ×1.20 of the demand" in stages
    assert "After: the plan chosen, carries ×1.26 of the demand" in stages
    assert "Local prefill pd 83.3 % binds 79.4 % binds" in stages
    assert "Link prfaas → pd 10 % 10 %" in stages


def test_a_plan_that_changes_no_stage_has_one_column(viewer: Client) -> None:
    busy_fleet()
    row = Decision.objects.get(version=2)
    row.tick.verdict["adopted"] = row.tick.verdict["current"]
    row.tick.save()
    found = around_binds(viewer, row)
    assert "Stages, by the model: the same under the plan chosen" in found
    assert found.count("carries ×") == 1
    assert "Local prefill pd 83.3 % binds Link" in found


def test_a_first_plan_is_judged_without_one_before(viewer: Client) -> None:
    busy_fleet()
    row = Decision.objects.get(version=2)
    row.tick.verdict |= {"current": None, "bottlenecks": {}}
    row.tick.save()
    found = around_binds(viewer, row)
    assert "Signs" not in found
    assert "After: the plan chosen, carries ×1.26" in found
    assert "Before" not in found


def test_a_held_plan_is_the_running_one_and_a_stage_may_have_no_capacity(viewer: Client) -> None:
    fleet = make_fleet()
    row = tick(fleet, timezone.now())
    row.verdict["current"]["stages"].append(
        {"name": "remote_prefill:prfaas", "capacity_rps": 0.0, "utilisation_ratio": None}
    )
    row.save()
    found = text(viewer, "tick", "f1", row.seq)
    assert "Signs, of the plan that runs" in found
    assert "Running plan, carries ×1.20 of the demand" in found
    assert "Remote prefill prfaas no capacity Local prefill pd 83.3 % binds" in found


def test_realised_values_say_when_another_plan_ran_by_then(viewer: Client) -> None:
    fleet = make_fleet()
    now = timezone.now()
    first = decision(fleet, now - timedelta(minutes=2), 1, 4000)
    decision(fleet, now - timedelta(seconds=90), 2, 6000, previous=4000)
    tick(fleet, now - timedelta(seconds=58))
    found = text(viewer, "decision", "f1", first.pk)
    assert "under v2" in found
    assert "not yet" in found


def test_a_refusal_is_shown_with_its_reason(viewer: Client) -> None:
    fleet = busy_fleet()
    row = Decision.objects.get(version=2)
    Delivery.objects.filter(decision=row, router="f1/pd/gw-2").update(
        state="failed", error="it runs v3"
    )
    found = text(viewer, "decision", fleet.pk, row.pk)
    assert "failed 1/2" in found
    assert "it runs v3" in found


def test_a_pass_that_changed_nothing_has_the_same_page(viewer: Client) -> None:
    busy_fleet()
    quiet = Tick.objects.filter(action="hold").first()
    found = text(viewer, "tick", "f1", quiet.seq)
    assert "Kept the plan" in found
    assert "t is within 2 % of the best." in found
    assert "Demand 2.50 req/s" in found
    made = Decision.objects.get(version=2)
    response = viewer.get(reverse("tick", args=["f1", made.tick.seq]))
    assert response["Location"] == reverse("decision", args=["f1", made.pk])


def test_a_decision_outlives_its_tick(viewer: Client) -> None:
    busy_fleet()
    Decision.objects.filter(version=2).update(tick=None)
    found = text(viewer, "decision", "f1", Decision.objects.get(version=2).pk)
    assert "no longer stored" in found


def test_what_was_not_measured_is_a_dash_and_not_a_zero(viewer: Client) -> None:
    fleet = make_fleet()
    row = tick(fleet, timezone.now(), current=None)
    observed = row.observed
    observed["pd"]["pd"] |= {"demand_rps": None, "demand_state": "missing", "lengths": None}
    Tick.objects.update(observed=observed)
    found = text(viewer, "tick", "f1", row.seq)
    assert "Demand – missing" in found
    assert "Nothing was compared" in found


def recent(name: str, *, role: str = "prefill", state: str = "ok", waiting: float = 0.0) -> object:
    at_s = timezone.now().timestamp() - cases.NOW_S
    return cases.instance(name, role=role, at_s=at_s, state=state, waiting=waiting)


def test_instances_sort_filter_and_tell_their_state(viewer: Client) -> None:
    make_fleet()
    feed(
        [
            recent("f1/pd/a", waiting=1.0),
            recent("f1/pd/b", waiting=7.0),
            recent("f1/pd/c", role="decode", state="failed"),
            recent("f2/pd/stranger"),
        ]
    )
    by_name = text(viewer, "fleet", "f1")
    assert by_name.index("pd/ a") < by_name.index("pd/ b")
    assert "read failed: timed out" in by_name
    assert "stranger" not in by_name
    by_queue = text(viewer, "fleet", "f1", sort="waiting")
    assert by_queue.index("pd/ b") < by_queue.index("pd/ a")
    only = text(viewer, "fleet", "f1", q="DECODE")
    assert "1 of 3" in only
    assert "pd/ a" not in only
    assert "No instance matches" in text(viewer, "fleet", "f1", q="h100")


def test_instances_are_paged_by_the_server(viewer: Client) -> None:
    make_fleet()
    feed(recent(f"f1/pd/e{i:03d}") for i in range(230))
    first = text(viewer, "fleet", "f1")
    assert "page 1 of 8" in first
    assert "e029" in first
    assert "e030" not in first
    assert "e229" in text(viewer, "fleet", "f1", page="8")
    assert "page 1 of 8" in text(viewer, "fleet", "f1", page="-1")


def test_the_style_nonce_of_the_policy_is_the_one_on_the_page(viewer: Client) -> None:
    make_fleet()
    response = viewer.get("/fleets/f1/")
    policy = response["Content-Security-Policy"]
    nonce = re.search(r"style-src 'self' 'nonce-([^']+)'", policy)
    assert nonce, policy
    assert f'nonce="{nonce[1]}"' in response.content.decode()
    # The order of the directives differs from process to process.
    assert "script-src 'self'" in [part.strip() for part in policy.split(";")]
    assert "unsafe-eval" not in policy


def test_words_of_people_are_escaped(viewer: Client) -> None:
    fleet = make_fleet()
    evil = f"<script>{uuid.uuid4().hex}</script>"
    row = decision(fleet, timezone.now(), 1, 4000, message=evil)
    for name, args in (
        ("decision", ["f1", row.pk]),
        ("decisions", ["f1"]),
        ("fleet-overview", ["f1"]),
    ):
        assert evil not in viewer.get(reverse(name, args=args)).content.decode()


@pytest.mark.parametrize("query", ["q=%00", "actor=%00", "page=%00"])
def test_a_query_that_cannot_be_meant_says_so(viewer: Client, query: str) -> None:
    response = viewer.get(f"/audit/?{query}")
    assert response.status_code == 400
    assert "cannot be meant" in words(response.content.decode())


def test_a_foreign_host_gets_a_page_that_names_the_setting(viewer: Client) -> None:
    response = viewer.get("/audit/", headers={"Host": "evil.example"})
    assert response.status_code == 400
    assert "CONSOLE_ALLOWED_HOSTS" in response.content.decode()


def test_a_page_number_of_5000_digits_is_the_first_page(viewer: Client) -> None:
    make_fleet()
    assert viewer.get("/fleets/f1/fleet/?page=" + "9" * 5_000).status_code == 200


def test_an_account_in_no_group_can_sign_out() -> None:
    page = person("nobody").get("/", follow=True).content.decode()
    assert reverse("logout") in page
    assert "Sign out nobody" in words(page)


def test_a_link_measured_at_no_capacity_does_not_show_the_configured_one(viewer: Client) -> None:
    make_fleet()
    now_s = timezone.now().timestamp()
    feed([cases.link(at_s=now_s - 1.0 - cases.NOW_S, tx_gbps=0.0, capacity_gbps=0.0)])
    page = viewer.get("/fleets/f1/fleet/").content.decode()
    row = words(re.search(r"<tr data-link=.*?</tr>", page, re.DOTALL)[0])
    assert "prfaas → pd" in row
    assert "100 Gbps" not in row


@pytest.mark.parametrize("name", ["fleet-overview", "fleet"])
def test_a_link_that_is_down_is_told_since_its_first_such_reading(
    viewer: Client, name: str
) -> None:
    make_fleet()
    now = timezone.now()
    offset_s = now.timestamp() - cases.NOW_S
    feed(
        cases.link(at_s=offset_s - ago_s, tx_gbps=0.0, capacity_gbps=gbps)
        for ago_s, gbps in ((60.0, 100.0), (41.0, 0.0), (21.0, 0.0), (1.0, 0.0))
    )
    found = text(viewer, name, "f1")
    assert "Link prfaas → pd has been down for 4" in found
    assert f"(since {now - timedelta(seconds=41):%H:%M:%S}): pd prefills locally" in found
    if name == "fleet":
        assert "prfaas → pd down – 0 Gbps" in found


def test_a_clock_that_was_set_back_is_told_on_the_page(viewer: Client) -> None:
    busy_fleet()
    at = timezone.now() + timedelta(hours=1)
    Tick.objects.filter(pk=Tick.objects.latest("seq").pk).update(at=at)
    found = text(viewer, "fleet-overview", "f1")
    assert f"clock set back, last tick {at:%H:%M:%S}" in found
    assert f"The clock was set back: the newest tick is of {at:%Y-%m-%d %H:%M:%S} UTC" in found


def test_without_the_database_a_page_says_so_and_what_goes_on(rf: RequestFactory) -> None:
    """The answer of handler500 while the exception it is about is being handled."""
    try:
        raise OperationalError("connection refused")
    except OperationalError:
        page, rest = failed(rf.get("/fleets/f1/")), failed(rf.get("/api/v1/fleets"))
    assert (page.status_code, rest.status_code) == (503, 503)
    assert "The database does not answer" in words(page.content.decode())
    assert "Gates keep routing by the plan they run" in words(page.content.decode())
    try:
        raise ValueError("a bug")
    except ValueError:
        assert failed(rf.get("/fleets/f1/")).status_code == 500
