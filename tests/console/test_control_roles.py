"""Moving roles by hand: what the page says first, what it refuses, what two people meet."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from routing import commands, rebalance, role_commands
from routing.models import Action, Fleet, Hold, Rebalance
from tests.console.api_case import conforms, machine, person, send, strict
from tests.console.control_case import movable_fleet
from tests.console.page_case import busy_fleet
from tests.console.test_pages import words
from tests.console.test_pages_changing import confirm

pytestmark = pytest.mark.django_db

NEW = "/fleets/f1/rebalances/new/"
ASKED = {"cluster": "pd", "n_prefill": "4", "span_s": "3600", "reason": "long prompts"}
REST = "/fleets/f1/rebalances"


@pytest.fixture
def fleet() -> Fleet:
    return movable_fleet()


@pytest.fixture
def operator() -> Client:
    return person("operator")


def shown(client: Client, **changes: str) -> str:
    return words(client.get(NEW, {**ASKED, **changes}).content.decode())


def query(**changes: str) -> str:
    return f"{NEW}?" + "&".join(f"{k}={v}" for k, v in {**ASKED, **changes}.items())


def body(**changes: object) -> dict[str, object]:
    until = (timezone.now() + timedelta(hours=1)).isoformat()
    return {
        "cluster": "pd",
        "n_prefill": 4,
        "n_decode": 4,
        "expected": {"n_prefill": 3, "n_decode": 5},
        "expires_at": until,
        "reason": "long prompts",
        **changes,
    }


def test_the_page_says_first_what_moving_would_do(fleet: Fleet, operator: Client) -> None:
    found = shown(operator)
    for sentence in (
        "Changes: Move 1 instance from decode to prefill in pd. 5 → 4 decode: capacity 3.91 → 3.13 "
        "req/s, demand now 2.50 req/s. 3 → 4 prefill: capacity",
        "once t suits the new roles; demand now 2.50 req/s.",
        "pd/h20-4: 1 request will drain first (about 13 s); none is cut off.",
        "own moves of roles in pd until",
        "Goes on: t and the link: the loop goes on tuning them",
        "Afterwards: the roles are the loop",
        "Undo: cancel the move while it is under way, or release the hold",
        "Decode of pd",
        "pd/h20-4 decode → prefill 1 13 s",
    ):
        assert sentence in found
    assert re.search(r"Capacity of the fleet [\d.]+ → [\d.]+ req/s, and [\d.]+ req/s once", found)
    assert not Hold.objects.exists()


def hold_t(fleet: Fleet, *, lasts: timedelta, owner: str = "ann") -> str:
    """A hold of t, and its end as pages write it."""
    until = timezone.now() + lasts
    Hold.objects.create(
        fleet=fleet,
        cluster="pd",
        mode="threshold",
        threshold_tokens=9800,
        owner=owner,
        reason="load test",
        expires_at=until,
    )
    return f"{until:%Y-%m-%d %H:%M:%S} UTC"


def test_while_t_is_held_it_says_what_will_be_in_force_and_what_after(
    fleet: Fleet, operator: Client
) -> None:
    until = hold_t(fleet, lasts=timedelta(minutes=30))
    found = shown(operator)
    for sentence in (
        f"Stays: t 9.80K tok until {until}, held by ann: load test. "
        "Then the loop tunes t to the roles there are.",
        "req/s with t 9.80K tok held, and ",
        f"once the hold has ended ({until}) and t suits the new roles",
        "With these roles, t held",
        "Once the hold of t ended",
        "Afterwards: the roles are the loop",
    ):
        assert sentence in found
    assert re.search(r"t of pd 6K tok fleet: [\d.]+ % remote 9.80K tok fleet: [\d.]+ %", found)
    assert "the loop goes on tuning them" not in found
    assert "Once t suits them" not in found


def test_a_hold_of_t_that_outlasts_that_of_the_roles_leaves_nothing_to_suit_them(
    fleet: Fleet, operator: Client
) -> None:
    until = hold_t(fleet, lasts=timedelta(hours=3))
    found = shown(operator)
    assert "req/s with t 9.80K tok held; demand now" in found
    assert "Once the hold of t ended" not in found
    assert f"leaves the roles alone until the hold of t ends too ({until})" in found
    assert "the roles are the loop" not in found


def test_it_shows_the_instances_in_the_planners_order(fleet: Fleet, operator: Client) -> None:
    found = shown(operator, n_prefill="6")
    assert "Move 3 instances from decode to prefill in pd. 5 → 2 decode" in found
    assert "pd/h20-4, pd/h20-5, pd/h20-6: 9 requests will drain first" in found


def test_confirming_asks_and_shows_how_it_goes(fleet: Fleet, operator: Client) -> None:
    response = confirm(operator, query())
    hold = Hold.objects.get()
    assert response["Location"] == f"/fleets/f1/rebalances/asked/{hold.pk}/"
    assert (hold.mode, hold.n_prefill, hold.n_decode, hold.owner) == ("", 4, 4, "operator")
    assert 3590 < (hold.expires_at - timezone.now()).total_seconds() <= 3600
    page = words(operator.get(response["Location"]).content.decode())
    assert "Waiting for the next tick" in page
    assert "Undo: release the roles" in page
    assert "Asked for by operator: long prompts. The roles are held until" in page
    row = opened(fleet, hold)
    page = words(operator.get(response["Location"]).content.decode())
    assert "3/5 → 4/4 prefill/decode" in page
    assert page.count("Cancel…") == 1
    rebalance.end(row, "done", "", timezone.now())
    page = words(operator.get(f"/fleets/f1/rebalances/{row.pk}/").content.decode())
    assert "moved, in" in page
    assert "Move back…" in page


def opened(fleet: Fleet, hold: Hold) -> Rebalance:
    """As the next tick would."""
    decision = fleet.decisions.get(version=2)
    return rebalance.open_for(
        decision=decision,
        cluster="pd",
        from_n_prefill=3,
        from_n_decode=5,
        to_n_prefill=4,
        to_n_decode=4,
        deadline_s=600.0,
        drain_timeout_s=240.0,
        now=timezone.now(),
    )


@pytest.mark.parametrize(
    ("n_prefill", "says"),
    [
        ("8", "Not possible now: 0 decode is below min_decode = 1 of pd."),
        ("0", "Not possible now: 0 prefill is below min_prefill = 1 of pd."),
        ("9", "Not possible now: 9 + 0 is more than the 8 instances of pd."),
    ],
)
def test_a_button_that_would_fail_is_disabled_and_says_why(
    fleet: Fleet, operator: Client, n_prefill: str, says: str
) -> None:
    page = operator.get(NEW, {**ASKED, "n_prefill": n_prefill}).content.decode()
    assert says in words(page)
    assert "disabled" in page[page.index('id="expected"') :]
    assert "data-confirm" not in page


def test_a_cluster_without_routers_and_a_paused_fleet_say_so(operator: Client) -> None:
    busy_fleet(mode="paused")
    found = shown(operator)
    assert "the fleet is paused: no plan is pushed that could ask it" in found
    assert "pd has no routers in the scenario: nothing to move with" in found
    posted = operator.post(NEW, {**ASKED, "seen": "3/5"})
    assert posted.status_code == 422
    assert not Hold.objects.exists()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"reason": ""}, "Say why"),
        ({"n_prefill": "many"}, "Enter a whole number"),
        ({"span_s": "0", "until_at": "", "zone": "UTC"}, "Say at what time it ends."),
        ({"span_s": "0", "until_at": "09:00", "zone": "Mars/Olympus"}, "no such time zone"),
    ],
)
def test_what_cannot_be_meant_stands_at_its_field(
    fleet: Fleet, operator: Client, wrong: dict[str, str], says: str
) -> None:
    assert says in shown(operator, **wrong)
    assert operator.post(NEW, {**ASKED, **wrong, "seen": "3/5"}).status_code == 422
    assert not Hold.objects.exists()


def test_until_a_time_of_day_in_a_zone(fleet: Fleet, operator: Client) -> None:
    confirm(operator, query(span_s="0", until_at="09:00", zone="Asia/Seoul"))
    until = Hold.objects.get().expires_at
    assert (until.hour, until.minute) == (0, 0), "09:00 in Seoul is midnight UTC"
    assert timedelta() < until - timezone.now() <= timedelta(days=1)


def test_two_operators_at_once_one_gets_the_conflict_page(fleet: Fleet, operator: Client) -> None:
    response = operator.post(query(n_prefill="5"), {**ASKED, "n_prefill": "5", "seen": "4/4"})
    found = words(response.content.decode())
    assert response.status_code == 409
    assert "The roles of pd changed while you looked at them. Nothing of yours was" in found
    assert "You saw 4/4" in found
    assert "It is now 3/5" in found
    assert "You asked for 5/3 operator" in found
    assert not Hold.objects.exists()


def test_what_somebody_holds_is_not_moved(fleet: Fleet, operator: Client) -> None:
    confirm(operator, query())
    admin = person("admin")
    found = words(admin.get(NEW, {**ASKED, "n_prefill": "5"}).content.decode())
    assert "Not possible now: operator holds the roles of pd until" in found
    assert admin.post(NEW, {**ASKED, "n_prefill": "5", "seen": "3/5"}).status_code == 422
    assert Hold.objects.count() == 1
    opened(fleet, Hold.objects.get())
    found = words(admin.get(NEW, {**ASKED, "n_prefill": "5"}).content.decode())
    assert "asked for by operator; cancel that first. " in found
    assert "The move under way" in found


def test_what_is_not_read_is_said_and_not_guessed(operator: Client) -> None:
    fleet = movable_fleet()
    fleet.managed_routers.update(observed_at=timezone.now() - timedelta(minutes=3))
    found = shown(operator)
    assert "Which instances go is chosen when the move begins: stack-1 was not read for" in found
    assert "will drain first" not in found


def test_a_viewer_watches_and_asks_for_nothing(fleet: Fleet) -> None:
    hold = role_commands.move_roles(
        fleet="f1",
        cluster="pd",
        to=(4, 4),
        expected=(3, 5),
        expires_at=timezone.now() + timedelta(hours=1),
        actor="ana",
        via="test",
        reason="x",
        now=timezone.now(),
    ).hold
    viewer = person("viewer")
    page = viewer.get(f"/fleets/f1/rebalances/asked/{hold.pk}/").content.decode()
    assert "Asked for by ana" in words(page)
    assert "/release/" not in page
    assert viewer.get(NEW).status_code == 403
    assert send(machine("read"), "post", REST, body()).status_code == 403


def test_rest_asks_once_under_a_key(fleet: Fleet) -> None:
    client = machine("operate")
    sent = body()
    answers = [send(client, "post", REST, sent, **{"Idempotency-Key": "k"}) for _ in range(2)]
    first, again = (conforms(a, "/fleets/{fleet}/rebalances", "post") for a in answers)
    assert [a.status_code for a in answers] == [201, 201]
    assert first == again
    assert (first["rebalance"], first["hold"]["n_prefill"]) == (None, 4)
    [action] = Action.objects.filter(verb="roles.move")
    assert (action.via, action.target) == ("rest", "roles of pd")
    other = send(client, "post", REST, body(reason="y"), **{"Idempotency-Key": "k"})
    assert (other.status_code, strict(other)["code"]) == (422, "key_reused")


def test_rest_refuses_by_field_and_412_where_roles_are_others(fleet: Fleet) -> None:
    client = machine("operate")
    stale = send(client, "post", REST, body(expected={"n_prefill": 5, "n_decode": 3}))
    assert stale.status_code == 412
    assert "3 prefill and 5 decode now" in strict(stale)["error"]
    for changes, field in (
        ({"n_prefill": 8, "n_decode": 0}, "n_prefill"),
        ({"cluster": "nope"}, "cluster"),
        ({"reason": ""}, "reason"),
        ({"prefill": 3}, "prefill"),
    ):
        response = send(client, "post", REST, body(**changes))
        assert (response.status_code, list(strict(response)["errors"])) == (422, [field])
    assert not Hold.objects.exists()


def test_a_hold_of_roles_is_released_in_its_own_words(fleet: Fleet, operator: Client) -> None:
    confirm(operator, query())
    hold = Hold.objects.get()
    found = words(operator.get(f"/fleets/f1/holds/{hold.pk}/release/").content.decode())
    assert "Release roles 4/4 in pd" in found
    assert "again from the next tick on: it may move" in found
    now = timezone.now()
    commands.release_hold(hold_id=hold.pk, actor="ana", via="test", reason="done", now=now)
    found = words(operator.get(f"/fleets/f1/rebalances/asked/{hold.pk}/").content.decode())
    assert "The hold ended before the move was begun." in found
