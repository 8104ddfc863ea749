"""Real uvicorn servers of the console on free ports, as children of the test."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest_django
from django.conf import settings
from django.db import connection

from console.embedded import die_with_parent
from routing import ack_batches

ROOT = Path(__file__).resolve().parent.parent
APP = "console.asgi:application"
_START_TIMEOUT_S = 120.0


def database_url(*, user: str | None = None, password: str | None = None) -> str:
    """The URL of the database the tests run in, as its usual user or another."""
    chosen = dict(connection.settings_dict)
    if user is not None:
        chosen |= {"USER": user, "PASSWORD": password or ""}
    port = f"&port={chosen['PORT']}" if chosen["PORT"] else ""
    password = f":{quote(chosen['PASSWORD'], safe='')}" if chosen["PASSWORD"] else ""
    user = f"{chosen['USER']}{password}@" if chosen["USER"] else ""
    return f"postgresql://{user}/{chosen['NAME']}?host={quote(chosen['HOST'])}{port}"


def settle() -> None:
    """Waits until no server is at work in the database: emptying its tables would be a deadlock.

    What a socket said last is recorded a little after it, with what others said.
    """
    time.sleep(2 * ack_batches.GATHER_S)
    at_work = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND state <> 'idle'"
    )
    deadline_s = time.monotonic() + 10.0
    with connection.cursor() as cursor:
        cursor.execute(at_work)
        while cursor.fetchone():
            assert time.monotonic() < deadline_s, "a server never came to rest"
            time.sleep(0.02)
            cursor.execute(at_work)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: Any


@dataclass
class Server:
    """A console process that answers on `host`."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One HTTP request; JSON bodies are parsed. `body` may be bytes or an iterable of them."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            client.request(method, path, body=body, headers=headers or {})
            response = client.getresponse()
            raw = response.read()
        finally:
            client.close()
        lines = {k.lower(): v for k, v in response.getheaders()}
        is_json = "json" in lines.get("content-type", "")
        return Answer(response.status, lines, json.loads(raw) if is_json else raw)

    def post(
        self,
        batch: Any,
        token: str | None,
        content_type: str = "application/msgpack",
        encoding: str | None = None,
    ) -> Answer:
        """POST telemetry; a batch is encoded, bytes are sent as they are."""
        headers = {"Content-Type": content_type}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if encoding is not None:
            headers["Content-Encoding"] = encoding
        body = batch if isinstance(batch, bytes) else msgspec.msgpack.encode(batch)
        return self.request("POST", "/api/v1/ingest", body, headers)

    def kill(self) -> None:
        """SIGKILL, as a crash or an OOM would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and the end that uvicorn gives itself after a clean shutdown."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(20) in (0, -signal.SIGTERM)


def start(log: Path, *, app: str = APP, port: int = 0, **env: str) -> Server:
    """A server of `app`, answering, on `port` or a free one. `env` overrides its environment."""
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    command = (
        *(sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port)),
        *("--lifespan", "on", "--http", "console.front:Front"),
        *("--ws-per-message-deflate", "false", "--log-level", "warning"),
        *("--timeout-graceful-shutdown", "5"),
    )
    defaults = {
        "DATABASE_URL": database_url(),
        "REDIS_URL": settings.REDIS_URL,
        "CONSOLE_SECRET_KEY": settings.SECRET_KEY,
    }
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **defaults, **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    server = Server(process, port, log)
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _answers(server):
        if process.poll() is not None or time.monotonic() > deadline_s:
            process.kill()
            raise RuntimeError(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.05)
    return server


def shared(
    blocker: pytest_django.DjangoDbBlocker, folder: Path, *, app: str = APP, **env: str
) -> Iterator[Server]:
    """Such a server, for a fixture that outlives a test to yield; stopped afterwards."""
    with blocker.unblock():
        running = start(folder / "log", app=app, **env)
    yield running
    running.stop()


def end(process: subprocess.Popen[Any]) -> None:
    """Asked to, or made to after a while."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(server: Server) -> bool:
    """Listening, and the ingest has its database (or was told to do without)."""
    try:
        return server.request("GET", "/api/v1/ingest").status == 405
    except OSError:
        return False
