"""The live socket of a running server: frames, gaps, silence, rights, strangers."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_django
from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from console import live_source
from routing.models import Decision, Fleet, Tick
from telemetry import tokens, wire
from telemetry.publish import Publisher
from tests import servers
from tests.console.live_client import handshake, headers, page, sign_in
from tests.servers import Server
from tests.telemetry.batches import batch, instance, link, router, unique
from tests.telemetry.rows import arrivals, clear_landing, commit

pytestmark = pytest.mark.usefixtures("transactional_db")

SCENARIO = {
    "clusters": [{"name": "prfaas", "kind": "prefill"}, {"name": "pd", "kind": "pd"}],
    "links": [{"from": "prfaas", "to": "pd", "gbps": 100.0}],
}


@pytest.fixture(scope="module")
def server(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A console with ten frames a second, a heartbeat of half a second, rights checked likewise."""
    with django_db_blocker.unblock():
        log = tmp_path_factory.mktemp("server") / "log"
        running = servers.start(log, app="tests.live_app:application")
    yield running
    running.stop()
    assert "Traceback" not in log.read_text()


@pytest.fixture
def fleet(transactional_db: None) -> Iterator[str]:
    clear_landing()
    yield Fleet.objects.create(name=unique("f"), scenario=SCENARIO).pk
    clear_landing()


@pytest.fixture
def viewer(transactional_db: None) -> str:
    return sign_in("viewer")


@pytest.fixture
def token(transactional_db: None) -> str:
    return tokens.issue("agent", ["ingest"], "", "tests")[1]


def n_sockets(server: Server) -> int:
    """The gauge, as Prometheus reads it."""
    text = server.request("GET", "/metrics").body.decode()
    found = re.search(r"^prfaas_console_sockets (\S+)$", text, re.MULTILINE)
    assert found is not None, text[:500]
    return int(float(found[1]))


async def until(condition: Any) -> None:
    """Wait (in a thread) until `condition()` holds."""
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


