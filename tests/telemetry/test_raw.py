"""Raw readings of one source: as they landed, and once they are columns."""

from __future__ import annotations

import time

import pytest

from telemetry import compaction, raw, store
from tests.telemetry.batches import batch, instance, unique
from tests.telemetry.rows import commit, sql

pytestmark = pytest.mark.usefixtures("landing_zone")


def landed(path: str, n: int = 5) -> float:
    """`n` readings a second apart, each a batch of its own; when the newest was taken."""
    agent, last_s = unique("agent"), float(int(time.time())) - 10.0
    for i in range(n):
        at_s = last_s - (n - 1 - i)
        other = instance(f"{path}-other", at_s)
        mine = instance(path, at_s, signals={"requests_running": float(i)})
        commit(batch(agent, other, mine, seq=i + 1, boot=7), received_s=at_s + 0.25)
    return last_s


def test_the_newest_come_first_with_the_batch_that_brought_them() -> None:
    path = f"{unique('f')}/pd/e"
    last_s = landed(path)
    found = raw.newest("instance", path, until_s=last_s, n=3)
    assert [row.reading.signals.requests_running for row in found] == [4.0, 3.0, 2.0]
    assert [(row.boot, row.seq) for row in found] == [(7, 5), (7, 4), (7, 3)]
    assert {row.reading.path for row in found} == {path}
    assert found[0].reading.received_s - found[0].reading.at_s == pytest.approx(0.25)


def test_pages_follow_each_other_without_a_gap() -> None:
    path = f"{unique('f')}/pd/e"
    until_s = landed(path, 7)
    seen = []
    while page := raw.newest("instance", path, until_s=until_s, n=3):
        seen += [row.reading.signals.requests_running for row in page]
        until_s = page[-1].reading.at_s - 1e-3
    assert seen == [6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]


def test_what_was_compacted_is_the_same_but_for_its_batch() -> None:
    path = f"{unique('f')}/pd/e"
    last_s = landed(path)
    before = raw.newest("instance", path, until_s=last_s, n=10)
    compaction.run(at_once=True)
    sql("UPDATE telemetry_compaction SET floor = landed_until")
    after = raw.newest("instance", path, until_s=last_s, n=10)
    assert [row.reading for row in after] == [row.reading for row in before]
    assert {(row.boot, row.seq) for row in after} == {(None, None)}
    assert {row.agent for row in after} == {row.agent for row in before}
    assert len(raw.newest("instance", path, until_s=last_s - 2.5, n=10)) == 2


def test_of_a_source_that_never_reported_there_is_nothing() -> None:
    assert raw.newest("instance", unique("f") + "/pd/e", until_s=time.time(), n=5) == []
    with pytest.raises(store.QueryError):
        raw.newest("engine", "f/pd/e", until_s=time.time(), n=5)
