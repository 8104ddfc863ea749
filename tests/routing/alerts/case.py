"""Rules, readings and receivers for tests of alerts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from routing.alerts import rules
from routing.alerts.models import AlertRule, Incident
from tests.routing.cases import NOW

BY: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "because"}
FULL: dict[str, Any] = {
    "name": "kv-full",
    "signal": "instance.kv_cache_usage_ratio",
    "is": "above",
    "threshold": 0.9,
    "for_s": 20,
    "keep_firing_s": 30,
}


def put(document: dict[str, Any], **options: Any) -> AlertRule:
    options = {"if_version": None, "now": NOW} | BY | options
    return rules.put(document=document, **options)


def incident(**more: Any) -> Incident:
    """One that is open and that no pass has made."""
    return Incident.objects.create(
        **{
            "rule": "kv-full",
            "kind": "figure",
            "group": "f1/pd",
            "fleet": "f1",
            "cluster": "pd",
            "severity": "warn",
            "sentence": "f1/pd/d1: instance.kv_cache_usage_ratio is 0.95, above 0.9",
            "signal": "instance.kv_cache_usage_ratio",
            "n": 1,
            "most": 1,
            "members": [{"source": "f1/pd/d1", "value": 0.95, "since_s": NOW.timestamp()}],
            "opened_at": NOW,
            "seen_at": NOW,
        }
        | more
    )


@dataclass
class Heard:
    """A receiver's own server: what it was sent, and how it behaves."""

    url: str = ""
    status: int = 200
    location: str = ""
    hangs_s: float = 0.0
    bodies: list[Any] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def receiving() -> Iterator[Heard]:
    heard = Heard()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            heard.raw.append(raw)
            heard.bodies.append(json.loads(raw))
            heard.headers.append(dict(self.headers))
            time.sleep(heard.hangs_s)
            self.send_response(heard.status)
            if heard.location:
                self.send_header("Location", heard.location)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"secret")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    heard.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        yield heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
