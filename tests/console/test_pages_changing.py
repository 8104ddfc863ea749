"""Pages that change something: who may, what they warn of, what they write, what they refuse."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console import pages
from routing import commands, token_commands
from routing.models import Action, Decision, Fleet, Hold, Policy
from telemetry.models import ApiToken
from tests.console.api_case import person
from tests.console.page_case import busy_fleet
from tests.console.test_pages import words

pytestmark = pytest.mark.django_db

ARGUMENTS = {"fleet": "f1"} | dict.fromkeys(
    (
        *("hold_id", "decision_id", "seq", "token_id", "rebalance_id", "backtest_id", "router_id"),
        *("proposal_id", "user_id"),
        *("incident_id", "silence_id", "maintenance_id", "name", "month", "fit_id"),
    ),
    1,
)
LOOKING = {
    *("login", "logout", "overview", "fleet-overview", "fleet"),
    *("decisions", "decision", "tick", "planner", "backtests", "backtest", "request", "audit"),
    *("onboarding", "fleet-onboarding", "signals", "routers", "findings"),
    *("policy", "holds", "rebalance", "rebalance-asked", "decisions-diff", "signals-csv"),
    *("instances", "instance", "links", "link", "cluster", "router", "samples", "search"),
    *("approvals", "approval", "approval-limits"),
    *("costs", "cost-table", "cost-sheet", "forecast", "profile-fits"),
    *("alerts", "incident", "alert-rules", "jobs", "styleguide", "api-docs", "windows"),
    *("receivers", "account", "oidc-login", "oidc-callback"),
}
CHANGING = sorted(entry.name for entry in pages.urlpatterns if entry.name not in LOOKING)
HELD = {
    "cluster": "pd",
    "mode": "threshold",
    "threshold_tokens": "17900",
    "span_s": "3600",
    "reason": "revert of v2",
}


def address(name: str) -> str:
    entry = next(p for p in pages.urlpatterns if p.name == name)
    arguments = {key: ARGUMENTS[key] for key in entry.pattern.converters}
    return reverse(name, kwargs=arguments)


@pytest.fixture
def fleet() -> Fleet:
    return busy_fleet()


@pytest.fixture
def operator() -> Client:
    return person("operator")


@pytest.fixture
def hold(fleet: Fleet) -> Hold:
    now = timezone.now()
    return commands.place_hold(
        fleet=fleet.pk,
        mode="threshold",
        threshold_tokens=8000,
        owner="ana",
        expires_at=now + timedelta(hours=1),
        actor="ana",
        via="test",
        reason="link maintenance",
        now=now,
        cluster="pd",
    )


def hidden(page: str) -> dict[str, str]:
    """What the confirming form of a page sends."""
    form = page[page.rindex('<form method="post"') :]
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form))


def confirm(client: Client, path: str, **more: str) -> Any:
    """Open a confirmation and send its form as a browser would."""
    return client.post(path, {**hidden(client.get(path).content.decode()), **more})


def test_every_page_that_changes_something_is_known_here() -> None:
    assert set(CHANGING) == {
        *("cancel-delivery", "cancel-rebalance", "hold", "mode", "release", "revoke-token"),
        *("rotate-token", "people", "person", "new-person", "person-join", "person-leave"),
        *("person-activate", "person-password", "person-unlock"),
        *("reset-breaker", "roll-back", "tokens", "start-backtest", "cancel-backtest"),
        *("router-adopt", "router-override", "router-cancel", "router-on-drift"),
        *("gate-adopt", "gate-release", "extend", "rebalance-new"),
        *("acknowledge", "silence", "end-silence", "alert-rule", "new-alert-rule"),
        *("receiver", "new-receiver", "test-receiver", "forget-receiver", "document"),
        *("job", "new-job", "run-job"),
        *("cost-prices", "cost-make", "cost-value", "ask-profile-fit", "apply-profile-fit"),
        *("approve", "reject", "withdraw", "break-glass"),
        *("window", "new-window", "override-freeze"),
        *("plan-maintenance", "extend-maintenance", "end-maintenance"),
    }


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("method", ["get", "post"])
def test_a_viewer_is_refused_on_every_changing_page(
    fleet: Fleet, hold: Hold, name: str, method: str
) -> None:
    """S-59."""
    before = Action.objects.count()
    response = getattr(person("viewer"), method)(address(name), HELD)
    assert response.status_code == 403
    assert (Action.objects.count(), Policy.objects.get().mode) == (before, "active")


@pytest.mark.parametrize("name", ["fleet-overview", "fleet", "decisions", "decision", "audit"])
def test_a_viewer_sees_no_action(fleet: Fleet, hold: Hold, name: str) -> None:
    """S-59: only the language and signing out are posted; no link leads to a change."""
    viewer = person("viewer")
    if name == "decision":
        page = viewer.get(f"/fleets/f1/decisions/{fleet.decisions.first().pk}/").content.decode()
    else:
        page = viewer.get(address(name)).content.decode()
    assert re.findall(r'<form method="post" action="([^"]+)"', page) == [
        "/i18n/setlang/",
        "/logout/",
    ]
    assert page.count('method="post"') == 2
    changing = (
        *("/mode/", "/hold/", "/release/", "/revoke/", "/tokens/", "/rollback/", "/cancel/"),
        "/reset/",
    )
    assert not [
        link for link in re.findall(r'href="([^"]+)"', page) if any(c in link for c in changing)
    ]


@pytest.mark.parametrize("name", CHANGING)
def test_a_post_without_the_form_key_is_refused(fleet: Fleet, hold: Hold, name: str) -> None:
    admin = person("admin", csrf=True)
    response = admin.post(address(name), {"mode": "paused", "version": "1"})
    assert response.status_code == 403
    assert "key is missing or old" in words(response.content.decode())
    assert Policy.objects.get().mode == "active"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (
            "paused",
            ("Stops: deciding and pushing", "Goes on: the 2 gates now connected route by v2"),
        ),
        ("advisory", ("Stops: pushing plans", "Goes on: deciding")),
    ],
)
def test_confirming_a_mode_names_what_stops_and_what_goes_on(
    fleet: Fleet, operator: Client, wanted: str, says: tuple[str, ...]
) -> None:
    found = words(operator.get(f"/fleets/f1/mode/?to={wanted}").content.decode())
    for sentence in says:
        assert sentence in found
    assert Policy.objects.get().mode == "active"


def test_switching_writes_the_policy_and_one_audit_row(fleet: Fleet, operator: Client) -> None:
    n = Action.objects.count()
    response = confirm(operator, "/fleets/f1/mode/?to=paused", reason="night shift")
    assert response["Location"] == "/fleets/f1/fleet/"
    assert Policy.objects.get().mode == "paused"
    action = Action.objects.last()
    assert Action.objects.count() == n + 1
    assert (action.actor, action.via, action.reason) == ("operator", "ui", "night shift")
    assert "f1 is paused now" in words(operator.get("/fleets/f1/fleet/").content.decode())


def test_a_form_that_saw_an_older_policy_writes_nothing_and_shows_both(
    fleet: Fleet, operator: Client
) -> None:
    form = hidden(operator.get("/fleets/f1/mode/?to=advisory").content.decode())
    confirm(person("admin"), "/fleets/f1/mode/?to=paused", reason="incident 7")
    n = Action.objects.count()
    response = operator.post("/fleets/f1/mode/?to=advisory", form)
    found = words(response.content.decode())
    assert response.status_code == 409
    assert "You saw v1 ACTIVE" in found
    assert "It is now v2 PAUSED admin" in found
    assert "incident 7" in found
    assert "You asked for ADVISORY" in found
    assert (Policy.objects.get().mode, Action.objects.count()) == ("paused", n)


def test_switching_to_the_mode_it_has_says_so(fleet: Fleet, operator: Client) -> None:
    found = words(operator.get("/fleets/f1/mode/?to=active").content.decode())
    assert "There is nothing to change" in found
    assert operator.get("/fleets/f1/mode/?to=off").status_code == 404
    assert operator.get("/fleets/f1/mode/").status_code == 404


def test_a_hold_shows_its_reach_first_and_writes_nothing(fleet: Fleet, operator: Client) -> None:
    found = words(operator.get("/fleets/f1/hold/", HELD).content.decode())
    assert "pd goes from t 6K tok to t 17.9K tok with the next tick" in found
    assert "remote share" in found
    assert "Stops: deciding for pd until" in found
    assert "Undo: release the hold" in found
    assert not Hold.objects.exists()


def test_confirming_places_the_hold(fleet: Fleet, operator: Client) -> None:
    query = "&".join(f"{k}={v}" for k, v in HELD.items())
    response = confirm(operator, f"/fleets/f1/hold/?{query}")
    assert response["Location"] == "/fleets/f1/fleet/"
    placed = Hold.objects.get()
    assert (placed.cluster, placed.mode, placed.threshold_tokens) == ("pd", "threshold", 17900)
    assert (placed.owner, placed.reason) == ("operator", "revert of v2")
    assert 3590 < (placed.expires_at - timezone.now()).total_seconds() <= 3600
    page = words(operator.get("/fleets/f1/fleet/").content.decode())
    assert "HELD" in page
    at = placed.expires_at  # on another day the day is told too
    assert re.search(rf"until ({at:%m-%d} )?{at:%H:%M} by operator", page)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"threshold_tokens": ""}, "By threshold needs a t"),
        ({"threshold_tokens": "many"}, "Enter a whole number"),
        ({"reason": ""}, "Say why"),
        ({"cluster": "nope"}, "Select a valid choice"),
        ({"span_s": "5"}, "Select a valid choice"),
        ({"mode": "on"}, "Select a valid choice"),
    ],
)
def test_a_hold_that_cannot_be_meant_says_what_is_wrong(
    fleet: Fleet, operator: Client, wrong: dict[str, str], says: str
) -> None:
    response = operator.get("/fleets/f1/hold/", {**HELD, **wrong})
    assert says in words(response.content.decode())
    assert 'method="post" class="actions"' not in response.content.decode()
    posted = operator.post("/fleets/f1/hold/", {**HELD, **wrong, "version": "1"})
    assert posted.status_code == 422
    assert not Hold.objects.exists()


def test_a_threshold_out_of_the_policys_bounds_is_named(fleet: Fleet, operator: Client) -> None:
    held = {**HELD, "threshold_tokens": "4", "version": "1"}
    response = operator.post("/fleets/f1/hold/", held)
    assert response.status_code == 422
    assert "must be in 512..131072" in words(response.content.decode())


def test_a_hold_that_would_be_refused_is_not_offered(
    fleet: Fleet, hold: Hold, operator: Client
) -> None:
    response = operator.get("/fleets/f1/hold/", HELD)
    found = words(response.content.decode())
    assert response.status_code == 200, "an open page re-reads itself when another hold appears"
    assert "ana already holds pd" in found
    assert "Hold it" not in found
    hold.delete()
    response = operator.get("/fleets/f1/hold/", {**HELD, "threshold_tokens": "4"})
    found = words(response.content.decode())
    assert response.status_code == 422
    assert "must be in 512..131072" in found
    assert "Hold it" not in found


def test_all_local_needs_no_threshold(fleet: Fleet, operator: Client) -> None:
    held = {**HELD, "mode": "always_local", "threshold_tokens": "", "version": "1"}
    assert operator.post("/fleets/f1/hold/", held).status_code == 302
    assert Hold.objects.get().threshold_tokens is None


def test_a_second_hold_names_who_holds(fleet: Fleet, hold: Hold, operator: Client) -> None:
    response = operator.post("/fleets/f1/hold/", {**HELD, "version": "1"})
    assert response.status_code == 422
    assert "ana already holds pd" in words(response.content.decode())


def test_a_hold_decided_on_an_older_policy_is_a_conflict(fleet: Fleet, operator: Client) -> None:
    response = operator.post("/fleets/f1/hold/", {**HELD, "version": "0", "seen": "paused"})
    assert response.status_code == 409
    assert "HOLD T 17.9K TOK" in words(response.content.decode())
    assert not Hold.objects.exists()


def test_a_hold_shown_over_another_plan_asks_again(fleet: Fleet, operator: Client) -> None:
    shown = operator.get("/fleets/f1/hold/", HELD).content.decode()
    [runs] = re.findall(r'name="runs" value="([^"]+)"', shown)
    adopted = fleet.decisions.exclude(version=None).order_by("-version")[0]
    assert runs == f"{adopted.epoch}.{adopted.version}"
    fleet.decisions.filter(pk=adopted.pk).update(version=adopted.version + 1)
    again = operator.post("/fleets/f1/hold/", {**HELD, "version": "1", "runs": runs})
    assert again.status_code == 409
    assert "The loop adopted another plan since you looked." in words(again.content.decode())
    assert not Hold.objects.exists()
    [newer] = re.findall(r'name="runs" value="([^"]+)"', again.content.decode())
    held = operator.post("/fleets/f1/hold/", {**HELD, "version": "1", "runs": newer})
    assert held.status_code == 302
    assert Hold.objects.count() == 1


def test_releasing_ends_it_once(fleet: Fleet, hold: Hold, operator: Client) -> None:
    path = f"/fleets/f1/holds/{hold.pk}/release/"
    assert "link maintenance" in words(operator.get(path).content.decode())
    assert confirm(operator, path, reason="done")["Location"] == "/fleets/f1/fleet/"
    hold.refresh_from_db()
    assert hold.released_by == "operator"
    again = operator.post(path, {"reason": "done"})
    assert again.status_code == 409
    assert "There is nothing to release" in words(again.content.decode())


def test_a_hold_is_released_only_in_its_own_fleet(
    fleet: Fleet, hold: Hold, operator: Client
) -> None:
    assert operator.post(f"/fleets/f2/holds/{hold.pk}/release/").status_code == 404
    hold.refresh_from_db()
    assert hold.released_at is None


def test_a_decision_offers_to_be_undone_by_rolling_back_to_the_one_before(
    fleet: Fleet, operator: Client
) -> None:
    newest = fleet.decisions.get(version=2)
    page = operator.get(f"/fleets/f1/decisions/{newest.pk}/").content.decode()
    link = re.search(r'href="([^"]+)">Set t from 6,000 to 4,000 tokens, as in v1 \(undo\)…', page)
    assert link
    assert link[1] == f"/fleets/f1/decisions/{fleet.decisions.get(version=1).pk}/rollback/"
    found = words(operator.get(link[1]).content.decode())
    assert "pd goes from t 6K tok to t 4K tok" in found


def test_a_tokens_secret_is_shown_once() -> None:
    admin = person("admin")
    sent = {"name": "agent-1", "scopes": ["ingest"], "fleet": "", "expires_days": "90"}
    page = admin.post("/tokens/", sent)
    secret = re.search(r"pf_[a-z0-9]+_[\w-]{20,}", page.content.decode())
    assert secret
    assert "no-store" in page["Cache-Control"]
    token = ApiToken.objects.get()
    assert secret[0].startswith(f"pf_{token.prefix}_")
    assert (token.created_by, token.scopes) == ("admin", ["ingest"])
    assert secret[0] not in admin.get("/tokens/").content.decode()
    action = Action.objects.get()
    assert (action.verb, action.via) == ("token.issue", "ui")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": " "}, "This field is required"),
        ({"scopes": []}, "This field is required"),
        ({"scopes": ["root"]}, "Select a valid choice"),
        ({"fleet": "nope"}, "Select a valid choice"),
    ],
)
def test_a_token_that_cannot_be_meant_is_not_issued(wrong: dict[str, Any], says: str) -> None:
    sent = {"name": "x", "scopes": ["read"], "fleet": "", "expires_days": "0", **wrong}
    response = person("admin").post("/tokens/", sent)
    assert response.status_code == 422
    assert says in words(response.content.decode())
    assert not ApiToken.objects.exists()


def test_an_operator_sees_tokens_but_issues_and_revokes_none(operator: Client) -> None:
    person("admin").post("/tokens/", {"name": "x", "scopes": ["read"], "expires_days": "0"})
    token = ApiToken.objects.get()
    page = operator.get("/tokens/").content.decode()
    assert token.prefix in page
    assert "Issue it" not in page
    assert operator.post("/tokens/", {"name": "y", "scopes": ["read"]}).status_code == 403
    assert operator.post(f"/tokens/{token.pk}/revoke/").status_code == 403
    token.refresh_from_db()
    assert (ApiToken.objects.count(), token.revoked_at) == (1, None)


def test_revoking_says_what_stops_and_happens_once() -> None:
    admin = person("admin")
    admin.post("/tokens/", {"name": "gw-1", "scopes": ["router"], "expires_days": "0"})
    token = ApiToken.objects.get()
    path = f"/tokens/{token.pk}/revoke/"
    found = words(admin.get(path).content.decode())
    assert "gates fetch plans and acknowledge them" in found
    assert "gates keep the plan they run" in found
    assert confirm(admin, path, reason="lost")["Location"] == "/tokens/"
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert admin.post(path).status_code == 409
    assert "revoked" in words(admin.get("/tokens/").content.decode())


def test_the_audit_shows_who_what_why_and_filters(fleet: Fleet, operator: Client) -> None:
    confirm(operator, "/fleets/f1/mode/?to=paused", reason="night shift")
    found = words(operator.get("/audit/").content.decode())
    assert "policy.change" in found
    assert "mode active → paused" in found
    assert "night shift" in found
    filtered = words(operator.get("/audit/", {"actor": "test"}).content.decode())
    assert "night shift" not in filtered
    assert "fleet.create" in filtered
    none = words(operator.get("/audit/", {"q": "nothing like it"}).content.decode())
    assert "No change matches this filter" in none


def test_a_reason_too_long_is_refused_and_nothing_is_written(fleet: Fleet, hold: Hold) -> None:
    admin = person("admin")
    token, _ = token_commands.issue_token(
        name="agent",
        scopes=["ingest"],
        fleet="",
        expires_at=None,
        actor="t",
        via="test",
        reason="",
        now=timezone.now(),
    )
    before = Action.objects.count()
    for path, more in (
        (f"/fleets/f1/holds/{hold.pk}/release/", {}),
        (f"/tokens/{token.pk}/revoke/", {}),
        ("/fleets/f1/mode/", {"mode": "paused", "version": "1"}),
    ):
        response = admin.post(path, {"reason": "x" * 501, **more})
        assert response.status_code == 422
        assert "at most 500 characters" in words(response.content.decode())
    assert Action.objects.count() == before


def test_rolling_back_to_t_zero_holds_zero_not_nothing(operator: Client, fleet: Fleet) -> None:
    commands.set_policy(
        fleet="f1",
        changes={"knobs": {"t_min_tokens": 0}},
        if_version=fleet.policy.version,
        actor="ada",
        via="test",
        reason="",
        now=timezone.now(),
    )
    first = Decision.objects.filter(fleet=fleet, version__isnull=False).order_by("id").first()
    first.plan["clusters"]["pd"] |= {"mode": "threshold", "threshold_tokens": 0}
    first.save()
    sent = {"owner": "ada", "reason": "incident 9", "span_s": "3600", "version": "2"}
    response = operator.post(f"/fleets/f1/decisions/{first.pk}/rollback/", sent)
    assert response.status_code == 302, words(response.content.decode())
    placed = Hold.objects.get(fleet=fleet, reason__contains="incident 9")
    assert (placed.mode, placed.threshold_tokens) == ("threshold", 0)
