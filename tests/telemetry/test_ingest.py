"""The ingest door of a running server: what is taken, what is refused and how it says so."""

from __future__ import annotations

import asyncio
import gzip
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from console import env
from telemetry import ingest, reports, tokens, wire
from tests.servers import Server
from tests.telemetry.batches import batch, instance, link, router, unique
from tests.telemetry.rows import n_samples, sql

MAX_BYTES = next(s.default for s in env.SETTINGS if s.name == "CONSOLE_INGEST_MAX_BYTES")


def n_rows() -> int:
    """Everything that ingest ever stored."""
    [(n,)] = sql(
        "SELECT (SELECT count(*) FROM telemetry_batch) + (SELECT count(*) FROM telemetry_landing)"
    )
    return n


def as_document(sent: wire.Batch) -> dict[str, Any]:
    return msgspec.to_builtins(sent)


@pytest.fixture
def path() -> str:
    return unique("f/pd/d")


def test_a_batch_is_acknowledged_when_its_rows_are_there(
    server: Server, token: str, path: str
) -> None:
    agent = unique("agent")
    for seq in (1, 2, 5):
        answer = server.post(batch(agent, instance(path, time.time()), seq=seq), token)
        assert (answer.status, answer.body) == (200, {"acked_seq": seq})
        assert n_samples("instance", path) == [1, 2, 5].index(seq) + 1


@pytest.mark.parametrize("encoding", ["json", "msgpack", "gzip"])
def test_every_encoding_stores_the_same(
    server: Server, token: str, path: str, encoding: str
) -> None:
    sent = batch(unique("agent"), instance(path, time.time()))
    body, content_type = msgspec.msgpack.encode(sent), "application/msgpack"
    if encoding == "json":
        body, content_type = msgspec.json.encode(sent), "application/json; charset=utf-8"
    zipped = encoding == "gzip"
    answer = server.post(
        gzip.compress(body) if zipped else body, token, content_type, "gzip" if zipped else None
    )
    assert answer.status == 200
    assert n_samples("instance", path) == 1


def test_the_same_batch_twice_is_success_without_new_rows(
    server: Server, token: str, path: str
) -> None:
    """S-16."""
    sent = batch(unique("agent"), instance(path, time.time()))
    first = server.post(sent, token)
    rows = n_rows()
    second = server.post(sent, token)
    assert (first.status, second.status) == (200, 200)
    assert first.body == second.body == {"acked_seq": 1}
    assert n_rows() == rows


def test_an_older_boot_is_refused(server: Server, token: str, path: str) -> None:
    agent = unique("agent")
    assert server.post(batch(agent, instance(path, time.time()), boot=7), token).status == 200
    answer = server.post(batch(agent, instance(path, time.time()), boot=6, seq=9), token)
    assert answer.status == 409
    assert answer.body == {
        "error": "a newer boot of this agent has reported: 7",
        "field": "boot",
        "value": 6,
    }
    assert n_samples("instance", path) == 1


