"""Plans over the real socket of a real web process, and the acks that come back."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.utils import timezone
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from routing import announce, delivery, router_commands, token_commands
from routing.models import Delivery, Fleet, RouterState
from tests.routing.issuing import WHO, issue, token, wait_for
from tests.servers import Server

POLICY_VIOLATION, GOING_AWAY = 1008, 1001


def dial(web: Server, secret: str | None, fleet: str, **headers: str) -> ClientConnection:
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    return connect(f"ws://{web.host}/ws/plan?fleet={fleet}", additional_headers=headers)


def receive(socket: ClientConnection) -> dict[str, Any]:
    return json.loads(socket.recv(timeout=10))


@contextlib.contextmanager
def tables_away(*names: str) -> Iterator[None]:
    """Whoever asks for them gets a database error, as when the database is away."""
    with connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"ALTER TABLE {name} RENAME TO {name}_away")
        try:
            yield
        finally:
            for name in names:
                cursor.execute(f"ALTER TABLE {name}_away RENAME TO {name}")


def say(socket: ClientConnection, fleet: Fleet, **values: Any) -> None:
    socket.send(json.dumps({"router": f"{fleet.pk}/pd/gw-1", **values}))


def test_the_newest_plan_comes_on_connect_and_each_newer_one_at_once(
    web: Server, fleet: Fleet
) -> None:
    issue(fleet, 5_000)
    issue(fleet, 6_000)
    with dial(web, token(), fleet.pk) as socket:
        plan = receive(socket)
        assert plan == delivery.newest_document(fleet)
        issue(fleet, 7_000)
        newer = receive(socket)
    assert newer["version"] == plan["version"] + 1
    assert newer["clusters"]["pd"]["threshold_tokens"] == 7_000


def test_an_ack_makes_the_delivery_applied(web: Server, fleet: Fleet) -> None:
    with dial(web, token(), fleet.pk) as socket:
        say(socket, fleet, epoch=None, version_running=None, state="no_plan", error=None)
        wait_for(RouterState.objects.filter(fleet=fleet).exists)
        issue(fleet, 5_000)
        plan = receive(socket)
        sent = Delivery.objects.get(decision__version=plan["version"], decision__fleet=fleet)
        assert sent.state == "sent"
        say(socket, fleet, epoch=1, version_running=plan["version"], state="running")
        wait_for(lambda: Delivery.objects.get(pk=sent.pk).state == "applied")
    assert RouterState.objects.get(fleet=fleet).transport == "socket"


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("{", "truncated"),
        ('{"router": "f1/pd/gw-1"}', "state"),
        ('{"router": "f1/pd/gw-1", "state": "running", "colour": 1}', "colour"),
        (
            '{"router": "f1/pd/gw-1", "state": "running", "epoch": -1, "version_running": 1}',
            "epoch",
        ),
        ('{"router": "elsewhere/pd/gw-1", "state": "running"}', "router"),
    ],
)
def test_an_ack_that_is_not_understood_is_answered_and_changes_nothing(
    web: Server, fleet: Fleet, message: str, word: str
) -> None:
    with dial(web, token(), fleet.pk) as socket:
        socket.send(message)
        answer = receive(socket)
    assert answer["type"] == "error"
    assert word in answer["error"]
    assert not RouterState.objects.filter(fleet=fleet).exists()


@pytest.mark.parametrize(
    ("scope", "token_fleet", "asked"),
    [(None, "", None), ("read", "", None), ("router", "other", None), ("router", "", "nobody")],
    ids=["no token", "wrong scope", "token of another fleet", "unknown fleet"],
)
def test_nobody_gets_plans_without_a_token_for_them(
    web: Server, fleet: Fleet, scope: str | None, token_fleet: str, asked: str | None
) -> None:
    if token_fleet:
        Fleet.objects.create(name=token_fleet, scenario={})
    secret = None if scope is None else token(scope, token_fleet)
    with pytest.raises(InvalidStatus):
        dial(web, secret, asked or fleet.pk)


def test_a_foreign_page_gets_no_plans_even_with_a_token(web: Server, fleet: Fleet) -> None:
    """S-60."""
    with pytest.raises(InvalidStatus):
        dial(web, token(), fleet.pk, Origin="https://elsewhere.example")


def test_a_revoked_token_loses_its_socket(hasty_web: Server, fleet: Fleet) -> None:
    row, secret = token_commands.issue_token(
        name="gw", scopes=["router"], fleet="", expires_at=None, now=timezone.now(), **WHO
    )
    with dial(hasty_web, secret, fleet.pk) as socket:
        token_commands.revoke_token(token_id=row.pk, now=timezone.now(), **WHO)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == POLICY_VIOLATION


def test_a_database_that_is_away_costs_no_socket(hasty_web: Server, fleet: Fleet) -> None:
    issue(fleet, 5_000)
    secret = token()
    with dial(hasty_web, secret, fleet.pk) as socket:
        version = receive(socket)["version"]
        with tables_away("telemetry_apitoken", "routing_routerstate"):
            for _ in range(4):  # over several looks at the token
                say(socket, fleet, epoch=1, version_running=version, state="running")
                time.sleep(0.15)
            with pytest.raises(InvalidStatus):
                dial(hasty_web, secret, fleet.pk)
        assert not RouterState.objects.filter(fleet=fleet).exists()
        say(socket, fleet, epoch=1, version_running=version, state="running")
        wait_for(RouterState.objects.filter(fleet=fleet).exists)


def test_a_router_that_says_nothing_is_let_go(hasty_web: Server, fleet: Fleet) -> None:
    with dial(hasty_web, token(), fleet.pk) as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == GOING_AWAY


def test_a_lost_announcement_costs_one_rereading(
    hasty_web: Server, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue(fleet, 5_000)
    with dial(hasty_web, token(), fleet.pk) as socket:
        first = receive(socket)["version"]
        monkeypatch.setattr(announce, "publish", lambda message: None)
        issue(fleet, 6_000)
        assert receive(socket)["version"] == first + 1


def test_an_older_plan_that_is_announced_late_is_not_sent(web: Server, fleet: Fleet) -> None:
    issue(fleet, 5_000)
    old = delivery.newest_document(fleet)
    issue(fleet, 6_000)
    with dial(web, token(), fleet.pk) as socket:
        newest = receive(socket)["version"]
        announce.publish({"type": "plan", "fleet": fleet.pk, "plan": old})
        issue(fleet, 7_000)
        assert receive(socket)["version"] == newest + 1


def test_what_happens_is_announced_as_json_on_one_channel(fleet: Fleet) -> None:
    heard: list[dict[str, Any]] = []
    with redis.Redis.from_url(settings.REDIS_URL) as client, client.pubsub() as pubsub:
        pubsub.subscribe("routing")

        def plan_heard() -> bool:
            message = pubsub.get_message(timeout=0.2, ignore_subscribe_messages=True)
            if message is not None:
                heard.append(json.loads(message["data"]))
            return any(said["type"] == "plan" for said in heard)

        plan_heard()
        issue(fleet, 5_000)
        wait_for(plan_heard)
    mine = [said for said in heard if said["fleet"] == fleet.pk]
    assert [said["type"] for said in mine] == ["policy", "tick", "decision", "plan"]
    assert mine[-1]["plan"] == delivery.newest_document(fleet)


def test_an_override_on_the_gate_is_recorded_and_ended_by_its_id(web: Server, fleet: Fleet) -> None:
    override = {
        **{"id": "ov-1", "mode": "threshold", "threshold_tokens": 9000, "by": "grace"},
        **{"reason": "link", "since_s": 1.0, "until_s": 2.0e9},
    }
    row = RouterState.objects.filter(fleet=fleet)
    with dial(web, token(), fleet.pk) as socket:
        say(socket, fleet, epoch=None, version_running=None, state="overridden", override=override)
        wait_for(lambda: row.filter(state="overridden", override__id="ov-1").exists())
        router_commands.release_gate(router=f"{fleet.pk}/pd/gw-1", now=timezone.now(), **WHO)
        say(socket, fleet, epoch=None, version_running=None, state="overridden", override=override)
        assert receive(socket) == {"type": "release_override", "id": "ov-1"}
        say(socket, fleet, epoch=None, version_running=None, state="no_plan")
        wait_for(lambda: row.filter(override__isnull=True, release="", state="no_plan").exists())
        say(socket, fleet, state="overridden", override={**override, "mode": "sometimes"})
        assert "mode" in receive(socket)["error"]
