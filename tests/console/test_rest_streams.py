"""Event streams of a running server: what is heard, who comes back, who is sent away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
import pytest_django
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.utils import timezone

from console.streams import Streams
from routing import commands
from routing.models import Fleet
from routing.rest.models import Event
from telemetry import tokens
from telemetry.models import ApiToken
from tests import servers
from tests.console.live_client import PATIENCE_S, headers, sign_in
from tests.routing.cases import make_fleet
from tests.servers import Server
from tests.telemetry.batches import unique

pytestmark = pytest.mark.usefixtures("transactional_db")
WHO: dict[str, Any] = {"actor": "ana", "via": "test", "reason": "x"}


@pytest.fixture(scope="module")
def server(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A console that checks rights every 0.4 s, beats every 1.5 s and serves 12 streams."""
    with django_db_blocker.unblock():
        log = tmp_path_factory.mktemp("server") / "log"
        running = servers.start(log, app="tests.live_app:application", CONSOLE_MAX_STREAMS="12")
    yield running
    running.stop()
    assert "Traceback" not in log.read_text()


@pytest.fixture
def fleet(transactional_db: None) -> Fleet:
    return make_fleet(unique("f"))


@pytest.fixture
def secret(transactional_db: None) -> str:
    return tokens.issue("reader", ["read"], "", "tests")[1]


def hold(fleet: Fleet) -> Any:
    now = timezone.now()
    return commands.place_hold(
        fleet=fleet.pk,
        cluster="pd",
        mode="always_local",
        threshold_tokens=None,
        owner="ana",
        expires_at=now + timedelta(hours=1),
        now=now,
        **WHO,
    )


def release(placed: Any) -> None:
    commands.release_hold(hold_id=placed.pk, now=timezone.now(), **WHO)


