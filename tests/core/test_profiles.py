"""Prefill curves from points, fits and prefixes; decode steps and the batch that keeps a speed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.model.decode_table import DecodeTable
from routing.core.model.lengths import LogNormalLengths
from routing.core.model.profiles import DecodeProfile, PrefillProfile, ProfileError
from tests.core.cases import mean_below

KNOTS = PrefillProfile.through((1000, 4000, 10_000), (0.2, 0.5, 1.7))
FIT = PrefillProfile.fitted(0.3, 4e-5, 2e-10, range_tokens=(1000, 100_000))

AT = [
    ("first knot", KNOTS, 1000, 0.2, False),
    ("between", KNOTS, 7000, 1.1, False),
    ("last knot", KNOTS, 10_000, 1.7, False),
    ("below, first slope", KNOTS, 500, 0.15, True),
    ("above, last slope", KNOTS, 20_000, 3.7, True),
    ("fit", FIT, 10_000, 0.3 + 0.4 + 0.02, False),
    ("fit beyond", FIT, 200_000, 0.3 + 8.0 + 8.0, True),
    ("fit without a range", PrefillProfile.fitted(0.3, 4e-5, 0.0), 5000, 0.5, True),
]


@pytest.mark.parametrize(("case", "profile", "tokens", "seconds", "beyond"), AT, ids=lambda v: v)
def test_seconds_and_whether_they_were_measured(case, profile, tokens, seconds, beyond) -> None:
    assert float(profile.prefill_s(tokens)) == pytest.approx(seconds)
    assert bool(profile.extrapolated(tokens)) is beyond
    assert profile.prefill_s([tokens, tokens]).shape == (2,)


BAD_FITS = [
    ("negative a", (-0.1, 1e-4, 1e-9), "a ="),
    ("negative b falls", (1.0, -1e-5, 1e-9), "b ="),
    ("negative c falls far out", (1.0, 1e-4, -1e-9), "c ="),
    ("no a", (math.nan, 1e-4, 1e-9), "a ="),
    ("endless c", (1.0, 1e-4, math.inf), "c ="),
    ("free tokens", (1.0, 0.0, 0.0), "no longer"),
]


@pytest.mark.parametrize(("case", "fit", "says"), BAD_FITS, ids=[c for c, _, _ in BAD_FITS])
def test_impossible_coefficients_are_refused_by_name(case, fit, says) -> None:
    with pytest.raises(ProfileError, match=says):
        PrefillProfile.fitted(*fit)


@pytest.mark.parametrize("span", [(0.0, 10.0), (10.0, 10.0), (10.0, math.inf)])
def test_a_range_that_is_none_is_refused(span) -> None:
    with pytest.raises(ProfileError, match="range"):
        PrefillProfile.fitted(0.1, 1e-4, 0.0, range_tokens=span)


costs = st.floats(0.0, 1.0)


@given(costs, st.floats(1e-9, 1e-3), st.floats(0.0, 1e-8), st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_no_profile_gives_time_back(a, b, c, x, y) -> None:
    profile = PrefillProfile.fitted(a, b, c)
    short, long = sorted((x, y))
    gap = float(profile.prefill_s(long) - profile.prefill_s(short))
    assert gap >= -1e-9 * float(profile.prefill_s(long))
    if short >= 1.0:
        assert gap >= profile.least_s_per_token * (long - short) * (1 - 1e-6) - 1e-9


def test_the_least_cost_of_a_token_is_where_the_curve_is_flattest() -> None:
    assert KNOTS.least_s_per_token == pytest.approx(1e-4)
    assert FIT.least_s_per_token == pytest.approx(4e-5, rel=1e-3)
    assert PrefillProfile.through((10, 20, 40), (4, 5, 5.5)).least_s_per_token == pytest.approx(
        0.025
    )


def test_the_mean_over_a_bent_curve_is_exact() -> None:
    lengths = LogNormalLengths(9.0, 1.0, 128, 131_072)
    points = np.exp(np.linspace(math.log(128), math.log(131_072), 400_001))
    share = np.diff(lengths.cdf(points))
    middle = np.sqrt(points[1:] * points[:-1])
    for t in (2000.0, 19_800.0, math.inf):
        summed = float(np.sum((share * FIT.prefill_s(middle))[middle <= t]))
        assert mean_below(lengths, FIT.curve, [t])[0] == pytest.approx(summed, rel=1e-4)


def test_a_cached_prefix_costs_each_token_behind_it() -> None:
    # aiconfigurator, Qwen3-235B on 8 H200: 16,384 tokens behind 49,152 cached ones take 0.922 s.
    alone = PrefillProfile.through((1024, 16_384, 65_536), (0.0495, 0.4886, 2.7716))
    behind = alone.behind_prefix([(49_152, 16_384, 0.9223)])
    assert float(behind.prefill_s(16_384, 49_152)) == pytest.approx(0.9223)
    assert float(behind.prefill_s(16_384)) == pytest.approx(0.4886)
    half = float(behind.prefill_s(16_384, 24_576))
    assert half == pytest.approx((0.9223 + 0.4886) / 2)
    # Less than the whole prompt anew, or caching would not pay.
    assert float(behind.prefill_s(16_384, 49_152)) < float(behind.prefill_s(65_536))


def test_several_prefix_points_are_fitted_together() -> None:
    pair_s = 5e-10
    points = [
        (k, u, float(FIT.prefill_s(u)) + pair_s * k * u) for k in (1e3, 1e5) for u in (1e3, 5e4)
    ]
    assert FIT.behind_prefix(points).pair_s == pytest.approx(pair_s)


BAD_PREFIXES = [
    ("none", [], "at least one"),
    ("faster than without", [(1000, 2000, 0.1)], "less than"),
    ("zero cached", [(0, 2000, 0.9)], "above zero"),
]


@pytest.mark.parametrize(("case", "points", "says"), BAD_PREFIXES, ids=lambda v: str(v)[:20])
def test_an_impossible_prefix_is_refused(case, points, says) -> None:
    with pytest.raises(ProfileError, match=says):
        FIT.behind_prefix(points)


# Step = 5 ms + 0.1 ms a request + 20 ns a KV token, in ragged rows as memory makes them.
def _step_s(batch: float, context: float) -> float:
    return 5e-3 + 1e-4 * batch + 2e-8 * batch * context


TABLE = DecodeTable.of(
    [(b, 8192, _step_s(b, 8192)) for b in (1, 8, 32, 128)]
    + [(b, 32_768, _step_s(b, 32_768)) for b in (1, 8, 32)]
)


@pytest.mark.parametrize("batch", [1, 5, 20, 32])
@pytest.mark.parametrize("context", [8192, 16_384, 20_000, 32_768])
def test_inside_the_table_a_bilinear_step_is_exact(batch, context) -> None:
    assert float(TABLE.step_s(batch, context)) == pytest.approx(_step_s(batch, context))
    assert not TABLE.extrapolated(batch, context)


OUTSIDE = [
    ("more requests than a long context fits", 64, 32_768, _step_s(64, 32_768)),
    ("between rows, beyond the longer one's", 64, 20_480, _step_s(64, 20_480)),
    ("more requests than any", 256, 8192, _step_s(256, 8192)),
    ("longer than any", 8, 65_536, _step_s(8, 65_536)),
    ("shorter than any: held", 8, 1024, _step_s(8, 8192)),
]


@pytest.mark.parametrize(("case", "batch", "context", "step_s"), OUTSIDE, ids=lambda v: str(v)[:30])
def test_outside_the_last_slope_goes_on_and_is_marked(case, batch, context, step_s) -> None:
    assert float(TABLE.step_s(batch, context)) == pytest.approx(step_s)
    assert TABLE.extrapolated(batch, context)


def test_fewer_requests_than_measured_are_held() -> None:
    table = DecodeTable.of([(16, 8192, 0.01), (32, 8192, 0.02)])
    assert float(table.step_s(1, 8192)) == 0.01
    assert table.extrapolated(1, 8192)


CAPS = [
    # context, longest step, KV tokens, the batch: (step - 5 ms) / (0.1 ms + 20 ns a token), or KV
    ("speed binds", 8192, 0.020, None, 56),
    ("speed binds between rows", 16_384, 0.020, None, 35),
    ("all that was measured", 8192, 1.0, None, 128),
    ("KV as measured binds", 32_768, 1.0, None, 32),
    ("KV as measured binds between rows", 16_384, 1.0, None, 64),
    ("KV as known binds", 8192, 1.0, 100_000, 12),
]


@pytest.mark.parametrize(("case", "context", "longest", "kv", "batch"), CAPS, ids=lambda v: str(v))
def test_the_batch_is_the_fastest_that_keeps_speed_and_memory(
    case, context, longest, kv, batch
) -> None:
    decode = TABLE.at(context, longest_step_s=longest, kv_capacity_tokens=kv)
    assert decode.batch == batch
    assert decode.step_s == pytest.approx(_step_s(batch, context))
    assert decode.extrapolated is TABLE.extrapolated(batch, context)
    rate = decode.requests_per_s(1000)
    assert rate == pytest.approx(batch / (_step_s(batch, context) * 1000))


def test_a_step_that_jumps_makes_a_smaller_batch_the_faster_one() -> None:
    table = DecodeTable.of([(8, 8192, 0.010), (9, 8192, 0.030), (20, 8192, 0.031)])
    assert table.at(8192, longest_step_s=0.0305).batch == 8


REFUSED = [
    ("too slow for one", 8192, 0.004, None, "step"),
    ("does not fit", 8192, 1.0, 8000, "does not fit"),
]


@pytest.mark.parametrize(
    ("case", "context", "longest", "kv", "says"), REFUSED, ids=lambda v: str(v)
)
def test_where_not_even_one_request_fits_nothing_is_promised(
    case, context, longest, kv, says
) -> None:
    with pytest.raises(ProfileError, match=says):
        TABLE.at(context, longest_step_s=longest, kv_capacity_tokens=kv)


BAD_TABLES = [
    ("nothing", [], "needs"),
    ("one batch", [(1, 8192, 0.01)], "two batches"),
    ("twice", [(1, 8192, 0.01), (1, 8192, 0.02)], "twice"),
    ("zero", [(0, 8192, 0.01), (1, 8192, 0.02)], "above zero"),
    ("no batch", [(1, 8192, 0.02), (1e15, 8192, 0.03)], "more than 65,536"),
    ("falls with batch", [(1, 8192, 0.02), (4, 8192, 0.01)], "between batch 1 and 4"),
    (
        "falls with context",
        [(1, 8192, 0.02), (4, 8192, 0.03), (1, 9000, 0.01), (4, 9000, 0.04)],
        "between context 8192 and 9000",
    ),
]


@pytest.mark.parametrize(("case", "rows", "says"), BAD_TABLES, ids=lambda v: str(v)[:18])
def test_a_table_no_hardware_has_is_refused(case, rows, says) -> None:
    with pytest.raises(ProfileError, match=says):
        DecodeTable.of(rows)


@given(
    st.lists(st.floats(1e-4, 1e-2), min_size=9, max_size=9),
    st.floats(1, 400),
    st.floats(1, 400),
    st.floats(500, 200_000),
    st.floats(500, 200_000),
)
def test_more_requests_or_longer_ones_are_never_faster(rises, x, y, u, v) -> None:
    steps = np.cumsum(np.array(rises).reshape(3, 3), axis=0).cumsum(axis=1)
    table = DecodeTable.of(
        [
            (b, c, steps[i, j])
            for i, b in enumerate((1, 16, 64))
            for j, c in enumerate((1e3, 8e3, 1e5))
        ]
    )
    (few, many), (short, long) = sorted((x, y)), sorted((u, v))
    assert table.step_s(few, short) <= table.step_s(many, short) + 1e-12
    assert table.step_s(few, short) <= table.step_s(few, long) + 1e-12


def test_a_constant_step_is_what_it_was() -> None:
    # Table 6: 5 instances of 20 requests at 25 ms a step carry 3.91 requests/s of 1,024 tokens.
    assert 5 * DecodeProfile(20, 0.025).requests_per_s(1024) == pytest.approx(3.906, abs=5e-4)
