"""Decode with steps that depend on the batch, and with memory that runs out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.twin.decode import DecodePool
from routing.twin.decode_batch import DecodeBatch
from routing.twin.decode_slots import DecodeSlots
from routing.twin.row import (
    AT,
    DECODER,
    DONE,
    END,
    LINK,
    OUTPUT,
    PROMPT,
    READY,
    SLOT,
    UNSET,
    WIDTH,
    Row,
)
from tests.twin.cases import at, document, run, told


def request(end_s: float, prompt: int, output: int) -> Row:
    row: Row = [UNSET] * WIDTH
    row[AT], row[END], row[PROMPT], row[OUTPUT] = end_s, end_s, prompt, output
    row[LINK] = row[DECODER] = -1
    return row


def batch(n: int = 1, *, most: int = 4, step: Any = 0.1, room: float = math.inf) -> DecodeBatch:
    step_s = step if callable(step) else lambda n, context: step
    return DecodeBatch(
        n, batch=most, step_s=step_s, kv_capacity_tokens=room, prefill_s=lambda tokens: tokens / 1e3
    )


def through(pool: DecodePool, rows: list[Row]) -> list[Row]:
    pool.expect(rows)
    return pool.run(1e6)


_REQUESTS = st.lists(
    st.tuples(st.floats(0.0, 50.0), st.integers(1, 500), st.integers(1, 200)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(_REQUESTS, st.integers(1, 3), st.integers(1, 4))
def test_with_one_step_for_all_both_say_the_same(
    drawn: list[tuple[float, int, int]], n: int, most: int
) -> None:
    first, second = ([request(*each) for each in drawn] for _ in range(2))
    slots = DecodeSlots(n, batch=most, step_s=0.1)
    followed = batch(n, most=most)
    assert len(through(slots, first)) == len(through(followed, second)) == len(drawn)
    for one, other in zip(first, second, strict=True):
        assert (one[SLOT], one[DONE]) == pytest.approx((other[SLOT], other[DONE]), abs=1e-6)
    assert followed.busy_s(1e6) == pytest.approx(slots.busy_s(1e6), abs=1e-6)
    assert followed.kv_tokens() == pytest.approx(0.0, abs=1e-6)


def test_a_step_is_that_of_the_batch_of_the_moment() -> None:
    # 0.1 s a step for each that runs. A has 10 tokens to go alone for a second, then B joins.
    a, b = request(0.0, 10, 21), request(1.0, 10, 11)
    through(batch(step=lambda n, context: 0.1 * n), [a, b])
    # A: 10 tokens in 1 s, then both a token each 0.2 s: B's 10 and A's other 10 end at 3 s.
    assert (a[DONE], b[DONE]) == pytest.approx((3.0, 3.0))


def test_a_step_is_that_of_the_mean_context() -> None:
    seen: list[tuple[int, float]] = []

    def step(n: int, context: float) -> float:
        seen.append((n, context))
        return 0.1

    through(batch(step=step), [request(0.0, 100, 11), request(0.5, 301, 2)])
    assert seen[0] == (1, pytest.approx(101.0))
    assert seen[1] == (2, pytest.approx((106.0 + 302.0) / 2))


def test_without_room_a_request_waits() -> None:
    a, b = request(0.0, 600, 11), request(0.0, 600, 11)
    through(batch(room=1000.0), [a, b])
    assert b[SLOT] == pytest.approx(a[DONE]) == pytest.approx(1.0)


def test_a_request_larger_than_the_memory_runs_alone() -> None:
    row = request(0.0, 5000, 11)
    assert through(batch(room=1000.0), [row]) == [row]


def test_who_came_last_is_put_back_and_prefilled_again() -> None:
    # Both hold 491 at first. 9 tokens later the 1,000 are full: B goes, A runs on to its 41st
    # token at 4 s. B comes back then: 500 tokens take half a second to prefill.
    a, b = request(0.0, 490, 41), request(0.0, 490, 41)
    pool = batch(room=1000.0)
    through(pool, [a, b])
    assert pool.preemptions == 1
    assert a[DONE] == pytest.approx(4.0)
    left = 41 - 10
    assert b[DONE] == pytest.approx(4.0 + 0.5 + 0.1 * left, abs=0.11)
    assert b[SLOT] == 0.0


def test_who_was_put_back_does_not_push_the_next_one_out() -> None:
    # 48,000 tokens at their ends in room for 40,000: 7 of 40 do not fit, and wait for those who do.
    rows = [request(0.01 * i, 800, 401) for i in range(40)]
    pool = batch(most=40, step=0.025, room=40_000.0)
    assert len(through(pool, rows)) == 40
    assert 6 <= pool.preemptions <= 10


@settings(max_examples=100, deadline=None)
@given(_REQUESTS, st.floats(200.0, 1500.0))
def test_nothing_is_lost_whatever_the_memory(
    drawn: list[tuple[float, int, int]], room: float
) -> None:
    rows = [request(*each) for each in drawn]
    pool = batch(2, most=8, step=lambda n, context: 0.01 + 0.001 * n, room=room)
    assert sorted(map(id, through(pool, rows))) == sorted(map(id, rows))
    assert all(row[END] <= row[READY] <= row[SLOT] <= row[DONE] for row in rows)
    assert pool.kv_tokens() == pytest.approx(0.0, abs=1e-6)
    assert pool.under_way == []


def test_a_profile_with_a_table_is_followed_step_by_step() -> None:
    table = [[1, 1000, 0.1], [2, 1000, 0.15], [1, 10_000, 0.1], [2, 10_000, 0.15]]
    gpu = document()["profiles"]["gpu"] | {"decode": {"table": table}}
    report = run(
        told([0.0, 0.0], 1000, 11),
        at(None, n_prefill=2, n_decode=1),
        duration_s=100.0,
        profiles={"gpu": gpu},
        clusters=[document()["clusters"][0], document()["clusters"][1] | {"instances": 3}],
    )
    assert report.inter_token_s["mean"] == pytest.approx(0.15)
