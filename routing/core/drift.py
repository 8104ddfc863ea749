"""When the mix of lengths changed for good, so that what came before is other traffic.

A window of 300 s blends an old mix into the new one for ten minutes. So the mean of ln L of the
last moments is compared with the window before them, over a few spans; where it differs by more
than `DRIFT_SD` standard errors the window begins anew at the shortest span that shows it:

    z = (mean_recent - mean_before) / (sd sqrt(1 / n_recent + 1 / n_before))

At 4.5 standard errors steady traffic is cut about once in a hundred days; a cut costs precision for
some minutes, never the plan, since every change still has to be clear of sampling noise.
"""

from __future__ import annotations

import dataclasses
import math

from routing.core.types import LengthShift, Memory, Observation

DRIFT_SD = 4.5
LEAST_REQUESTS = 40.0
"""Fewer say nothing of a mean that is worth cutting a window for."""
SPANS_S = (30.0, 60.0, 120.0)


def noticed(memory: Memory, seen: Observation) -> Memory:
    """`memory` knowing since when each cluster's lengths are of the present traffic."""
    since_s, smoothed = dict(memory.lengths_since_s), dict(memory.lengths)
    for name, cluster in seen.pd.items():
        cut = next((shift for shift in cluster.shifts if shifted(shift)), None)
        if cut is not None:
            since_s[name] = max(since_s.get(name, -math.inf), seen.now_s - cut.span_s)
            smoothed.pop(name, None)
    return dataclasses.replace(memory, lengths_since_s=since_s, lengths=smoothed)


def shifted(shift: LengthShift) -> bool:
    """Whether the recent requests are other traffic than those before."""
    if min(shift.n_recent, shift.n_before) < LEAST_REQUESTS:
        return False
    error = max(shift.sd, 1e-3) * math.sqrt(1.0 / shift.n_recent + 1.0 / shift.n_before)
    return abs(shift.mean_recent - shift.mean_before) > DRIFT_SD * error
