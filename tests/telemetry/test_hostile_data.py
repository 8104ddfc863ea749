"""What hostile, odd or late data may not do: stop the jobs, or spoil what is stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psycopg
import pytest
from django.db import connection, transaction

from telemetry import (
    bins,
    chunks,
    columns,
    compaction,
    partitions,
    rollups,
    store,
    tables,
    wire,
)
from tests import servers
from tests.telemetry.batches import batch, instance, router, unique
from tests.telemetry.rows import commit, sql

pytestmark = pytest.mark.usefixtures("landing_zone")

T0 = float(int(time.time()) // 7200 * 7200 - 7200)
LONG = T0 + 7200.0


@pytest.fixture(autouse=True)
def fresh_names() -> None:
    tables.NAMES.forget()


def in_thread(function: Callable[..., Any]) -> Callable[..., None]:
    """`function` with a database connection of its own, closed at its end."""

    def run(*args: Any) -> None:
        try:
            function(*args)
        finally:
            connection.close()

    return run


def until_somebody_waits(other: psycopg.Connection) -> None:
    """Until a backend waits for a lock that this one holds."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
        if sql(asked, other.info.backend_pid)[0][0]:
            return
        time.sleep(0.01)
    raise AssertionError("nobody waits")


def later(days: float = 1.0) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def test_maps_that_are_empty_stop_no_roll_up() -> None:
    name = unique("f")
    gate = {"uncached_tokens": {}, "requests_total": {}, "requests_waiting": 1.0}
    commit(
        *[batch(name, router(f"{name}/pd/gw", T0 + i, signals=gate), seq=i) for i in range(3)],
        received_s=T0 + 9,
    )
    compaction.run(at_once=True)
    assert rollups.run(later()) == 2


def test_the_largest_sequence_number_stops_no_housekeeping() -> None:
    name = unique("f")
    commit(batch(name, seq=2**63 - 1), batch(name, seq=3), received_s=T0)
    compaction.settle_sequences(later())
    compaction.settle_sequences(later())
    again = commit(batch(name, seq=2**63 - 1), batch(name, seq=3), received_s=T0)
    assert [outcome.state for outcome in again] == ["duplicate", "duplicate"]


def test_settling_locks_agents_in_the_order_of_the_landing() -> None:
    first, second = unique("a"), unique("b")
    for name in (second, first):
        commit(batch(name, seq=1), received_s=T0)
    with psycopg.connect(servers.database_url()) as other:
        other.execute("SELECT FROM telemetry_agent WHERE name = %s FOR UPDATE", [first])
        settling = threading.Thread(target=in_thread(compaction.settle_sequences), args=[later()])
        settling.start()
        until_somebody_waits(other)
        other.execute("SELECT FROM telemetry_agent WHERE name = %s FOR UPDATE NOWAIT", [second])
        other.rollback()
        settling.join(10)
    assert sql("SELECT count(*) FROM telemetry_agent WHERE stored @> 1::bigint")[0][0] == 2


def test_a_span_marked_again_is_not_rolled_up_without_the_news() -> None:
    name = unique("f")
    commit(batch(name, instance(f"{name}/pd/a", T0 + 1), seq=1), received_s=T0 + 9)
    compaction.run(at_once=True)
    [row] = sql("SELECT * FROM telemetry_pending")
    # A compaction that wrote its chunk and its mark and has not committed yet.
    with psycopg.connect(servers.database_url()) as other, transaction.atomic():
        stored = [tables.Stored(row[1], "instance", row[3], row[3], row[3], 1, {})]
        rollups.mark(bins.LEVELS[0], stored)
        found = other.execute(
            "SELECT count(*) FROM (SELECT FROM telemetry_pending FOR UPDATE SKIP LOCKED) AS f"
        ).fetchone()
    assert found == (0,)


def test_numbers_beyond_single_precision_stay_what_they_were() -> None:
    matrix = np.array([[1e39, 0.123456789], [1.5e-60, 7.3]])
    back = columns.decode(columns.encode(matrix, exact=False), 2, 2)
    assert back == pytest.approx(matrix, rel=1e-6)


def kept_in(table: str) -> list[Any]:
    return sql(f"SELECT start, n_ticks, signals, ends, data FROM {table} ORDER BY start")


