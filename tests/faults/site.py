"""A demo whose processes are killed one by one, and witnesses of what that does.

Everything is asked from outside: requests through the gates, the console's answers, the database.
Only children of the demo's own `up` process are ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from console.supervisor import answers
from telemetry import layouts
from tests.live.harness import Demo

HOLE_S = 5.0
"""An agent reads every second; a pause longer than this is a hole in what it read."""

WORDS = {
    "web": "uvicorn console.asgi",
    "worker": "celery -A console --quiet worker",
    "beat": "celery -A console --quiet beat",
    "postgres": "/bin/postgres -D",
    "valkey": "valkey-server",
    "gw-1": "/gw-1.toml",
    "gw-2": "/gw-2.toml",
    "ag-pd": "/agent-pd.toml",
    "ag-prfaas": "/agent-prfaas.toml",
    "lab": "/stack.toml",
    "load": "/load.toml",
}
TICK_S = 2.0


def wait_until(condition: Callable[[], Any], what: str, *, timeout_s: float = 60.0) -> Any:
    """What the condition answered when it held; anything that is away counts as not yet."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError, psycopg.Error, StopIteration):
            if answer := condition():
                return answer
        assert time.monotonic() < deadline_s, f"gave up waiting until {what}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Kill:
    """One SIGKILL. From `released_s` on the supervisor could act (at once, unless it was held);
    `back_s` later the process worked again, `loop_s` later the loop ticked anew."""

    name: str
    at_s: float
    released_s: float
    back_s: float
    loop_s: float

    @property
    def until_s(self) -> float:
        return self.released_s + self.back_s


