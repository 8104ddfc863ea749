"""The page of routers: desired, last applied and observed side by side; adopted, overridden."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone

from routing import delivery, managed_work
from routing.models import Action, EffectCheck, Fleet, Hold, ManagedRouter, RouterState
from tests.console.api_case import MODEL_BACKEND, conforms, machine, person, send, strict
from tests.console.page_case import busy_fleet
from tests.console.test_pages import words
from tests.console.test_pages_changing import hidden
from tests.routing.cases import feed, instance
from tests.routing.routers_case import D1, FakeRouter, clock, cycle, fleet_of, two_and_two

pytestmark = pytest.mark.django_db

PAGE = "/fleets/f1/routers/"
LIST, ONE = "/fleets/f1/managed-routers", "/fleets/{fleet}/managed-routers/{router_id}"


@pytest.fixture
def router() -> FakeRouter:
    return two_and_two()


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, router: FakeRouter) -> Fleet:
    return fleet_of(monkeypatch, router)


@pytest.fixture
def drifted(fleet: Fleet, router: FakeRouter) -> ManagedRouter:
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    return cycle(fleet, 2.0)


def shown(client: Client, path: str = PAGE) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return words(response.content.decode())


def person_once(role: str) -> Client:
    """The same person each time."""
    client = Client()
    user, _ = User.objects.get_or_create(username=f"{role}-once")
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    client.force_login(user, backend=MODEL_BACKEND)
    return client


def row_of(html: str, url: str) -> list[str]:
    found = re.search(
        rf'<tr[^>]*>\s*<th title="{re.escape(url)}">.*?</th>(.*?)</tr>', html, re.DOTALL
    )
    assert found, url
    return [words(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", found[1], re.DOTALL)]


def test_a_router_in_sync_is_shown_with_what_it_can_do(fleet: Fleet) -> None:
    cycle(fleet, 0.0)
    html = person("viewer").get(PAGE).content.decode()
    assert row_of(html, D1) == ["decode", "–", "decode", "–", "0"]
    found = words(html)
    for sentence in (
        "smg 1.13.0 at http://127.0.0.1:9300",
        "as desired",
        "t: none of its own; roles: live, in place; drain: requests finish; asks for a key.",
        "It has none: every prompt goes where",
    ):
        assert sentence in found
    assert "Adopt…" not in found


def test_engines_of_another_cluster_have_their_names(fleet: Fleet) -> None:
    row = cycle(fleet, 0.0)
    row.observed["workers"]["http://far:8000"] = {
        "role": "prefill", "status": "ready", "requests": 3, "key": "f1/prfaas/h200-1"
    }  # fmt: skip
    row.save(update_fields=["observed"])
    html = person("viewer").get(PAGE).content.decode()
    found = re.search(r'<th title="http://far:8000">(.*?)</th>', html, re.DOTALL)
    assert found
    assert words(found[1]).split() == ["prfaas/h200-1", "http://far:8000"]


def test_drift_is_told_on_every_page(fleet: Fleet, drifted: ManagedRouter) -> None:
    for path in ("", "decisions/", "routers/"):
        html = person_once("viewer").get(f"/fleets/f1/{path}").content.decode()
        assert "1 router drifted" in words(html)
        assert f'id="truth-link" class="quiet-link" href="{PAGE}"' in html


def test_drift_stands_first_with_what_to_do(drifted: ManagedRouter) -> None:
    html = person("operator").get(PAGE).content.decode()
    assert row_of(html, D1) == ["decode", "–", "prefill", "–", "0"]
    assert html.index(D1) < html.index("http://127.0.0.1:9100"), "what differs stands first"
    found = words(html)
    assert f"lists {D1} as prefill, not decode" in found
    assert "Find out who changed it; then adopt what is there, or override it." in found
    assert "Adopt…" in found and "Override…" in found  # noqa: PT018
    assert "Adopt…" not in shown(person("viewer"))


def test_what_its_own_planner_waits_for_is_shown_as_a_change(fleet: Fleet) -> None:
    row = cycle(fleet, 0.0)
    row.observed["decided"] = {
        "what": "decision 4 of its planner, 1 prefill and 3 decode workers",
        "content": "start 1: --disaggregation-mode decode\n",
        "apply": "start what is missing first",
        "notes": ["The planner is told so once the frontend lists these counts."],
    }
    row.save()
    found = shown(person("viewer"))
    assert "decision 4 of its planner, 1 prefill and 3 decode workers" in found
    assert "start 1: --disaggregation-mode decode" in found
    assert "The planner is told so" in found
    [read] = conforms(send(machine("read"), "get", LIST), "/fleets/{fleet}/managed-routers")[
        "results"
    ]
    assert read["decided"] == row.observed["decided"]


def confirmed(client: Client, path: str, **values: str) -> Any:
    """What posting the page's own form, filled, answers."""
    form = hidden(client.get(path).content.decode())
    return client.post(path, {**form, "reason": "seen", **values})


