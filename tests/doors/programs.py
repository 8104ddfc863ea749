"""Real programs on free loopback ports, ended by the test that started them."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from console.embedded import die_with_parent
from tests import servers

PROMETHEUS = shutil.which("prometheus")
VICTORIA = shutil.which("victoria-metrics")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")
needs_victoria = pytest.mark.skipif(VICTORIA is None, reason="victoria-metrics is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], *, pause_s: float = 0.1) -> Any:
    """What the condition says once it says something; the test's own timeout is the limit."""
    while not (found := condition()):
        time.sleep(pause_s)
    return found


@contextlib.contextmanager
def running(*command: str, log: Path, port: int, ready: str) -> Iterator[str]:
    """A program that answers `ready` on its port; yields its URL."""
    url = f"http://127.0.0.1:{port}"
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(url + ready, timeout=5):
            return True
        return False

    try:
        until(answers)
        yield url
    finally:
        servers.end(process)


@contextlib.contextmanager
def prometheus(folder: Path, config: str, *flags: str) -> Iterator[str]:
    """A Prometheus of this configuration; yields its URL."""
    assert PROMETHEUS is not None
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    command = (
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=info",
        *flags,
    )
    with running(*command, log=folder / "log", port=port, ready="/-/ready") as url:
        yield url


@contextlib.contextmanager
def victoria(folder: Path) -> Iterator[str]:
    """An empty VictoriaMetrics; yields its URL."""
    assert VICTORIA is not None
    folder.mkdir(exist_ok=True)
    port = free_port()
    command = (
        VICTORIA,
        f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=12",
        "-search.latencyOffset=0s",
        "-memory.allowedBytes=200MB",
    )
    with running(*command, log=folder / "log", port=port, ready="/health") as url:
        yield url


@contextlib.contextmanager
def page(folder: Path, text: str) -> Iterator[int]:
    """`/metrics` with this text; yields the port."""
    folder.mkdir(exist_ok=True)
    (folder / "metrics").write_text(text)
    port = free_port()
    command = ("python3", "-m", "http.server", str(port), "--bind", "127.0.0.1")
    with running(*command, log=folder / "log", port=port, ready="/metrics"):
        yield port


def asked(url: str, promql: str) -> list[Any]:
    """The result of an instant query."""
    with urllib.request.urlopen(
        url + "/api/v1/query?" + urllib.parse.urlencode({"query": promql}), timeout=10
    ) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
        return found
