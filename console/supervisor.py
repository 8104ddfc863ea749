"""Runs the console's processes as one: prefixed log lines, restarts, one clean stop.

Everything is started from the thread that calls `run`, because the kernel ties the
parent-death signal to the thread that forked.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TextIO

from console.embedded import die_with_parent

_POLL_S = 0.2
_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_RESTART_DELAYS_S = (0.2, 0.5, 1.0, 2.0, 4.0)
_STEADY_AFTER_S = 30.0


class StartError(RuntimeError):
    """A process that did not come up: which, and what it last said."""


class Services(Protocol):
    """What the supervisor needs of the embedded PostgreSQL and Valkey."""

    def dead(self) -> list[str]: ...
    def restart(self, name: str) -> None:
        """Start it again without waiting for it: nothing else may stay down meanwhile."""


@dataclass(frozen=True)
class Program:
    """One process to keep alive. `ready_url` is asked until it answers 200 before the next starts;
    a program with `restart=False` may end by itself."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_url: str | None = None
    restart: bool = True


@dataclass
class _Comeback:
    """When something that died is started again: at once, later if it keeps dying."""

    started_s: float
    failures: int = 0
    restart_at_s: float | None = None

    def due(self, now_s: float, say: Callable[[float], None]) -> bool:
        """Asked at each poll while it is dead; `say` hears the delay once a death."""
        if self.restart_at_s is None:
            lived_s = now_s - self.started_s
            self.failures = 0 if lived_s > _STEADY_AFTER_S else self.failures + 1
            delay_s = _RESTART_DELAYS_S[min(self.failures, len(_RESTART_DELAYS_S) - 1)]
            self.restart_at_s = now_s + delay_s
            say(delay_s)
        return now_s >= self.restart_at_s

    def started(self, now_s: float) -> None:
        self.started_s, self.restart_at_s = now_s, None


@dataclass
class _Running:
    program: Program
    process: subprocess.Popen[str]
    comeback: _Comeback


class Supervisor:
    """Start programs in order, keep them alive, stop them in reverse."""

    def __init__(self, *, out: TextIO = sys.stdout) -> None:
        self.services: Services | None = None
        self._out = out
        self._print_lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._services: dict[str, _Comeback] = {}
        self._stopping = threading.Event()

    def say(self, who: str, line: str) -> None:
        """One log line: when, who, what."""
        with self._print_lock:
            print(f"{time.strftime('%H:%M:%S')} {who:<8} | {line}", file=self._out, flush=True)

    def request_stop(self, *_: object) -> None:
        """Signal handler: leave `run` after the current poll."""
        self._stopping.set()

    def start(self, programs: Iterable[Program]) -> None:
        """Start each program, waiting for those that can say they are ready."""
        for program in programs:
            if self._stopping.is_set():
                return
            process = self._spawn(program)
            self._running[program.name] = _Running(program, process, _Comeback(time.monotonic()))
            if program.ready_url:
                self._wait_ready(program)

    def run(self) -> None:
        """Watch until asked to stop."""
        while not self._stopping.wait(_POLL_S):
            now_s = time.monotonic()
            self._revive_services(now_s)
            for running in list(self._running.values()):
                self._revive(running, now_s)

    def stop(self) -> None:
        """Stop every program, last started first; kill what does not listen."""
        self._stopping.set()
        for running in reversed(self._running.values()):
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        for running in reversed(self._running.values()):
            try:
                running.process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.say("up", f"{running.program.name} did not stop in time, killing it")
                running.process.kill()
                running.process.wait()

    def _spawn(self, program: Program) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            program.command,
            env=dict(program.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # SIGKILL: an orphan must not linger in a warm shutdown waiting for a dead database.
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
        threading.Thread(target=self._pump, args=(program.name, process), daemon=True).start()
        return process

    def _pump(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                # Addresses for programs; to a person they are a screen of noise.
                self.say(name, "ready" if line.startswith('{"ready"') else line.rstrip())

    def _revive_services(self, now_s: float) -> None:
        if self.services is None:
            return
        for name in self.services.dead():
            comeback = self._services.setdefault(name, _Comeback(started_s=float("-inf")))
            if not comeback.due(now_s, partial(self._say_ended, name, "by itself")):
                continue
            try:
                self.services.restart(name)
            except Exception as exc:  # it is tried again; the rest must live on
                self.say("up", f"{name} cannot be started: {exc}")
            comeback.started(now_s)

    def _revive(self, running: _Running, now_s: float) -> None:
        if running.process.poll() is None or not running.program.restart:
            return
        name = running.program.name
        say = partial(self._say_ended, name, f"({_how(running.process)})")
        if running.comeback.due(now_s, say):
            running.process = self._spawn(running.program)
            running.comeback.started(now_s)

    def _say_ended(self, name: str, how: str, delay_s: float) -> None:
        self.say("up", f"{name} ended {how}, again in {delay_s:g} s")

    def _wait_ready(self, program: Program) -> None:
        assert program.ready_url is not None
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        process = self._running[program.name].process
        while not self._stopping.is_set():
            if answers(program.ready_url):
                return
            if process.poll() is not None:
                raise StartError(
                    f"{program.name} ended at start ({_how(process)}); see its lines above"
                )
            if time.monotonic() > deadline_s:
                raise StartError(f"{program.name} did not answer {program.ready_url} in time")
            time.sleep(0.1)


def answers(url: str, *, timeout_s: float = 2.0) -> bool:
    """Does `url` answer 200?"""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def with_signals(stop: Callable[..., None]) -> None:
    """Ctrl-C and SIGTERM both ask for a clean stop."""
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


def _how(process: subprocess.Popen[str]) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit {code}"
