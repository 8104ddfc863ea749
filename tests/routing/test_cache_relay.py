"""What gates tell each other of caches, through real web processes, and when it becomes void."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from console.embedded import Embedded
from routing import cache_relay
from routing.cache_epochs import Epochs, Seen
from routing.cache_relay import Allowance, CacheError, CacheNews, Inbox
from routing.gate.prefix import PrefixIndex
from routing.models import Fleet
from telemetry import store, wire
from tests import servers
from tests.gate.peers import RunningGate, Upstream, gate_config, gate_running, until
from tests.routing.cases import feed, make_fleet
from tests.routing.issuing import issue, token
from tests.servers import Server

NOW_S = 1_800_000_000.0


def news(fleet: str, *, router: str = "g1", n_keys: int = 3, **changes: Any) -> dict[str, Any]:
    return {
        "type": "cache",
        "router": f"{fleet}/pd/{router}",
        "place": "prfaas",
        "block_bytes": 2048,
        "epoch": 0,
        "linear_state": "none",
        "keys": base64.b64encode(random.Random(router).randbytes(8 * n_keys)).decode(),
        **changes,
    }


def wanted(fleet: str, name: str) -> dict[str, Any]:
    return {"type": "cache_wanted", "router": f"{fleet}/pd/{name}", "places": ["prfaas"]}


class Socket:
    """A gate's end of the plan socket, by hand."""

    def __init__(self, connection: ClientConnection, fleet: str, name: str) -> None:
        self.connection, self.fleet, self.name = connection, fleet, name

    def say(self, message: dict[str, Any] | str) -> None:
        self.connection.send(message if isinstance(message, str) else json.dumps(message))

    def hears(self, *, timeout_s: float = 10.0) -> dict[str, Any]:
        return json.loads(self.connection.recv(timeout=timeout_s))

    def hears_until(self, kind: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The next message of a type (None: a plan), and what came before it."""
        before: list[dict[str, Any]] = []
        while (message := self.hears()).get("type") != kind:
            before.append(message)
        return message, before


def get_through(speaker: Socket, listener: Socket, message: dict[str, Any]) -> None:
    """Says it until it is heard: what is said before a web process listens to Valkey is lost."""
    deadline_s = time.monotonic() + 20.0
    while time.monotonic() < deadline_s:
        speaker.say(message)
        with contextlib.suppress(TimeoutError):
            while not message.items() <= listener.hears(timeout_s=0.5).items():
                pass
            return
    raise AssertionError(f"never heard: {message}")


@contextlib.contextmanager
def sockets(web: Server, fleet: str, *names: str) -> Iterator[list[Socket]]:
    """Gates of a fleet that use the place `prfaas`, each known to all before it. One of the name
    `slow` takes in no more than a few messages that are not asked for."""
    secret = token("router", fleet)
    with contextlib.ExitStack() as stack:
        made: list[Socket] = []
        for name in names:
            connection = stack.enter_context(
                connect(
                    f"ws://{web.host}/ws/plan?fleet={fleet}",
                    additional_headers={"Authorization": f"Bearer {secret}"},
                    max_queue=4 if name == "slow" else None,
                )
            )
            socket = Socket(connection, fleet, name)
            socket.say(wanted(fleet, name))
            made.append(socket)
            for earlier in made[:-1]:
                get_through(socket, earlier, wanted(fleet, name))
        yield made


class Site:
    """Real gates before real upstreams on one event loop, which turns while `run` waits."""

    def __init__(self, runner: asyncio.Runner, web: Server, fleet: Fleet) -> None:
        self._runner, self._web, self._fleet = runner, web, fleet
        self._stack = contextlib.AsyncExitStack()
        self._secret = token("router", fleet.pk)

    def run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine)

    def until(self, claim: Any) -> None:
        self.run(until(claim))

    def enter(self, context: Any) -> Any:
        return self.run(self._stack.enter_async_context(context))

    def gate(self, name: str, local: Upstream, remote: Upstream) -> RunningGate:
        """A gate that is in touch with the console."""
        config = gate_config(
            local.url,
            {"prfaas": remote.url},
            router=f"{self._fleet.pk}/pd/{name}",
            console_url=f"http://{self._web.host}",
            token=self._secret,
            ack_interval_s=0.5,
        )
        gate = self.enter(gate_running(config))
        self.until(lambda: gate.gate.board.state.running)
        return gate

    def close(self) -> None:
        self.run(self._stack.aclose())


@pytest.fixture
def site(hasty_web: Server, fleet: Fleet) -> Iterator[Site]:
    issue(fleet, 5_000)
    with asyncio.Runner() as runner:
        made = Site(runner, hasty_web, fleet)
        yield made
        made.close()


def index_of(gate: RunningGate) -> PrefixIndex:
    return gate.gate.places()["prfaas"]


def engine(fleet: Fleet, *, epoch_s: float, role: str = "prefill") -> None:
    """A reading of one engine of the PrfaaS cluster, taken now."""
    feed(
        [
            wire.InstanceSample(
                id=f"{fleet.pk}/prfaas/p0",
                role=role,
                engine="vllm",
                engine_version="0.32",
                at_s=time.time(),
                epoch_s=epoch_s,
                signals=wire.InstanceSignals(),
            )
        ]
    )


def test_two_gates_know_what_both_put_into_a_cluster_until_an_engine_restarts(
    site: Site, fleet: Fleet
) -> None:
    started_s = time.time() - 1000.0
    engine(fleet, epoch_s=started_s)
    local, remote = (site.enter(Upstream().running()) for _ in range(2))
    a, b = site.gate("a", local, remote), site.gate("b", local, remote)
    prompt = list(range(6_000))

    def uncached(gate: RunningGate) -> tuple[str, str]:
        answer, _ = site.run(gate.complete(prompt))
        assert answer.headers["X-PrfaaS-Side"] == "remote"
        return (
            answer.headers["X-PrfaaS-Uncached-Tokens"],
            answer.headers["X-PrfaaS-Uncached-Remote-Tokens"],
        )

    assert uncached(a) == ("6000", "6000")
    site.until(lambda: len(index_of(b)) == 11)
    assert uncached(b) == ("6000", str(6_000 - 11 * 512))
    # A gate that joins later asks, and is told.
    c = site.gate("c", local, remote)
    site.until(lambda: len(index_of(c)) == 11)
    # Heard of again, but no restart: nothing is dropped. A restart drops it everywhere.
    engine(fleet, epoch_s=started_s)
    assert uncached(c) == ("6000", str(6_000 - 11 * 512))
    engine(fleet, epoch_s=time.time())
    for gate in (a, b, c):
        site.until(lambda gate=gate: len(index_of(gate)) == 0)
    # And what is put there now is shared again.
    assert uncached(b) == ("6000", "6000")
    site.until(lambda: len(index_of(a)) == 11)
    engine(fleet, epoch_s=time.time() - 500.0, role="decode")
    site.until(lambda: len(index_of(a)) == 0)
    page = site.run(a.metrics())
    assert page["prfaas_gate_cache_epochs_total"] >= 2
    assert page["prfaas_gate_cache_keys_sent_total"] >= 11
    assert page["prfaas_gate_cache_keys_adopted_total"] >= 11
    assert page['prfaas_gate_cache_messages_ignored_total{reason="invalid"}'] == 0


def test_a_gate_hears_of_the_places_it_uses_in_its_own_fleet(web: Server, fleet: Fleet) -> None:
    other = make_fleet(f"f-{uuid.uuid4().hex[:8]}")
    with (
        sockets(web, fleet.pk, "g1", "g2") as (g1, g2),
        sockets(web, other.pk, "g1", "g2") as (h1, h2),
    ):
        g1.say(news(fleet.pk, place="pd"))
        g1.say(news(fleet.pk, n_keys=5))
        heard, _ = g2.hears_until("cache")
        assert {key: heard[key] for key in news(fleet.pk)} == news(fleet.pk, n_keys=5)
        h1.say(news(other.pk))
        heard, before = h2.hears_until("cache")
        assert heard["router"] == f"{other.pk}/pd/g1"  # the first news it hears of anything
        assert all(message["router"] == f"{other.pk}/pd/g1" for message in before)
        g2.say(news(fleet.pk, router="g2"))
        heard, _ = g1.hears_until("cache")
        assert heard["router"] == f"{fleet.pk}/pd/g2"  # not what it said itself


def test_gates_of_two_web_processes_hear_each_other(
    web: Server, hasty_web: Server, fleet: Fleet
) -> None:
    with sockets(web, fleet.pk, "g1") as (g1,), sockets(hasty_web, fleet.pk, "g2") as (g2,):
        get_through(g1, g2, news(fleet.pk))
        get_through(g2, g1, news(fleet.pk, router="g2"))


def test_what_makes_no_sense_is_answered_and_the_socket_stays(web: Server, fleet: Fleet) -> None:
    with sockets(web, fleet.pk, "g1", "g2") as (g1, g2):
        for message, word in (
            (news("elsewhere"), "router"),
            (news(fleet.pk, keys="AAAA"), "keys"),
            ({"type": "weather"}, "weather"),
            (json.dumps(news(fleet.pk, keys="A" * 200_000)), "at most 131072"),
        ):
            g1.say(message)
            answer, _ = g1.hears_until("error")
            assert word in answer["error"]
        get_through(g1, g2, news(fleet.pk))


def test_a_flood_costs_little_and_the_plan_still_comes(web: Server, fleet: Fleet) -> None:
    with sockets(web, fleet.pk, "g1", "g2", "g3", "g4", "slow") as gates:
        *senders, slow = gates
        before_bytes = web.rss_bytes
        for i in range(40):
            for sender in senders:
                sender.say(news(fleet.pk, router=sender.name, n_keys=8_192, epoch=i))
        for sender in senders:
            sender.say("{}")  # no ack: its answer says that all before it was read
            sender.hears_until("error")
        assert web.rss_bytes - before_bytes < 64 * 1024**2
        issue(fleet, 5_000)
        plan, news_before = slow.hears_until(None)
        assert plan["clusters"]["pd"]["threshold_tokens"] == 5_000
        # Of 160 messages each sender's first few were taken, and at most so many waited here.
        assert {heard["type"] for heard in news_before} <= {"cache", "cache_wanted"}
        assert len(news_before) < 4 * (cache_relay.BURST + 10)


@pytest.fixture
def valkey() -> Iterator[Embedded]:
    """A Valkey of our own: that of the other tests must not be stopped."""
    folder = Path(tempfile.mkdtemp(prefix="prfaas-", dir="/tmp"))
    folder.chmod(0o755)
    made = Embedded(folder, without=("DATABASE_URL",))
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.fault
def test_without_valkey_gates_keep_their_plan_and_later_hear_of_each_other_again(
    valkey: Embedded, fleet: Fleet, tmp_path: Path
) -> None:
    urls = valkey.start()
    web = servers.start(tmp_path / "log", **urls)
    try:
        with sockets(web, fleet.pk, "g1", "g2") as (g1, g2):
            process, sig = valkey.processes["valkey"]
            process.send_signal(sig)
            process.wait(20)
            g1.say(news(fleet.pk, epoch=1))
            issue(fleet, 5_000)
            g1.hears_until(None)
            g2.hears_until(None)
            valkey.restart("valkey")
            get_through(g1, g2, news(fleet.pk, epoch=2))
    finally:
        web.stop()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"router": "f/pd"}, "router"),
        ({"router": "g/pd/g1"}, "router"),
        ({"router": "f//g1"}, "router"),
        ({"place": ""}, "place"),
        ({"block_bytes": 0}, "block_bytes"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": int(NOW_S * 1000) + 400_000}, "epoch"),
        ({"linear_state": "some"}, "linear_state"),
        ({"keys": "%%%%"}, "keys"),
        ({"keys": "AAAA"}, "keys"),
        ({"keys": base64.b64encode(bytes(8 * 8193)).decode()}, "keys"),
        ({"ends": [4]}, "ends"),
        ({"ends": [0]}, "ends"),
        ({"colour": 1}, "colour"),
        ({"type": "cache_wanted"}, "place"),
    ],
)
def test_a_message_that_cannot_be_meant_is_refused_by_field(
    changes: dict[str, Any], word: str
) -> None:
    cache_relay.parse(json.dumps(news("f")), fleet="f", now_s=NOW_S)
    with pytest.raises(CacheError, match=word):
        cache_relay.parse(json.dumps(news("f") | changes), fleet="f", now_s=NOW_S)


def test_the_largest_message_passes() -> None:
    full = news("f", n_keys=8_192, ends=list(range(1, 8_193)))
    text = json.dumps(full, separators=(",", ":"))
    assert isinstance(cache_relay.parse(text, fleet="f", now_s=NOW_S), CacheNews)


def test_a_router_may_say_a_few_things_at_once_and_five_a_second() -> None:
    allowance = Allowance(0.0)
    assert [allowance.take(0.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert [allowance.take(0.5) for _ in range(3)] == [True, True, False]
    assert sum(allowance.take(0.5 + i / 100) for i in range(1, 1001)) == pytest.approx(50, abs=1)


def test_a_slow_gate_keeps_the_newest_and_epochs_go_first() -> None:
    inbox = Inbox(asyncio.Event())
    inbox.router, inbox.places = "f/pd/slow", frozenset({"prfaas"})
    for i in range(100):
        message = cache_relay.parse(json.dumps(news("f", epoch=i)), fleet="f", now_s=NOW_S)
        inbox.offer(message, str(i))
    inbox.offer_epochs({"prfaas": 6, "pd": 9})
    inbox.offer_epochs({"prfaas": 7})
    assert json.loads(inbox.take() or "") == {"type": "cache_epoch", "place": "prfaas", "epoch": 7}
    assert [inbox.take() for _ in range(33)] == [*(str(i) for i in range(68, 100)), None]


def seen(*, first_seen_s: float = NOW_S, **values: Any) -> Seen:
    """One engine's newest reading."""
    sample = {
        "id": "f/prfaas/p0",
        "role": "prefill",
        "engine": "vllm",
        "engine_version": "",
        "at_s": NOW_S,
        "epoch_s": NOW_S - 100.0,
        "state": "ok",
        "signals": wire.InstanceSignals(),
        **values,
    }
    reading = store.from_sample(wire.InstanceSample(**sample), received_s=sample["at_s"])
    return Seen((reading,), {reading.path: first_seen_s})


@pytest.mark.parametrize(
    ("changes", "epoch_s"),
    [
        ({"at_s": NOW_S + 5.0}, None),
        ({"epoch_s": NOW_S - 99.5}, None),
        ({"state": "failed", "epoch_s": 0.0}, None),
        ({"epoch_s": 0.0}, None),
        ({"id": "f/prfaas/p1"}, None),
        ({"epoch_s": NOW_S + 3.0, "at_s": NOW_S + 5.0}, NOW_S + 3.0),
        ({"role": "decode", "at_s": NOW_S + 5.0}, NOW_S + 5.0),
        ({"id": "f/prfaas/p1", "epoch_s": NOW_S + 50.0}, NOW_S + 50.0),
    ],
    ids=[
        "read again",
        "a start told a little differently",
        "failed",
        "does not tell its start",
        "first heard of",
        "restarted",
        "another role",
        "restarted before it was looked at",
    ],
)
def test_an_epoch_rises_with_a_restart_or_a_role_and_with_nothing_else(
    changes: dict[str, Any], epoch_s: float | None
) -> None:
    epochs = Epochs()
    assert epochs.update(seen()) == set()
    risen = epochs.update(seen(**changes))
    assert risen == (set() if epoch_s is None else {"prfaas"})
    assert epochs.by_place == ({} if epoch_s is None else {"prfaas": round(epoch_s * 1000)})
    assert epochs.update(seen(**changes)) == set()


def test_an_epoch_never_falls() -> None:
    epochs = Epochs()
    epochs.update(seen())
    epochs.update(Seen((), {}))  # silent
    epochs.update(seen(epoch_s=NOW_S))
    high = epochs.by_place["prfaas"]
    assert epochs.update(seen(epoch_s=NOW_S - 5000.0)) == {"prfaas"}  # its clock was set back
    assert epochs.by_place["prfaas"] == high + 1