def test_overriding_says_its_blast_radius_and_is_done_once(
    fleet: Fleet, drifted: ManagedRouter, router: FakeRouter
) -> None:
    operator = person("operator")
    path = f"{PAGE}{drifted.pk}/override/"
    html = operator.get(path).content.decode()
    found = words(html)
    for sentence in (
        f"the router is told to list {D1} as decode (0 requests on it now).",
        "2 prefill and 2 decode instances are ready.",
        "requests under way finish where they are.",
        "Undo: stop it between two steps, or adopt what is there.",
    ):
        assert sentence in found
    form = {**hidden(html), "reason": "made by nobody"}
    assert operator.post(path, form)["Location"] == PAGE
    assert operator.post(path, form)["Location"] == PAGE, "the second click of a double click"
    assert Action.objects.filter(verb="router.override").count() == 1
    cycle(fleet, 4.0)
    found = shown(operator)
    assert "applied, read back Override asked by operator" in found
    assert f"done: list {D1} as decode" in found
    assert row_of(operator.get(PAGE).content.decode(), D1) == ["decode"] * 3 + ["–", "0"]


def test_what_the_engine_itself_says_stands_beside_it_and_is_never_overruled(
    monkeypatch: pytest.MonkeyPatch, router: FakeRouter
) -> None:
    fleet = fleet_of(monkeypatch, router, engines={"d1": D1})
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    feed([instance("f1/pd/d1", role="prefill", at_s=1.0)])
    cycle(fleet, 2.0)
    html = person("operator").get(PAGE).content.decode()
    assert row_of(html, D1) == ["decode", "–", "prefill", "prefill", "0"]
    found = words(html)
    assert f"{D1} is desired as decode and its engine runs prefill" in found
    assert "Override…" not in found


def test_adopting_on_an_older_look_is_a_conflict(
    fleet: Fleet, drifted: ManagedRouter, router: FakeRouter
) -> None:
    operator = person("operator")
    path = f"{PAGE}{drifted.pk}/adopt/"
    form = hidden(operator.get(path).content.decode())
    del router.listed[D1]
    cycle(fleet, 4.0)
    response = operator.post(path, {**form, "reason": "fine"})
    assert response.status_code == 409
    assert "r1 has changed since you looked" in words(response.content.decode())
    drifted.refresh_from_db()
    assert drifted.desired[D1]["role"] == "decode"
    assert confirmed(operator, path)["Location"] == PAGE
    drifted.refresh_from_db()
    assert (drifted.state, D1 in drifted.desired) == ("sync", False)


def test_a_page_that_cannot_override_says_why(fleet: Fleet, router: FakeRouter) -> None:
    router.version = "9.9"
    cycle(fleet, 0.0)
    router.put(D1, "prefill")
    cycle(fleet, 2.0)
    found = shown(person("operator"))
    assert "version 9.9 was not tried: it is read, and not changed" in found


def test_drift_may_be_put_back_by_itself(fleet: Fleet, drifted: ManagedRouter) -> None:
    operator = person("operator")
    path = f"{PAGE}{drifted.pk}/on-drift/?to=override"
    assert "at most 3 times in 10 minutes" in shown(operator, path)
    assert confirmed(operator, path)["Location"] == PAGE
    drifted.refresh_from_db()
    assert drifted.on_drift == "override"
    assert "Only show drift…" in shown(operator)


def test_viewers_change_nothing(drifted: ManagedRouter) -> None:
    viewer = person("viewer")
    for verb in ("adopt", "override", "cancel", "on-drift"):
        assert viewer.post(f"{PAGE}{drifted.pk}/{verb}/", {"reason": "x"}).status_code == 403
    reader = machine("read")
    for verb in ("adopt", "override", "cancel", "on-drift"):
        answer = send(reader, "post", f"{LIST}/{drifted.pk}/{verb}", {"reason": "x"})
        assert answer.status_code == 403


def test_by_rest_it_takes_the_version_that_was_read_and_a_key(
    fleet: Fleet, drifted: ManagedRouter, router: FakeRouter
) -> None:
    client = machine("operate")
    body = conforms(send(client, "get", LIST), "/fleets/{fleet}/managed-routers")
    [seen] = body["results"]
    assert (seen["router"], seen["state"]) == ("f1/pd/r1", "drifted")
    assert (seen["desired"][D1]["role"], seen["observed"][D1]["role"]) == ("decode", "prefill")
    path = f"{LIST}/{drifted.pk}"
    one = send(client, "get", path)
    assert conforms(one, ONE) == seen
    reason = {"reason": "by hand"}
    assert send(client, "post", f"{path}/override", reason).status_code == 428
    headers = {"If-Match": '"999"', "Idempotency-Key": "k-1"}
    assert send(client, "post", f"{path}/override", reason, **headers).status_code == 412
    headers["If-Match"] = one["ETag"]
    answers = [send(client, "post", f"{path}/override", reason, **headers) for _ in range(2)]
    done, again = (conforms(answer, f"{ONE}/override", "post") for answer in answers)
    assert done == again
    assert done["router"]["operation"]["state"] == "asked"
    answer = send(client, "post", f"{path}/cancel", {"reason": "no"})
    assert conforms(answer, f"{ONE}/cancel", "post")["operation"]["state"] == "cancelled"
    managed_work.reconcile(clock(6.0))
    assert router.calls == []


