"""A router of the gateways' family in a few lines, as truthful or not as a test wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import msgspec

P1, P2, D1, D2 = (f"http://10.0.0.1{i}:8000" for i in range(1, 5))


class FakeRouter:
    """`workers` is what it lists; `answer` takes a request (method, path, body) instead of it,
    and may give None to leave it to it. `heeds` False: it says yes and does nothing."""

    def __init__(self) -> None:
        self.workers: dict[str, dict[str, Any]] = {}
        self.heeds = True
        self.asked: list[tuple[str, str, Any]] = []
        self.keys: list[str | None] = []
        self.stats: dict[str, Any] = {"by_type": {}}
        self.answer: Callable[[str, str, Any], tuple[int, bytes] | None] = lambda *_: None
        for url, role in ((P1, "prefill"), (P2, "prefill"), (D1, "decode"), (D2, "decode")):
            self.list(url, role)

    def list(self, url: str, role: str, **more: Any) -> None:
        id = f"id-{len(self.asked)}-{url[-7:-5]}"
        worker = {"id": id, "url": url, "worker_type": role, "is_healthy": True, "load": 0}
        self.workers[url] = worker | more

    def role(self, url: str) -> str | None:
        return self.workers[url]["worker_type"] if url in self.workers else None

    @property
    def changes(self) -> list[tuple[str, str, Any]]:
        return [asked for asked in self.asked if asked[0] != "GET"]

    def handle(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        given = self.answer(method, path, body)
        if given is not None:
            return given
        if path == "/get_loads":
            return 200, b'{"version": "smg-1.13.0", "loads": []}'
        if path == "/health":
            return 200, b"{}"
        if method == "GET":
            listed = {"workers": list(self.workers.values()), "stats": self.stats}
            return 200, msgspec.json.encode(listed)
        if self.heeds:
            self._change(method, unquote(path.removeprefix("/workers").strip("/")), body)
        return 202, b'{"status": "accepted"}'

    def _change(self, method: str, key: str, body: Any) -> None:
        named = [u for u, w in self.workers.items() if key in (w["id"], u)]
        if method == "DELETE":
            for url in named:
                del self.workers[url]
        else:
            self.list(body["url"], body["worker_type"])


@contextmanager
def serving(router: FakeRouter) -> Iterator[str]:
    """Its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = msgspec.json.decode(raw) if raw else None
            router.asked.append((self.command, self.path, body))
            router.keys.append(self.headers.get("Authorization"))
            status, answer = router.handle(self.command, self.path, body)
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                return  # the client has had enough

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
