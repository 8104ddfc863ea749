"""How large a prefix cache is worth having: of a trace's prompts, the share each size serves.

One cache of a whole cluster, least recently used blocks out first, every request through it in the
order of the trace and none of them waiting: what a size can serve, not what a fleet with queues
does serve. The first half of the requests fills the cache and the second half is counted, as
kvcache-simulator counts. Only full blocks are reused, so the last, partly filled one never counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from routing.core.scenario.tables import ScenarioError
from routing.twin.cache import PrefixCache
from routing.twin.requests import Blocks
from routing.twin.trace_rows import TraceError
from routing.twin.traces import Trace

MOST_REQUESTS = 100_000
"""Of a trace, from its beginning: more would keep a page waiting and hardly move the curve."""
N_CAPACITIES = 12
_DECADES = 3


@dataclass(frozen=True)
class BudgetPoint:
    """A cache of `capacity_tokens` serves `hit_ratio` of the counted prompt tokens."""

    capacity_tokens: float
    hit_ratio: float


@dataclass(frozen=True)
class BudgetCurve:
    """`points` in the order their capacities were given; `unbounded_ratio` of a cache that forgets
    nothing, which has `working_set_tokens` in the end.

    Of the trace's `n_requests` the first `n_used` were looked at, and the last `n_counted` of these
    counted; their prompts have `mean_prompt_tokens`.
    """

    points: tuple[BudgetPoint, ...]
    unbounded_ratio: float
    working_set_tokens: int
    n_requests: int
    n_used: int
    n_counted: int
    mean_prompt_tokens: float


def budget_curve(
    trace: Trace,
    capacities_tokens: Sequence[float],
    *,
    exact_state: bool,
    most_requests: int = MOST_REQUESTS,
) -> BudgetCurve:
    """`exact_state` as in PrefixCache: the model has linear layers, whose state serves a prefix of
    exactly its length only.

    Raises TraceError for a trace without prefixes, ScenarioError for a capacity that is no positive
    number. A capacity below one block holds nothing.
    """
    blocks, size = _blocks(trace, most_requests)
    for each in capacities_tokens:
        if not (math.isfinite(each) and each > 0):
            raise ScenarioError("capacities_tokens", each, "must be a positive number of tokens")
    first = len(blocks) // 2
    counted = trace.prompt_tokens[first : len(blocks)]
    tokens = int(counted.sum())

    def ratio(capacity_blocks: int | None) -> float:
        cache = PrefixCache(capacity_blocks=capacity_blocks, exact_state=exact_state)
        return size * _hits(cache, blocks, first) / tokens

    return BudgetCurve(
        points=tuple(BudgetPoint(each, ratio(int(each // size))) for each in capacities_tokens),
        unbounded_ratio=ratio(None),
        working_set_tokens=_working_set(blocks) * size,
        n_requests=len(trace),
        n_used=len(blocks),
        n_counted=len(counted),
        mean_prompt_tokens=float(counted.mean()),
    )


def geometric_capacities(
    trace: Trace, n: int = N_CAPACITIES, *, most_requests: int = MOST_REQUESTS
) -> tuple[float, ...]:
    """`n` sizes evenly apart in their logarithm, tokens: up to where nothing need be forgotten,
    from a thousandth of that or one block.

    Raises TraceError for a trace without prefixes.
    """
    blocks, size = _blocks(trace, most_requests)
    n_all = _working_set(blocks)
    least = max(1.0, n_all / 10**_DECADES)
    whole = np.unique(np.rint(np.geomspace(least, n_all, n)))  # few blocks: fewer sizes
    return tuple((whole * size).tolist())


def _blocks(trace: Trace, most: int) -> tuple[list[Blocks], int]:
    used = (trace.blocks or [])[:most]
    if trace.block_tokens is None or not any(used):
        message = "has no full blocks of prompts, so nothing tells which prefixes come back"
        raise TraceError(message, source=trace.source)
    return used, trace.block_tokens


def _working_set(blocks: Sequence[Blocks]) -> int:
    return len(set(chain.from_iterable(blocks)))


def _hits(cache: PrefixCache, blocks: Sequence[Blocks], first: int) -> int:
    """Blocks that were served to the requests from the `first` on."""
    found = 0
    for i, each in enumerate(blocks):
        n_usable = cache.match(each, at_s=0.0)[1]
        cache.insert(each, ready_s=0.0)
        if i >= first:
            found += n_usable
    return found
