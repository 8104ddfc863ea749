"""The expected wait of a side: right in simulated queues, defined before anything is known."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from routing.core.placement.rule import Prefixes, Rule, Side, Situation, judge, route
from routing.core.placement.wait import Pending, Wait


@dataclass
class Workers:
    """A side in the simulation: first come, first served; seconds a request by its tokens."""

    n: int
    service_s: Callable[[int], float]
    wait: Wait = field(default_factory=Wait)
    free_at_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free_at_s = [0.0] * self.n

    def first_byte_at_s(self, tokens: int, now_s: float) -> float:
        """Gives it a request; when its first byte comes."""
        end_s = max(now_s, heapq.heappop(self.free_at_s)) + self.service_s(tokens)
        heapq.heappush(self.free_at_s, end_s)
        return end_s

    def would_take_s(self, tokens: int, now_s: float) -> float:
        """What a request sent now would take: the truth a gate cannot see."""
        return max(0.0, self.free_at_s[0] - now_s) + self.service_s(tokens)


class Clock:
    """Lets first bytes come in their order while requests arrive."""

    def __init__(self) -> None:
        self._coming: list[tuple[float, int, Workers, Pending]] = []
        self._n = 0

    def send(self, side: Workers, tokens: int, now_s: float) -> float:
        """Sends a request; the seconds to its first byte."""
        at_s = side.first_byte_at_s(tokens, now_s)
        pending = side.wait.sent(tokens=tokens, now_s=now_s)
        heapq.heappush(self._coming, (at_s, self._n, side, pending))
        self._n += 1
        return at_s - now_s

    def advance(self, now_s: float) -> None:
        while self._coming and self._coming[0][0] <= now_s:
            at_s, _, side, pending = heapq.heappop(self._coming)
            side.wait.first_byte(pending, now_s=at_s)


def test_before_anything_is_measured_there_is_no_expectation() -> None:
    wait = Wait()
    assert wait.expected_s(tokens=100, now_s=5.0) is None
    pending = wait.sent(tokens=100, now_s=5.0)
    assert wait.expected_s(tokens=100, now_s=6.0) is None
    wait.gone(pending)
    assert wait.expected_s(tokens=100, now_s=7.0) is None


def test_one_answer_is_an_expectation_for_one_worker() -> None:
    wait = Wait()
    wait.first_byte(wait.sent(tokens=100, now_s=0.0), now_s=2.0)
    assert wait.expected_s(tokens=100, now_s=2.0) == pytest.approx(2.0)
    for _ in range(3):
        wait.sent(tokens=100, now_s=2.0)
    assert wait.expected_s(tokens=100, now_s=2.0) == pytest.approx(8.0), "three before it"


def test_a_request_ends_once_whoever_says_so() -> None:
    wait = Wait()
    pending = wait.sent(tokens=1, now_s=0.0)
    wait.first_byte(pending, now_s=1.0)
    wait.gone(pending)
    wait.first_byte(pending, now_s=9.0)
    assert wait.n_pending == 0
    assert wait.expected_s(tokens=1, now_s=9.0) == pytest.approx(1.0)


def test_a_request_that_ends_without_an_answer_teaches_nothing() -> None:
    wait = Wait()
    wait.first_byte(wait.sent(tokens=1, now_s=0.0), now_s=1.0)
    wait.gone(wait.sent(tokens=1, now_s=2.0))
    assert wait.expected_s(tokens=1, now_s=99.0) == pytest.approx(1.0)


def test_service_depends_on_tokens_and_never_promises_a_negative_time() -> None:
    wait = Wait()
    for i, tokens in enumerate((1000, 4000, 2000, 8000, 1000)):
        at_s = 100.0 * i
        wait.first_byte(wait.sent(tokens=tokens, now_s=at_s), now_s=at_s + 0.5 + tokens / 4000)
    for tokens in (0, 1000, 6000, 20_000):
        got = wait.expected_s(tokens=tokens, now_s=1000.0)
        assert got == pytest.approx(0.5 + tokens / 4000)
    odd = Wait()
    for i, (tokens, seconds) in enumerate(((1000, 3.0), (1100, 9.0), (1000, 3.0))):
        odd.first_byte(odd.sent(tokens=tokens, now_s=50.0 * i), now_s=50.0 * i + seconds)
    for tokens in (0, 10, 100_000):
        seconds_got = odd.expected_s(tokens=tokens, now_s=999.0)
        assert seconds_got is not None
        assert seconds_got >= 0.0
    falling = Wait()
    for i, (tokens, seconds) in enumerate(((1000, 3.0), (9000, 1.0))):
        falling.first_byte(falling.sent(tokens=tokens, now_s=50.0 * i), now_s=50.0 * i + seconds)
    assert falling.expected_s(tokens=10**6, now_s=999.0) == pytest.approx(2.0, abs=0.1)


def test_a_side_that_fell_silent_is_expected_to_stay_so_for_as_long() -> None:
    wait = Wait()
    for at_s in (0.0, 1.0, 2.0):
        wait.first_byte(wait.sent(tokens=10, now_s=at_s), now_s=at_s + 0.1)
    wait.sent(tokens=10, now_s=10.0)
    assert wait.expected_s(tokens=10, now_s=10.0) == pytest.approx(0.2)
    assert wait.expected_s(tokens=10, now_s=40.0) == pytest.approx(30.0)


@pytest.mark.parametrize("n_workers", [1, 2, 4])
@pytest.mark.parametrize("load_ratio", [0.5, 0.9, 1.1])
def test_expectations_are_right_on_average_in_a_simulated_queue(
    n_workers: int, load_ratio: float
) -> None:
    """Against the truth at each arrival, idle and overloaded, with any number of workers."""
    rng = random.Random(7)
    side, clock, now_s = Workers(n_workers, lambda tokens: 0.2 + tokens / 10_000), Clock(), 0.0
    mean_service_s = 1.2
    expected: list[float] = []
    truth: list[float] = []
    for i in range(1500):
        now_s += rng.expovariate(load_ratio * n_workers / mean_service_s)
        clock.advance(now_s)
        tokens = rng.randint(5000, 15_000)
        got = side.wait.expected_s(tokens=tokens, now_s=now_s)
        if i >= 50 and got is not None:
            expected.append(got)
            truth.append(side.would_take_s(tokens, now_s))
        clock.send(side, tokens, now_s)
    assert len(truth) > 1400
    n = len(truth)
    bias = (sum(expected) - sum(truth)) / sum(truth)
    error = sum(abs(e - t) for e, t in zip(expected, truth, strict=True)) / sum(truth)
    assert abs(bias) < 0.25
    assert error < 0.35
    mean_e, mean_t = sum(expected) / n, sum(truth) / n
    covariance = sum((e - mean_e) * (t - mean_t) for e, t in zip(expected, truth, strict=True))
    spread = (
        sum((e - mean_e) ** 2 for e in expected) * sum((t - mean_t) ** 2 for t in truth)
    ) ** 0.5
    assert covariance / spread > 0.7, "longer is expected where it is longer"


def test_another_gates_requests_show_in_the_gap() -> None:
    """Half of the requests are someone else's: the wait behind ours is twice as long."""
    side, clock = Workers(1, lambda tokens: 1.0), Clock()
    alone, clock_alone = Workers(1, lambda tokens: 1.0), Clock()
    now_s, ours = 0.0, deque([True, False])
    for _ in range(200):
        now_s += 0.5
        clock.advance(now_s)
        clock_alone.advance(now_s)
        if ours[0]:
            clock.send(side, 1, now_s)
            clock_alone.send(alone, 1, now_s)
        else:
            side.first_byte_at_s(1, now_s)
        ours.rotate(1)
    behind = side.wait.expected_s(tokens=1, now_s=now_s)
    assert behind is not None
    assert behind == pytest.approx(side.would_take_s(1, now_s), rel=0.1)
    assert behind > 50.0
    assert alone.wait.n_pending < 3