BAD_FIELDS: dict[str, tuple[Callable[[dict[str, Any]], None], str, Any]] = {
    "version": (lambda d: d.update(v=9), "v", 9),
    "unknown field": (lambda d: d.update(nodes=[]), "nodes", "[…]"),
    "missing field": (lambda d: d.pop("seq"), "seq", None),
    "empty agent": (lambda d: d.update(agent=""), "agent", ""),
    "negative seq": (lambda d: d.update(seq=-1), "seq", -1),
    "milliseconds": (
        lambda d: d["instances"][0].update(at_s=1.8e12),
        "instances[0].at_s",
        "1800000000000.0",
    ),
    "id without fleet": (lambda d: d["instances"][0].update(id="d0"), "instances[0].id", "d0"),
    "role": (lambda d: d["instances"][0].update(role="boss"), "instances[0].role", "boss"),
    "word for a number": (
        lambda d: d["instances"][0]["signals"].update(requests_running="three"),
        "instances[0].signals.requests_running",
        "three",
    ),
    "ratio in percent": (
        lambda d: d["instances"][0]["signals"].update(kv_cache_usage_ratio=40.0),
        "instances[0].signals.kv_cache_usage_ratio",
        40.0,
    ),
    "signal without unit": (
        lambda d: d["links"][0]["signals"].update(rtt=0.1),
        "links[0].signals.rtt",
        0.1,
    ),
    "nothing where a field must be": (
        lambda d: d["instances"][0].pop("role"),
        "instances[0].role",
        None,
    ),
    "text for a boot": (lambda d: d.update(boot="1"), "boot", "1"),
    "list for a batch's part": (lambda d: d.update(links={}), "links", "{…}"),
    "undirected link": (lambda d: d["links"][0].update(id="wan"), "links[0].id", "wan"),
    "zero byte": (lambda d: d.update(agent="a\0b"), "agent", "a\0b"),
    "endless name": (lambda d: d.update(agent="a" * 999), "agent", "a" * 200 + "…"),
    "name that breaks lines": (
        lambda d: d["instances"][0].update(id="f/pd/a\nb"),
        "instances[0].id",
        "f/pd/a\nb",
    ),
    "name that turns text round": (lambda d: d.update(agent="a\u202eb"), "agent", "a\u202eb"),
    "long kind": (
        lambda d: d["routers"][0].update(kind="k" * 61),
        "routers[0].kind",
        "k" * 61,
    ),
    "long layer": (
        lambda d: d["links"][0].update(measured_layer="m" * 61),
        "links[0].measured_layer",
        "m" * 61,
    ),
    "start before time": (
        lambda d: d["instances"][0].update(epoch_s=-1.0),
        "instances[0].epoch_s",
        -1.0,
    ),
    "more than sums can hold": (
        lambda d: d["instances"][0]["signals"].update(requests_running=1.7e308),
        "instances[0].signals.requests_running",
        1.7e308,
    ),
    "link over three": (lambda d: d["links"][0].update(id="a->b->c"), "links[0].id", "a->b->c"),
    "endless labels": (
        lambda d: d["routers"][0]["signals"].update(
            requests_total={f"local|{i}": 1.0 for i in range(1025)}
        ),
        "routers[0].signals.requests_total",
        1025,
    ),
    "endless label": (
        lambda d: d["routers"][0]["signals"].update(in_flight={"l" * 201: 1.0}),
        "routers[0].signals.in_flight",
        "l" * 200 + "…",
    ),
    "endless histogram": (
        lambda d: d["instances"][0]["signals"].update(
            ttft_seconds={
                "edges": [float(i) for i in range(1025)],
                "counts": [0.0] * 1026,
                "sum": 0.0,
            }
        ),
        "instances[0].signals.ttft_seconds.edges",
        1025,
    ),
    "version beyond int8": (
        lambda d: d["routers"][0].update(plan_version=2**63),
        "routers[0].plan_version",
        2**63,
    ),
}


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_refusal_names_field_and_value_and_stores_nothing(
    server: Server, token: str, name: str, encoding: str
) -> None:
    now_s, change_field_value = time.time(), BAD_FIELDS[name]
    change, field, value = change_field_value
    document = as_document(
        batch(
            unique("agent"),
            instance(unique("f/pd/d"), now_s, signals={"requests_running": 3.0}),
            link("a->b", now_s, rtt_s=0.1),
            router(unique("f/pd/g"), now_s, plan_epoch=1, plan_version=1),
        )
    )
    change(document)
    encode = msgspec.json.encode if encoding == "json" else msgspec.msgpack.encode
    rows = n_rows()
    answer = server.post(encode(document), token, f"application/{encoding}")
    assert answer.status == 422
    assert (answer.body["field"], answer.body["value"]) == (field, value)
    assert answer.body["error"]
    assert n_rows() == rows


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_passes(
    server: Server, token: str, path: str, number: float
) -> None:
    """S-05."""
    sent = batch(unique("agent"), instance(path, time.time(), signals={"requests_waiting": number}))
    answer = server.post(msgspec.msgpack.encode(sent), token)
    assert answer.status == 422
    assert answer.body["field"] == "instances[0].signals.requests_waiting"
    assert answer.body["value"] == str(number)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_nor_does_a_start_time(server: Server, token: str, path: str, number: float) -> None:
    sent = batch(unique("agent"), instance(path, time.time(), epoch_s=number))
    answer = server.post(msgspec.msgpack.encode(sent), token)
    assert answer.status == 422
    assert (answer.body["field"], answer.body["value"]) == ("instances[0].epoch_s", str(number))


