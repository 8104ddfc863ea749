"""A live console sends what it committed on to a real VictoriaMetrics."""

from __future__ import annotations

import inspect
import time
from pathlib import Path

import pytest

from telemetry import ingest
from telemetry.doors import history
from telemetry.doors.promql import Client
from tests import servers
from tests.doors import programs
from tests.telemetry.batches import batch, instance, unique

handed_on = "committed" in inspect.signature(ingest.service).parameters


@programs.needs_victoria
@pytest.mark.timeout(180)
@pytest.mark.skipif(not handed_on, reason="the ingest does not hand on committed batches yet")
def test_what_an_agent_shipped_is_history_elsewhere(token: str, tmp_path: Path) -> None:
    path = unique("fw/pd/d")
    now_s = time.time()
    with programs.victoria(tmp_path / "v") as url:
        console = servers.start(tmp_path / "console.log", CONSOLE_FORWARD_URL=f"{url}/api/v1/write")
        try:
            sent = instance(path, now_s, signals={"requests_running": 5.0})
            assert console.post(batch(unique("agent"), sent), token).status == 200

            def stored() -> list[float]:
                found = history.series(
                    Client(url),
                    "instance",
                    "running",
                    paths=[path],
                    since_s=now_s - 60.0,
                    until_s=now_s + 10.0,
                    bin_s=10.0,
                )
                return [value for value in found["series"][path] if value is not None]

            assert programs.until(stored) == [5.0]
        finally:
            console.stop()
