"""Programs of others from PyPI, each in an environment of its own, and as processes of a test.

An environment is made once and kept in the user's cache. `PEER_SMG` and the like name a program
that is there already. What cannot be had is skipped with the reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

VERSIONS = {"smg": "1.13.0", "vllm-router": "0.1.17", "sglang-router": "0.3.2"}
"""What the adapters were tried against."""
_INSTALL_WITHIN_S = 240.0
_unavailable: dict[str, str] = {}
"""Why a program could not be had: a machine without a registry asks for each once."""
_STOPS_WITHIN_S = 15.0


def program(name: str) -> str:
    """Where it is. Skips the test if it cannot be had."""
    named = os.environ.get(f"PEER_{name.upper().replace('-', '_')}")
    if named:
        return named
    if name in _unavailable:
        pytest.skip(_unavailable[name])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prfaas-peers"
    folder = cache / f"{name}-{VERSIONS[name]}"
    found = folder / "bin" / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f".{folder.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "installed").exists():
                _install(name, folder)
    except (OSError, subprocess.SubprocessError) as exc:
        said = getattr(exc, "stderr", None) or str(exc)
        _unavailable[name] = f"{name} {VERSIONS[name]} cannot be installed: {said[-300:]}"
        pytest.skip(_unavailable[name])
    return str(found)


def _install(name: str, folder: Path) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    tool = [uv] if uv is not None else [shutil.which("python3") or sys.executable, "-m", "uv"]
    python = str(folder / "bin" / "python")
    for command in (
        [*tool, "venv", "-q", "--clear", str(folder)],
        [*tool, "pip", "install", "-q", "--python", python, f"{name}=={VERSIONS[name]}"],
    ):
        subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_WITHIN_S, check=True
        )
    (folder / "installed").touch()


def free_ports(n: int) -> list[int]:
    """Free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def running(
    command: Sequence[str], log: Path, *, is_up: Callable[[], bool], within_s: float = 30.0
) -> Iterator[subprocess.Popen[bytes]]:
    """The program from when `is_up` until it has ended; it and no other is ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_for(lambda: process.poll() is not None or is_up(), within_s=within_s)
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        yield process
    finally:
        # The launchers leave a child that has the ports; both are of this session.
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(_STOPS_WITHIN_S)
                break
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break


def wait_for(holds: Callable[[], bool], *, within_s: float) -> None:
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, f"not so within {within_s:g} s"
        time.sleep(0.05)


def answers(url: str) -> bool:
    """Whether it answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False
