"""A small fleet, a small trace, and a worker without Celery."""

from __future__ import annotations

import datetime
import json
from typing import Any

from routing import backtest_work, backtests
from routing.backtest_asked import Asked
from routing.models import Backtest, Fleet, TraceFile
from tests.routing.cases import NOW

POLICIES = ("paper", "always_local")
BY: dict[str, Any] = {"actor": "anna", "via": "test", "now": NOW}


def mooncake(n: int = 60, *, gap_ms: int = 2000, blocks: int = 4) -> bytes:
    """Requests at even gaps; every second one begins with the blocks of the one before it."""
    rows = []
    for i in range(n):
        first = (i - i % 2) * 100
        ids = [first + k for k in range(blocks)]
        rows.append(
            {
                "timestamp": i * gap_ms,
                "input_length": blocks * 512,
                "output_length": 20,
                "hash_ids": ids,
            }
        )
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def upload(fleet: Fleet, data: bytes | None = None, name: str = "small.jsonl") -> TraceFile:
    return backtests.store_trace(
        fleet=fleet, name=name, data=mooncake() if data is None else data, **BY
    )


def scenario_backtest(fleet: Fleet, **asked: Any) -> Backtest:
    """Two policies, two seeds, two minutes of the scenario's own traffic, unless told otherwise."""
    facts = {"policies": POLICIES, "seeds": 2, "duration_s": 120.0, **asked}
    return backtests.create(fleet=fleet, asked=Asked("scenario", **facts), **BY)


def trace_backtest(fleet: Fleet, trace: TraceFile | None = None, **asked: Any) -> Backtest:
    facts = {"policies": POLICIES, "seeds": 2, "cache": "cluster", **asked}
    asking = Asked("trace", **facts)
    return backtests.create(fleet=fleet, asked=asking, trace=trace or upload(fleet), **BY)


def clock() -> datetime.datetime:
    return NOW


def work_all() -> int:
    """Everything that waits, here and now; how many runs that were."""
    n = 0
    while backtest_work.work(clock):
        n += 1
    return n


def states(backtest: Backtest) -> list[str]:
    return list(backtest.runs.order_by("seed", "place").values_list("state", flat=True))