@dataclass
class Site:
    """A running demo and its processes by name (`WORDS`)."""

    demo: Demo
    kills: list[Kill] = field(default_factory=list)

    def pids(self) -> dict[str, int]:
        """The living direct children of `up`, by name."""
        found = {}
        for pid in _children(self.demo.process.pid):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                found |= {name: pid for name, words in WORDS.items() if words in line}
        return found

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of the demo's database. Raises psycopg.Error while it is away."""
        url = json.loads((self.demo.state / "run" / "urls.json").read_text())["DATABASE_URL"]
        with psycopg.connect(url, connect_timeout=2) as connection:
            return connection.execute(query, parameters or None).fetchall()

    def readyz(self) -> tuple[int, list[str]]:
        """(status, reasons); status 0 while the web server is away."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.demo.port}/readyz", timeout=30
            ) as answer:
                return answer.status, json.load(answer)["reasons"]
        except urllib.error.HTTPError as exc:
            return exc.code, json.load(exc)["reasons"]
        except OSError as exc:
            return 0, [str(exc)]

    def kill(self, name: str) -> None:
        """`kill -9`, then wait until the process, its work and the loop are back."""
        pid, n_committed, at_s = self.pids()[name], self.committed(name), time.time()
        os.kill(pid, signal.SIGKILL)
        self._recover(name, pid, n_committed, at_s, at_s)

    @contextlib.contextmanager
    def held_down(self, name: str) -> Iterator[None]:
        """`name` killed while its supervisor is stopped: it stays away until the block is left."""
        pid, n_committed, at_s = self.pids()[name], self.committed(name), time.time()
        os.kill(self.demo.process.pid, signal.SIGSTOP)
        try:
            os.kill(pid, signal.SIGKILL)
            yield
        finally:
            released_s = time.time()
            os.kill(self.demo.process.pid, signal.SIGCONT)
        self._recover(name, pid, n_committed, at_s, released_s)

    def _recover(
        self, name: str, pid: int, n_committed: int, at_s: float, released_s: float
    ) -> None:
        wait_until(
            lambda: self.pids().get(name, pid) != pid, f"{name} was started again", timeout_s=15
        )
        wait_until(lambda: self.works(name, n_committed), f"{name} works again")
        back_s = time.time() - released_s
        # A tick of that moment's own interval or the next may have been on its way before.
        seq = int(released_s // TICK_S) + 2
        wait_until(
            lambda: self.sql("select 1 from routing_tick where seq >= %s limit 1", seq),
            f"the loop resumes after {name}",
        )
        [(tick_at_s,)] = self.sql(
            "select extract(epoch from min(at))::float from routing_tick where seq >= %s", seq
        )
        kill = Kill(name, at_s, released_s, back_s, tick_at_s - released_s)
        print(f"\n{kill}", flush=True)
        self.kills.append(kill)

    def works(self, name: str, n_committed: int) -> bool:
        """Does it answer? An agent has no door: it works when it committed a new batch."""
        if name == "web":
            return self.readyz()[0] > 0
        if name == "postgres":
            return bool(self.sql("select 1"))
        if name.startswith("ag-"):
            return self.committed(name) > n_committed
        if name.startswith("gw-"):
            return answers(f"{self.demo.url(name)}/healthz")
        if name in ("lab", "load"):
            place, path = ("admin", "/health") if name == "lab" else (name, "/summary")
            return answers(f"{self.demo.url(place)}{path}")
        return name in self.pids()

    def committed(self, name: str) -> int:
        """Batches of an agent in the database; 0 for what is none."""
        if not name.startswith("ag-"):
            return 0
        return len(self._landed().get(name.replace("ag-", "agent-"), []))

    def runs(self) -> dict[str, list[tuple[float, float]]]:
        """Per agent the unbroken runs (first, last) of the times at which it read, epoch seconds.

        An agent reads every second and ships what it read, sooner or later: only one that was
        killed leaves a hole.
        """
        found: dict[str, list[tuple[float, float]]] = {}
        for agent, times in self._landed().items():
            runs = found.setdefault(agent, [])
            for at_s in times:
                if runs and at_s - runs[-1][1] <= HOLE_S:
                    runs[-1] = (runs[-1][0], at_s)
                else:
                    runs.append((at_s, at_s))
        return found

    def _landed(self) -> dict[str, list[float]]:
        """When each agent's stored batches were read, ascending."""
        rows = self.sql(
            "select facts, extract(epoch from at)::float8 from telemetry_landing"
            " join telemetry_layout layout on layout.id = layout_id order by at"
        )
        found: dict[str, list[float]] = {}
        for facts, at_s in rows:
            found.setdefault(layouts.decode(bytes(facts)).agent, []).append(at_s)
        return found

    def doubles(self) -> tuple[int, int]:
        """(ticks that share their number, plan versions given twice)."""
        [(ticks,)] = self.sql("select count(*) - count(distinct (fleet_id, seq)) from routing_tick")
        [(plans,)] = self.sql(
            "select count(*) - count(distinct (fleet_id, epoch, version))"
            " from routing_decision where version is not null"
        )
        return ticks, plans


@dataclass
class Probe:
    """One small request through one gate."""

    gate: str
    sent_s: float
    ended_s: float
    error: str | None


class Probes:
    """Sends small requests through each gate, one after another, until it is left."""

    def __init__(self, gates: dict[str, str]) -> None:
        self.results: list[Probe] = []
        self._stop = threading.Event()
        self._numbers = count(0, 1000)
        self._threads = [threading.Thread(target=self._run, args=gate) for gate in gates.items()]

    def __enter__(self) -> Probes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)

    def _run(self, gate: str, url: str) -> None:
        while not self._stop.wait(0.3):
            sent_s = time.time()
            error = self._ask(url)
            self.results.append(Probe(gate, sent_s, time.time(), error))

    def _ask(self, url: str) -> str | None:
        first = next(self._numbers)
        body = {"model": "m", "prompt": list(range(first, first + 200)), "max_tokens": 2}
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return None if json.load(answer)["choices"] else "no choices"
        except (OSError, ValueError) as exc:
            return f"{type(exc).__name__}: {exc}"


def gate_of(record: dict[str, Any], n_gates: int) -> str:
    """The gate a recorded request of the load went to: they take turns."""
    return f"gw-{int(record['id'].rpartition('-')[2]) % n_gates + 1}"


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(ppid) == parent and state != "Z":
                    found.append(int(entry.name))
    return found
