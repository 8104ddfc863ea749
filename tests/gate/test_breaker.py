"""When the breaker of an upstream opens, and that one real request closes it."""

from __future__ import annotations

from routing.gate.breaker import Breaker
from routing.gate.settings import BreakerConfig

CONFIG = BreakerConfig(
    failures=3, failure_ratio=0.5, min_requests=10, window_s=10.0, open_s=5.0, max_open_s=15.0
)


def opened(now_s: float = 0.0) -> Breaker:
    breaker = Breaker(CONFIG)
    for _ in range(3):
        breaker.failed("answered 500", trial=False, now_s=now_s)
    assert breaker.state(now_s) == "open"
    return breaker


def test_failures_in_a_row_open_it_and_a_success_between_starts_anew() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(2):
        assert not breaker.failed("x", trial=False, now_s=0.0)
        assert not breaker.failed("x", trial=False, now_s=0.0)
        breaker.succeeded(0.0)
    assert breaker.state(0.0) == "closed"
    assert [breaker.failed(e, trial=False, now_s=0.0) for e in "abc"] == [False, False, True]
    assert (breaker.n_opens, breaker.reason) == (1, "3 failures in a row, the last: c")


def test_a_share_of_failures_opens_it_once_there_are_enough_to_tell() -> None:
    breaker = Breaker(CONFIG)
    for n in range(4):
        breaker.succeeded(n)
        assert not breaker.failed("x", trial=False, now_s=n), "8 requests are too few"
    breaker.succeeded(4.0)
    assert breaker.failed("x", trial=False, now_s=4.0)
    assert breaker.reason == "5 of 10 requests failed, the last: x"


def test_below_the_share_it_stays_closed_for_ever() -> None:
    breaker = Breaker(CONFIG)
    for n in range(300):
        if n % 3 == 2:
            breaker.failed("x", trial=False, now_s=n * 0.1)
        else:
            breaker.succeeded(n * 0.1)
    assert breaker.state(30.0) == "closed"


def test_what_is_older_than_the_window_is_forgotten() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(2):
        breaker.failed("x", trial=False, now_s=0.0)
        breaker.failed("x", trial=False, now_s=0.0)
        breaker.succeeded(0.0)
    for n in range(9):
        breaker.succeeded(20.0 + n * 0.1)
    assert not breaker.failed("x", trial=False, now_s=21.0), "1 of 10"


def test_one_trial_at_a_time_and_only_after_its_time() -> None:
    breaker = opened()
    assert not breaker.admits(4.9)
    assert not breaker.sent(4.9), "for want of anybody else: not a trial"
    assert breaker.state(5.0) == "half_open"
    assert breaker.admits(5.0)
    assert breaker.sent(5.0)
    assert not breaker.admits(5.0)
    assert not breaker.sent(5.0)
    breaker.abandoned(trial=True)
    assert breaker.admits(5.1), "a client that left proved nothing"
    assert breaker.sent(5.1)
    breaker.answered(trial=True)
    assert (breaker.state(5.2), breaker.reason) == ("closed", None)


def test_a_failed_trial_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    breaker, now_s = opened(), 0.0
    for pause_s in (5.0, 10.0, 15.0, 15.0):
        assert not breaker.admits(now_s + pause_s - 0.1)
        now_s += pause_s
        assert breaker.sent(now_s)
        assert breaker.failed("again", trial=True, now_s=now_s)
    assert breaker.n_opens == 5
    now_s += 15.0
    assert breaker.sent(now_s)
    breaker.answered(trial=True)
    for _ in range(3):
        breaker.failed("x", trial=False, now_s=now_s)
    assert breaker.admits(now_s + 5.0), "after it closed the first pause is the short one again"


def test_what_was_sent_before_neither_closes_nor_prolongs_it() -> None:
    breaker = opened()
    breaker.answered(trial=False)
    breaker.succeeded(1.0)
    assert not breaker.failed("late", trial=False, now_s=4.0)
    assert breaker.state(4.0) == "open"
    assert breaker.state(5.0) == "half_open"
