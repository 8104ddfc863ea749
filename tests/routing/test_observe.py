"""Rows in, observation out: what the loop sees is what the gates counted."""

from __future__ import annotations

import numpy as np
import pytest

from routing import fleets
from routing.core.placement.token_edges import TOKEN_EDGES
from routing.core.types import Observation, PdObservation
from routing.observe import observe
from telemetry import wire
from tests.routing.cases import (
    EDGES,
    NOW_S,
    Gate,
    engines,
    feed,
    instance,
    link,
    make_fleet,
    steady,
    traffic,
)

pytestmark = pytest.mark.django_db


def seen(at_s: float = 0.0, name: str = "f1") -> Observation:
    fleet = make_fleet(name)
    return observe(fleet.pk, fleets.scenario_of(fleet), at_s=NOW_S + at_s)


def pd(at_s: float = 0.0) -> PdObservation:
    return seen(at_s).pd["pd"]


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_demand_is_the_sum_of_what_gates_counted() -> None:
    feed(steady(Gate("f1/pd/gw-1"), rng(), rate_rps=2.0))
    feed(steady(Gate("f1/pd/gw-2"), rng(), rate_rps=1.0))
    found = pd()
    assert found.demand_state == "value"
    assert found.demand_rps == pytest.approx(3.0, rel=0.1)
    assert found.gates_silent == ()


def test_a_router_of_another_make_is_no_second_gate() -> None:
    """It counts the requests that a gate sent on, once more."""
    feed(steady(Gate("f1/pd/gw-1"), rng(), rate_rps=2.0))
    alone = pd()
    feed(steady(Gate("f1/pd/epp", kind="llm-d"), rng(), rate_rps=2.0))
    assert pd() == alone


def test_a_constant_rate_is_found_exactly_from_readings_a_second_apart() -> None:
    gate = Gate()
    samples = []
    for second in range(-300, 1):
        gate.arrive([10_000.0, 1_000.0])
        samples.append(gate.sample(NOW_S + second))
    feed(samples)
    found = pd()
    assert found.demand_rps == pytest.approx(2.0)
    assert found.remote_share == pytest.approx(0.5)


def test_refused_requests_are_demand() -> None:
    gate = Gate()
    samples = [gate.sample(NOW_S - 60)]
    gate.arrive([1_000.0] * 30, refused=30)
    samples.append(gate.sample(NOW_S))
    feed(samples)
    assert pd().demand_rps == pytest.approx(1.0)


def test_recent_traffic_weighs_more_than_old() -> None:
    gate = Gate()
    calm = steady(gate, rng(), rate_rps=1.0, since_s=-1200, until_s=-300)
    busy = steady(gate, rng(), rate_rps=5.0, since_s=-300)
    feed(calm + busy[1:])
    found = pd()
    # 1 - 1/e of the weight is younger than one time constant of 300 s
    assert found.demand_rps == pytest.approx(5.0 - 4.0 * np.exp(-1), rel=0.15)


@pytest.mark.parametrize("announced", [True, False], ids=["start time changed", "counter fell"])
def test_a_restarted_gate_counts_from_zero(announced: bool) -> None:
    gate = Gate()
    samples = [gate.sample(NOW_S - 30)]
    gate.arrive([1_000.0] * 500)
    samples.append(gate.sample(NOW_S - 20))
    epoch_s = gate.epoch_s
    gate.restart(NOW_S - 15)
    gate.epoch_s = NOW_S - 15 if announced else epoch_s
    gate.arrive([1_000.0] * 20)
    samples.append(gate.sample(NOW_S - 10))
    gate.arrive([1_000.0] * 15)
    samples.append(gate.sample(NOW_S))
    feed(samples)
    found = pd()
    weights = np.exp(-np.array([25.0, 15.0, 5.0]) / 300)
    elapsed_s = [10, 5 if announced else 10, 10]
    assert found.demand_rps == pytest.approx(
        (weights * [500, 20, 15]).sum() / (weights * elapsed_s).sum()
    )
    assert found.lengths is not None
    assert sum(found.lengths.counts) == pytest.approx((weights * [500, 20, 15]).sum())
    assert found.lengths.n_seen == 535, "a restart does not make the loop forget the window"


