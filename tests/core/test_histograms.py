"""Counts of many gates on whatever buckets: nothing lost, made up or negative, in any order."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.drift import SPANS_S
from routing.core.model.histograms import Counted, Tally, finer, merge, shifts, spread, tally
from routing.core.model.lengths import from_histogram, usable
from routing.core.placement.token_edges import TOKEN_EDGES

VLLM = (1.0, 2.0, 5.0, *(m * 10.0**k for k in range(1, 5) for m in (1, 2, 5)), 1e5, 2e5)
TAU_S = 300.0

edge_sets = st.one_of(
    st.sampled_from([VLLM, tuple(map(float, TOKEN_EDGES)), (1000.0, 10_000.0, 100_000.0)]),
    st.lists(st.integers(1, 2_000_000), min_size=1, max_size=12, unique=True).map(
        lambda edges: tuple(map(float, sorted(edges)))
    ),
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=4, unique=True).map(
        lambda edges: tuple(sorted(edges))
    ),
)


@st.composite
def parts(draw: st.DrawFn) -> Counted:
    edges = draw(edge_sets)
    n = len(edges) + 1
    counts = draw(st.lists(st.integers(0, 10_000), min_size=n, max_size=n))
    return Counted(draw(st.floats(0.0, 1200.0)), edges, tuple(map(float, counts)))


gates = st.lists(parts(), max_size=4).map(functools.partial(tally, tau_s=TAU_S))


def same(a: Tally, b: Tally) -> bool:
    return (
        a.counts.keys() == b.counts.keys()
        and all(np.allclose(a.counts[e], b.counts[e], rtol=1e-12, atol=1e-9) for e in a.counts)
        and math.isclose(a.weight, b.weight, rel_tol=1e-12)
        and math.isclose(a.weight_squared, b.weight_squared, rel_tol=1e-12)
        and a.oldest_s == b.oldest_s
    )


@given(gates, gates, gates)
@settings(max_examples=60, deadline=None)
def test_gates_add_up_in_any_order_and_grouping(a: Tally, b: Tally, c: Tally) -> None:
    assert same(merge([a, b]), merge([b, a]))
    assert same(merge([merge([a, b]), c]), merge([a, merge([b, c])]))
    assert same(merge([a, b, c]), merge([merge([a, b]), c]))
    assert same(merge([a, Tally({})]), a)


@given(gates, gates)
@settings(max_examples=60, deadline=None)
def test_reading_loses_and_invents_no_request(a: Tally, b: Tally) -> None:
    both = merge([a, b])
    read = both.read(n_seen=7.0)
    if read is None:
        assert both.weight == 0.0
        return
    assert min(read.counts) >= 0.0
    assert sum(read.counts) == pytest.approx(both.weight, rel=1e-6, abs=1e-4)
    assert usable(read) or sum(read.counts) < 1e-5 or read.edges[-1] > 1e12
    assert read.n_seen == 7.0
    assert read.n_effective > 0.0


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_gates_on_the_same_bounds_add_up_bucket_by_bucket(data: st.DataObject) -> None:
    a = data.draw(parts())
    counts = data.draw(
        st.lists(st.integers(0, 999), min_size=len(a.counts), max_size=len(a.counts))
    )
    b = Counted(a.age_s, a.edges, tuple(map(float, counts)))
    if a.edges[-1] <= 1.0:
        return
    weight = math.exp(-a.age_s / TAU_S)
    merged = merge([tally([a], tau_s=TAU_S), tally([b], tau_s=TAU_S)])
    assert merged.counts[a.edges] == pytest.approx(weight * (np.add(a.counts, b.counts)))


@given(edge_sets.filter(lambda edges: edges[-1] > 1.0), edge_sets, st.data())
@settings(max_examples=100, deadline=None)
def test_spreading_keeps_what_is_known_at_shared_bounds(edges, onto, data) -> None:
    n = len(edges) + 1
    counts = data.draw(st.lists(st.floats(0.0, 1e9), min_size=n, max_size=n))
    found = spread(edges, counts, onto)
    assert found.min() >= 0.0
    assert found.sum() == pytest.approx(sum(counts), rel=1e-12, abs=1e-12)
    below, was = np.cumsum(found), np.cumsum(counts)
    for i, bound in enumerate(edges):
        if bound > 1.0 and bound in onto:
            known = was[i]
            assert below[onto.index(bound)] == pytest.approx(known, rel=1e-9, abs=1e-6)


@given(st.lists(parts(), max_size=3))
@settings(max_examples=60, deadline=None)
def test_whatever_a_gate_tells_the_mean_of_its_lengths_is_a_number(held: list[Counted]) -> None:
    for shift in shifts(held, (300.0,)):
        assert math.isfinite(shift.mean_recent)
        assert math.isfinite(shift.sd)


@given(st.lists(parts(), min_size=1, max_size=4), st.floats(0.0, 900.0))
@settings(max_examples=40, deadline=None)
def test_waiting_fades_everything_alike_and_what_is_known_of_shares_stays(held, waited_s) -> None:
    now = tally(held, tau_s=TAU_S)
    later = tally([Counted(p.age_s + waited_s, p.edges, p.counts) for p in held], tau_s=TAU_S)
    faded = math.exp(-waited_s / TAU_S)
    assert later.weight == pytest.approx(faded * now.weight)
    for edges in now.counts:
        assert later.counts[edges] == pytest.approx(faded * now.counts[edges])
    if now.weight > 1.0:
        then = later.read(n_seen=1.0)
        assert then is not None
        first = now.read(n_seen=1.0)
        assert first is not None
        assert then.n_effective == pytest.approx(first.n_effective)


def test_decay_by_hand() -> None:
    """10 requests now, 10 a time constant ago: weights 1 and 1/e."""
    edges = tuple(map(float, np.geomspace(128, 131_072, 74)))
    counts = [0.0] * 75
    counts[10] = 10.0
    found = tally([Counted(0.0, edges, counts), Counted(TAU_S, edges, counts)], tau_s=TAU_S)
    read = found.read(n_seen=20.0)
    assert read is not None
    assert read.edges == edges, "fine bounds are left as they are"
    assert read.counts[10] == pytest.approx(10 + 10 / math.e, abs=1e-6)
    assert read.n_effective == pytest.approx(10 * (1 + math.exp(-1)) ** 2 / (1 + math.exp(-2)))
    assert read.oldest_s == TAU_S


def test_a_clock_ahead_weighs_no_more_than_now() -> None:
    part = Counted(-20.0, VLLM, (1.0,) * (len(VLLM) + 1))
    assert tally([part], tau_s=TAU_S).weight == pytest.approx(len(VLLM) + 1)


NOTHING = [
    ("no gate", []),
    ("no bounds", [Counted(0.0, (), (5.0,))]),
    ("nothing above one token", [Counted(0.0, (1.0,), (5.0, 5.0))]),
    ("more than anybody serves", [Counted(0.0, (100.0,), (1e300, 5.0))]),
    ("fewer than none", [Counted(0.0, (100.0,), (-1.0, 5.0))]),
    ("not a number", [Counted(0.0, (100.0,), (math.nan, 5.0))]),
    ("no requests", [Counted(0.0, VLLM, (0.0,) * (len(VLLM) + 1))]),
]


@pytest.mark.parametrize(("case", "held"), NOTHING, ids=[c[0] for c in NOTHING])
def test_what_says_nothing_of_lengths_is_unknown_not_empty(case: str, held) -> None:
    assert tally(held, tau_s=TAU_S).read(n_seen=5.0) is None
    assert shifts(held * 2, (1.0,)) == ()


def test_gates_with_other_bounds_are_read_on_the_products_own() -> None:
    fine, coarse = tuple(map(float, TOKEN_EDGES)), (1000.0, 10_000.0, 100_000.0)
    ours = [0.0] * (len(fine) + 1)
    ours[int(np.searchsorted(fine, 9000.0))] = 30.0
    read = merge(
        [
            tally([Counted(0.0, fine, ours)], tau_s=TAU_S),
            tally([Counted(0.0, coarse, (0.0, 10.0, 0.0, 0.0))], tau_s=TAU_S),
        ]
    ).read(n_seen=40.0)
    assert read is not None
    assert read.edges == finer(fine)
    lengths = from_histogram(read)
    assert lengths.cdf([1000.0, 10_000.0]).tolist() == pytest.approx([0.0, 1.0], abs=0.01)
    # The ten are between 1,000 and 10,000, nobody knows where: half of them below some 3,000.
    assert 40 * float(lengths.cdf([3162.0])[0]) == pytest.approx(5.0, abs=1.0)


@pytest.mark.parametrize(
    ("edges", "widest"),
    [(VLLM, 1.5), (tuple(TOKEN_EDGES), 1.1), ((5000.0,), 1.1), ((50.0, 1e300), 1.1)],
    ids=["vLLM", "ours", "one bound", "absurdly far bounds"],
)
def test_no_wide_bucket_is_left_where_length_matters(edges, widest) -> None:
    onto = finer(edges)
    assert set(edges) <= set(onto)
    assert onto == finer(onto), "cutting twice changes nothing"
    assert len(onto) < 130
    ratios = [b / a for a, b in itertools.pairwise(onto) if 128 <= a < 1_048_576]
    assert max(ratios, default=1.0) <= widest + 0.01


def test_a_step_of_the_mix_shows_in_the_spans_that_are_younger() -> None:
    edges = tuple(map(float, TOKEN_EDGES))

    def of(tokens: float, age_s: float) -> Counted:
        counts = [0.0] * (len(edges) + 1)
        counts[int(np.searchsorted(edges, tokens))] = 25.0
        return Counted(age_s, edges, counts)

    held = [of(20_000.0 if age_s > 60 else 2000.0, age_s) for age_s in range(5, 300, 10)]
    found = {shift.span_s: shift for shift in shifts(held, SPANS_S)}
    assert set(found) == set(SPANS_S)
    assert found[60.0].n_recent == 150
    assert math.exp(found[60.0].mean_recent) == pytest.approx(2000.0, rel=0.1)
    assert math.exp(found[60.0].mean_before) == pytest.approx(20_000.0, rel=0.1)
    assert shifts([], SPANS_S) == ()
    assert shifts(held[:1], SPANS_S) == (), "nothing to compare with"
