"""Holds and modes: what is held and what was, another end, what a switch leaves under way."""

from __future__ import annotations

import html
from datetime import UTC, datetime, time, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from console import expiry
from routing import commands, rebalance, role_commands
from routing.models import Action, Fleet, Hold, Policy, Rebalance, RouterState
from tests.console.api_case import conforms, machine, person, send, strict
from tests.console.control_case import movable_fleet
from tests.console.page_case import busy_fleet
from tests.console.test_control_roles import opened
from tests.console.test_pages import words
from tests.console.test_pages_changing import confirm, hidden

pytestmark = pytest.mark.django_db

HOSTILE = "<img src=x onerror=alert(1)> =1+1 evil \u05e2\u05d1\u05e8\u05d9\u05ea " + "x" * 300


@pytest.fixture
def fleet() -> Fleet:
    return busy_fleet()


@pytest.fixture
def operator() -> Client:
    return person("operator")


def place(at: datetime | None = None, **changes: Any) -> Hold:
    now = at or timezone.now()
    facts: dict[str, Any] = {
        "fleet": "f1",
        "cluster": "pd",
        "mode": "threshold",
        "threshold_tokens": 8000,
        "owner": "ana",
        "expires_at": now + timedelta(hours=1),
        "actor": "ana",
        "via": "test",
        "reason": "link maintenance",
        "now": now,
    }
    return commands.place_hold(**{**facts, **changes})


def release(hold: Hold, reason: str) -> None:
    commands.release_hold(
        hold_id=hold.pk, actor="ben", via="test", reason=reason, now=timezone.now()
    )


def test_the_page_tells_what_is_held_and_how_the_others_ended(
    fleet: Fleet, operator: Client
) -> None:
    release(place(), "over")
    earlier = place(timezone.now() - timedelta(hours=2))
    commands.expire_holds(fleet=fleet, now=timezone.now())
    place(reason="now")
    page = operator.get("/fleets/f1/holds/").content.decode()
    found = words(page)
    assert "t 8K tok pd" in found
    assert found.count("Extend…") == 1
    assert "link maintenance released by ben: over" in found
    assert "link maintenance ran out" in found
    assert Hold.objects.get(pk=earlier.pk).released_by == "system"


def test_a_reason_that_turns_text_round_is_refused(fleet: Fleet, operator: Client) -> None:
    for odd, code in (("\u202eevil", "U+202E"), ("zero\u200bwidth", "U+200B"), ("\x07", "U+0007")):
        with pytest.raises(commands.Refused, match="which nobody sees") as refused:
            place(reason=odd)
        assert (refused.value.field, code in refused.value.message) == ("reason", True)
    assert not Hold.objects.exists()
    place(reason="two lines\nof \U0001f469\u200d\U0001f469 people")


def test_ended_holds_are_paged_and_hostile_words_stay_words(
    fleet: Fleet, operator: Client, django_assert_max_num_queries: Any
) -> None:
    for _ in range(27):
        release(place(reason=HOSTILE, owner="o" * 150), HOSTILE[:400])
    with django_assert_max_num_queries(12):
        page = operator.get("/fleets/f1/holds/").content.decode()
    assert "page 1 of 2" in words(page)
    assert "<img" not in page
    assert page.count("released by ben") == 25
    assert "released by ben" in operator.get("/fleets/f1/holds/?page=2").content.decode()


def test_nothing_held_leads_on(fleet: Fleet, operator: Client) -> None:
    found = words(operator.get("/fleets/f1/holds/").content.decode())
    assert "Nothing is held: the loop decides for every cluster. Hold a plan…" in found
    assert "No hold of this fleet has ended yet." in found
    viewed = words(person("viewer").get("/fleets/f1/holds/").content.decode())
    assert "Only operators place holds." in viewed
    assert "Move roles" not in viewed


