"""`manage.py up` of its own for a bench: a fresh state folder, a free port, keys, its database."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from telemetry import layouts
from tests.bench import server_tree
from tests.bench.gate_overhead import free_port
from tests.bench.ingest_fleet import SIGNALS

ROOT = Path(__file__).parents[2]
# What the console's worker does in the next hours with what has landed, at once: in pieces of the
# usual size, the last one shorter. Answers each line with the CPU-seconds of its own process.
_COMPACTOR = """
import sys, time
from datetime import timedelta
import django
django.setup()
from django.utils import timezone
from telemetry import compaction, partitions, rollups

def chunks():
    for _ in range(100):
        if compaction.run(at_once=True):
            return
        time.sleep(0.1)  # the worker is at it

def rolled_up():
    later = timezone.now() + timedelta(hours=3)
    rollups.run(later)
    for minutes in (2, 4):
        compaction.settle_sequences(timezone.now() + timedelta(minutes=minutes))
    partitions.drop_landed(later)

for line in sys.stdin:
    began_s = time.process_time()
    {"chunks": chunks, "rollups": rolled_up}[line.strip()]()
    print(time.process_time() - began_s, flush=True)
"""
_START_S = 120.0
_STOP_S = 60.0


class Console:
    """A running console without demo, its data under `state`. Use as a context manager."""

    def __init__(self, state: Path, **env: str) -> None:
        self.state, self.port = state, free_port()
        self.log = state.with_suffix(".log")
        given = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
        self._env = given | env | {"CONSOLE_STATE_DIR": str(state)}

    def __enter__(self) -> Console:
        self.state.mkdir(parents=True)
        for folder in (self.state, *self.state.parents):
            if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
                folder.chmod(0o755)  # PostgreSQL runs as another user
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--port", str(self.port)],
                cwd=ROOT,
                env=self._env,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        give_up_s = time.monotonic() + _START_S
        while "ready after" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > give_up_s:
                self.__exit__()
                raise SystemExit(f"the console did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def login(self) -> tuple[str, str]:
        """Name and password of the first admin."""
        found = re.search(r"log in as (\S+) with password (\S+)", self.log.read_text())
        assert found, self.log.read_text()
        return found[1], found[2]

    def manage(self, *words: str) -> str:
        """A management command beside the running console; its stdout."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"manage.py {' '.join(words)}: {done.stderr[-3000:]}")
        return done.stdout

    def token(self, name: str, scope: str) -> str:
        """A new key's secret."""
        issued = self.manage("token", "issue", name, "--scope", scope, "--json")
        return str(json.loads(issued)["secret"])

    @contextlib.contextmanager
    def compactor(self) -> Iterator[Callable[[str], float]]:
        """A function that makes `chunks` or `rollups`: CPU-seconds it took outside the database."""
        process = subprocess.Popen(
            [sys.executable, "-c", _COMPACTOR],
            cwd=ROOT,
            env={"DJANGO_SETTINGS_MODULE": "console.settings", **self._env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def compact(what: str) -> float:
            print(what, file=stdin, flush=True)
            answer = stdout.readline()
            if not answer:
                raise SystemExit(f"making {what} failed")
            return float(answer)

        try:
            yield compact
        finally:
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def without_beat(self) -> Iterator[None]:
        """Nothing that is due by the clock happens meanwhile."""
        beats = [pid for pid in server_tree.tree(self.pid) if server_tree.part(pid) == "beat"]
        for pid in beats:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in beats:
                os.kill(pid, signal.SIGCONT)

    def database(self) -> psycopg.Connection[Any]:
        """A connection to the console's database, each statement its own transaction."""
        urls = json.loads((self.state / "run" / "urls.json").read_text())
        return psycopg.connect(urls["DATABASE_URL"], autocommit=True)


def stored_values(connection: psycopg.Connection[Any]) -> int:
    """Values of instances in the database, landed or compacted: 20 a reading in this bench."""
    rows = connection.execute(
        """
        WITH parts AS (
            SELECT layout_id, count(*) AS n_ticks FROM telemetry_landing
            WHERE landed_at >= (SELECT landed_until FROM telemetry_compaction) GROUP BY 1
            UNION ALL
            SELECT layout_id, sum(n_ticks) FROM telemetry_chunk WHERE kind = %s GROUP BY 1
        )
        SELECT facts, sum(n_ticks) FROM parts JOIN telemetry_layout layout ON layout.id = layout_id
        GROUP BY layout.id
        """,
        [layouts.KINDS.index("instance")],
    )
    n_readings = sum(
        int(n_ticks) * len(layouts.decode(facts).instance) for facts, n_ticks in rows.fetchall()
    )
    return n_readings * len(SIGNALS)


def telemetry_tables(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Bytes of each telemetry table that holds data, with its indexes and TOAST, by name."""
    rows = connection.execute(
        """
        SELECT relname, pg_total_relation_size(oid) FROM pg_class
        WHERE relkind = 'r' AND relname LIKE 'telemetry\\_%' AND relname <> 'telemetry_apitoken'
        ORDER BY relname
        """
    )
    return dict(rows.fetchall())


def bytes_at_rest(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Of what is kept, by table, partitions summed; `landing` holds minutes and is not kept."""
    found: dict[str, int] = defaultdict(int)
    for name, n_bytes in telemetry_tables(connection).items():
        table = re.sub(r"_(\d+|default)$", "", name.removeprefix("telemetry_"))
        found[table] += n_bytes
    return dict(found)


def versions(connection: psycopg.Connection[Any]) -> str:
    """PostgreSQL's own name and version."""
    row = connection.execute("SHOW server_version").fetchone()
    assert row is not None
    return f"PostgreSQL {row[0]}, Python {sys.version.split()[0]}"