def override(**changes: Any) -> dict[str, Any]:
    now_s = timezone.now().timestamp()
    values = {
        "id": "ov-1",
        "mode": "threshold",
        "threshold_tokens": 9000,
        "by": "grace",
        "reason": "link maintenance",
        "since_s": now_s - 60,
        "until_s": now_s + 3600,
    }
    return {**values, **changes}


def overridden_gate() -> RouterState:
    busy_fleet()
    state = RouterState.objects.get(router="f1/pd/gw-1")
    state.state, state.override = "overridden", override()
    state.save()
    return state


def test_an_override_on_a_gate_is_shown_and_held_for_its_cluster() -> None:
    overridden_gate()
    operator = person("operator")
    found = shown(operator)
    assert "pd/gw-1 is overridden on the gate itself: t 9K tok until" in found
    assert "grace: link maintenance. Nothing here overwrites it." in found
    path = f"{PAGE}gates/adopt/?router=f1/pd/gw-1"
    assert "every gate of pd goes from t 6K tok to t 9K tok" in shown(operator, path)
    assert confirmed(operator, path)["Location"] == PAGE
    hold = Hold.objects.get()
    assert (hold.cluster, hold.mode, hold.threshold_tokens) == ("pd", "threshold", 9000)
    assert (hold.owner, hold.reason) == ("operator", "As set on f1/pd/gw-1 by grace: seen")
    assert hold.expires_at - timezone.now() < timedelta(hours=1)
    assert delivery.to_release("f1/pd/gw-1") == "ov-1"
    assert "It is being released." in shown(operator)


def test_a_released_gate_is_told_its_overrides_id_and_no_other() -> None:
    state = overridden_gate()
    assert confirmed(person("operator"), f"{PAGE}gates/release/?router=f1/pd/gw-1")["Location"]
    polling = {
        "X-Router": state.router,
        "X-Version-Running": "1.2",
        "X-State": "overridden",
        "If-None-Match": '"1.2"',
    }
    router = machine("router")

    def told(**changes: Any) -> str | None:
        headers = {**polling, "X-Override": json.dumps(override(**changes))}
        answer = send(router, "get", "/fleets/f1/plan", None, **headers)
        assert answer.status_code == 304
        return answer.headers.get("X-Release-Override")

    assert told() == "ov-1"
    assert told(id="ov-2") is None, "somebody set another one since"
    assert told() is None
    answer = send(router, "get", "/fleets/f1/plan", None, **{**polling, "X-Override": "{}"})
    assert (answer.status_code, list(strict(answer)["errors"])) == (422, ["X-Override"])


def test_what_a_plan_did_stands_on_its_page_with_the_figures() -> None:
    decision = busy_fleet().decisions.get(version=2)
    figures = {
        "requests": 540.0,
        "rate_rps": 3.0,
        "mean_tokens": 20_000.0,
        "ttft_p90_s": 1.9,
        "error_ratio": 0.0,
        "remote_ratio": 0.5,
    }
    evidence = {
        "outcome": "harm",
        "text": "TTFT p90 rose from 1.9 s to 4.1 s",
        "before": figures,
        "after": {**figures, "ttft_p90_s": 4.1},
        "expected_remote_ratio": 0.49,
    }
    now = timezone.now()
    EffectCheck.objects.create(
        decision=decision,
        outcome="harm",
        text="pd: TTFT p90 rose from 1.9 s to 4.1 s.",
        evidence={"pd": evidence},
        compared_at=now,
        due_at=now,
        checked_at=now,
    )
    found = shown(person("viewer"), f"/fleets/f1/decisions/{decision.pk}/")
    assert "did harm pd: TTFT p90 rose from 1.9 s to 4.1 s." in found
    assert "pd TTFT p90 1.90 s 4.10 s" in found
    assert "pd Remote share predicted 49 %" in found
    assert "did harm v2" in shown(person_once("viewer"))


def test_the_page_says_which_plan_is_proven_and_which_is_good() -> None:
    busy_fleet()
    found = shown(person("viewer"))
    assert "In force v2" in found
    assert "applied by all 2 routers" in found
    assert "none yet: no plan ran everywhere long enough to be judged" in found
    answer = send(machine("read"), "get", "/fleets/f1/last-known-good")
    assert conforms(answer, "/fleets/{fleet}/last-known-good")["decision"] is None
