"""Partitions: made ahead, dropped when nothing needs them, late rows moved out of the default."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from telemetry import partitions
from telemetry.tasks import keep_partitions
from tests.telemetry.batches import batch, instance, unique
from tests.telemetry.rows import commit, n_samples, partitions_of, sql

NOW = datetime(2026, 3, 29, 14, 25, tzinfo=UTC)


def existing() -> set[str]:
    return {name for (name,) in sql(partitions.EXISTING)}


@pytest.fixture(autouse=True)
def no_partitions(landing_zone: None) -> None:
    for name in existing():
        if not name.endswith("_default"):
            sql(f"DROP TABLE {name}")


def land(path: str, landed_at: datetime) -> None:
    """One batch about one instance that landed at some moment."""
    commit(batch(unique("agent"), instance(path, NOW.timestamp())), received_s=NOW.timestamp())
    sql("UPDATE telemetry_landing SET landed_at = %s WHERE landed_at > now() - '1 min'::interval"
        " OR tableoid = 'telemetry_landing_default'::regclass", landed_at)  # fmt: skip


def compacted(until: datetime) -> None:
    sql("UPDATE telemetry_compaction SET landed_until = %s", until)


def test_partitions_ahead_are_made_once() -> None:
    made = partitions.ensure(NOW)
    assert set(made) == {
        *(f"telemetry_landing_2026032914{minute}" for minute in ("10", "20", "30", "40", "50")),
        *(f"telemetry_landing_2026032915{minute}" for minute in ("00", "10", "20")),
        *(f"telemetry_chunk_202603{day}" for day in (28, 29, 30)),
        *(f"telemetry_rollup_10s_202603{day}" for day in (28, 29, 30)),
        *(f"telemetry_rollup_1m_2026{month}" for month in ("02", "03", "04")),
    }
    assert partitions.ensure(NOW) == []


def test_a_partition_has_the_indexes_that_latest_and_charts_need() -> None:
    partitions.ensure(NOW)
    found = sql(
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index"
        " WHERE indrelid = 'telemetry_landing_202603291420'::regclass"
    )
    assert {made.rpartition("USING ")[2] for (made,) in found} == {
        "btree (layout_id, at)",
        "btree (landed_at)",
    }


def test_rows_that_waited_in_the_default_partition_are_moved() -> None:
    path = unique("f/pd/d")
    land(path, NOW)
    assert partitions_of(path) == {"telemetry_landing_default"}
    partitions.ensure(NOW)
    assert partitions_of(path) == {"telemetry_landing_202603291420"}
    assert n_samples("instance", path) == 1


def test_what_landed_goes_only_when_it_is_compacted_and_nobody_reads_it() -> None:
    path = unique("f/pd/d")
    land(path, NOW)
    partitions.ensure(NOW)
    later = NOW + timedelta(hours=5)
    compacted(NOW)  # its partition is not compacted to the end
    assert partitions.drop_landed(later) == ["telemetry_landing_202603291410"]
    assert n_samples("instance", path) == 1
    compacted(NOW + timedelta(minutes=5))  # compacted, but still read by the loop
    assert partitions.drop_landed(NOW + timedelta(minutes=6)) == []
    assert partitions.drop_landed(NOW + timedelta(minutes=20)) == ["telemetry_landing_202603291420"]
    assert n_samples("instance", path) == 0
    assert sql("SELECT floor FROM telemetry_compaction") == [(NOW + timedelta(minutes=5),)]


def test_each_table_has_its_own_retention() -> None:
    partitions.ensure(NOW)
    kept = partitions.Retention(
        raw=timedelta(days=2), rollup_10s=timedelta(days=9), rollup_1m=timedelta(days=400)
    )
    assert partitions.drop_expired(NOW + timedelta(days=1), kept) == []
    dropped = partitions.drop_expired(NOW + timedelta(days=3), kept)
    assert dropped == ["telemetry_chunk_20260328", "telemetry_chunk_20260329"]
    dropped = partitions.drop_expired(NOW + timedelta(days=9), kept)
    assert dropped == ["telemetry_chunk_20260330", "telemetry_rollup_10s_20260328"]


def test_sources_and_layouts_silent_for_longer_than_anything_is_kept_go() -> None:
    old, new = unique("f/pd/old"), unique("f/pd/new")
    kept = partitions.Retention(*[timedelta(days=2)] * 3)
    earlier_s = NOW.timestamp() - 3 * 86_400
    commit(batch(unique("agent"), instance(old, earlier_s)), received_s=earlier_s)
    commit(batch(unique("agent"), instance(new, NOW.timestamp())), received_s=NOW.timestamp())
    partitions.drop_expired(NOW, kept)
    assert sql("SELECT path FROM telemetry_source") == [(new,)]
    assert sql("SELECT count(*) FROM telemetry_layout") == [(1,)]
    assert sql("SELECT count(*) FROM telemetry_batch") == [(1,)]


def test_two_processes_may_make_the_same_partitions_at_once() -> None:
    made: list[list[str]] = []

    def make() -> None:
        made.append(partitions.ensure(NOW))
        connection.close()

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(names) for names in made) == [0, 0, 0, 17]


def test_the_task_keeps_the_present_ones() -> None:
    keep_partitions()
    now = datetime.now(UTC)
    assert f"telemetry_chunk_{now:%Y%m%d}" in existing()
