"""What stacks and engines answer is somebody else's: a wrong answer is told by URL and field."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from routing.adapters import engines, http
from routing.adapters.registry import surface_of
from routing.adapters.surface import Refused, Surface, SurfaceError, Unheeded

WORKER: dict[str, Any] = {
    "id": "f1/pd/h20-1",
    "url": "http://10.0.0.11:8000",
    "worker_type": "prefill",
    "status": "ready",
    "requests": 3,
    "lease_s": None,
}
LOAD: dict[str, Any] = {
    "num_running_reqs": 2,
    "num_waiting_reqs": 1,
    "disagg_mode": "decode",
    "epoch_s": 1.8e9,
}
SWITCHED = {"success": True, "message": "", "old_role": "decode", "new_role": "prefill"}


class Peer:
    """A server that answers everything with what a test puts here."""

    def __init__(self) -> None:
        self.status, self.body = 200, b""
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.drip_s = 0.0
        self.drips_head, self.n_dripped = False, 0
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                n = int(self.headers.get("Content-Length", 0))
                raw = self.rfile.read(n)
                peer.asked.append((self.command, self.path, msgspec.json.decode(raw or b"null")))
                lines = [f"HTTP/1.0 {peer.status} {HTTPStatus(peer.status).phrase}"]
                lines += [f"{name}: {value}" for name, value in peer.headers.items()]
                head = "\r\n".join([*lines, "", ""]).encode()
                at_once = b"" if peer.drips_head else head
                if not peer.drip_s:
                    at_once += peer.body
                try:
                    self.wfile.write(at_once)
                    for byte in (head + peer.body)[len(at_once) :]:
                        self.wfile.write(bytes([byte]))
                        peer.n_dripped += 1
                        time.sleep(peer.drip_s)
                except OSError:
                    return  # the client has had enough

            do_GET = do_PUT = do_POST = answer

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def says(self, document: Any, status: int = 200) -> None:
        self.status, self.body = status, msgspec.json.encode(document)

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    running = Peer()
    yield running
    running.stop()


def stack(peer: Peer) -> Surface:
    return surface_of("stack", {"url": peer.url})


def drains(peer: Peer) -> None:
    """Have it renew the drain of the worker that it lists."""
    stack(peer).hold(WORKER["url"])


def test_a_listing_is_read_by_url(peer: Peer) -> None:
    peer.says({"workers": [WORKER], "more": "is nobody's business"})
    [(url, worker)] = stack(peer).read().workers.items()
    assert (url, worker.key) == (WORKER["url"], "f1/pd/h20-1")
    assert (worker.role, worker.status, worker.requests) == ("prefill", "ready", 3)
    assert peer.asked == [("GET", "/workers", None)]


def test_a_change_names_the_worker_by_the_end_of_its_id(peer: Peer) -> None:
    worker = {**WORKER, "id": "f1/pd/a b", "status": "draining"}
    peer.says({"workers": [worker], **worker})
    drains(peer)
    assert peer.asked[1:] == [("PUT", "/workers/a%20b", {"status": "draining", "lease_s": 30.0})]


def test_what_an_engine_has_to_do_is_what_runs_and_what_waits(peer: Peer) -> None:
    peer.says(LOAD)
    assert engines.look(peer.url, "engine").requests == 3
    assert peer.asked == [("GET", "/v1/loads", None)]


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({}, "workers"),
        ([], "object"),
        ({"workers": [{**WORKER, "worker_type": "both"}]}, "workers[0].worker_type"),
        ({"workers": [WORKER, {**WORKER, "requests": "3"}]}, "workers[1].requests"),
        ({"workers": [{**WORKER, "requests": -1}]}, "workers[0].requests"),
        ({"workers": [{**WORKER, "url": "file:///etc/passwd"}]}, "workers[0].url"),
        ({"workers": [{**WORKER, "id": "a\nb"}]}, "workers[0].id"),
        ({"workers": [WORKER, WORKER]}, "workers[1].id"),
        ({"workers": [{k: v for k, v in WORKER.items() if k != "status"}]}, "status"),
    ],
)
def test_a_wrong_field_is_named(peer: Peer, document: Any, named: str) -> None:
    peer.says(document)
    with pytest.raises(SurfaceError) as caught:
        stack(peer).read()
    assert str(caught.value).startswith(f"{peer.url}/workers: ")
    assert named in str(caught.value).replace("$.", "")


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"", b"\xff\xfe", b'{"a": NaN}'])
@pytest.mark.parametrize("status", [200, 500])
def test_what_is_no_json_is_no_answer(peer: Peer, body: bytes, status: int) -> None:
    peer.status, peer.body = status, body
    with pytest.raises(SurfaceError, match=f"{peer.url}/v1/loads: answers") as caught:
        engines.look(peer.url, "engine")
    assert not isinstance(caught.value, Refused)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("status", [400, 404, 409, 422])
def test_a_refusal_keeps_the_words_of_who_refuses(peer: Peer, status: int) -> None:
    peer.says({"error": "it is the last one"}, status)
    with pytest.raises(Refused, match=f"answers {status}: it is the last one"):
        stack(peer).read()


def test_a_yes_that_shows_something_else_is_no_yes(peer: Peer) -> None:
    peer.says({"workers": [{**WORKER, "status": "draining"}], **WORKER})
    with pytest.raises(Unheeded, match="answers 200 with status ready, not draining"):
        drains(peer)
    peer.says({**SWITCHED, "success": False, "message": "no memory"})
    with pytest.raises(SurfaceError, match="success False, new_role prefill: no memory"):
        engines.switch(peer.url, "prefill")


def test_an_engine_that_says_it_switched_is_asked_again(peer: Peer) -> None:
    peer.says({**SWITCHED, **LOAD})
    with pytest.raises(SurfaceError, match="switched to prefill, and still is decode"):
        engines.switch(peer.url, "prefill")


def test_no_redirect_is_followed(peer: Peer) -> None:
    peer.status, peer.headers = 302, {"Location": f"{peer.url}/elsewhere"}
    with pytest.raises(SurfaceError, match="answers 302"):
        stack(peer).read()
    assert [path for _, path, _ in peer.asked] == ["/workers"]


def test_no_answer_is_read_beyond_its_bound(peer: Peer) -> None:
    peer.body = b" " * (http.MAX_ANSWER_BYTES + 1)
    with pytest.raises(SurfaceError, match="more than 1000000 bytes"):
        engines.look(peer.url, "engine")


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("drips_head", [False, True])
def test_who_drips_is_not_listened_to_for_ever(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, drips_head: bool, status: int
) -> None:
    """One time for the whole answer, however alive each single byte of it looks."""
    monkeypatch.setattr(http, "TIMEOUT_S", 0.1)
    peer.says(LOAD, status)
    peer.headers = {"X-Slow": "z" * 300}
    peer.drip_s, peer.drips_head = 0.02, drips_head
    with pytest.raises(SurfaceError) as caught:
        engines.look(peer.url, "engine")
    said = "needs more than 0.1 s" if drips_head or status == 200 else "answers 500"
    assert said in str(caught.value)
    assert peer.n_dripped < 60, "of some 300 bytes: it hung up while they came"


@pytest.mark.parametrize("body", [b" " * (http.MAX_ANSWER_BYTES + 1), b"\xff"])
def test_who_refuses_at_length_refuses(peer: Peer, body: bytes) -> None:
    peer.status, peer.body = 409, body
    with pytest.raises(Refused, match="answers 409: "):
        stack(peer).read()


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: engines.look("file:///etc/passwd", "engine"), "must begin with http"),
        (lambda: engines.look("ftp://127.0.0.1/x", "engine"), "must begin with http"),
        (lambda: engines.look("http://127.0.0.1:1", "engine"), "does not answer"),
        (lambda: engines.look("http://127.0.0.1:nonsense", "engine"), "does not answer"),
        (lambda: engines.look("http://host name", "engine"), "does not answer"),
    ],
)
def test_where_nobody_can_answer_the_url_is_named(ask: Callable[[], object], why: str) -> None:
    with pytest.raises(SurfaceError, match=why):
        ask()
