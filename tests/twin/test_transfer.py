"""Links: max-min exactly, layers exactly, and nothing lost whatever the capacity does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.scenario.document import Link
from routing.twin.row import AT, BYTES, END, READY, START, UNSET, WIDTH, Row
from routing.twin.transfer import LinkFlows, Path
from tests.twin.layer_by_layer import arrivals_s

LAYERS = 8


def flow(start_s: float, end_s: float, size: float) -> Row:
    row: Row = [UNSET] * WIDTH
    row[AT], row[START], row[END], row[BYTES] = start_s, start_s, end_s, size
    return row


def link(
    rate: float, *, cap: float = math.inf, rtt_s: float = 0.0, layers: int = LAYERS
) -> LinkFlows:
    return LinkFlows(Path(rate, cap, rtt_s), layers=layers)


@pytest.mark.parametrize("rate", [10.0, 40.0, 50.0, 60.0, 1000.0])
def test_alone_it_takes_the_longer_of_prefill_and_bytes_and_a_tail(rate: float) -> None:
    prefill_s, size = 2.0, 100.0
    row = flow(5.0, 5.0 + prefill_s, size)
    flows = link(rate, rtt_s=0.5)
    flows.send([row])
    assert flows.run(100.0) == [row]
    tail_s = max(prefill_s + size / LAYERS / rate, prefill_s / LAYERS + size / rate)
    assert row[READY] == pytest.approx(5.0 + tail_s + 0.25)
    longer_s = max(prefill_s, size / rate)
    assert row[READY] - 5.25 - longer_s == pytest.approx(
        size / LAYERS / rate if prefill_s > size / rate else prefill_s / LAYERS
    )
    assert flows.sent_bytes == pytest.approx(size)


def test_two_flows_share_a_link_max_min() -> None:
    # All there at once: 30 of A and 60 of B at 10 B/s. Half each until A is through at 6 s, then
    # B has the link to itself for its other 30.
    a, b = flow(0.0, 0.0, 30.0), flow(0.0, 0.0, 60.0)
    flows = link(10.0)
    flows.send([a, b])
    assert flows.run(100.0) == [a, b]
    assert (a[READY], b[READY]) == pytest.approx((6.0, 9.0))


def test_a_flow_that_wants_less_leaves_the_rest_to_the_other() -> None:
    # A releases 2 B/s for 8 s (its last layer, 2, at the end), B has 50 bytes from 1 s on: max-min
    # of 10 B/s gives A its 2 and B the other 8.
    a, b = flow(0.0, 8.0, 16.0), flow(1.0, 1.0, 50.0)
    flows = link(10.0)
    flows.send([a, b])
    flows.run(100.0)
    assert b[READY] == pytest.approx(1.0 + 50.0 / 8.0)
    assert a[READY] == pytest.approx(8.0 + 2.0 / 10.0)


def test_a_flow_is_limited_by_its_own_connections() -> None:
    row = flow(0.0, 0.0, 100.0)
    flows = link(1000.0, cap=4.0)
    flows.send([row])
    flows.run(100.0)
    assert row[READY] == pytest.approx(25.0)


_FLOWS = st.lists(
    st.tuples(
        st.floats(0.0, 20.0),
        st.one_of(st.just(0.0), st.floats(0.05, 10.0)),
        st.floats(1.0, 200.0),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(_FLOWS, st.floats(5.0, 60.0), st.one_of(st.just(math.inf), st.floats(2.0, 40.0)))
def test_between_fluid_and_layer_by_layer_lies_less_than_a_layer(
    drawn: list[tuple[float, float, float]], rate: float, cap: float
) -> None:
    rows = [flow(start_s, start_s + seconds, size) for start_s, seconds, size in drawn]
    layers = 64
    flows = link(rate, cap=cap, layers=layers)
    flows.send(rows)
    done = flows.run(1e6)
    assert sorted(map(id, done)) == sorted(map(id, rows))
    assert flows.sent_bytes == pytest.approx(sum(size for _, _, size in drawn))
    exact = arrivals_s(drawn, rate=rate, cap=cap, layers=layers)
    # What is at stake: a layer of each flow, sent or waited for, at either end of it.
    each_s = (size / min(rate, cap) + seconds for _, seconds, size in drawn)
    layer_s = 2.0 * sum(each_s) / layers
    for row, at_s in zip(rows, exact, strict=True):
        assert row[READY] == pytest.approx(at_s, abs=layer_s + 1e-6)


@settings(max_examples=100, deadline=None)
@given(_FLOWS, st.floats(5.0, 60.0), st.lists(st.floats(0.0, 30.0), max_size=5))
def test_cuts_of_time_change_nothing(
    drawn: list[tuple[float, float, float]], rate: float, cuts: list[float]
) -> None:
    whole, cut = ([flow(a, a + s, b) for a, s, b in drawn] for _ in range(2))
    once, often = link(rate), link(rate)
    once.send(whole)
    often.send(cut)
    once.run(1e6)
    for until_s in sorted(cuts):
        often.run(until_s)
    often.run(1e6)
    for one, other in zip(whole, cut, strict=True):
        assert one[READY] == pytest.approx(other[READY], rel=1e-9)


def test_a_link_that_is_down_keeps_what_it_has() -> None:
    row = flow(0.0, 0.0, 100.0)
    flows = link(10.0)
    flows.send([row])
    assert flows.run(4.0) == []
    assert flows.waiting_bytes == pytest.approx(60.0)
    flows.path = Path(0.0, math.inf, 0.0)
    assert flows.run(50.0) == []
    assert flows.expected_s(1.0) == math.inf
    flows.path = Path(20.0, math.inf, 0.0)
    assert flows.run(100.0) == [row]
    assert row[READY] == pytest.approx(53.0)


def test_what_is_forgotten_leaves_the_link_to_the_others() -> None:
    lost, kept = flow(0.0, 0.0, 100.0), flow(0.0, 0.0, 30.0)
    flows = link(10.0)
    flows.send([lost, kept])
    flows.run(2.0)
    flows.forget({id(lost)})
    assert flows.run(100.0) == [kept]
    assert kept[READY] == pytest.approx(2.0 + 20.0 / 10.0)
    assert flows.sent_bytes == pytest.approx(10.0 + 30.0)


def test_loss_limits_what_connections_carry() -> None:
    facts = {"connections": 4, "loss": 1e-4}
    path = Path.of(Link("a", "b", 100.0, 0.02, facts))
    # sqrt(3/2) * 1448 B / 20 ms / sqrt(1e-4) = 8.87 MB/s a connection.
    assert path.cap_bytes_per_s == pytest.approx(4 * 8.867e6, rel=1e-3)
    assert path.capacity_bytes_per_s == pytest.approx(12.5e9 * (1 - 1e-4))


def test_background_and_caps_leave_less() -> None:
    link_facts = Link("a", "b", 100.0, 0.02, {"background_gbps": 20.0, "cap_gbps": 60.0})
    assert Path.of(link_facts).capacity_bytes_per_s == pytest.approx(5e9)
    assert Path.of(link_facts, gbps=30.0).capacity_bytes_per_s == pytest.approx(1.25e9)
    assert Path.of(link_facts, gbps=10.0).capacity_bytes_per_s == 0.0
