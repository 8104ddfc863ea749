"""A prefill profile from live telemetry: robust fit of T(l) = a + b l + c l^2, none negative.

A row is what one instance prefilled over some span: n requests with l_1 .. l_n uncached tokens in
y seconds of prefill altogether. Of one request it is a plain pair (l, y); of a histogram's growth,
counts and sums. The model is linear in the sums,

    y = a n + b sum(l) + c sum(l^2)

and its noise is relative (a busy instance is slow by a factor, not by seconds), so rows are weighed
by n / T^2. Requests that waited behind others, were preempted or hit a cold kernel are no noise but
another thing; Tukey's biweight gives rows further than 4.685 robust deviations from the fit no
weight (Huber, Robust Statistics, ch. 7; the constant keeps 95 % efficiency on normal noise). It
starts from medians over bins of equal weight, which up to half the rows of a bin cannot carry away.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from routing.core.model.curves import Array
from routing.core.model.profiles import MAX_PROMPT_TOKENS, PrefillProfile

_MIN_ROWS = 60
"""Twenty rows a coefficient, six a bin. With 8 % noise and 30 % wild rows the fit of so few is off
by 5 % at its worst length in the median case."""
_MIN_SPREAD = 4.0
"""Longest over shortest length (95th over 5th percentile). Below it a and b tell the same story. At
a ratio of 4, with 60 rows and 10 % noise, ten times shorter and four times longer prompts than any
seen are still told to 10 % (median); at 2 only to 16 %."""
_MOST_WILD = 0.4
"""Share of rows without weight at which the fit is no longer of most of them."""
_MOST_SPREAD = 0.5
"""Relative deviation of what is left above which length does not explain the time."""
_BINS = 10
_TUKEY = 4.685
_MAD_TO_SIGMA = 1.4826
_LEAST_SIGMA = 1e-3
"""Finest relative deviation believed: engines stamp milliseconds."""
_ROUNDS = 50
_SETTLED = 1e-9
_LEAST_S, _MOST_S = 1e-6, 3600.0
"""Prefill seconds a request, below and above which a row is of a broken clock."""
_MOST_REQUESTS = 1e9
"""Of one row: more is a broken counter."""


@dataclass(frozen=True)
class PrefillRows:
    """What was seen, arrays of shape (n_rows,). `started_at_s`: of the instance, its restart or its
    last change of role, epoch seconds, NaN where nobody knows; `at_s`: when the row's span began.
    """

    requests: Array
    tokens: Array
    """Sum of uncached tokens."""
    tokens_squared: Array
    seconds: Array
    """Sum of prefill seconds."""
    at_s: Array
    started_at_s: Array

    def __post_init__(self) -> None:
        shapes = {np.shape(getattr(self, name)) for name in self.__dataclass_fields__}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise ValueError(f"rows must be arrays of one length, not of shapes {shapes}")

    def only(self, keep: NDArray[np.bool_]) -> PrefillRows:
        return PrefillRows(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Fit:
    """`constant_s`, `linear_s`, `square_s` are a, b, c; one that is 0 was not seen to cost.

    `n_wild` rows were given no weight; of the rest are `range_tokens`, their mean lengths, and
    `spread_ratio`, the robust relative standard deviation of one request's time around the fit.
    """

    constant_s: float
    linear_s: float
    square_s: float
    range_tokens: tuple[float, float]
    n_requests: float
    n_rows: int
    n_wild: int
    n_warm_up: int
    n_unusable: int
    spread_ratio: float
    measured_from_s: float
    measured_until_s: float

    def profile(self) -> PrefillProfile:
        return PrefillProfile.fitted(
            self.constant_s, self.linear_s, self.square_s, range_tokens=self.range_tokens
        )


@dataclass(frozen=True)
class Refusal:
    """Why there is no fit: a CamelCase reason and a sentence."""

    reason: str
    message: str


def fit_prefill(rows: PrefillRows, *, warmup_s: float) -> Fit | Refusal:
    """The fit, or why there can be none.

    Rows that began within `warmup_s` of the instance's start say how it warms up, and count no
    more than those of an instance whose start nobody knows.
    """
    usable = _usable(rows)
    warm = rows.at_s >= rows.started_at_s + warmup_s  # False for NaN
    kept = rows.only(usable & warm)
    n_rows = len(kept.requests)
    n_unusable, n_warm_up = int(np.sum(~usable)), int(np.sum(usable & ~warm))
    if n_rows < _MIN_ROWS:
        return Refusal(
            "TooFewRows",
            f"{n_rows} rows of {len(rows.requests)} can be used and {_MIN_ROWS} are needed: "
            f"{n_warm_up} fall in a warm-up, {n_unusable} hold no possible prefill",
        )
    lengths = kept.tokens / kept.requests
    if (alike := _alike(lengths)) is not None:
        return alike
    # Per request: one noise whatever the span of a row. Scaled, for the powers of l are far apart.
    scale = lengths.max() ** np.arange(3)
    powers = np.stack([kept.requests, kept.tokens, kept.tokens_squared], axis=1)
    design = powers / kept.requests[:, None] / scale  # (n_rows, 3)
    seconds = kept.seconds / kept.requests
    found = _robust(design, seconds, kept.requests)
    if isinstance(found, Refusal):
        return found
    coefficients, sigma, carried = found
    n_wild = int(np.sum(~carried))
    if n_wild > _MOST_WILD * n_rows:
        return Refusal("TooManyWild", f"{n_wild} of {n_rows} rows lie far from any one curve")
    if (alike := _alike(lengths[carried])) is not None:
        return alike
    if sigma > _MOST_SPREAD:
        return Refusal("NoRelation", f"times spread by {sigma:.0%} around what length explains")
    expected = design[carried] @ coefficients
    deviation = (seconds[carried] / expected - 1.0) * np.sqrt(kept.requests[carried])
    constant_s, linear_s, square_s = (coefficients / scale).tolist()
    if linear_s == 0.0 and square_s == 0.0:
        return Refusal("NoRelation", "longer prompts took no longer")
    return Fit(
        constant_s=constant_s,
        linear_s=linear_s,
        square_s=square_s,
        range_tokens=(float(lengths[carried].min()), float(lengths[carried].max())),
        n_requests=float(kept.requests[carried].sum()),
        n_rows=n_rows,
        n_wild=n_wild,
        n_warm_up=n_warm_up,
        n_unusable=n_unusable,
        spread_ratio=_sigma(deviation),
        measured_from_s=float(kept.at_s.min()),
        measured_until_s=float(kept.at_s.max()),
    )


def _alike(lengths: Array) -> Refusal | None:
    short, long = np.percentile(lengths, [5, 95])
    if long >= _MIN_SPREAD * short:
        return None
    return Refusal(
        "TooLittleSpread",
        f"lengths from {short:.0f} to {long:.0f} tokens do not tell a fixed cost from one per "
        f"token: the longest must be {_MIN_SPREAD:g} times the shortest",
    )


def _usable(rows: PrefillRows) -> NDArray[np.bool_]:
    """Rows that some prefill can have left; sums obey Cauchy-Schwarz, (sum l)^2 <= n sum l^2."""
    n, tokens, squared, seconds = rows.requests, rows.tokens, rows.tokens_squared, rows.seconds
    finite = np.all(np.isfinite([n, tokens, squared, seconds, rows.at_s]), axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        possible: NDArray[np.bool_] = (
            finite
            & (n >= 1.0)
            & (n <= _MOST_REQUESTS)
            & (tokens >= n)
            & (tokens <= n * MAX_PROMPT_TOKENS)
            & (squared <= tokens * MAX_PROMPT_TOKENS)
            & (tokens * tokens <= n * squared * (1.0 + 1e-9))
            & (seconds >= n * _LEAST_S)
            & (seconds <= n * _MOST_S)
        )
    return possible


def _robust(
    design: Array, seconds: Array, requests: Array
) -> tuple[Array, float, NDArray[np.bool_]] | Refusal:
    """Coefficients, relative deviation of one request over all rows, and which rows carry them."""
    coefficients = _start(design, seconds)
    sigma, tukey = 0.0, np.ones_like(seconds)
    for _ in range(_ROUNDS):
        expected = design @ coefficients
        if not np.all(expected > 0):
            return Refusal("NoRelation", "some prompts would take no time")
        deviation = (seconds / expected - 1.0) * np.sqrt(requests)
        sigma = _sigma(deviation)
        reach = np.minimum(np.abs(deviation) / (_TUKEY * sigma), 1.0)
        tukey = (1.0 - reach**2) ** 2
        before = coefficients
        coefficients = _nonnegative(design, seconds, tukey * requests / expected**2)
        if np.all(np.abs(coefficients - before) <= _SETTLED * before.sum()):
            break
    return coefficients, sigma, tukey > 0


def _sigma(deviation: Array) -> float:
    return max(_LEAST_SIGMA, _MAD_TO_SIGMA * float(np.median(np.abs(deviation))))


def _start(design: Array, seconds: Array) -> Array:
    """A fit of medians: rows in bins by length, of each bin the median row and median time."""
    order = np.argsort(design[:, 1], kind="stable")
    bins = np.array_split(order, _BINS)
    middle = np.array([np.median(design[rows], axis=0) for rows in bins])
    median_s = np.array([np.median(seconds[rows]) for rows in bins])
    return _nonnegative(middle, median_s, 1.0 / median_s**2)


def _nonnegative(design: Array, seconds: Array, weights: Array) -> Array:
    """Weighted least squares over coefficients of at least 0, shape (3,).

    The constrained best is the free best of some of the columns, so of three columns all seven
    choices are tried; a negative coefficient is never clipped.
    """
    root = np.sqrt(weights)
    weighted, target = design * root[:, None], seconds * root
    best, least = np.zeros(3), np.inf
    for size in (3, 2, 1):
        for columns in combinations(range(3), size):
            free = np.linalg.lstsq(weighted[:, columns], target, rcond=None)[0]
            if np.all(free >= 0):
                rest = float(np.sum((weighted[:, columns] @ free - target) ** 2))
                if rest < least:
                    best, least = np.zeros(3), rest
                    best[list(columns)] = free
    return best