class TestFrames:
    """What a page is told."""

    def test_hello_then_a_snapshot_then_one_frame_after_the_other(
        self, server: Server, fleet: str, viewer: str
    ) -> None:
        async def run() -> None:
            async with page(server, fleet, viewer) as mine:
                hello = await mine.next()
                assert hello["type"] == "hello"
                assert (hello["heartbeat_s"], hello["frame_s"]) == (0.5, 0.1)
                first = await mine.frame()
                assert (first["snapshot"], first["stream"]) == (True, hello["stream"])
                seqs = [(await mine.frame())["seq"] for _ in range(5)]
                assert seqs == list(range(first["seq"] + 1, first["seq"] + 6))

        asyncio.run(run())

    def test_a_committed_batch_is_seen_live(
        self, server: Server, fleet: str, viewer: str, token: str
    ) -> None:
        now_s = time.time()
        agent = unique("agent")
        sent = batch(
            agent,
            instance(f"{fleet}/pd/d0", now_s, signals={"requests_waiting": 4.0}),
            link("prfaas->pd", now_s, tx_gbps=40.0),
            router(f"{fleet}/pd/g", now_s, plan_epoch=1, plan_version=3),
        )

        async def run() -> dict[str, Any]:
            async with page(server, fleet, viewer) as mine:
                assert (await mine.frame())["instances"] == {}
                await asyncio.to_thread(server.post, sent, token)
                return await mine.frame(lambda frame: bool(frame["instances"]))

        frame = asyncio.run(run())
        assert frame["pools"]["pd/decode"]["waiting"] == 4.0
        assert frame["links"]["prfaas->pd"]["utilisation_ratio"] == 0.4
        assert frame["routers"][f"{fleet}/pd/g"]["plan_version"] == 3
        assert list(frame["agents"]) == [agent]
        assert frame["hub"] == {"redis": "ok"}

    def test_a_batch_that_another_process_committed_is_seen_live(
        self, server: Server, fleet: str, viewer: str
    ) -> None:
        now_s = time.time()
        sent = batch(unique("agent"), instance(f"{fleet}/pd/d0", now_s))

        async def run() -> None:
            publisher = Publisher(settings.REDIS_URL)
            async with page(server, fleet, viewer) as mine:
                await mine.frame(lambda frame: frame["hub"] == {"redis": "ok"})
                publisher.start()
                publisher.put(arrivals([sent], now_s))
                await mine.frame(lambda frame: bool(frame["instances"]))
                await publisher.stop()

        asyncio.run(run())

    def test_a_new_page_starts_from_the_database(
        self, server: Server, fleet: str, viewer: str
    ) -> None:
        now_s = time.time()
        commit(batch(unique("agent"), instance(f"{fleet}/pd/d0", now_s)), received_s=now_s)
        add_tick(fleet)

        async def run() -> dict[str, Any]:
            async with page(server, fleet, viewer) as mine:
                return await mine.frame()

        frame = asyncio.run(run())
        assert list(frame["instances"]) == [f"{fleet}/pd/d0"]
        assert (frame["loop"]["reason"], frame["loop"]["plan"]["version"]) == ("Optimal", 4)
        rest = live_source.snapshot(fleet, now_s=time.time())
        assert frame.keys() == rest.keys() | {"hub"}
        for part in ("instances", "pools", "loop", "links", "routers"):
            assert rest[part] == frame[part]

    def test_odd_values_are_strict_json(
        self, server: Server, fleet: str, viewer: str, token: str
    ) -> None:
        """S-05: missing, idle and failed readings; every message is parsed strictly."""
        now_s = time.time()
        idle = wire.Histogram(edges=[0.1], counts=[0.0, 0.0], sum=0.0)
        sent = batch(
            unique("agent"),
            instance(f"{fleet}/pd/missing", now_s, signals={}),
            instance(f"{fleet}/pd/idle", now_s, signals={"ttft_seconds": idle}),
            instance(f"{fleet}/pd/failed", now_s, signals={}, state="failed", error='"<&\u2028'),
            instance(f"{fleet}/pd/huge", now_s, signals={"requests_running": 1e300}),
            instance(f"{fleet}/pd/huger", now_s, signals={"requests_running": 1e300}),
            link("prfaas->pd", now_s, tx_gbps=1e300, capacity_gbps=1e-300),
        )

        async def run() -> dict[str, Any]:
            async with page(server, fleet, viewer) as mine:
                await asyncio.to_thread(server.post, sent, token)
                return await mine.frame(lambda frame: len(frame["instances"]) == 5)

        frame = asyncio.run(run())
        assert frame["pools"]["pd/decode"]["running"] == 2e300  # the door takes no more
        assert frame["links"]["prfaas->pd"]["utilisation_ratio"] is None
        found = frame["instances"]
        assert (found[f"{fleet}/pd/failed"]["state"], found[f"{fleet}/pd/failed"]["error"]) == (
            "failed",
            '"<&\u2028',
        )
        assert found[f"{fleet}/pd/missing"]["running"] is None

    def test_a_snapshot_is_sent_when_asked_for(
        self, server: Server, fleet: str, viewer: str
    ) -> None:
        async def run() -> list[int]:
            async with page(server, fleet, viewer) as mine:
                await mine.frame(lambda frame: frame["snapshot"])
                await mine.frame(lambda frame: not frame["snapshot"])
                await mine.say("snapshot")
                again = await mine.frame(lambda frame: frame["snapshot"])
                return [again["seq"], (await mine.frame())["seq"]]

        seq, following = asyncio.run(run())
        assert following == seq + 1

    def test_a_page_of_a_large_fleet_is_told_of_the_rows_it_shows(
        self, server: Server, fleet: str, viewer: str, token: str
    ) -> None:
        now_s = time.time()
        paths = [f"{fleet}/pd/engine-{i:05}" for i in range(400)]
        sent = batch(unique("agent"), *(instance(path, now_s) for path in paths))

        async def run() -> tuple[dict[str, Any], dict[str, Any]]:
            async with page(server, fleet, viewer) as mine, page(server, fleet, viewer) as other:
                await asyncio.to_thread(server.post, sent, token)
                first = await mine.frame(lambda frame: frame["partial"])
                assert len(first["instances"]) < len(paths)
                hidden = [path for path in paths if path not in first["instances"]][:3]
                await mine.say("scope", instances=[*hidden, f"{fleet}/pd/unknown"])
                found = await mine.frame(lambda frame: hidden[0] in frame["instances"])
                assert found["snapshot"], "it need not wait for the next frame"
                assert found["instances"].keys() == {*first["instances"], *hidden}
                return await mine.frame(), await other.frame(lambda frame: frame["partial"])

        mine, other = asyncio.run(run())
        assert mine["instances"].keys() > other["instances"].keys()
        assert mine["counts"]["instances"] == other["pools"]["pd/decode"]["n"] == len(paths)