def test_the_time_a_gate_was_down_is_not_time_without_requests() -> None:
    gate = Gate()
    samples = []
    for second in range(-900, -600, 5):
        gate.arrive([1_000.0] * 10)
        samples.append(gate.sample(NOW_S + second))
    gate.restart(NOW_S - 60)
    for second in range(-60, 1, 5):
        samples.append(gate.sample(NOW_S + second))
        gate.arrive([1_000.0] * 10)
    feed(samples)
    assert pd().demand_rps == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize(
    ("silent_s", "demand_rps", "silent"),
    [(5.0, 3.0, ()), (40.0, 3.0, ("f1/pd/gw-2",)), (70.0, 2.0, ())],
    ids=["heard", "kept and marked", "dropped out"],
)
def test_a_silent_gate_keeps_its_rate_for_a_minute(
    silent_s: float, demand_rps: float, silent: tuple[str, ...]
) -> None:
    for name, rate, until_s in (("gw-1", 2, 0.0), ("gw-2", 1, -silent_s)):
        gate = Gate(f"f1/pd/{name}")
        samples = []
        for second in range(-300, int(until_s) + 1):
            gate.arrive([1_000.0] * rate)
            samples.append(gate.sample(NOW_S + second))
        feed(samples)
    found = pd()
    assert found.demand_rps == pytest.approx(demand_rps)
    assert found.gates_silent == silent


def test_no_traffic_no_reading_and_a_failed_reading_are_three_facts() -> None:
    """S-04: idle is confirmed zero, missing was never read, failed could not be read."""
    assert pd().demand_state == "missing"
    assert pd().demand_rps is None
    gate = Gate()
    feed([gate.sample(NOW_S - 20), gate.sample(NOW_S - 10)])
    assert (pd().demand_state, pd().demand_rps) == ("idle", 0.0)
    broken = [
        wire.RouterSample(id="f1/pd/gw-1", kind="gate", at_s=NOW_S + at, state="failed")
        for at in range(0, 2_000, 10)
    ]
    feed(broken)
    assert (pd(1_990).demand_state, pd(1_990).demand_rps) == ("failed", None)


def test_a_first_reading_says_nothing_of_the_rate() -> None:
    gate = Gate()
    gate.arrive([1_000.0] * 1_000)
    feed([gate.sample(NOW_S)])
    found = pd()
    assert (found.demand_rps, found.demand_state) == (None, "missing")
    assert found.lengths is None


def test_lengths_come_from_tokens_that_were_counted_never_from_estimates() -> None:
    samples = []
    gate = Gate()
    for source in ("tokenised", "usage", "estimated"):
        gate.source = source
        gate.arrive([50.0])
    samples.append(gate.sample(NOW_S - 10))
    for source, length in (("tokenised", 1_000.0), ("usage", 5_000.0), ("estimated", 90_000.0)):
        gate.source = source
        gate.arrive([length] * 10)
    samples.append(gate.sample(NOW_S))
    feed(samples)
    lengths = pd().lengths
    assert lengths is not None
    counted = {EDGES[i]: n for i, n in enumerate(lengths.counts[:-1]) if n}
    weight = np.exp(-5 / 300)
    assert [edge for edge in counted if edge > 60_000] == []
    assert sum(counted.values()) == pytest.approx(20 * weight)
    assert lengths.n_effective == pytest.approx(20)
    assert lengths.n_seen == 22


def test_a_source_that_appears_later_began_at_zero() -> None:
    gate = Gate(source="tokenised")
    gate.arrive([1_000.0])
    samples = [gate.sample(NOW_S - 10)]
    gate.source = "usage"
    gate.arrive([1_000.0] * 4)
    feed([*samples, gate.sample(NOW_S)])
    lengths = pd().lengths
    assert lengths is not None
    assert lengths.n_effective == pytest.approx(4)


