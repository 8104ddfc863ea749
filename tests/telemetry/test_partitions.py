"""Hour partitions: made ahead, dropped by retention, late rows moved out of the default one."""

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


def test_hours_ahead_are_made_once() -> None:
    made = partitions.ensure(NOW)
    assert len(made) == len(partitions.TABLES) * (partitions.AHEAD_HOURS + 2)
    assert "telemetry_link_sample_2026032913" in made
    assert partitions.ensure(NOW) == []


def test_a_partition_has_the_index_that_latest_needs() -> None:
    partitions.ensure(NOW)
    [(columns,)] = sql(
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index"
        " WHERE indrelid = 'telemetry_router_sample_2026032914'::regclass"
    )
    assert "(source_id, at)" in columns


def test_rows_that_waited_in_the_default_partition_are_moved() -> None:
    path, at_s = unique("f/pd/d"), NOW.timestamp()
    sql(
        "INSERT INTO telemetry_source (kind, path, role, engine, engine_version, agent,"
        " first_seen_at, last_seen_at) VALUES ('instance', %s, '', '', '', '', now(), now())",
        path,
    )
    sql(
        "INSERT INTO telemetry_instance_sample (source_id, at, received_at, state, role, detail)"
        " SELECT id, to_timestamp(%s), now(), 'ok', 'decode', '' FROM telemetry_source"
        " WHERE path = %s",
        at_s,
        path,
    )
    assert partitions_of("instance", path) == {"telemetry_instance_sample_default"}
    partitions.ensure(NOW)
    assert partitions_of("instance", path) == {"telemetry_instance_sample_2026032914"}
    assert n_samples("instance", path) == 1


def test_late_samples_get_the_partition_of_their_hour_and_ancient_ones_the_default() -> None:
    late, ancient = unique("f/pd/late"), unique("f/pd/ancient")
    now_s = NOW.timestamp()
    commit(
        batch(
            unique("agent"),
            instance(late, now_s - 30 * 3600),
            instance(ancient, now_s - 400 * 86400),
        ),
        received_s=now_s,
    )
    assert partitions_of("instance", late) == {"telemetry_instance_sample_2026032808"}
    assert partitions_of("instance", ancient) == {"telemetry_instance_sample_default"}


def test_retention_drops_whole_hours_and_forgets_their_batches() -> None:
    old, new = unique("f/pd/old"), unique("f/pd/new")
    earlier_s = NOW.timestamp() - 5 * 3600
    commit(batch(unique("agent"), instance(old, earlier_s)), received_s=earlier_s)
    commit(batch(unique("agent"), instance(new, NOW.timestamp())), received_s=NOW.timestamp())
    dropped = partitions.drop_expired(NOW, retention=timedelta(hours=3))
    assert "telemetry_instance_sample_2026032909" in dropped
    assert n_samples("instance", old) == 0
    assert n_samples("instance", new) == 1
    assert sql("SELECT count(*) FROM telemetry_batch") == [(1,)]
    assert sql("SELECT path FROM telemetry_source") == [(new,)]


def test_what_came_long_ago_leaves_the_default_partition_too() -> None:
    path = unique("f/pd/d")
    commit(
        batch(unique("agent"), instance(path, NOW.timestamp() - 400 * 86400)),
        received_s=NOW.timestamp(),
    )
    partitions.drop_expired(NOW + timedelta(hours=4), retention=timedelta(hours=3))
    assert n_samples("instance", path) == 0


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
    assert sorted(len(names) for names in made) == [0, 0, 0, 24]


def test_the_task_keeps_the_present_hours() -> None:
    keep_partitions()
    now = datetime.now(UTC)
    assert f"telemetry_instance_sample_{now:%Y%m%d%H}" in existing()
