"""Lengths, profiles, work and the optimiser against independent arithmetic."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.model import fleetmodel
from routing.core.model.curves import Array, Curve
from routing.core.model.kvcache import KvModel, KvWindow, bytes_per_s, gbps
from routing.core.model.lengths import (
    BucketLengths,
    LogNormalLengths,
    from_histogram,
    usable,
)
from routing.core.model.optimize import Freedom, optimise
from routing.core.model.profiles import DecodeProfile, PrefillProfile, Profile, ProfileError
from routing.core.model.site_work import Remote, Site, SiteWork
from routing.core.model.throughput import FleetModel, Setting, predict
from routing.core.types import LengthHistogram
from tests.core.cases import (
    TRUE_LENGTHS,
    WIRE_EDGES,
    demo_model,
    demo_scenario,
    exact_histogram,
    mean_below,
)

H200 = PrefillProfile.through(
    (1024, 8192, 27486, 45046, 62410, 131072), (0.44, 0.72, 1.63265, 2.48447, 3.51, 7.4)
)
H20 = PrefillProfile.through((10224, 27486, 62410), (1.829, 4.265, 9.73))


def test_kv_bytes_and_rates() -> None:
    kv = KvModel(17280, 182347366)
    assert kv.kv_bytes(32768) / 2**20 == pytest.approx(713.9, abs=0.1)
    assert gbps(bytes_per_s(5.8)) == pytest.approx(5.8)


@pytest.mark.parametrize(
    ("tokens", "seconds", "extrapolated"),
    [(1024, 0.44, False), (512, 0.42, True), (27486, 1.63265, False), (200_000, 11.3, True)],
)
def test_prefill_is_linear_between_knots_and_marked_beyond(tokens, seconds, extrapolated) -> None:
    assert float(H200.prefill_s(tokens)) == pytest.approx(seconds, rel=0.01)
    assert bool(H200.extrapolated(tokens)) is extrapolated


BAD_PROFILES = [
    ("one knot", (1000.0,), (1.0,), "two"),
    ("tokens fall", (2000.0, 1000.0), (1.0, 2.0), "tokens must rise"),
    ("seconds fall", (1000.0, 2000.0), (2.0, 1.0), "seconds must not fall"),
    ("free short prompts", (1000.0, 2000.0), (1.0, 3.0), "at 0 tokens"),
    ("zero seconds", (1000.0, 2000.0), (0.0, 3.0), "above zero"),
]


@pytest.mark.parametrize(
    ("case", "tokens", "seconds", "says"), BAD_PROFILES, ids=lambda v: str(v)[:18]
)
def test_a_profile_no_hardware_has_is_refused(case, tokens, seconds, says) -> None:
    with pytest.raises(ProfileError, match=says):
        PrefillProfile.through(tokens, seconds)


def test_the_log_normal_agrees_with_its_samples() -> None:
    rng = np.random.default_rng(1)
    drawn = np.exp(rng.normal(9.9, 1.0, 400_000))
    drawn = drawn[(drawn >= 128) & (drawn <= 131_072)]
    for t in (5_000, 19_800, 60_000):
        below = drawn[drawn <= t]
        assert TRUE_LENGTHS.cdf([t])[0] == pytest.approx(len(below) / len(drawn), abs=0.003)
        seconds = float(np.sum(H20.prefill_s(below))) / len(drawn)
        assert mean_below(TRUE_LENGTHS, H20.curve, [t])[0] == pytest.approx(seconds, rel=0.01)


def test_buckets_know_the_mean_work_as_well_as_the_distribution() -> None:
    buckets = from_histogram(exact_histogram())
    for t in (5_000, 19_800, 60_000, math.inf):
        exact = mean_below(TRUE_LENGTHS, H20.curve, [t])[0]
        assert mean_below(buckets, H20.curve, [t])[0] == pytest.approx(exact, rel=0.005)


BROKEN = [
    ("no edges", LengthHistogram((), (1.0,), 1, 1)),
    ("no weight", LengthHistogram((1.0, 2.0), (0.0, 0.0, 0.0), 1, 1)),
    ("negative", LengthHistogram((1.0, 2.0), (1.0, -1.0, 3.0), 1, 1)),
    ("wrong shape", LengthHistogram((1.0, 2.0), (1.0, 1.0), 1, 1)),
    ("edges fall", LengthHistogram((2.0, 1.0), (1.0, 1.0, 1.0), 1, 1)),
    ("edge of zero", LengthHistogram((0.0, 1.0), (1.0, 1.0, 1.0), 1, 1)),
    ("nobody", LengthHistogram((1.0, 2.0), (1.0, 1.0, 1.0), 0, 1)),
]


@pytest.mark.parametrize(("case", "histogram"), BROKEN, ids=lambda v: str(v)[:14])
def test_a_histogram_that_says_nothing_is_not_used(case, histogram) -> None:
    assert not usable(histogram)


def test_no_histogram_is_not_used() -> None:
    assert not usable(None)
    assert usable(exact_histogram())


weights = st.lists(st.floats(0.0, 100.0), min_size=8, max_size=8).filter(lambda w: sum(w) > 1.0)
BUCKET_EDGES = np.geomspace(256, 65_536, 9)


def site_of(bucket_weights: list[float]) -> Site:
    shares = np.array(bucket_weights)
    site = demo_model().sites[0]
    return dataclasses.replace(site, lengths=BucketLengths(BUCKET_EDGES, shares / shares.sum()))


@given(weights)
@settings(max_examples=40, deadline=None)
def test_work_is_monotone_in_t(bucket_weights) -> None:
    grid = np.geomspace(100, 100_000, 200)
    for method in ("exact", "paper"):
        each = SiteWork(demo_model().kv, site_of(bucket_weights), method)
        done = [each.at(t) for t in grid]
        # The paper's one-length-per-class work bends with the profile but never turns.
        assert np.all(np.diff([work.local_s for work in done]) >= -1e-9)
        assert np.all(np.diff([work.remote_fraction for work in done]) <= 1e-12)
        assert np.all(np.diff([work.kv_bytes for work in done]) <= 1e-3)
        if method == "exact":
            assert np.all(np.diff([work.remote_s["prfaas"] for work in done]) <= 1e-9)


BENT = Curve((9_000.0,), (0.1, 1.2), (1e-5, 0.0), (2e-9, 1e-9))


@given(weights, st.floats(1.0, 2e5))
@settings(max_examples=60, deadline=None)
def test_one_t_at_a_time_says_what_many_at_once_say(bucket_weights, t) -> None:
    for lengths in (site_of(bucket_weights).lengths, TRUE_LENGTHS):
        mass, tokens, squares = lengths.at(t)
        assert mass == pytest.approx(lengths.cdf([t])[0], abs=1e-12)
        assert tokens == pytest.approx(lengths.tokens_below([t])[0], abs=1e-6)
        assert squares == pytest.approx(lengths.squares_below([t])[0], rel=1e-9, abs=1e-3)
        site = dataclasses.replace(demo_model().sites[0], lengths=lengths)
        done = SiteWork(KvModel(17280, 1e6, (KvWindow(4096, 500.0),)), site, "exact").at(t)
        seconds = mean_below(lengths, H20.curve, [t])[0]
        assert done.local_s == pytest.approx(seconds, rel=1e-9, abs=1e-12)
        # A curve that bends, by quadrature.
        xs = np.geomspace(1.0, t, 40_001)
        middle, mass = 0.5 * (xs[1:] + xs[:-1]), np.diff(lengths.cdf(xs))
        by_hand = float(BENT.value(middle) @ mass)
        assert mean_below(lengths, BENT, [t])[0] == pytest.approx(by_hand, rel=1e-3, abs=1e-9)


@given(
    weights,
    st.floats(1.0, 200.0),
    st.integers(1, 7),
    st.integers(1, 12),
)
@settings(max_examples=15, deadline=None)
def test_best_t_equals_brute_force(bucket_weights, link, n_prefill, n_remote) -> None:
    model = demo_model()
    model = FleetModel(
        model.kv, (site_of(bucket_weights),), {"prfaas": float(n_remote)}, {"prfaas->pd": link}
    )
    free = {"pd": Freedom.of_threshold(512, 65_536, n_prefill=n_prefill, n_decode=8 - n_prefill)}
    best = optimise(model, free)
    grid = np.arange(512.0, 65_537.0)
    lengths = model.sites[0].lengths

    def above(curve: Curve) -> Array:
        return mean_below(lengths, curve, [np.inf]) - mean_below(lengths, curve, grid)

    with np.errstate(all="ignore"):
        rates = np.min(
            [
                n_prefill / mean_below(lengths, H20.curve, grid),
                n_remote / np.maximum(above(H200.curve), 1e-15),
                bytes_per_s(link) / np.maximum(above(model.kv.curve), 1e-6),
                np.full_like(grid, (8 - n_prefill) / model.sites[0].decode_s),
            ],
            axis=0,
        )
    assert best.prediction.lambda_max_rps == pytest.approx(rates.max(), rel=1e-8)
    # Ties fall to the highest t: the least traffic on the link.
    ties = grid[rates >= rates.max() * (1 - 1e-10)]
    assert best.settings["pd"].threshold >= ties[-1]


def test_free_roles_equal_a_search_over_every_split() -> None:
    for link in (3.0, 5.8, 9.0, 100.0):
        model = demo_model(gbps=link)
        free = optimise(model, {"pd": Freedom(512, 131_072, 8, 1, 7)})
        each = [
            optimise(
                model, {"pd": Freedom.of_threshold(512, 131_072, n_prefill=n, n_decode=8 - n)}
            ).prediction.lambda_max_rps
            for n in range(1, 8)
        ]
        assert free.prediction.lambda_max_rps == pytest.approx(max(each), rel=1e-6)


def test_a_target_of_headroom_is_reached_with_the_least_remote_traffic() -> None:
    freedom = {"pd": Freedom.of_threshold(512, 131_072, n_prefill=3, n_decode=5)}
    model = demo_model()
    site = dataclasses.replace(model.sites[0], demand_rps=2.0)
    model = dataclasses.replace(model, sites=(site,))
    most, least = optimise(model, freedom), optimise(model, freedom, headroom_target=1.2)
    assert least.prediction.headroom == pytest.approx(1.2, rel=1e-3)
    assert least.settings["pd"].threshold > most.settings["pd"].threshold
    unreachable = optimise(model, freedom, headroom_target=9.0)
    assert unreachable.settings == most.settings


def test_the_prediction_says_what_limits() -> None:
    told = predict(demo_model(), {"pd": Setting(4000, 3, 5)})
    assert told.bottleneck == "remote_prefill:prfaas"
    by_name = {stage.name: stage for stage in told.stages}
    assert set(by_name) == {
        *("local_prefill:pd", "decode:pd", "remote_prefill:prfaas", "link:prfaas->pd"),
    }
    assert by_name["decode:pd"].capacity_rps == pytest.approx(3.906, rel=1e-3)
    assert by_name["decode:pd"].utilisation_ratio == pytest.approx(3.0 / 3.906, rel=1e-3)
    assert told.headroom == pytest.approx(told.lambda_max_rps / 3.0)
    shares = told.link_utilisation_ratio["prfaas->pd"]
    assert shares == pytest.approx(told.link_gbps["prfaas->pd"] / 100.0)


def test_always_local_uses_no_link() -> None:
    told = predict(demo_model(), {"pd": Setting(math.inf, 3, 5)})
    assert told.remote_fraction == 0.0
    assert told.link_gbps["prfaas->pd"] == 0.0
    assert {stage.name for stage in told.stages} == {"local_prefill:pd", "decode:pd"}


def test_remote_traffic_is_shared_by_what_each_side_takes() -> None:
    profile = Profile("h20", H20, DecodeProfile(20, 0.025), {})
    site = Site(
        "pd",
        3.0,
        TRUE_LENGTHS,
        1024,
        profile,
        (Remote("a", "a->pd", H200, 0.75), Remote("b", "b->pd", H20, 0.25)),
    )
    model = FleetModel(
        KvModel(17280, 182347366), (site,), {"a": 4.0, "b": 4.0}, {"a->pd": 100.0, "b->pd": 100.0}
    )
    told = predict(model, {"pd": Setting(19_800, 3, 5)}).link_gbps
    assert told["a->pd"] == pytest.approx(3 * told["b->pd"])
    told = predict(model, {"pd": Setting(19_800, 3, 5, {"a": 0.5, "b": 0.5})}).link_gbps
    assert told["a->pd"] == pytest.approx(told["b->pd"])
    shares = fleetmodel.weights(demo_scenario(), list(demo_scenario().links))
    assert shares == {"prfaas": 1.0}


def test_wire_edges_are_those_of_the_contract() -> None:
    inner = WIRE_EDGES[:-1]
    assert inner[0] == pytest.approx(128)
    assert inner[-1] == pytest.approx(131_072)
    assert max(inner[1:] / inner[:-1]) <= 1.1


def test_a_truncation_that_keeps_nothing_has_no_mass() -> None:
    assert LogNormalLengths(2.0, 0.1, 10_000, 20_000).mass == 0.0