def test_gates_with_other_buckets_are_read_on_the_products_own() -> None:
    coarse = [1_000.0, 10_000.0, 100_000.0]
    for gate, n in ((Gate("f1/pd/gw-1"), 30), (Gate("f1/pd/gw-2", edges=coarse), 10)):
        before = gate.sample(NOW_S - 10)
        gate.arrive([1.0])
        gate.arrive([9_000.0] * n)
        feed([Gate(gate.path, edges=gate.edges).sample(NOW_S - 20), before, gate.sample(NOW_S)])
    lengths = pd().lengths
    assert lengths is not None
    assert set(TOKEN_EDGES) <= set(lengths.edges)
    counts, weight = np.array(lengths.counts), np.exp(-5 / 300)
    assert counts.sum() == pytest.approx(42 * weight, abs=1e-4)
    # Of the ten that the coarse gate counted between 1,000 and 10,000 tokens nobody knows where.
    spread = counts[:-1][(np.array(lengths.edges) > 1_300) & (np.array(lengths.edges) < 8_000)]
    assert 5 * weight < spread.sum() < 10 * weight
    assert (spread > 0).all()


def test_media_counts_once_the_engine_counted_it() -> None:
    gate = Gate(judged=True)
    before = gate.sample(NOW_S - 10)
    for source in ("usage|text", "usage|media", "estimated|media", "tokenised|text"):
        gate.source = source
        gate.arrive([1_000.0])
    empty = {key: np.zeros_like(counts) for key, counts in gate.counts.items()}
    counted, gate.counts = gate.counts, empty
    feed([before, gate.sample(NOW_S - 9)])
    gate.counts = counted
    feed([gate.sample(NOW_S)])
    lengths = pd().lengths
    assert lengths is not None
    assert lengths.n_seen == 3
    assert lengths.n_effective == pytest.approx(3)


def test_a_label_that_agents_begin_to_read_makes_no_requests() -> None:
    gate = Gate(source="usage")
    gate.arrive([1_000.0] * 1_000)
    samples = [gate.sample(NOW_S - 20)]
    gate.counts = {"usage|text": gate.counts["usage"]}
    samples.append(gate.sample(NOW_S - 10))
    gate.source = "usage|text"
    gate.arrive([1_000.0] * 7)
    feed([*samples, gate.sample(NOW_S)])
    lengths = pd().lengths
    assert lengths is not None
    assert lengths.n_effective == pytest.approx(7)


def test_the_remote_share_is_that_of_the_last_minute() -> None:
    gate = Gate()
    samples = [gate.sample(NOW_S - 300)]
    gate.arrive([90_000.0] * 1_000)
    samples.append(gate.sample(NOW_S - 60))
    for second in range(-50, 1, 10):
        gate.arrive([1_000.0, 1_000.0, 1_000.0, 90_000.0])
        samples.append(gate.sample(NOW_S + second))
    feed(samples)
    assert pd().remote_share == pytest.approx(0.25)


def test_instances_are_counted_by_the_role_they_report() -> None:
    feed(engines())
    feed([instance("f1/pd/p2", role="decode", waiting=7.0)])
    found = seen()
    assert (found.pd["pd"].n_prefill, found.pd["pd"].n_decode) == (2, 6)
    assert found.pd["pd"].queue_decode == 7.0
    assert found.prefill["prfaas"].n_prefill == 4


@pytest.mark.parametrize(("age_s", "counted"), [(20.0, 3), (50.0, 3), (70.0, 2)])
def test_an_instance_that_cannot_be_read_keeps_its_place_for_a_minute(
    age_s: float, counted: int
) -> None:
    feed(engines(at_s=-80.0))
    feed([instance(f"f1/pd/p{i}") for i in range(2)])
    feed([instance("f1/pd/p2", at_s=-age_s), instance("f1/pd/p2", state="failed")])
    assert pd().n_prefill == counted


def test_a_queue_nobody_measured_lately_is_unknown_not_empty() -> None:
    feed(engines(at_s=-30.0))
    found = pd()
    assert found.n_prefill == 3
    assert found.queue_prefill is None


@pytest.mark.parametrize(
    ("sample", "state", "tx_gbps", "capacity_gbps"),
    [
        (None, "missing", None, 100.0),
        (link(tx_gbps=5.5, capacity_gbps=5.8), "value", 5.5, 5.8),
        (link(tx_gbps=5.5), "value", 5.5, 100.0),
        (link(tx_gbps=0.0), "idle", 0.0, 100.0),
        (link(rtt_s=0.005), "missing", None, 100.0),
        (link(state="failed"), "failed", None, 100.0),
    ],
    ids=["never read", "measured", "capacity from the scenario", "idle", "no rate", "failed"],
)
def test_link_states(
    sample: wire.LinkSample | None, state: str, tx_gbps: float | None, capacity_gbps: float
) -> None:
    feed([sample] if sample else [])
    found = seen().links["prfaas->pd"]
    assert (found.state, found.tx_gbps, found.capacity_gbps) == (state, tx_gbps, capacity_gbps)


