"""The short way for batches: every shape of HTTP is answered as on the long way, once, in order."""

from __future__ import annotations

import contextlib
import gzip
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from telemetry import wire
from tests import servers
from tests.telemetry.batches import batch, instance, unique
from tests.telemetry.rows import sql

pytestmark = pytest.mark.django_db(transaction=True)


class Wire:
    """A raw connection."""

    def __init__(self, server: servers.Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=15)
        self._read = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        for i, part in enumerate(parts):
            if i:
                time.sleep(0.02)
            self.socket.sendall(part)

    def answer(self) -> tuple[int, bytes]:
        """(status, body) of the next answer. EOFError: the server closed first."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        n = int(length[1]) if length else 0
        while len(self._read) < n:
            self._more()
        body, self._read = self._read[:n], self._read[n:]
        return int(head.split()[1]), body

    def closed(self) -> bool:
        """Whether the server says no more and closes."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError(self._read)
        self._read += data


def body_of(name: str, seq: int) -> bytes:
    return wire.encode(batch(name, instance(f"{name}/pd/a", time.time()), seq=seq))


def post(token: str, body: bytes, *more: bytes, length: bytes | None = None) -> bytes:
    length = b"%d" % len(body) if length is None else length
    lines = [
        b"POST /api/v1/ingest HTTP/1.1",
        b"Host: x",
        b"Authorization: Bearer " + token.encode(),
        b"Content-Type: application/msgpack",
        *more,
    ]
    if length:
        lines.append(b"Content-Length: " + length)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def acked(answer: tuple[int, bytes]) -> int:
    assert answer[0] == 200, answer
    return int(msgspec.json.decode(answer[1])["acked_seq"])


def test_many_at_once_are_answered_in_order(server: servers.Server, token: str) -> None:
    name = unique("f")
    with Wire(server) as wire_:
        wire_.send(b"".join(post(token, body_of(name, seq)) for seq in range(20)))
        assert [acked(wire_.answer()) for _ in range(20)] == list(range(20))


def test_split_anywhere(server: servers.Server, token: str) -> None:
    name = unique("f")
    whole = post(token, body_of(name, 1))
    with Wire(server) as wire_:
        for cut in (1, 5, 30, whole.index(b"\r\n\r\n") + 2, whole.index(b"\r\n\r\n") + 4, -1):
            wire_.send(whole[:cut], whole[cut:])
            assert acked(wire_.answer()) == 1


def test_a_page_after_a_batch_and_a_batch_after_a_page(server: servers.Server, token: str) -> None:
    name = unique("f")
    get = b"GET /api/v1/ingest HTTP/1.1\r\nHost: x\r\n\r\n"
    with Wire(server) as wire_:
        wire_.send(post(token, body_of(name, 1)) + get + post(token, body_of(name, 2)))
        assert acked(wire_.answer()) == 1
        assert wire_.answer()[0] == 405
        assert acked(wire_.answer()) == 2


PLAIN = {
    "chunked": lambda t, b: post(
        t, b"%x\r\n%s\r\n0\r\n\r\n" % (len(b), b), b"Transfer-Encoding: chunked", length=b""
    ),
    "gzip": lambda t, b: post(t, gzip.compress(b), b"Content-Encoding: GZIP"),
    "a long length": lambda t, b: post(t, b, length=b"%015d" % len(b)),
    "a large head": lambda t, b: post(t, b, b"X-Request-Id: " + b"a" * 30_000),
    "other headers": lambda t, b: post(
        t, b, b"X-Forwarded-For: 10.0.0.1, 10.0.0.2", b"Forwarded: x"
    ),
}


@pytest.mark.parametrize("shape", PLAIN)
def test_every_sound_shape_is_taken_and_the_connection_goes_on(
    server: servers.Server, token: str, shape: str
) -> None:
    name = unique("f")
    with Wire(server) as wire_:
        for seq in (1, 3):  # behind a batch on the short way, and on a new connection
            wire_.send(post(token, body_of(name, seq)))
            assert acked(wire_.answer()) == seq
            wire_.send(PLAIN[shape](token, body_of(name, seq + 1)))
            assert acked(wire_.answer()) == seq + 1