@pytest.mark.parametrize(
    ("ahead_s", "status"), [(-86_400.0, 200), (0.0, 200), (290.0, 200), (400.0, 422)]
)
def test_a_reading_from_the_future_is_a_clock_problem(
    server: Server, token: str, path: str, ahead_s: float, status: int
) -> None:
    """S-17."""
    at_s = time.time() + ahead_s
    answer = server.post(batch("agent-with-a-clock" + path[-8:], instance(path, at_s)), token)
    assert answer.status == status
    if status == 422:
        assert (answer.body["field"], answer.body["value"]) == ("instances[0].at_s", at_s)
        assert "clock of agent agent-with-a-clock" in answer.body["error"]


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "status"),
    [
        (b"", "application/msgpack", None, 422),
        (b"\xc1", "application/msgpack", None, 422),
        (b"{", "application/json", None, 422),
        (b'{"v": NaN}', "application/json", None, 422),
        (b"\xff" * 100, "application/json", None, 422),
        (b"[" * 5000, "application/json", None, 422),
        (b"plain", "application/msgpack", "gzip", 422),
        (gzip.compress(b"x" * 500, mtime=0)[:-9], "application/msgpack", "gzip", 422),
        (gzip.compress(b"{}", mtime=0) + b"more", "application/json", "gzip", 422),
        (b"x", "application/msgpack", "br", 415),
        (b"{}", "text/plain", None, 415),
        (b"{}", "application/x-www-form-urlencoded", None, 415),
    ],
)
def test_a_broken_body_is_refused(
    server: Server, token: str, body: bytes, content_type: str, encoding: str | None, status: int
) -> None:
    assert server.post(body, token, content_type, encoding).status == status


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_post(server: Server, method: str) -> None:
    answer = server.request(method, "/api/v1/ingest")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


class TestTokens:
    """Who may ingest."""

    @pytest.mark.parametrize("secret", [None, "pf_unknown_secret", "ü"])
    def test_without_a_live_token(self, server: Server, token: str, secret: str | None) -> None:
        answer = server.post(batch(unique("agent")), secret)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")

    def test_with_another_scope(self, server: Server, token: str) -> None:
        secret = tokens.issue("gate", ["router", "read"], "", "tests")[1]
        assert server.post(batch(unique("agent")), secret).status == 403

    def test_for_another_fleet(self, server: Server, token: str) -> None:
        secret = tokens.issue("agent of f", ["ingest"], "f", "tests")[1]
        now_s = time.time()
        mine = batch(unique("agent"), instance(unique("f/pd/d"), now_s), link("a->b", now_s))
        assert server.post(mine, secret).status == 200
        other = batch(unique("agent"), instance("g/pd/d", now_s))
        answer = server.post(other, secret)
        assert (answer.status, answer.body["field"], answer.body["value"]) == (
            403,
            "instances[0].id",
            "g/pd/d",
        )


class TestSize:
    """S-14: too large is 413, however it comes, and memory stays flat."""

    @pytest.fixture(autouse=True)
    def memory(self, server: Server) -> Iterator[None]:
        before = server.rss_bytes
        yield
        assert server.rss_bytes < before + 6 * MAX_BYTES

    def test_declared(self, server: Server, token: str) -> None:
        answer = server.post(b"x" * (MAX_BYTES + 1), token)
        assert (answer.status, answer.body["limit"]) == (413, MAX_BYTES)

    def test_chunked(self, server: Server, token: str) -> None:
        chunks = (b"x" * 65_536 for _ in range(4 * MAX_BYTES // 65_536))
        headers = {"Authorization": f"Bearer {token}", "Transfer-Encoding": "chunked"}
        try:
            answer = server.request("POST", "/api/v1/ingest", chunks, headers)
        except (BrokenPipeError, ConnectionResetError):
            return  # refused while we were still sending
        assert answer.status == 413

    def test_a_small_gzip_that_is_large_inside(self, server: Server, token: str) -> None:
        bomb = gzip.compress(b"\0" * (50 * MAX_BYTES))
        assert len(bomb) < MAX_BYTES
        assert server.post(bomb, token, encoding="gzip").status == 413

    def test_many_items(self, server: Server, token: str) -> None:
        now_s = time.time()
        samples = [link("a->b", now_s) for _ in range(wire.MAX_ITEMS_PER_BATCH + 1)]
        rows = n_rows()
        answer = server.post(batch(unique("agent"), *samples), token)
        assert (answer.status, answer.body["limit"]) == (413, wire.MAX_ITEMS_PER_BATCH)
        assert n_rows() == rows


class _Room:
    """The part of the flusher that counts bytes."""

    held = 0

    def hold(self, n_bytes: int) -> None:
        self.held += n_bytes

    def release(self, n_bytes: int) -> None:
        self.held -= n_bytes


async def test_a_body_that_stalls_is_refused_and_gives_its_room_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingest, "_BODY_TIMEOUT_S", 0.05)

    async def known(digest: bytes, now: Any) -> tokens.Grant:
        return tokens.Grant(("ingest",), "", None)

    room = _Room()
    door = ingest.Ingest(
        flusher=room,  # type: ignore[arg-type]
        token_cache=tokens.TokenCache(known),
        refusals=reports.Refusals(),
        max_bytes=MAX_BYTES,
    )
    pieces = [{"type": "http.request", "body": b"x" * 1000, "more_body": True}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if pieces:
            return pieces.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer pf_a_b"), (b"content-length", b"5000")]
    await door({"method": "POST", "headers": headers, "client": None}, receive, send)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert room.held == 0
