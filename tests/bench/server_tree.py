"""What a tree of server processes uses: CPU-seconds and memory, by part of the console.

CPU is user and system time of every process of the tree and of the children it has reaped, as
/proc counts it. Memory is the proportional set size: pages shared by n processes count 1/n each.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The first word found in a command line names the part; the order matters, paths hold words too.
_PARTS = (
    ("uvicorn", "web"),
    ("--queues twin", "twin"),
    (" beat ", "beat"),
    ("celery", "worker"),
    ("valkey", "valkey"),
    ("postgres", "postgres"),
    ("manage.py up", "up"),
)


@dataclass(frozen=True)
class Usage:
    """One look at a tree: CPU-seconds so far and PSS in bytes, by part."""

    at_s: float
    cpu_s: dict[str, float]
    pss_bytes: dict[str, int]

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s.values())

    @property
    def total_pss_bytes(self) -> int:
        return sum(self.pss_bytes.values())


def look(root: int, *, memory: bool = False) -> Usage:
    """The tree below `root`, itself included. `memory` costs a few milliseconds a process."""
    cpu_s: dict[str, float] = defaultdict(float)
    pss_bytes: dict[str, int] = defaultdict(int)
    for pid in tree(root):
        with contextlib.suppress(OSError):
            name = part(pid)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            cpu_s[name] += sum(int(word) for word in fields[11:15]) / _TICKS_PER_S
            if memory:
                pss_bytes[name] += _pss_bytes(pid)
    return Usage(time.time(), dict(cpu_s), dict(pss_bytes))


def tree(root: int) -> list[int]:
    """`root` and everything it started that still runs."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += [int(word) for word in (task / "children").read_text().split()]
    return found


def used(before: Usage, after: Usage) -> dict[str, float]:
    """CPU-seconds between two looks, by part."""
    parts = before.cpu_s.keys() | after.cpu_s.keys()
    return {p: after.cpu_s.get(p, 0.0) - before.cpu_s.get(p, 0.0) for p in sorted(parts)}


class Watch:
    """Looks at a tree every `period_s` from a thread until left; `usages` are what it saw."""

    def __init__(self, root: int, *, period_s: float, memory: bool = False) -> None:
        self._root, self._period_s, self._memory = root, period_s, memory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.usages: list[Usage] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def at(self, at_s: float) -> Usage:
        """The look nearest to `at_s`, epoch seconds."""
        return min(self.usages, key=lambda usage: abs(usage.at_s - at_s))

    def _run(self) -> None:
        while not self._ended.is_set():
            self.usages.append(look(self._root, memory=self._memory))
            self._ended.wait(self._period_s)


def until_quiet(
    root: int, *, idle_cpu_per_s: float, slack_cpu_per_s: float, limit_s: float, span_s: float = 3.0
) -> float:
    """Wait until a tree uses hardly more than it does idle; the seconds waited, `limit_s` at most.

    Quiet is a whole span of `span_s` at no more than `idle_cpu_per_s + slack_cpu_per_s`.
    """
    began_s = time.monotonic()
    while time.monotonic() < began_s + limit_s:
        before = look(root)
        time.sleep(span_s)
        after = look(root)
        rate = (after.total_cpu_s - before.total_cpu_s) / (after.at_s - before.at_s)
        if rate <= idle_cpu_per_s + slack_cpu_per_s:
            break
    return time.monotonic() - began_s


def part(pid: int) -> str:
    """Which part of the console a process is, or its own name. Raises OSError."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    for word, name in _PARTS:
        if word in command:
            return name
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