def test_a_hold_gets_another_end(fleet: Fleet, operator: Client) -> None:
    hold = place()
    path = f"/fleets/f1/holds/{hold.pk}/extend/"
    assert "Extend the hold of t 8K tok in pd" in words(operator.get(path).content.decode())
    response = confirm(operator, path, span_s="14400", reason="still on it")
    assert response["Location"] == "/fleets/f1/holds/"
    hold.refresh_from_db()
    assert timedelta(hours=3.9) < hold.expires_at - timezone.now() <= timedelta(hours=4)
    [action] = Action.objects.filter(verb="hold.extend")
    assert (action.actor, action.reason) == ("operator", "still on it")
    assert operator.post(path, {"span_s": "3600", "reason": ""}).status_code == 422
    release(hold, "")
    assert "This hold has ended" in words(operator.get(path).content.decode())
    sent = {"span_s": "3600", "reason": "x"}
    assert "This hold has ended" in words(operator.post(path, sent).content.decode())
    assert operator.get(f"/fleets/f2/holds/{hold.pk}/extend/").status_code == 404


def test_rest_extends_a_hold(fleet: Fleet) -> None:
    hold, client = place(), machine("operate")
    until = timezone.now() + timedelta(hours=5)
    path, template = f"/fleets/f1/holds/{hold.pk}/extend", "/fleets/{fleet}/holds/{hold_id}/extend"
    body = {"expires_at": until.isoformat(), "reason": "still on it"}
    seen = conforms(send(client, "post", path, body), template, "post")
    assert datetime.fromisoformat(seen["expires_at"]) == until
    for changes, field in (
        ({"expires_at": (until + timedelta(days=8)).isoformat()}, "expires_at"),
        ({"reason": ""}, "reason"),
    ):
        response = send(client, "post", path, {**body, **changes})
        assert (response.status_code, list(strict(response)["errors"])) == (422, [field])
    assert send(machine("read"), "post", path, body).status_code == 403


def test_holding_until_nine_in_a_zone(fleet: Fleet, operator: Client) -> None:
    query = (
        "cluster=pd&mode=threshold&threshold_tokens=8000&reason=x&span_s=0&until_at=09:00"
        "&zone=Asia/Seoul"
    )
    response = confirm(operator, f"/fleets/f1/hold/?{query}")
    assert response.status_code == 302
    until = Hold.objects.get().expires_at
    assert (until.hour, until.minute) == (0, 0)
    page = words(operator.get("/fleets/f1/fleet/").content.decode())
    assert "Undo: release it" in page


@pytest.mark.parametrize(
    ("now", "at", "zone", "moment"),
    [
        ("2026-11-30T07:00", "09:00", "Europe/Paris", "2026-11-30T08:00"),
        ("2026-11-30T08:00", "09:00", "Europe/Paris", "2026-12-01T08:00"),
        ("2027-03-27T12:00", "02:30", "Europe/Paris", "2027-03-28T01:00"),
        ("2027-10-30T12:00", "02:30", "Europe/Paris", "2027-10-31T00:30"),
        ("2027-10-31T00:45", "02:30", "Europe/Paris", "2027-11-01T01:30"),
        ("2026-11-30T23:59", "00:00", "UTC", "2026-12-01T00:00"),
        ("2027-09-25T00:00", "02:15", "Pacific/Chatham", "2027-09-25T13:30"),
    ],
)
def test_a_time_of_day_is_the_next_on_clocks_of_its_zone(
    now: str, at: str, zone: str, moment: str
) -> None:
    """S-54's rule: a skipped time is the first moment after the gap, a repeated one its first."""
    found = expiry.next_at(
        datetime.fromisoformat(now).replace(tzinfo=UTC),
        time.fromisoformat(at),
        expiry.zone_named(zone),
    )
    assert found == datetime.fromisoformat(moment).replace(tzinfo=UTC)


@pytest.mark.parametrize("name", ["Mars/Olympus", "../../etc/passwd", "x" * 200, "Europe"])
def test_what_is_no_zone_is_said(name: str) -> None:
    with pytest.raises(expiry.NoSuchZone):
        expiry.zone_named(name)