def test_a_link_reading_carries_its_age() -> None:
    feed([link(at_s=-40.0, tx_gbps=5.5)])
    assert seen().links["prfaas->pd"].age_s == pytest.approx(40.0)


def test_fleets_that_share_clusters_are_seen_apart() -> None:
    """S-34: two models in one cluster."""
    traffic("f1", rate_rps=2.0)
    traffic("f2", rate_rps=0.5)
    assert pd().demand_rps == pytest.approx(2.0, rel=0.15)
    assert seen(name="f2").pd["pd"].demand_rps == pytest.approx(0.5, rel=0.3)
    assert pd().n_prefill == 3


def test_the_same_rows_give_the_same_observation() -> None:
    traffic()
    assert seen() == seen()


def test_what_arrives_after_the_moment_is_not_seen_at_it() -> None:
    gate = Gate()
    samples = [gate.sample(NOW_S - 20)]
    gate.arrive([1_000.0] * 10)
    samples.append(gate.sample(NOW_S - 10))
    feed(samples)
    before = seen()
    gate.arrive([1_000.0] * 500)
    feed([gate.sample(NOW_S + 3)])
    assert seen() == before


def test_lengths_are_those_that_were_compared_with_t_where_a_gate_tells() -> None:
    told, silent = Gate("f1/pd/gw-1", judged=True), Gate("f1/pd/gw-2")
    feed([told.sample(NOW_S - 20.0), silent.sample(NOW_S - 20.0)])
    told.arrive([500.0] * 3)
    silent.arrive([50_000.0] * 2)
    feed([told.sample(NOW_S - 10.0), silent.sample(NOW_S - 10.0)])
    lengths = pd().lengths
    assert lengths is not None
    assert lengths.n_seen == 5


def test_what_could_move_is_a_share_of_prompts_and_unknown_where_no_gate_tells() -> None:
    gate = Gate(movable_tokens=0.0)
    feed([gate.sample(NOW_S - 20.0)])
    gate.arrive([8_000.0, 12_000.0])
    gate.movable_tokens = 5_000.0
    feed([gate.sample(NOW_S - 10.0)])
    assert pd().movable_ratio == pytest.approx(0.25)


def test_without_such_a_counter_nothing_is_known_to_be_movable() -> None:
    feed(steady(Gate(), rng()))
    assert pd().movable_ratio is None


def test_a_step_of_the_mix_shows_in_the_shifts_and_older_lengths_can_be_left_out() -> None:
    gate = Gate()
    samples = [gate.sample(NOW_S - 300.0)]
    for at_s in range(-290, 1, 10):
        gate.arrive([20_000.0 if at_s <= -60 else 2_000.0] * 25)
        samples.append(gate.sample(NOW_S + at_s))
    feed(samples)
    found = pd()
    shifts = {shift.span_s: shift for shift in found.shifts}
    assert shifts[60.0].n_recent == 150
    assert np.exp(shifts[60.0].mean_recent) == pytest.approx(2_000.0, rel=0.1)
    assert np.exp(shifts[60.0].mean_before) == pytest.approx(20_000.0, rel=0.1)
    fleet = fleets.scenario_of(make_fleet())
    since = observe("f1", fleet, at_s=NOW_S, lengths_since_s={"pd": NOW_S - 60.0}).pd["pd"]
    assert since.lengths is not None
    assert found.lengths is not None
    edges = np.array(since.lengths.edges)
    assert np.array(since.lengths.counts)[1:][edges > 5_000.0].sum() == 0.0
    assert since.demand_rps == found.demand_rps
    assert since.lengths.n_seen == found.lengths.n_seen


def test_instances_not_read_lately_are_named_by_role() -> None:
    feed([instance("f1/pd/a", at_s=-30.0), instance("f1/pd/b", at_s=-1.0)])
    feed([instance("f1/pd/c", role="decode", at_s=-30.0)])
    found = pd()
    assert (found.prefill_silent, found.decode_silent) == (("f1/pd/a",), ("f1/pd/c",))
    assert (found.n_prefill, found.n_decode) == (2, 1)