def add_tick(fleet_name: str) -> None:
    """One tick and the plan in force, as the scheduler leaves them."""
    fleet, now = Fleet.objects.get(pk=fleet_name), datetime.now(UTC)
    tick = Tick.objects.create(
        fleet=fleet,
        seq=1,
        at=now,
        observed={"pd": {}},
        verdict={"message": "Nothing to gain.", "current": None, "next_action_at_s": None},
        mode="active",
        action="hold",
        reason="Optimal",
        duration_ms=1.0,
    )
    Decision.objects.create(
        fleet=fleet,
        epoch=1,
        version=4,
        tick=tick,
        plan={"fleet": fleet_name, "epoch": 1, "version": 4, "clusters": {}},
        reason="Initial",
        message="The first plan.",
        created_at=now,
    )


class TestSilence:
    """S-47: who stops answering is let go."""

    def test_a_client_that_answers_stays(self, server: Server, fleet: str, viewer: str) -> None:
        async def run() -> None:
            async with page(server, fleet, viewer) as mine:
                n_heartbeats = 0
                while n_heartbeats < 6:
                    n_heartbeats += (await mine.next())["type"] == "heartbeat"

        asyncio.run(run())

    def test_a_client_that_is_mute_is_closed(self, server: Server, fleet: str, viewer: str) -> None:
        async def run() -> int | None:
            async with page(server, fleet, viewer, mute=True) as mine:
                n_heartbeats = 0
                try:
                    while True:
                        n_heartbeats += (await mine.next())["type"] == "heartbeat"
                except EOFError:
                    assert n_heartbeats <= 2
                    return mine.socket.close_code

        assert asyncio.run(run()) == 4408

    def test_the_gauge_falls_even_if_the_client_reads_nothing(
        self, server: Server, fleet: str, viewer: str, token: str
    ) -> None:
        fill(server, fleet, token)

        async def run() -> None:
            async with page(server, fleet, viewer, receive_bytes=4096):
                await until(lambda: n_sockets(server) == 1)
                await until(lambda: n_sockets(server) == 0)

        asyncio.run(run())


N_FILLING = 300


def fill(server: Server, fleet: str, token: str) -> None:
    """Make frames large: as many instances as a frame tells of, with much to say."""
    now_s, error = time.time(), "no route to host " * 60
    samples = [
        instance(f"{fleet}/pd/engine-{i:05}", now_s, state="failed", error=error)
        for i in range(N_FILLING)
    ]
    assert server.post(batch(unique("agent"), *samples), token).status == 200


def test_a_slow_client_sees_a_gap_and_harms_nobody(
    server: Server, fleet: str, viewer: str, token: str
) -> None:
    """S-49: latest wins, the gap shows in `seq`, memory stays flat, others miss nothing."""
    fill(server, fleet, token)
    n_slow, n_frames = 8, 40

    async def run() -> None:
        async with (
            page(server, fleet, viewer) as fast,
            page(server, fleet, viewer, receive_bytes=4096) as slow,
        ):
            opened = [page(server, fleet, viewer, receive_bytes=4096) for _ in range(n_slow - 1)]
            others = [await manager.__aenter__() for manager in opened]
            start = await slow.frame()
            frame_bytes = len(str(start))
            before_bytes = server.rss_bytes
            seqs = []
            while len(seqs) < n_frames:  # the slow ones answer, but read nothing
                seqs.append((await fast.frame())["seq"])
                for one in (slow, *others):
                    await one.say("pong")
            assert seqs == list(range(seqs[0], seqs[0] + n_frames))
            growth = server.rss_bytes - before_bytes
            assert growth < n_slow * n_frames * frame_bytes / 4

            seq, gap = start["seq"], False
            while not gap:
                found = await slow.frame()
                gap, seq = found["seq"] > seq + 1, found["seq"]
            await slow.say("snapshot")
            snapshot = await slow.frame(lambda frame: frame["snapshot"])
            assert snapshot["seq"] >= seq
            assert len(snapshot["instances"]) == N_FILLING
            for manager in opened:
                await manager.__aexit__(None, None, None)

    asyncio.run(run())