def mean_ttft_s(
    t: int, band: tuple[int, int] | None, *, rate_rps: float, seed: int, oracle: bool = False
) -> float:
    """3,000 requests through the rule, two local and two remote workers.

    Local has less than it can do below t = 10,000 or so, remote above it. With `oracle` the band is
    told the true wait.
    """
    rule = Rule("threshold", t, {"prfaas": 1.0}, band=band)
    rng = random.Random(seed)
    sides: dict[Side, Workers] = {
        "local": Workers(2, lambda tokens: 0.2 + tokens / 8000),
        "remote": Workers(2, lambda tokens: 0.3 + tokens / 20_000),
    }
    clock, now_s, total_s = Clock(), 0.0, 0.0
    n = 3000
    for _ in range(n):
        now_s += rng.expovariate(rate_rps)
        clock.advance(now_s)
        tokens = min(60_000, int(rng.lognormvariate(9.0, 0.8)))
        waits: dict[Side, float | None] = {
            name: side.would_take_s(tokens, now_s)
            if oracle
            else side.wait.expected_s(tokens=tokens, now_s=now_s)
            for name, side in sides.items()
        }
        judged = judge(rule, Prefixes(tokens, 0, 0), to_local="", to_remote="")
        chosen = route(rule, Situation(judged, ["prfaas"], ["prfaas"], 0, True, waits))
        total_s += clock.send(sides[chosen.side], tokens, now_s)
    return total_s / n


@pytest.mark.parametrize(
    ("t", "band"), [(20_000, (10_000, 40_000)), (5000, (2500, 10_000))], ids=["local", "remote"]
)
def test_a_band_relieves_the_side_that_is_congested(t: int, band: tuple[int, int]) -> None:
    """At t that side has more than it can do; the requests near t find the other one free."""
    plain = mean_ttft_s(t, None, rate_rps=3.0, seed=1)
    banded = mean_ttft_s(t, band, rate_rps=3.0, seed=1)
    assert banded < 0.1 * plain
    assert banded < 1.15 * mean_ttft_s(t, band, rate_rps=3.0, seed=1, oracle=True)


@pytest.mark.parametrize("rate_rps", [0.5, 2.0, 3.0])
def test_a_band_does_no_harm_where_t_is_right(rate_rps: float) -> None:
    plain = mean_ttft_s(10_000, None, rate_rps=rate_rps, seed=1)
    assert mean_ttft_s(10_000, (5000, 20_000), rate_rps=rate_rps, seed=1) < plain
