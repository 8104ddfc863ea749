"""A live console sends what it committed on to a real VictoriaMetrics."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from telemetry.doors import history
from telemetry.doors.promql import Client
from tests import servers
from tests.doors import programs
from tests.telemetry.batches import batch, instance, unique


@programs.needs_victoria
@pytest.mark.timeout(180)
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
                    "requests_running",
                    paths=[path],
                    since_s=now_s - 60.0,
                    # Not beyond now: VictoriaMetrics repeats what is fresh in bins to come.
                    until_s=now_s + 0.001,
                    bin_s=10.0,
                )
                return [value for value in found["series"][path] if value is not None]

            assert programs.until(stored) == [5.0]
        finally:
            console.stop()
