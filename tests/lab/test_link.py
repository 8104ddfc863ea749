"""The emulated link in virtual time: who gets how much, when it arrives, what the counters say."""

from __future__ import annotations

from random import Random

import pytest

from routing.lab.link import (
    BUFFER_S,
    MAX_RETRANSMIT_RATIO,
    SEGMENT_BYTES,
    Link,
    Transfer,
    fair_shares,
)
from tests.lab.virtual import HeapClock

GB = 10**9


class Sent:
    """One transfer and the time at which its arrival was reported."""

    def __init__(self, link: Link, total_bytes: int, **options: float) -> None:
        self.arrival_s: float | None = None
        self.transfer: Transfer = link.ship(
            total_bytes=total_bytes,
            start_s=options.get("start_s", 0.0),
            duration_s=options.get("duration_s", 0.0),
            n_chunks=int(options.get("n_chunks", 1)),
            on_arrival=self.arrived,
        )

    def arrived(self, arrival_s: float) -> None:
        assert self.arrival_s is None, "told twice"
        self.arrival_s = arrival_s


@pytest.mark.parametrize(
    ("capacity", "caps", "want"),
    [
        pytest.param(10.0, [], [], id="nobody"),
        pytest.param(10.0, [99.0], [10.0], id="one gets all"),
        pytest.param(10.0, [99.0, 99.0], [5.0, 5.0], id="equal shares"),
        pytest.param(10.0, [2.0, 99.0, 99.0], [2.0, 4.0, 4.0], id="what a capped one leaves"),
        pytest.param(10.0, [99.0, 1.0, 3.0], [6.0, 1.0, 3.0], id="order is kept"),
        pytest.param(10.0, [1.0, 2.0], [1.0, 2.0], id="all capped"),
        pytest.param(0.0, [1.0, 2.0], [0.0, 0.0], id="no capacity"),
    ],
)
def test_shares_are_max_min_fair(capacity: float, caps: list[float], want: list[float]) -> None:
    assert fair_shares(capacity, caps) == pytest.approx(want)


def test_one_transfer_arrives_after_its_bytes_and_half_a_round_trip() -> None:
    clock = HeapClock()
    sent = Sent(Link(clock, gbps=8.0, rtt_s=0.010), 2 * GB)
    clock.run_until(10.0)
    assert sent.arrival_s == pytest.approx(2.0 + 0.005)


def test_two_transfers_share_equally_and_the_second_then_has_all() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0)
    short, long = Sent(link, 1 * GB), Sent(link, 3 * GB)
    clock.run_until(10.0)
    # 0.5 GB/s each until 2 s; then 2 GB are left for one at 1 GB/s.
    assert (short.arrival_s, long.arrival_s) == pytest.approx((2.0, 4.0))


def test_a_transfer_is_bounded_by_its_connections() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0, connections=4, per_connection_gbps=0.5)
    sent = Sent(link, 1 * GB)
    clock.run_until(10.0)
    assert sent.arrival_s == pytest.approx(4.0)


def test_layers_leave_while_they_are_computed() -> None:
    """Ten layers over 10 s; each takes 0.2 s of link, so only the last one's is exposed."""
    clock = HeapClock()
    sent = Sent(Link(clock, gbps=8.0), 2 * GB, duration_s=10.0, n_chunks=10)
    clock.run_until(20.0)
    assert sent.arrival_s == pytest.approx(10.2)


def test_a_slow_link_is_what_counts_then_not_the_sum() -> None:
    """Pipelining: 20 s of link against 10 s of prefill take 20 s from the first layer on."""
    clock = HeapClock()
    sent = Sent(Link(clock, gbps=0.8), 2 * GB, duration_s=10.0, n_chunks=10)
    clock.run_until(40.0)
    assert sent.arrival_s == pytest.approx(1.0 + 20.0)


def test_bytes_are_counted_as_they_move() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0)
    Sent(link, 4 * GB)
    for at_s, want in ((1.0, 1 * GB), (2.5, 2.5 * GB), (4.0, 4 * GB), (9.0, 4 * GB)):
        clock.run_until(at_s)
        assert link.read().tx_bytes_total == pytest.approx(want, abs=1)


def test_capacity_may_change_under_way() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0)
    sent = Sent(link, 4 * GB)
    clock.run_until(2.0)
    link.set_capacity(4.0)
    clock.run_until(30.0)
    assert sent.arrival_s == pytest.approx(2.0 + 4.0)
    assert link.read().tx_bytes_total == 4 * GB


def test_a_link_without_capacity_stalls_and_resumes() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0)
    sent = Sent(link, 4 * GB)
    clock.run_until(1.0)
    link.set_capacity(0.0)
    assert link.down
    clock.run_until(100.0)
    assert sent.arrival_s is None
    assert link.read().tx_bytes_total == pytest.approx(1 * GB, abs=1)
    link.set_capacity(8.0)
    clock.run_until(200.0)
    assert sent.arrival_s == pytest.approx(103.0)


