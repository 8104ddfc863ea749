"""Evidence of a pool: read lately and warm; queues by stage, KV memory, preemptions."""

from __future__ import annotations

from typing import Any

import pytest

from routing.pools import Pools
from telemetry import wire
from telemetry.store import Reading, from_sample

NOW_S = 1_000_000.0


def reading(
    name: str = "d0",
    *,
    role: str = "decode",
    ago_s: float = 1.0,
    up_s: float = 3_600.0,
    state: str = "ok",
    **signals: Any,
) -> Reading:
    sample = wire.InstanceSample(
        id=f"f1/pd/{name}",
        role=role,
        engine="vllm",
        epoch_s=NOW_S - up_s,
        at_s=NOW_S - ago_s,
        state=state,
        signals=wire.InstanceSignals(**signals),
    )
    return from_sample(sample, received_s=NOW_S - ago_s)


def pools(*readings: Reading) -> Pools:
    found: dict[str, list[Reading]] = {}
    for one in readings:
        found.setdefault(one.path, []).append(one)
    return Pools(found, NOW_S)


def test_kv_memory_is_the_mean_of_those_read_and_warm() -> None:
    """A silent or a young instance says nothing, and one that tells none is taken as full."""
    seen = pools(
        reading("d0", kv_cache_usage_ratio=0.9),
        reading("d1", kv_cache_usage_ratio=0.5),
        reading("d2"),
        reading("d3", ago_s=20.0, kv_cache_usage_ratio=0.0),
        reading("d4", up_s=30.0, kv_cache_usage_ratio=0.0),
        reading("p0", role="prefill", kv_cache_usage_ratio=0.1),
    )
    assert seen.kv_usage_ratio("f1/pd/", "decode") == pytest.approx(0.8)
    assert seen.silent("f1/pd/", "decode") == ("f1/pd/d3",)
    assert seen.warming("f1/pd/", "decode") == ("f1/pd/d4",)
    assert seen.count("f1/pd/", "decode") == 5
    assert pools(reading("d2")).kv_usage_ratio("f1/pd/", "decode") is None


def test_an_instance_that_does_not_tell_its_memory_is_taken_as_full() -> None:
    """R-01: missing is full where a machine may be taken away."""
    seen = pools(reading("d0", kv_cache_usage_ratio=0.2), reading("d1"))
    assert seen.kv_usage_ratio("f1/pd/", "decode") == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("up_s", "warming"), [(59.0, True), (60.0, False), (NOW_S, False), (-5.0, False)]
)
def test_an_instance_is_warm_a_minute_after_its_start_or_where_that_is_not_known(
    up_s: float, warming: bool
) -> None:
    assert bool(pools(reading(up_s=up_s)).warming("f1/pd/", "decode")) is warming


def test_one_that_changed_its_role_is_no_evidence_of_the_new_one() -> None:
    seen = pools(
        reading("d0", role="prefill", ago_s=40.0, requests_waiting=0.0),
        reading("d0", requests_waiting=30.0),
        reading("d1", ago_s=40.0, requests_waiting=1.0),
        reading("d1", requests_waiting=2.0),
    )
    assert seen.warming("f1/pd/", "decode") == ("f1/pd/d0",)
    assert seen.queue("f1/pd/", "decode") == 2.0
    assert seen.count("f1/pd/", "decode") == 2


def test_s23_a_queue_and_the_part_of_it_that_only_waits_for_its_kv() -> None:
    stages = {"prealloc": 3.0, "transfer": 140.0, "kv_fetch_in_progress": 2.0}
    seen = pools(
        reading("d0", requests_waiting=145.0, requests_waiting_by_stage=stages),
        reading("d1", requests_waiting=4.0),
    )
    assert seen.queue("f1/pd/", "decode") == 149.0
    assert seen.in_transfer("f1/pd/", "decode") == 142.0
    assert pools(reading("d1", requests_waiting=4.0)).in_transfer("f1/pd/", "decode") is None


@pytest.mark.parametrize(
    ("totals", "rate"),
    [
        ((100.0, 110.0, 130.0), 1.0),
        ((100.0, 130.0, 5.0), 35.0 / 30.0),
        ((None, None, None), None),
        ((None, 100.0, 115.0), 1.0),
        ((100.0,), None),
    ],
    ids=["rising", "reset", "not exposed", "exposed since", "one reading"],
)
def test_preemptions_a_second_are_what_their_counter_gained(totals, rate) -> None:
    readings = [
        reading(ago_s=15.0 * (len(totals) - 1 - i), preemptions_total=total)
        for i, total in enumerate(totals)
    ]
    found = pools(*readings).preemptions_per_s("f1/pd/", "decode")
    assert found == (None if rate is None else pytest.approx(rate))


def test_a_failed_reading_does_not_replace_a_good_one() -> None:
    seen = pools(reading(ago_s=20.0, kv_cache_usage_ratio=0.9), reading(ago_s=1.0, state="failed"))
    assert seen.silent("f1/pd/", "decode") == ("f1/pd/d0",)
    assert seen.kv_usage_ratio("f1/pd/", "decode") is None


def test_s18_an_engine_that_does_not_answer_in_time_is_no_evidence_of_idleness() -> None:
    """It was idle a moment ago, and is maybe busy now: counted in its pool, taken as full."""
    seen = pools(
        reading("d0", ago_s=4.0, kv_cache_usage_ratio=0.0, requests_waiting=0.0),
        reading("d0", ago_s=1.0, state="slow"),
        reading("d1", kv_cache_usage_ratio=0.8, requests_waiting=3.0),
    )
    assert seen.count("f1/pd/", "decode") == 2
    assert seen.silent("f1/pd/", "decode") == ("f1/pd/d0",)
    assert seen.kv_usage_ratio("f1/pd/", "decode") == pytest.approx(0.8)
    assert seen.queue("f1/pd/", "decode") == 3.0


def test_s20_an_instance_that_is_gone_leaves_its_pool_at_once() -> None:
    gone = [reading("d0", ago_s=2.0, requests_waiting=5.0), reading("d0", ago_s=1.0, state="gone")]
    seen = pools(*gone, reading("d1", requests_waiting=1.0))
    assert (seen.count("f1/pd/", "decode"), seen.queue("f1/pd/", "decode")) == (1, 1.0)
    assert seen.silent("f1/pd/", "decode") == ()
    back = pools(*gone, reading("d0", ago_s=0.5, requests_waiting=2.0))
    assert back.count("f1/pd/", "decode") == 1
