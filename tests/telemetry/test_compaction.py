"""What landed becomes columns: every reader answers the same before, during and after."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from telemetry import bins, chunks, compaction, history, partitions, rollups, store, tables, wire
from telemetry.ingest import database_connect
from telemetry.landing import Landing
from tests.telemetry.batches import batch, instance, link, router, unique
from tests.telemetry.rows import arrivals, commit, n_samples, sql

pytestmark = pytest.mark.usefixtures("landing_zone")

T0 = float(int(time.time()) // 7200 * 7200 - 7200)
"""A past two hours' edge: the readings below are late, yet not too late."""
LONG = T0 + 7200.0


@pytest.fixture(autouse=True)
def fresh_names() -> None:
    tables.NAMES.forget()


def compact_all() -> int:
    return compaction.run(at_once=True)


def histogram(n: float) -> wire.Histogram:
    return wire.Histogram(edges=[0.1, 1.0], counts=[n, 2 * n, 1.0], sum=1.25 * n)


def readings(name: str, n: int = 40, step_s: float = 3.0) -> list[wire.Batch]:
    """Batches of one agent: two instances, a link and a gate, with everything that may occur."""
    out = []
    for i in range(n):
        at_s = T0 + i * step_s + 0.125
        ok = i % 7 != 3
        signals: dict[str, Any] = {
            "requests_running": float(i % 5),
            "prompt_tokens_total": 1000.0 * i if i < 20 else 10.0 * i,
            "kv_cache_usage_ratio": None if i % 4 == 0 else round(0.01 * (i % 90), 4),
            "requests_waiting_by_stage": {"prefill": float(i), "bootstrap": 1.0} if i % 2 else None,
            "ttft_seconds": histogram(float(i)),
        }
        out.append(
            batch(
                name,
                instance(
                    f"{name}/pd/a",
                    at_s,
                    epoch_s=1e9 if i < 20 else 1e9 + 500,
                    state="ok" if ok else "failed",
                    error=None if ok else f"HTTP 500 at {i}",
                    signals=signals if ok else {},
                ),
                instance(f"{name}/pd/b", at_s + 0.4, group="g", signals={"requests_running": 1.0}),
                link(
                    f"{name}->x",
                    at_s,
                    tx_bytes_total=1e9 * i,
                    rtt_s=0.0123456789 * (i + 1),
                    congestion_control="bbr" if i % 3 else "cubic",
                ),
                router(
                    f"{name}/pd/gw",
                    at_s,
                    plan_epoch=1 if i > 5 else None,
                    plan_version=i if i > 5 else None,
                    signals={
                        "requests_total": {"local|short": float(i), "remote|long": 2.0 * i},
                        "uncached_tokens": {"local|usage|text": histogram(3.0 * i)},
                        "upstream_up": {"local": 1.0},
                    },
                ),
                seq=i,
            )
        )
    return out


def answers(name: str) -> dict[str, Any]:
    """What every reader says about the agent's sources."""
    found: dict[str, Any] = {}
    for kind, prefix in (("instance", f"{name}/"), ("link", name), ("router", f"{name}/")):
        found[f"latest {kind}"] = store.latest(kind, prefix=prefix, now_s=T0 + 200)
        for bin_s in (1.0, 2.0, 15.0):
            found[f"window {kind} {bin_s}"] = store.window(
                kind, prefix=prefix, since_s=T0 + 10, until_s=T0 + 90, bin_s=bin_s
            )
    for points, (kind, signal, paths) in itertools.product(
        (60, 12, 2),
        (
            ("instance", "requests_running", [f"{name}/pd/a", f"{name}/pd/b"]),
            ("instance", "kv_cache_usage_ratio", [f"{name}/pd/a", "f/pd/nobody"]),
            ("instance", "prompt_tokens_total", [f"{name}/pd/a"]),
            ("link", "rtt_s", [f"{name}->x"]),
        ),
    ):
        found[f"series {signal} {points}"] = history.series(
            kind, signal, paths=paths, since_s=T0, until_s=T0 + 120, max_points=points
        )
    return found


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for question, said in before.items():
        if question.startswith("series"):
            assert after[question]["t"] == said["t"]
            for path, values in said["series"].items():
                expected = [None if v is None else pytest.approx(v, rel=1e-6) for v in values]
                assert after[question]["series"][path] == expected, question
        else:
            assert plain(after[question]) == plain(said), question


def plain(found: Any) -> Any:
    """Readings with their floating numbers rounded to what columns promise."""
    if isinstance(found, dict):
        return {path: plain(inner) for path, inner in found.items()}
    return [
        (
            r.path, r.state, r.error, r.role, r.engine, r.epoch_s, r.plan_epoch, r.plan_version,
            r.group, r.measured_layer, round(r.at_s, 6), round(r.received_s, 6),
            _rounded(r.signals),
        )
        for r in found
    ]  # fmt: skip