def test_a_switch_names_what_is_under_way(operator: Client) -> None:
    fleet = movable_fleet()
    hold = role_commands.move_roles(
        fleet="f1",
        cluster="pd",
        to=(4, 4),
        expected=(3, 5),
        expires_at=timezone.now() + timedelta(hours=1),
        actor="ana",
        via="test",
        reason="noon",
        now=timezone.now(),
    ).hold
    opened(fleet, hold)
    fleet.decisions.get(version=2).deliveries.update(state="sent")
    found = html.unescape(words(operator.get("/fleets/f1/mode/?to=paused").content.decode()))
    for sentence in (
        "Pending: delivering v2: 2 routers have not said yet that it runs there.",
        "Pending: moving pd to 4 prefill and 4 decode, 0 of 1 moved: it is carried to its end.",
        "Pending: ana's hold of roles 4/4 in pd, until",
        "Stops: deciding and pushing",
    ):
        assert sentence in found


def test_after_a_switch_a_link_undoes_it(fleet: Fleet, operator: Client) -> None:
    confirm(operator, "/fleets/f1/mode/?to=paused", reason="night shift")
    page = operator.get("/fleets/f1/fleet/").content.decode()
    assert '<a href="/fleets/f1/mode/?to=active">Undo: active again</a>' in page


def test_a_switch_that_reaches_much_is_typed(fleet: Fleet, operator: Client) -> None:
    for i in range(10):
        RouterState.objects.create(
            router=f"f1/pd/gw-{i + 10}",
            fleet=fleet,
            cluster="pd",
            state="running",
            transport="socket",
            last_seen_at=timezone.now(),
        )
    assert "Type f1 to confirm" in words(
        operator.get("/fleets/f1/mode/?to=paused").content.decode()
    )
    wrong = confirm(operator, "/fleets/f1/mode/?to=paused", reason="x", typed="f2")
    assert wrong.status_code == 422
    assert "Type f1 to confirm." in words(wrong.content.decode())
    assert Policy.objects.get().mode == "active"
    confirm(operator, "/fleets/f1/mode/?to=paused", reason="x", typed="f1")
    assert Policy.objects.get().mode == "paused"


def test_cancelling_a_move_says_that_its_hold_ends(operator: Client) -> None:
    fleet = movable_fleet()
    hold = role_commands.move_roles(
        fleet="f1",
        cluster="pd",
        to=(4, 4),
        expected=(3, 5),
        expires_at=timezone.now() + timedelta(hours=1),
        actor="ana",
        via="test",
        reason="noon",
        now=timezone.now(),
    ).hold
    row = opened(fleet, hold)
    path = f"/fleets/f1/rebalances/{row.pk}/cancel/"
    found = html.unescape(words(operator.get(path).content.decode()))
    assert "ana's hold of these roles ends with the move" in found
    confirm(operator, path, reason="wrong cluster")
    rebalance.end(Rebalance.objects.get(), "cancelled", "cancelled by operator", timezone.now())
    role_commands.end_spent(fleet=fleet, now=timezone.now())
    page = html.unescape(words(operator.get("/fleets/f1/holds/").content.decode()))
    assert "ended with its move of roles: its move of roles is cancelled" in page


def test_a_login_that_ran_out_leads_back_to_what_was_typed(fleet: Fleet, operator: Client) -> None:
    sent = confirm_form(operator, "/fleets/f1/mode/?to=paused", reason="night & fog")
    operator.session.flush()
    response = Client().post("/fleets/f1/mode/?to=paused", sent)
    assert response.status_code == 302
    back = parse_qs(urlsplit(response["Location"]).query)["next"][0]
    assert "csrf" not in back
    assert "version" not in back
    page = person("admin").get(back).content.decode()
    assert 'value="night &amp; fog"' in page
    assert Policy.objects.get().mode == "active"
    long = Client().post("/fleets/f1/mode/?to=paused", {**sent, "reason": "x" * 5000})
    assert parse_qs(urlsplit(long["Location"]).query)["next"] == ["/fleets/f1/mode/?to=paused"]


def confirm_form(client: Client, path: str, **more: str) -> dict[str, str]:
    return {**hidden(client.get(path).content.decode()), **more}