class Stream:
    """One open stream, as a browser reads it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.last_id = ""
        self.n_comments = 0
        self._rest = b""

    async def block(self) -> dict[str, str]:
        """The fields of the next block, comments counted. EOFError once the server has ended it."""
        async with asyncio.timeout(PATIENCE_S):
            while b"\n\n" not in self._rest:
                more = await self.response.content.readany()
                if not more:
                    raise EOFError
                self._rest += more
        text, _, self._rest = self._rest.partition(b"\n\n")
        found: dict[str, str] = {}
        for line in text.decode().split("\n"):
            name, _, value = line.partition(": ")
            if not name.strip(":"):
                self.n_comments += 1
            else:
                found[name] = value
        self.last_id = found.get("id", self.last_id)
        return found

    async def begin(self) -> Stream:
        """Read up to where it says from which id it goes on."""
        while "retry" not in (found := await self.block()):
            assert found.get("event") == "gap", found
        return self

    async def event(self) -> dict[str, Any]:
        """The next event."""
        while True:
            found = await self.block()
            if "data" in found:
                said: dict[str, Any] = json.loads(found["data"])
                assert found["event"] in (said.get("kind"), "gap")
                return said

    async def end(self) -> None:
        """Wait until the server ends it."""
        try:
            while True:
                await self.block()
        except EOFError:
            return


@asynccontextmanager
async def listening(
    server: Server, path: str, secret: str = "", *, session: str = "", last: str = ""
) -> AsyncIterator[Stream]:
    more = {"Accept": "text/event-stream"}
    if secret:
        more["Authorization"] = f"Bearer {secret}"
    if last:
        more["Last-Event-ID"] = last
    if session:
        more |= headers(server, session)
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://{server.host}/api/v1{path}", headers=more) as response,
    ):
        yield Stream(response)


async def aside(function: Callable[..., Any], *args: Any) -> Any:
    """In a thread, which gives back its connection to the database."""

    def run() -> Any:
        try:
            return function(*args)
        finally:
            connection.close()

    return await asyncio.to_thread(run)


def test_what_happens_is_heard(server: Server, fleet: Fleet, secret: str) -> None:
    async def run() -> list[dict[str, Any]]:
        async with listening(server, f"/fleets/{fleet.pk}/events", secret) as mine:
            assert mine.response.status == 200
            assert mine.response.content_type == "text/event-stream"
            assert mine.response.headers["Cache-Control"] == "no-store"
            assert "Content-Length" not in mine.response.headers
            await mine.begin()
            placed = await aside(hold, fleet)
            await aside(release, placed)
            return [await mine.event(), await mine.event()]

    placed, released = asyncio.run(run())
    assert (placed["kind"], placed["change"], placed["fleet"]) == ("hold", "placed", fleet.pk)
    assert (released["change"], released["released_by"]) == ("released", "ana")


def test_another_fleet_and_another_kind_are_not_heard(
    server: Server, fleet: Fleet, secret: str
) -> None:
    other = make_fleet(unique("g"))

    async def run() -> tuple[dict[str, Any], dict[str, Any]]:
        path = f"/fleets/{fleet.pk}/events"
        async with (
            listening(server, path, secret) as mine,
            listening(server, "/events?kinds=hold", secret) as every,
        ):
            await mine.begin(), await every.begin()
            await aside(hold, other)
            await aside(hold, fleet)
            return await mine.event(), await every.event()

    mine, every = asyncio.run(run())
    assert (mine["fleet"], every["fleet"]) == (fleet.pk, other.pk)


def test_whoever_comes_back_hears_what_happened_meanwhile_once(
    server: Server, fleet: Fleet, secret: str
) -> None:
    """From the database: the process that it comes back to may be another one."""

    async def run() -> list[int]:
        path, heard = f"/fleets/{fleet.pk}/events?kinds=hold", []
        async with listening(server, path, secret) as mine:
            last = (await mine.begin()).last_id
        for _ in range(3):
            placed = await aside(hold, fleet)
            await aside(release, placed)
            async with listening(server, path, secret, last=last) as mine:
                await mine.begin()
                for _ in range(2):
                    heard.append((await mine.event())["change"])
                last = mine.last_id
        async with listening(server, path, secret, last=last) as mine:
            await mine.begin()
            placed = await aside(hold, fleet)
            heard.append((await mine.event())["change"])
        return heard

    assert asyncio.run(run()) == [*["placed", "released"] * 3, "placed"]


def test_silence_is_told_by_comments_that_move_the_id_on(
    server: Server, fleet: Fleet, secret: str
) -> None:
    async def run() -> tuple[int, str, str]:
        async with listening(server, f"/fleets/{fleet.pk}/events", secret) as mine:
            first = (await mine.begin()).last_id
            await aside(make_fleet, unique("h"))
            while mine.n_comments < 2:
                await mine.block()
            return mine.n_comments, first, mine.last_id

    n_comments, first, last = asyncio.run(run())
    assert n_comments == 2
    assert int(last.split("-")[0]) >= int(first.split("-")[0])


def test_a_gap_is_told(server: Server, fleet: Fleet, secret: str) -> None:
    async def run() -> dict[str, Any]:
        async with listening(server, "/events", secret, last=f"{10**17}-1") as mine:
            return await mine.event()

    assert "no longer kept" in asyncio.run(run())["why"]


@pytest.mark.parametrize(
    ("path", "who", "status"),
    [
        ("/events", "nobody", 401),
        ("/events", "router", 403),
        ("/events", "bound", 200),
        ("/fleets/no-such/events", "read", 404),
        ("/events?kinds=holds", "read", 422),
        ("/events?last_event_id=x", "read", 422),
        ("/events?since=1", "read", 422),
    ],
)
def test_at_the_door(server: Server, fleet: Fleet, path: str, who: str, status: int) -> None:
    known = {
        "read": lambda: tokens.issue("reader", ["read"], "", "tests")[1],
        "router": lambda: tokens.issue("gate", ["router"], "", "tests")[1],
        "bound": lambda: tokens.issue("reader", ["read"], fleet.pk, "tests")[1],
        "nobody": lambda: "",
    }

    async def run(secret: str) -> int:
        async with listening(server, path, secret) as mine:
            if mine.response.status != 200:
                body = await mine.response.json()
                assert (body["ok"], body["status"]) == (False, mine.response.status)
                assert body["code"]
            return mine.response.status

    assert asyncio.run(run(known[who]())) == status


def test_a_token_for_one_fleet_hears_that_fleet(server: Server, fleet: Fleet) -> None:
    other = make_fleet(unique("g"))
    bound = tokens.issue("reader", ["read"], fleet.pk, "tests")[1]

    async def run() -> dict[str, Any]:
        async with listening(server, "/events", bound) as mine:
            await mine.begin()
            await aside(hold, other)
            await aside(hold, fleet)
            return await mine.event()

    assert asyncio.run(run())["fleet"] == fleet.pk


def n_connections() -> int:
    """To the database, by whoever."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_streams_are_bounded_and_hold_no_connection_to_the_database(
    server: Server, fleet: Fleet, secret: str
) -> None:
    other = tokens.issue("other", ["read"], "", "tests")[1]

    async def refused(who: str) -> tuple[int, str, str]:
        async with listening(server, "/events", who) as mine:
            body = await mine.response.json()
            return mine.response.status, body["code"], mine.response.headers["Retry-After"]

    async def run() -> None:
        before = await aside(n_connections)
        async with AsyncExitStack() as stack:
            for who in [secret] * 10 + [other] * 2:
                opened = await stack.enter_async_context(listening(server, "/events", who))
                await opened.begin()
            assert await aside(n_connections) - before <= 4
            assert await refused(secret) == (503, "unavailable", "30")
        async with AsyncExitStack() as stack:
            for _ in range(10):
                opened = await stack.enter_async_context(listening(server, "/events", secret))
                await opened.begin()
            assert await refused(secret) == (429, "too_many_requests", "30")

    asyncio.run(run())


def test_rights_are_asked_for_within_a_minute() -> None:
    streams = Streams(no_door, max_streams=1)
    assert all(0.0 < streams.recheck_s < 55.0 for _ in range(100))


async def no_door(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


@pytest.mark.parametrize(
    "how",
    ["sign out", "deactivate", "leave the group", "new password", "revoke", "expire", "no fleet"],
)
def test_an_open_stream_ends_with_the_right_to_it(server: Server, fleet: Fleet, how: str) -> None:
    by_token = how in ("revoke", "expire", "no fleet")
    secret = tokens.issue("reader", ["read"], "", "tests")[1] if by_token else ""
    session = "" if by_token else sign_in("viewer")

    def lose() -> None:
        match how:
            case "sign out":
                Session.objects.all().delete()
            case "deactivate":
                User.objects.update(is_active=False)
            case "leave the group":
                User.objects.get().groups.clear()
            case "new password":
                user = User.objects.get()
                user.set_password("another long pass phrase")
                user.save()
            case "revoke":
                tokens.revoke(ApiToken.objects.get(), timezone.now())
            case "expire":
                ApiToken.objects.update(expires_at=timezone.now())
            case "no fleet":
                Fleet.objects.filter(pk=fleet.pk).delete()

    async def run() -> None:
        path = f"/fleets/{fleet.pk}/events"
        async with listening(server, path, secret, session=session) as mine:
            await mine.begin()
            await aside(lose)
            await mine.end()

    asyncio.run(run())


def test_events_are_only_written_by_the_database() -> None:
    assert not Event.objects.exists()