def _rounded(signals: Any) -> Any:
    out = {}
    for name in signals.__struct_fields__:
        value = getattr(signals, name)
        out[name] = float(f"{value:.6g}") if isinstance(value, float) else value
    return out


def test_every_reader_answers_the_same_from_columns() -> None:
    name = unique("f")
    commit(*readings(name), received_s=T0 + 130)
    before = answers(name)
    assert compact_all() == 40
    assert sql("SELECT count(*) FROM telemetry_landing") == [(40,)]  # kept for the loop
    assert_same(before, answers(name))
    sql("UPDATE telemetry_compaction SET floor = landed_until")  # as when the partition goes
    sql("TRUNCATE telemetry_landing")
    assert_same(before, answers(name))
    assert n_samples("instance", f"{name}/pd/a") == 40


def test_readers_see_every_batch_once_while_more_lands() -> None:
    name = unique("f")
    sent = readings(name)
    commit(*sent[:25], received_s=T0 + 130)
    compact_all()
    commit(*sent[25:30], *sent[35:], received_s=T0 + 131)
    compact_all()
    commit(*sent[30:35], received_s=T0 + 132)  # late, and not compacted yet
    only_once = answers(name)
    sql("TRUNCATE telemetry_chunk, telemetry_pending, telemetry_landing, telemetry_batch")
    sql("UPDATE telemetry_compaction SET landed_until = 'epoch'")
    commit(*sent, received_s=T0 + 130)
    # Received at other times: those are what they are.
    series = {q: said for q, said in answers(name).items() if q.startswith("series")}
    assert_same(series, only_once)


def test_roll_ups_say_what_raw_readings_say() -> None:
    name = unique("f")
    commit(*readings(name, n=1200, step_s=5.0), received_s=T0 + 6100)
    compact_all()
    question = {
        "paths": [f"{name}/pd/a", f"{name}/pd/b"],
        "since_s": T0,
        "until_s": T0 + 6000,
    }
    asked = [("requests_running", 600), ("requests_running", 100), ("prompt_tokens_total", 100)]
    raw = [history.series("instance", s, max_points=n, **question) for s, n in asked]
    assert rollups.run(datetime.fromtimestamp(LONG + 100, UTC)) > 0
    assert sql("SELECT count(*) FROM telemetry_pending") == [(0,)]
    sql("TRUNCATE telemetry_chunk, telemetry_landing")  # nothing but roll-ups can answer now
    for said, (signal, n) in zip(raw, asked, strict=True):
        rolled = history.series("instance", signal, max_points=n, **question)
        for path, values in said["series"].items():
            rel = 0.0 if chunks.is_counter(signal) else 2.0 ** -(bins.GAUGE_BITS + 1)
            expected = [None if v is None else pytest.approx(v, rel=rel) for v in values]
            assert rolled["series"][path] == expected


def test_a_late_reading_mends_its_roll_up() -> None:
    name = unique("f")
    path = f"{name}/pd/a"

    def one(at_s: float, value: float, seq: int) -> wire.Batch:
        return batch(name, instance(path, at_s, signals={"requests_running": value}), seq=seq)

    def mean() -> Any:
        return history.series(
            "instance", "requests_running", paths=[path], since_s=T0, until_s=T0 + 10, max_points=1
        )["series"][path]

    commit(one(T0 + 1, 2.0, 1), received_s=T0 + 2)
    compact_all()
    rollups.run(datetime.fromtimestamp(LONG + 100, UTC))
    assert mean() == [2.0]
    commit(one(T0 + 3, 6.0, 2), received_s=LONG + 110)
    assert mean() == [4.0]  # not compacted
    compact_all()
    assert mean() == [4.0]  # its roll-up waits
    rollups.run(datetime.fromtimestamp(LONG + 300, UTC))
    sql("TRUNCATE telemetry_chunk, telemetry_landing")
    assert mean() == [4.0]


def test_a_late_reading_counts_once_in_a_minute_too() -> None:
    """Its ten seconds wait for their roll-up: the minute that holds them is read from those."""
    name = unique("f")
    path = f"{name}/pd/a"

    def mean() -> Any:
        return history.series(
            "instance", "requests_running", paths=[path], since_s=T0, until_s=T0 + 60, max_points=1
        )["series"][path]

    for seq, (at_s, value) in enumerate(((T0 + 1, 2.0), (T0 + 31, 4.0))):
        sent = instance(path, at_s, signals={"requests_running": value})
        commit(batch(name, sent, seq=seq), received_s=T0 + 60)
    compact_all()
    rollups.run(datetime.fromtimestamp(LONG + 100, UTC))
    assert mean() == [3.0]
    late = instance(path, T0 + 33, signals={"requests_running": 9.0})
    commit(batch(name, late, seq=9), received_s=LONG + 110)
    for step in (lambda: None, compact_all, lambda: rollups.run(datetime.fromtimestamp(LONG, UTC))):
        step()
        assert mean() == [5.0]