class TestRights:
    """Who may look, at the door and later."""

    @pytest.mark.parametrize(
        ("who", "fleet_name", "status"),
        [
            ("stranger", None, 401),
            ("forged", None, 401),
            ("nobody", None, 403),
            ("viewer", "no-such-fleet", 404),
            ("viewer", "", 404),
            ("viewer", None, 101),
        ],
    )
    def test_at_the_door(
        self, server: Server, fleet: str, who: str, fleet_name: str | None, status: int
    ) -> None:
        sessions = {
            "stranger": lambda: None,
            "forged": lambda: "0" * 32,
            "nobody": lambda: sign_in("nobody", group=None),
            "viewer": lambda: sign_in("viewer"),
        }
        session = sessions[who]()
        lines = [("Host", server.host), *headers(server, session).items()]
        target = fleet if fleet_name is None else fleet_name
        assert asyncio.run(handshake(server, f"/ws/live?fleet={target}", lines)) == status

    @pytest.mark.parametrize("how", ["sign out", "deactivate", "leave the group", "new password"])
    def test_an_open_socket_ends_with_the_right_to_it(
        self, server: Server, fleet: str, viewer: str, how: str
    ) -> None:
        hashed = make_password("another long pass phrase")  # slow, and the socket would be silent

        def lose() -> None:
            user = User.objects.get()
            match how:
                case "sign out":
                    Session.objects.all().delete()
                case "deactivate":
                    User.objects.update(is_active=False)
                case "leave the group":
                    user.groups.clear()
                case "new password":
                    User.objects.update(password=hashed)

        async def run() -> int | None:
            async with page(server, fleet, viewer) as mine:
                await mine.frame()
                await asyncio.to_thread(lose)
                return await mine.end()

        assert asyncio.run(run()) == 4401


ROUTES = ("/ws/live", "/ws/plan", "/ws/other", "/")


@pytest.mark.parametrize(
    "odd",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://HOST"},
        {"Origin": "http://HOST, http://evil.example"},
        {"Origin": None},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Host": "HOST@evil.example"},
        {"Host": "127.0.0.1:x"},
    ],
    ids=str,
)
def test_strangers_are_refused_on_every_route(
    server: Server, fleet: str, viewer: str, odd: dict[str, str | None]
) -> None:
    """S-60, with a valid session: what is wrong is only where the page came from."""
    lines = {"Host": server.host, **headers(server, viewer)}
    for name, value in odd.items():
        lines[name] = value.replace("HOST", server.host) if value is not None else ""
    sent = [(name, value) for name, value in lines.items() if odd.get(name, "") is not None]
    for route in ROUTES:
        status = asyncio.run(handshake(server, f"{route}?fleet={fleet}", sent))
        assert status in (400, 403), route


@pytest.mark.parametrize(
    ("origin", "with_token", "status"),
    [
        (None, True, 101),
        (None, False, 403),
        ("http://evil.example", True, 403),
        ("null", True, 403),
    ],
)
def test_a_router_needs_no_origin_but_a_token(
    server: Server, fleet: str, origin: str | None, with_token: bool, status: int
) -> None:
    """S-60 on the plan socket."""
    lines = [("Host", server.host)]
    if origin is not None:
        lines.append(("Origin", origin))
    if with_token:
        secret = tokens.issue("gate", ["router"], fleet, "tests")[1]
        lines.append(("Authorization", f"Bearer {secret}"))
    assert asyncio.run(handshake(server, f"/ws/plan?fleet={fleet}", lines)) == status