SMUGGLED = {
    "two lengths": lambda t, b: post(t, b, b"Content-Length: 3"),
    "length and chunks": lambda t, b: post(t, b, b"Transfer-Encoding: chunked"),
    "a signed length": lambda t, b: post(t, b, length=b"+%d" % len(b)),
    "no number": lambda t, b: post(t, b, length=b"0x10"),
    "blank before colon": lambda t, b: post(t, b).replace(b"Content-Length:", b"Content-Length :"),
    "folded": lambda t, b: post(t, b, b"X-Request-Id: a", b" b"),
    "bare line feed": lambda t, b: post(t, b, b"X-Request-Id: a\nContent-Length: 0"),
    "bare carriage return": lambda t, b: post(t, b, b"X-Request-Id: a\rb"),
}


@pytest.mark.parametrize("shape", SMUGGLED)
def test_what_two_servers_could_read_in_two_ways_is_refused_and_ends_the_connection(
    server: servers.Server, token: str, shape: str
) -> None:
    name = unique("f")
    with Wire(server) as wire_:
        wire_.send(post(token, body_of(name, 1)))
        assert acked(wire_.answer()) == 1
        wire_.send(SMUGGLED[shape](token, body_of(name, 2)))
        assert wire_.answer()[0] == 400
        assert wire_.closed()
    assert sql("SELECT seq FROM telemetry_batch WHERE agent = %s", name) == [(1,)]


@pytest.mark.parametrize(
    ("header", "body", "status"),
    [
        (b"Content-Encoding: br", b"", 415),
        (b"Content-Encoding: gzip", gzip.compress(b"\0" * 20_000_000, mtime=0), 413),
        (b"Content-Encoding: gzip", gzip.compress(b"", mtime=0)[:-4], 422),
        (b"Accept: */*", b"\x91" * 100_000, 422),
        (b"Accept: */*", b"\xdd\xff\xff\xff\xff", 422),
    ],
)
def test_a_refusal_is_the_same_on_both_ways(
    server: servers.Server, token: str, header: bytes, body: bytes, status: int
) -> None:
    name = unique("f")
    with Wire(server) as wire_:
        wire_.send(post(token, body_of(name, 1)))
        assert acked(wire_.answer()) == 1
        said = []
        for more in ((), (b"Forwarded: x",)):  # the second is no plain head
            wire_.send(post(token, body, header, *more))
            said.append(wire_.answer())
        assert said[0] == said[1]
        assert said[0][0] == status
        wire_.send(post(token, body_of(name, 2)))
        assert acked(wire_.answer()) == 2


@pytest.mark.slow
def test_a_head_that_never_ends_is_given_up(server: servers.Server, token: str) -> None:
    with Wire(server) as wire_:
        wire_.send(post(token, b"x")[:40])
        assert wire_.answer()[0] == 408
        assert wire_.closed()


def test_what_was_answered_before_the_end_is_stored(tmp_path: Path, token: str) -> None:
    own = servers.start(tmp_path / "log")
    acks: list[tuple[str, int]] = []

    def send(name: str) -> None:
        with Wire(own) as wire_, contextlib.suppress(OSError, EOFError):
            for seq in range(100_000):
                wire_.send(post(token, body_of(name, seq)))
                status, _ = wire_.answer()
                if status != 200:
                    return
                acks.append((name, seq))

    names = [unique("f") for _ in range(16)]
    try:
        with ThreadPoolExecutor(len(names)) as pool:
            sent = [pool.submit(send, name) for name in names]
            while len(acks) < 200:
                time.sleep(0.01)
            own.stop()
            for one in sent:
                one.result(20)
    finally:
        own.kill()
    stored = set(sql("SELECT agent, seq FROM telemetry_batch"))
    assert set(acks) <= stored
    assert len(stored) == sql("SELECT count(*) FROM telemetry_landing")[0][0]
