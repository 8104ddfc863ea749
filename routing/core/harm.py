"""Did a plan do harm? What gates counted before it is held against what they counted after it.

Three findings count, each beyond what chance and other load would do:

* TTFT: the 90th percentile rose to `TTFT_RATIO` of what it was, by at least `LEAST_TTFT_S`, and so
  many more requests lie above the old one that under an unchanged distribution, of n requests,

      (above / n - 0.1) >= SIGMAS * sqrt(0.1 * 0.9 / n)                  (binomial, normal limit)

* errors: their share rose by `ERROR_RATIO`, with the pooled two-proportion z of at least `SIGMAS`;
* the split: the remote share went past what was predicted by `SPLIT_RATIO`, or away from it. One
  that stays where it was is no harm; `effect` warns of it.

Requests that queue behind each other are late together, which both tests above take for many that
agree. So what rose must have risen for as long as one looked: a larger share of late requests in
every block of `BLOCK_S` than in any before the plan, of errors in most of them. If the plan did
nothing, six blocks lie so above six others once in 924 times. What rose otherwise is unknown.

Where there is more to do, in requests a second or in tokens a request by more than `LOAD_RATIO`,
slower requests prove nothing. Nor do they where the model says that the plan before could not carry
the load there is now either (`LEAST_HEADROOM`): queues grow then whatever is done. Too few requests
on either side: unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["good", "harm", "unknown"]

LEAST_REQUESTS = 100
TTFT_RATIO, LEAST_TTFT_S = 1.5, 0.2
ERROR_RATIO = 0.02
SPLIT_RATIO = 0.2
LOAD_RATIO = 1.25
LEAST_HEADROOM = 1.1
SIGMAS = 4.0
BLOCK_S, LEAST_BLOCKS, LEAST_IN_BLOCK = 30.0, 4, 10
TAIL = 0.1
"""Above the 90th percentile lies this share."""


@dataclass(frozen=True)
class Block:
    """What gates counted in `BLOCK_S` of the time; `counts` as in Counted."""

    requests: float = 0.0
    errors: float = 0.0
    counts: tuple[float, ...] = ()


@dataclass(frozen=True)
class Counted:
    """What a cluster's gates counted in `elapsed_s`; None where they do not tell.

    `requests` arrived with `tokens` in their prompts, of them `remote` went there and `errors`
    failed. TTFT is a histogram: `edges` shape (n,), upper bounds in seconds, `counts` (n + 1,).
    """

    elapsed_s: float
    requests: float
    remote: float
    errors: float | None = None
    tokens: float | None = None
    edges: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Figures:
    """One side of the comparison in numbers for people; None where not measured."""

    requests: float
    rate_rps: float | None
    mean_tokens: float | None
    ttft_p90_s: float | None
    error_ratio: float | None
    remote_ratio: float | None


@dataclass(frozen=True)
class Evidence:
    """The judgement on one cluster with what it rests on; `text` is a sentence without subject."""

    outcome: Outcome
    text: str
    before: Figures
    after: Figures
    expected_remote_ratio: float | None = None


def judge(
    before: Counted,
    after: Counted,
    *,
    expected_remote_ratio: float | None,
    headroom_before: float | None = None,
) -> Evidence:
    """The evidence for one cluster. `expected_remote_ratio` is the plan's own prediction,
    `headroom_before` the model's of the plan before it, None where it had none."""
    was, now = _figures(before), _figures(after)

    def found(outcome: Outcome, text: str) -> Evidence:
        return Evidence(outcome, text, was, now, expected_remote_ratio)

    if min(before.requests, after.requests) < LEAST_REQUESTS:
        return found(
            "unknown",
            f"{before.requests:.0f} requests before and {after.requests:.0f} after it are too few "
            f"of {LEAST_REQUESTS}",
        )
    more_to_do = _busier(was, now) or _was_full(headroom_before, was, now)
    errors, slower = _errors(before, after, was, now), _slower(before, after, was, now)
    harms = [
        text
        for text, is_proven in (
            (errors, _failed_throughout(before, after)),
            (_split(was, now, expected_remote_ratio), True),
            (slower, not more_to_do and _late_throughout(before, after, was)),
        )
        if text and is_proven
    ]
    if harms:
        return found("harm", "; ".join(harms))
    if errors or (slower and not more_to_do):
        rose = "; ".join(text for text in (errors, slower) if text)
        return found("unknown", f"{rose}, but not for as long as was looked")
    if was.ttft_p90_s is None or now.ttft_p90_s is None:
        return found("unknown", "no gate tells the time to first token")
    if more_to_do:
        return found("unknown", more_to_do)
    return found("good", f"TTFT p90 {was.ttft_p90_s:.3g} s before, {now.ttft_p90_s:.3g} s after")


def together(evidence: Sequence[Evidence]) -> Outcome:
    """Of a plan: one cluster harmed is harm; unknown anywhere is no proof that it is good."""
    outcomes = {one.outcome for one in evidence}
    if "harm" in outcomes:
        return "harm"
    return "good" if outcomes == {"good"} else "unknown"