def test_a_counter_over_a_restart_gains_what_it_shows_since() -> None:
    """S-08 in the roll-up: 100, 175, 20, 35 gained an unknown amount, 75, 20 and 15."""
    name = unique("f")
    for seq, total in enumerate((100.0, 175.0, 20.0, 35.0)):
        sent = instance(f"{name}/pd/a", T0 + 10 * seq, signals={"prompt_tokens_total": total})
        commit(batch(name, sent, seq=seq), received_s=T0 + 60)
    compact_all()
    rollups.run(datetime.fromtimestamp(LONG + 100, UTC))
    [(numbers, ends, data)] = sql("SELECT signals, ends, data FROM telemetry_rollup_10s")
    rolled = bins.unpack(tables.split(numbers, ends, data)["prompt_tokens_total"], 60, 1)
    assert rolled.gain is not None
    assert rolled.gain[1:4, 0].tolist() == [75.0, 20.0, 15.0]
    assert str(rolled.gain[0, 0]) == "nan"


def test_nothing_lands_behind_a_cut() -> None:
    """Batches that land while compactions run are each found once, in chunks or landed."""
    name, stop = unique("f"), threading.Event()
    now_s = time.time()

    def compact_again_and_again() -> None:
        while not stop.is_set():
            compact_all()
        connection.close()

    async def land() -> None:
        async with await database_connect() as one, await database_connect() as two:
            landings = [Landing(one), Landing(two)]
            for turn in range(40):
                groups = [
                    [
                        batch(
                            f"{name}-{who}",
                            instance(f"{name}/pd/{who}", now_s + turn),
                            seq=turn,
                        )
                    ]
                    for who in range(2)
                ]
                await asyncio.gather(
                    *(
                        landing.commit(arrivals(group, now_s))
                        for landing, group in zip(landings, groups, strict=True)
                    )
                )

    worker = threading.Thread(target=compact_again_and_again)
    worker.start()
    try:
        asyncio.run(land())
    finally:
        stop.set()
        worker.join()
    compact_all()
    in_chunks = sql("SELECT layout_id, sum(n_ticks) FROM telemetry_chunk GROUP BY 1")
    assert sorted(n for _, n in in_chunks) == [40, 40]


def test_a_compaction_that_fails_leaves_everything_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = unique("f")
    commit(*readings(name, n=5), received_s=T0 + 130)

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tables, "copy_in", fail)
        with pytest.raises(OSError, match="no space"):
            compact_all()
    assert sql("SELECT count(*) FROM telemetry_chunk") == [(0,)]
    assert compact_all() == 5
    assert n_samples("instance", f"{name}/pd/a") == 10  # landed rows are still there, by design


def test_sequence_numbers_become_ranges_and_still_tell_duplicates() -> None:
    """S-16, long after: the row of a batch is gone, its number is not."""
    name = unique("f")
    sent = readings(name, n=6)
    commit(*sent[:2], *sent[3:], received_s=T0)
    compaction.settle_sequences(datetime.now(UTC))
    assert sql("SELECT count(*) FROM telemetry_batch") == [(5,)]
    compaction.settle_sequences(datetime.now(UTC))
    assert sql("SELECT count(*) FROM telemetry_batch") == [(0,)]
    assert sql("SELECT stored::text FROM telemetry_agent") == [("{[0,2),[3,6)}",)]
    outcomes = commit(*sent, received_s=T0 + 9)
    assert [o.state for o in outcomes] == [
        "duplicate", "duplicate", "stored", "duplicate", "duplicate", "duplicate"
    ]  # fmt: skip


def test_a_batch_that_cannot_be_kept_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("f")
    sent = readings(name)
    commit(*sent, received_s=T0 + 130)
    build = chunks.build

    def failing(kind: str, rows: Sequence[chunks.Row]) -> chunks.Chunk | None:
        if any(row.key[2] == sent[7].seq for row in rows):
            raise ValueError("nobody foresaw this")
        return build(kind, rows)

    monkeypatch.setattr(chunks, "build", failing)
    compact_all()
    assert f"/{sent[7].seq} of layout" in caplog.text
    sql("UPDATE telemetry_compaction SET floor = landed_until")
    sql("TRUNCATE telemetry_landing")
    assert n_samples("instance", f"{name}/pd/a") == len(sent) - 1


def test_a_landing_partition_that_goes_takes_nothing_that_is_not_in_a_chunk() -> None:
    name = unique("f")
    sent = readings(name)
    now = datetime.now(UTC)
    partitions.ensure(now - timedelta(minutes=30))
    commit(*sent[:20], received_s=T0)
    sql("UPDATE telemetry_landing SET landed_at = landed_at - '30 min'::interval")
    commit(*sent[20:], received_s=T0)
    before = answers(name)
    compact_all()
    dropped = partitions.drop_landed(now)
    assert dropped
    assert_same(before, answers(name))
