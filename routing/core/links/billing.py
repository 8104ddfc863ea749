"""Links billed by their 95th percentile: what a month costs, and what that leaves for a plan.

The month (UTC) is cut into samples, means of five minutes. The highest 5 % are dropped, and the
next highest rate is what is paid (field report D8): of the 8,640 samples of 30 days 432 are
dropped, some 36 hours, and the 433rd is billed. So a cap on the bill is a budget of time above it.

Missing samples: the percentile is of those that were measured, floor(n / 20) of them are dropped.
A gap is never filled with zeros, which would make a month with gaps look cheap.

Live, one pass of the loop keeps counts and no samples (`BillingMemory`): how many of the month's
were above `p95_cap_gbps`. While time above the cap is left the link may be planned to its full
capacity; a reserve of `RESERVE_RATIO` of the budget is never planned away, and once it is reached,
or nobody knows, the planned mean stays at `MEAN_MARGIN` of the cap. `p95_counts` of the link says
whether what is sent counts (`out`, the default), or the greater of sent and received (`max`); the
loop measures what a directed link sends, so its budget is of `out`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from routing.core.scenario.document import Link
from routing.core.types import BillingMemory

SAMPLE_S = 300.0
DROPPED_ONE_IN = 20
"""Of the samples: the highest 5 %."""
MEAN_MARGIN = 0.9
"""Five-minute means scatter around a plan's mean: 450 KV caches in five minutes (1.5 requests/s of
the case study) by some 5 %, so at 90 % two in a hundred are above the cap."""
RESERVE_RATIO = 0.1
"""Of the budget: for what no plan foresaw, a link that failed elsewhere."""
_LATEST_S = 253402300799.0


@dataclass(frozen=True)
class Cycle:
    """A month, UTC: `month` as `2026-11`, when it begins, how many samples it has."""

    month: str
    begins_s: float
    n_samples: int


def cycle_at(now_s: float) -> Cycle:
    """The cycle that holds `now_s`."""
    # numpy knows the calendar, so the core needs no clock module.
    second = int(min(max(now_s, 0.0), _LATEST_S))
    month = np.datetime64(second, "s").astype("datetime64[M]")
    begins_s = int(month.astype("datetime64[s]").astype(int))
    ends_s = int((month + 1).astype("datetime64[s]").astype(int))
    return Cycle(str(month), float(begins_s), int((ends_s - begins_s) // SAMPLE_S))


@dataclass(frozen=True)
class Bill:
    """A cycle as it stands. `billed_gbps` None: nothing was measured.

    `dropped` samples are above what is billed for free; `over_cap` of the measured ones were above
    the cap, and `burst_left` more may be before it is the cap that is exceeded. None without a cap.
    """

    billed_gbps: float | None
    n_measured: int
    n_missing: int
    dropped: int
    over_cap: int | None
    burst_left: int | None

    @property
    def burst_left_s(self) -> float | None:
        return None if self.burst_left is None else self.burst_left * SAMPLE_S

    def cost(self, per_gbps_month: float) -> float | None:
        """What the cycle costs as it stands, in the currency of `per_gbps_month`."""
        return None if self.billed_gbps is None else self.billed_gbps * per_gbps_month


def bill(
    out_gbps: Sequence[float | None],
    in_gbps: Sequence[float | None] | None = None,
    *,
    cap_gbps: float | None = None,
    n_cycle: int | None = None,
) -> Bill:
    """The bill of one cycle's five-minute samples, oldest first, None where one is missing.

    With `in_gbps`, of the same times, the greater direction counts, sample by sample; a sample with
    one direction missing is missing. `n_cycle` is how many samples the whole cycle has where it is
    still running: those to come are taken as measured. Raises ValueError for what is no rate.
    """
    if in_gbps is not None and len(in_gbps) != len(out_gbps):
        raise ValueError(f"in_gbps has {len(in_gbps)} samples, out_gbps {len(out_gbps)}")
    if n_cycle is not None and n_cycle < len(out_gbps):
        raise ValueError(f"n_cycle = {n_cycle}: {len(out_gbps)} samples are there already")
    pairs = zip(out_gbps, out_gbps if in_gbps is None else in_gbps, strict=True)
    counted = [max(out, back) for out, back in pairs if out is not None and back is not None]
    for i, rate in enumerate(counted):
        if not 0.0 <= rate < math.inf:
            raise ValueError(f"sample {i} = {rate!r}: must be a rate of at least 0 Gbps")
    n_missing = len(out_gbps) - len(counted)
    highest_first = sorted(counted, reverse=True)
    dropped = len(counted) // DROPPED_ONE_IN
    allowed = (max(n_cycle or 0, len(out_gbps)) - n_missing) // DROPPED_ONE_IN
    over = None if cap_gbps is None else sum(rate > cap_gbps for rate in counted)
    return Bill(
        billed_gbps=highest_first[dropped] if counted else None,
        n_measured=len(counted),
        n_missing=n_missing,
        dropped=dropped,
        over_cap=over,
        burst_left=None if over is None else max(allowed - over, 0),
    )


def observed(
    memory: BillingMemory, tx_gbps: float | None, cap_gbps: float | None, now_s: float
) -> BillingMemory:
    """The running cycle after one more reading; None: the link was not read.

    Slots nobody looked at, and those without a reading, are missing. A clock that was set back
    within the cycle goes on in the sample in the making.
    """
    if cap_gbps is None:
        return BillingMemory()
    cycle = cycle_at(now_s)
    slot = min(int(max(now_s - cycle.begins_s, 0.0) // SAMPLE_S), cycle.n_samples - 1)
    if memory.cycle != cycle.month:
        # The first cycle may have begun unseen: its samples before now are missing.
        memory = BillingMemory(cycle=cycle.month, slot=slot, n_missing=slot)
    if slot > memory.slot:
        memory = _closed(memory, cap_gbps, slot)
    if tx_gbps is None:
        return memory
    return dataclasses.replace(
        memory, sum_gbps=memory.sum_gbps + tx_gbps, n_readings=memory.n_readings + 1
    )


def burst_left_s(memory: BillingMemory, now_s: float) -> float | None:
    """Seconds the cycle may still be above the cap, the reserve kept; None where it is not known.

    Known means: at least half of the samples that are over were measured.
    """
    cycle = cycle_at(now_s)
    if memory.cycle != cycle.month or memory.n_missing > memory.n_measured:
        return None
    allowed = (cycle.n_samples - memory.n_missing) // DROPPED_ONE_IN
    left = allowed * (1.0 - RESERVE_RATIO) - memory.n_over
    return max(left, 0.0) * SAMPLE_S


def planned_gbps(link: Link, capacity_gbps: float, left_s: float | None) -> float:
    """What a plan may use of a link that carries `capacity_gbps`, `left_s` above its cap left."""
    cap = link.facts.get("p95_cap_gbps")
    if cap is None or (left_s is not None and left_s > 0.0):
        return capacity_gbps
    return min(capacity_gbps, MEAN_MARGIN * float(cap))


def _closed(memory: BillingMemory, cap_gbps: float, slot: int) -> BillingMemory:
    """The sample in the making counted, and what lies between it and `slot` as missing."""
    n, over = memory.n_readings, 0
    if n:
        over = int(memory.sum_gbps / n > cap_gbps)
    return dataclasses.replace(
        memory,
        slot=slot,
        sum_gbps=0.0,
        n_readings=0,
        n_over=memory.n_over + over,
        n_measured=memory.n_measured + (1 if n else 0),
        n_missing=memory.n_missing + (slot - memory.slot - 1) + (0 if n else 1),
    )