def _figures(counted: Counted) -> Figures:
    n = counted.requests
    return Figures(
        requests=n,
        rate_rps=n / counted.elapsed_s if counted.elapsed_s > 0 else None,
        mean_tokens=None if counted.tokens is None or n <= 0 else counted.tokens / n,
        ttft_p90_s=quantile(counted.edges, counted.counts, 1.0 - TAIL),
        error_ratio=None if counted.errors is None or n <= 0 else counted.errors / n,
        remote_ratio=counted.remote / n if n > 0 else None,
    )


def _was_full(headroom: float | None, was: Figures, now: Figures) -> str:
    """Would the plan before it be full by the work there is now, in tokens a second?"""
    grew = 1.0
    for before, after in ((was.rate_rps, now.rate_rps), (was.mean_tokens, now.mean_tokens)):
        if before and after:
            grew *= after / before
    if headroom is None or headroom / max(grew, 1.0) >= LEAST_HEADROOM:
        return ""
    more = f" and there is {grew:.2f} times as much to do" if grew > 1.0 else ""
    return f"the plan before it had headroom {headroom:.2f}{more}: queues grow whatever is done"


def _busier(was: Figures, now: Figures) -> str:
    """What there is more to do by, in words; empty if not."""
    for name, unit, before, after in (
        ("the rate", " requests/s", was.rate_rps, now.rate_rps),
        ("the mean prompt", " tokens", was.mean_tokens, now.mean_tokens),
    ):
        if before is not None and after is not None and after > LOAD_RATIO * before:
            return f"{name} rose from {before:.3g} to {after:.3g}{unit}"
    return ""


def _errors(before: Counted, after: Counted, was: Figures, now: Figures) -> str:
    if was.error_ratio is None or now.error_ratio is None:
        return ""
    gained = now.error_ratio - was.error_ratio
    n, m = before.requests, after.requests
    pooled = ((before.errors or 0.0) + (after.errors or 0.0)) / (n + m)
    sd = math.sqrt(max(pooled * (1.0 - pooled), 0.0) * (1 / n + 1 / m))
    if gained < ERROR_RATIO or gained < SIGMAS * sd:
        return ""
    return f"errors rose from {was.error_ratio:.1%} to {now.error_ratio:.1%} of requests"


def _split(was: Figures, now: Figures, expected: float | None) -> str:
    if expected is None or was.remote_ratio is None or now.remote_ratio is None:
        return ""
    wanted, came = expected - was.remote_ratio, now.remote_ratio - was.remote_ratio
    past = came - wanted if wanted >= 0 else wanted - came
    away = -came if wanted >= 0 else came
    if max(past, away) < SPLIT_RATIO:
        return ""
    return (
        f"{now.remote_ratio:.0%} of requests are remote after {was.remote_ratio:.0%} before it, "
        f"where {expected:.0%} were predicted"
    )


def _slower(before: Counted, after: Counted, was: Figures, now: Figures) -> str:
    if was.ttft_p90_s is None or now.ttft_p90_s is None:
        return ""
    n = math.fsum(after.counts)
    if min(n, math.fsum(before.counts)) < LEAST_REQUESTS:
        return ""
    rose_s = now.ttft_p90_s - was.ttft_p90_s
    if rose_s < max(LEAST_TTFT_S, (TTFT_RATIO - 1.0) * was.ttft_p90_s):
        return ""
    above = _above(after.edges, after.counts, was.ttft_p90_s) / n
    if above - TAIL < SIGMAS * math.sqrt(TAIL * (1.0 - TAIL) / n):
        return ""
    return f"TTFT p90 rose from {was.ttft_p90_s:.3g} s to {now.ttft_p90_s:.3g} s"


def _late_throughout(before: Counted, after: Counted, was: Figures) -> bool:
    def late(counted: Counted) -> list[float]:
        limit_s = was.ttft_p90_s or 0.0
        return [
            _above(counted.edges, block.counts, limit_s) / n
            for block in counted.blocks
            if block.counts and (n := math.fsum(block.counts)) >= LEAST_IN_BLOCK
        ]

    then, since = late(before), late(after)
    return min(len(then), len(since)) >= LEAST_BLOCKS and min(since) > max(then)


def _failed_throughout(before: Counted, after: Counted) -> bool:
    def failed(counted: Counted) -> list[float]:
        return [
            block.errors / block.requests
            for block in counted.blocks
            if block.requests >= LEAST_IN_BLOCK
        ]

    then, since = failed(before), failed(after)
    if min(len(then), len(since)) < LEAST_BLOCKS:
        return False
    return sum(share > max(then) for share in since) > len(since) / 2


def quantile(edges: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the observations lie, linear inside a bucket.

    None without observations, and its last edge where it lies above that.
    """
    n = math.fsum(counts)
    if n <= 0 or not edges:
        return None
    target, seen, low = share * n, 0.0, 0.0
    for edge, count in zip(edges, counts, strict=False):
        if count > 0 and seen + count >= target:
            return low + (edge - low) * (target - seen) / count
        seen, low = seen + count, edge
    return edges[-1]


def _above(edges: Sequence[float], counts: Sequence[float], value: float) -> float:
    """How many observations are larger, linear inside a bucket."""
    above, low = 0.0, 0.0
    for edge, count in zip(edges, counts, strict=False):
        if edge > value:
            above += count * (edge - max(value, low)) / (edge - low)
        low = edge
    return above + counts[-1]
