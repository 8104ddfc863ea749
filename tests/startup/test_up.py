"""`manage.py up` as a person uses it: real processes, Ctrl-C, kill -9, a port that is taken."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(after_name[1])
    found, frontier = set(), {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def alive(pids: set[int]) -> set[int]:
    """Those still running; a zombie waiting for its reaper has ended."""
    running = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                running.add(pid)
    return running


def wait_until(condition, *, timeout_s: float, what: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"gave up waiting until {what}"
        time.sleep(0.1)


class Console:
    """A running `manage.py up` and what it printed."""

    def __init__(self, state: Path, port: int, *extra: str) -> None:
        self.port = port
        self.log = state.parent / f"up-{port}.log"
        env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--port", str(port), *extra],
                cwd=ROOT,
                env=env | {"CONSOLE_STATE_DIR": str(state)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.text
            return "ready after" in self.text

        wait_until(ready, timeout_s=120, what="the console is ready")

    def get(self, path: str) -> tuple[int, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()


@pytest.fixture
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="up-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder / "state"
    shutil.rmtree(folder, ignore_errors=True)


def test_first_start_logs_in_restarts_children_and_ctrl_c_leaves_nothing(state: Path) -> None:
    console = Console(state, free_port())
    try:
        console.wait_ready()
        login = re.search(r"log in as (\S+) with password (\S+)", console.text)
        assert login, console.text
        status, page = console.get("/login/")
        assert status == 200
        assert "csrfmiddlewaretoken" in page
        assert console.get("/healthz")[0] == 200

        family = descendants(console.process.pid)
        worker = next(
            pid for pid in family if b"celery" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: "again in" in console.text, timeout_s=20, what="the death is noticed")
        wait_until(
            lambda: len(alive(descendants(console.process.pid))) >= len(family),
            timeout_s=40,
            what="the worker runs again",
        )

        family = descendants(console.process.pid)
        console.process.send_signal(signal.SIGINT)
        assert console.process.wait(30) == 0, console.text
        assert console.text.rstrip().endswith("stopped")
        assert not alive(family)
    finally:
        console.process.kill()

    # The second start keeps the data and the login, and prints no password.
    again = Console(state, free_port())
    try:
        again.wait_ready()
        assert "log in as before" in again.text
        family = descendants(again.process.pid)
        again.process.send_signal(signal.SIGKILL)
        again.process.wait(10)
        wait_until(lambda: not alive(family), timeout_s=10, what="no child is left")
    finally:
        again.process.kill()


def test_a_port_in_use_is_one_clear_line(state: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        console = Console(state, port)
        assert console.process.wait(60) == 2
    assert f"--port {port}: cannot listen on 127.0.0.1:{port}" in console.text
    assert "Traceback" not in console.text


def test_a_second_console_on_one_state_folder_leaves_the_first_alone(state: Path) -> None:
    first = Console(state, free_port())
    try:
        first.wait_ready()
        second = Console(state, free_port())
        assert second.process.wait(60) == 1
        assert f"another console already runs on {state}" in second.text
        assert (state / "run" / "urls.json").exists(), "commands still find the first"
        assert first.get("/healthz")[0] == 200
    finally:
        first.process.send_signal(signal.SIGINT)
        first.process.wait(30)


@pytest.mark.parametrize(
    ("words", "setting", "code", "said"),
    [
        (["--port", "99999"], {}, 2, "'99999': must be in 1..65535"),
        ([], {"CONSOLE_STATE_DIR": "/proc/none"}, 1, "state folder /proc/none cannot be used"),
        (
            [],
            {"DATABASE_URL": "postgresql://me:secret@127.0.0.1:1/none"},
            2,
            "DATABASE_URL: postgresql://me@127.0.0.1:1/none cannot be used",
        ),
        ([], {"DATABASE_URL": "mysql://localhost/x"}, 2, "DATABASE_URL='mysql://localhost/x'"),
        ([], {"DATABASE_URL": "postgresql://h:x/y"}, 2, "DATABASE_URL='postgresql://h:x/y'"),
        (
            [],
            {"REDIS_URL": "redis://:secret@127.0.0.1:1/0"},
            2,
            "REDIS_URL: redis://127.0.0.1:1/0 cannot be used",
        ),
        ([], {"CONSOLE_TICK_S": "often"}, 2, "CONSOLE_TICK_S='often'"),
    ],
)
def test_what_cannot_work_is_said_in_a_line(
    state: Path, words: list[str], setting: dict[str, str], code: int, said: str
) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    done = subprocess.run(
        [sys.executable, "manage.py", "up", "--port", str(free_port()), *words],
        cwd=ROOT,
        env={**env, "CONSOLE_STATE_DIR": str(state), **setting},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_an_unknown_demo_option_is_refused_by_name(state: Path) -> None:
    console = Console(state, free_port(), "--demo", "--demo-option", "warp=3")
    assert console.process.wait(60) == 2
    assert "warp" in console.text
    assert "rate_rps" in console.text
