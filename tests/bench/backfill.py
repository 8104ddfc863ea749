"""Hours of telemetry into a console within minutes, compacted as if they had come at their pace.

Readings are sent in slices of what the console compacts at once when all goes its usual way, and
each slice is compacted before the next, so that chunks have their usual size; then roll-ups are
made of all of it, vacuum and checkpoint follow. What each step costs is measured alone: beat is
held meanwhile, or the worker would do parts of it beside.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from telemetry import wire
from tests.bench import ingest_fleet, server_tree
from tests.bench.console_up import Console, bytes_at_rest, stored_values, telemetry_tables

SLICE_S = 120.0
_N_THREADS = 128
"""Agents that send at once: each waits a tenth of a second for its commit."""


def backfill(
    console: Console,
    data: np.ndarray,
    *,
    start_s: float,
    step_s: float,
    per_agent: int,
    readings_a_post: int,
) -> dict[str, Any]:
    """Send `data` (n_readings, n_instances, 20) and compact it; CPU-seconds a million values.

    n_instances is a multiple of `per_agent`. What landed is a row a POST, and chunks are made of
    rows: where their cost is wanted, `readings_a_post` is 1 as it is in life. Raises SystemExit
    where a value is not stored.
    """
    n_readings = len(data)
    cpu_s = dict.fromkeys(("ingest", "chunks", "rollups", "vacuum"), 0.0)
    per_slice = round(SLICE_S / step_s)
    sender = _Sender(console, data, start_s, step_s, per_agent, readings_a_post)
    with console.without_beat(), console.compactor() as compact, console.database() as database:

        def measured(step: str, work: Any) -> None:
            before = server_tree.look(console.pid)
            outside_s = work() or 0.0
            parts = server_tree.used(before, server_tree.look(console.pid))
            # Idling of the other parts is no cost of this step.
            used_s = sum(parts.values()) if step == "ingest" else parts.get("postgres", 0.0)
            cpu_s[step] += used_s + outside_s

        for first in range(0, n_readings, per_slice):
            readings = range(first, min(first + per_slice, n_readings))
            measured("ingest", lambda readings=readings: sender.send(readings))
            measured("chunks", lambda: compact("chunks"))
        measured("rollups", lambda: compact("rollups"))
        measured("vacuum", lambda: vacuum(database))
        n_stored, rest = stored_values(database), bytes_at_rest(database)
    if n_stored != data.size:
        raise SystemExit(f"{n_stored} values are stored, {data.size} were acknowledged")
    kept = sum(n_bytes for table, n_bytes in rest.items() if table != "landing")
    return {
        "cpu_s_per_M": {step: round(s / data.size * 1e6, 3) for step, s in cpu_s.items()},
        "bytes_per_value": round(kept / data.size, 3),
        "bytes_by_table": {table: round(n / data.size, 3) for table, n in rest.items()},
    }


def vacuum(database: Any) -> None:
    """What PostgreSQL does by and by: vacuum, statistics, checkpoint."""
    for table in telemetry_tables(database):
        database.execute(f"VACUUM (ANALYZE) {table}")
    database.execute("CHECKPOINT")


class _Sender:
    """Agents that send what they have, each over its own connection and in order."""

    def __init__(
        self,
        console: Console,
        data: np.ndarray,
        start_s: float,
        step_s: float,
        per_agent: int,
        readings_a_post: int,
    ) -> None:
        self._data, self._start_s, self._step_s, self._k = data, start_s, step_s, per_agent
        self._readings_a_post = readings_a_post
        self._headers = {
            "Authorization": f"Bearer {console.token('backfill', 'ingest')}",
            "Content-Type": "application/msgpack",
        }
        self._clients = [
            http.client.HTTPConnection("127.0.0.1", console.port, timeout=120)
            for _ in range(data.shape[1] // per_agent)
        ]

    def send(self, readings: range) -> None:
        """The readings with these numbers, of all agents."""
        with ThreadPoolExecutor(_N_THREADS) as pool:
            for _ in pool.map(lambda agent: self._send(agent, readings), range(len(self._clients))):
                pass

    def _send(self, agent: int, readings: range) -> None:
        client = self._clients[agent]
        for body in self._bodies(agent, readings):
            while True:
                client.request("POST", "/api/v1/ingest", body, self._headers)
                answer = client.getresponse()
                said = answer.read()
                if answer.status != 503:
                    break
                time.sleep(float(answer.headers.get("retry-after", 1)))
            if answer.status != 200:
                raise SystemExit(f"ingest answered {answer.status}: {said[:300]!r}")
        client.close()  # the server would, while the slice is compacted

    def _bodies(self, agent: int, readings: range) -> Iterator[bytes]:
        mine = range(agent * self._k, (agent + 1) * self._k)
        for first in range(readings.start, readings.stop, self._readings_a_post):
            samples = [
                (n, self._start_s + self._step_s * i, self._data[i, n].tolist())
                for i in range(first, min(first + self._readings_a_post, readings.stop))
                for n in mine
            ]
            yield wire.encode(ingest_fleet.batch(agent, samples, seq=first))