def ten_seconds(signal: str) -> bins.Bins:
    """The bins of a signal in the only row over 10 s, of one source."""
    [(_, n_ticks, signals, ends, data)] = kept_in("telemetry_rollup_10s")
    return bins.unpack(tables.split(signals, ends, data)[signal], n_ticks, 1)


def test_late_readings_do_not_replace_the_history_whose_readings_are_gone() -> None:
    name, kept = unique("f"), partitions.retention()
    path = f"{name}/pd/a"
    signals = {"requests_running": 4.0}
    made = [batch(name, instance(path, T0 + i, signals=signals), seq=i) for i in range(30)]
    commit(*made, received_s=T0 + 40)
    compaction.run(at_once=True)
    assert rollups.run(later()) == 2
    before = ten_seconds("requests_running").count.tolist()
    sql("DELETE FROM telemetry_chunk")  # as retention does
    commit(batch(name, instance(path, T0 + 300), seq=99), received_s=T0 + 40)
    compaction.run(at_once=True)
    rollups.run(datetime.fromtimestamp(T0, UTC) + kept.raw + timedelta(days=2))
    assert ten_seconds("requests_running").count[:3].tolist() == before[:3]


@pytest.mark.parametrize("state_between", [None, "failed"])
def test_gains_count_from_zero_after_a_restart_whatever_the_numbers(
    state_between: str | None,
) -> None:
    name = unique("f")
    path = f"{name}/pd/a"

    def reading(i: int, n: float, epoch_s: float) -> wire.Batch:
        ttft = wire.Histogram(edges=[1.0], counts=[n, 0.0], sum=n)
        signals = {"prompt_tokens_total": n, "ttft_seconds": ttft}
        return batch(name, instance(path, T0 + i, epoch_s=epoch_s, signals=signals), seq=i)

    made = [reading(0, 5.0, 1e9), reading(1, 7.0, 1e9), reading(3, 20.0, 1e9 + 500)]
    if state_between is not None:
        failed = instance(path, T0 + 2, epoch_s=0.0, state=state_between, signals={})
        made.append(batch(name, failed, seq=2))
    commit(*made, received_s=T0 + 9)
    compaction.run(at_once=True)
    rollups.run(later())
    gain = ten_seconds("prompt_tokens_total").gain
    assert gain is not None
    assert gain[0, 0] == 22.0
    [(_, n_ticks, signals, ends, data)] = kept_in("telemetry_rollup_10s")
    found = chunks.histograms(tables.split(signals, ends, data)["ttft_seconds"], n_ticks)
    assert found.counts[0][0].tolist() == [22.0, 0.0]
    assert found.sums[0, 0] == 22.0


def test_late_readings_of_a_source_are_not_its_newest() -> None:
    name = unique("f")
    path = f"{name}/pd/a"
    now_s = time.time()
    commit(batch(name, instance(path, now_s - 1500), seq=2), received_s=now_s - 1500)
    compaction.run(at_once=True)
    sql("UPDATE telemetry_compaction SET floor = landed_until")
    sql("TRUNCATE telemetry_landing")
    commit(batch(name, instance(path, now_s - 2500), seq=1), received_s=now_s)
    [newest] = store.latest("instance", prefix=path, now_s=now_s)
    assert newest.at_s == pytest.approx(now_s - 1500, rel=0, abs=1)
    # Nor where both are columns, and the late ones reach over the newest.
    compaction.run(at_once=True)
    sql("UPDATE telemetry_compaction SET floor = landed_until")
    sql("TRUNCATE telemetry_landing")
    [newest] = store.latest("instance", prefix=path, now_s=now_s)
    assert newest.at_s == pytest.approx(now_s - 1500, rel=0, abs=1)


def test_the_newest_of_columns_is_by_their_end() -> None:
    name = unique("f")
    path = f"{name}/pd/a"
    now_s = time.time()
    for seqs in ([(1, 2500), (2, 1500)], [(3, 2000)]):
        made = [batch(name, instance(path, now_s - ago_s), seq=seq) for seq, ago_s in seqs]
        commit(*made, received_s=now_s - 1400)
        compaction.run(at_once=True)
    sql("UPDATE telemetry_compaction SET floor = landed_until")
    sql("TRUNCATE telemetry_landing")
    [newest] = store.latest("instance", prefix=path, now_s=now_s)
    assert newest.at_s == pytest.approx(now_s - 1500, rel=0, abs=1)