def test_a_cancelled_transfer_keeps_what_it_sent_and_frees_its_share() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0)
    dropped, kept = Sent(link, 4 * GB), Sent(link, 2 * GB)
    clock.run_until(2.0)
    before = link.read().tx_bytes_total
    sent_bytes = link.cancel(dropped.transfer)
    assert sent_bytes == pytest.approx(1 * GB, abs=1)
    assert link.read().tx_bytes_total >= before
    clock.run_until(10.0)
    assert dropped.arrival_s is None
    assert kept.arrival_s == pytest.approx(3.0)
    assert link.read().tx_bytes_total == sent_bytes + 2 * GB


def test_cancel_between_the_last_byte_and_its_arrival_says_nothing() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0, rtt_s=2.0)
    sent = Sent(link, 1 * GB)
    clock.run_until(1.5)
    assert link.cancel(sent.transfer) == 1 * GB
    clock.run_until(10.0)
    assert sent.arrival_s is None


def test_background_traffic_takes_its_part_and_is_not_counted() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=10.0, background_gbps=2.0)
    sent = Sent(link, 1 * GB)
    clock.run_until(5.0)
    assert sent.arrival_s == pytest.approx(1.0)
    assert link.read().tx_bytes_total == 1 * GB


def _storm(clock: HeapClock, seed: int) -> tuple[list[float | None], int, int]:
    """Random transfers, capacities and cancels; arrivals, bytes counted, bytes shipped."""
    random = Random(seed)
    link = Link(clock, gbps=8.0, rtt_s=0.02, connections=2, per_connection_gbps=2.0)
    sent: list[Sent] = []
    shipped, counted = {}, 0
    for step in range(60):
        clock.run_until(step * 1.0)
        action = random.random()
        if action < 0.7:
            size, duration_s = random.randrange(1, 3 * GB), random.uniform(0.0, 4.0)
            sent.append(Sent(link, size, start_s=clock.now_s, duration_s=duration_s, n_chunks=7))
            shipped[len(sent) - 1] = size
        elif action < 0.85:
            link.set_capacity(random.choice([0.0, 2.0, 8.0, 20.0]))
        elif sent:
            i = random.randrange(len(sent))
            shipped[i] = link.cancel(sent[i].transfer)
        total = link.read().tx_bytes_total
        assert total >= counted, "a counter fell"
        counted = total
    link.set_capacity(50.0)
    clock.run_until(1000.0)
    return [s.arrival_s for s in sent], link.read().tx_bytes_total, sum(shipped.values())


@pytest.mark.parametrize("seed", range(5))
def test_bytes_counted_are_exactly_bytes_shipped(seed: int) -> None:
    _, counted, shipped = _storm(HeapClock(), seed)
    assert counted == shipped


def test_late_callbacks_change_nothing_that_happened() -> None:
    """A busy machine runs callbacks late: arrivals are told later, never dated later."""
    prompt, _, _ = _storm(HeapClock(), 3)
    late, counted, shipped = _storm(HeapClock(lateness_s=0.2), 3)
    assert counted == shipped
    both = [(a, b) for a, b in zip(prompt, late, strict=True) if a is not None and b is not None]
    assert len(both) > 20
    assert [b for _, b in both] == pytest.approx([a for a, _ in both])


@pytest.mark.parametrize(
    ("per_connection_gbps", "backlog_gb", "want_rtt_s", "want_ratio"),
    [
        pytest.param(4.0, 40, 0.01, 0.0, id="capped below the link: no loss, base RTT"),
        pytest.param(None, 40, 0.01 + BUFFER_S, MAX_RETRANSMIT_RATIO, id="saturated, deep backlog"),
        pytest.param(None, 0.1, 0.11, 0.0005, id="saturated for a tenth of a second"),
    ],
)
def test_loss_and_rtt_rise_only_when_the_link_is_the_limit(
    per_connection_gbps: float | None, backlog_gb: float, want_rtt_s: float, want_ratio: float
) -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0, rtt_s=0.01, per_connection_gbps=per_connection_gbps)
    total = int(backlog_gb * GB)
    Sent(link, total)
    assert link.read().rtt_s == pytest.approx(want_rtt_s)
    # Up to where 4 s of backlog are left, or to the end of a short one.
    clock.run_until(max(1.0, backlog_gb - 4.0 if backlog_gb > 4 else 1.0))
    counters = link.read()
    resent = counters.segments_retransmitted_total
    want = want_ratio * counters.tx_bytes_total / SEGMENT_BYTES
    assert resent == pytest.approx(want, rel=0.01, abs=1)
    assert counters.segments_sent_total == pytest.approx(
        counters.tx_bytes_total / SEGMENT_BYTES + resent, abs=1
    )


def test_configured_loss_shows_also_when_idle_enough() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0, per_connection_gbps=1.0, loss_ratio=0.001)
    Sent(link, GB)
    clock.run_until(20.0)
    counters = link.read()
    assert counters.segments_retransmitted_total == pytest.approx(0.001 * GB / SEGMENT_BYTES, abs=1)


def test_connections_are_those_of_transfers_under_way() -> None:
    clock = HeapClock()
    link = Link(clock, gbps=8.0, connections=8)
    Sent(link, GB)
    Sent(link, GB)
    assert link.read().connections == 16
    clock.run_until(5.0)
    assert link.read().connections == 0
