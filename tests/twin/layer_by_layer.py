"""The slow truth about a link: layer after layer, every share worked out anew at every event."""

from __future__ import annotations

import math
from collections.abc import Sequence


def arrivals_s(
    flows: Sequence[tuple[float, float, float]], *, rate: float, cap: float, layers: int
) -> list[float]:
    """When the last byte of each (start s, prefill s, bytes) leaves."""
    releases = sorted(
        (start_s + prefill_s * (k + 1) / layers, i)
        for i, (start_s, prefill_s, _) in enumerate(flows)
        for k in range(layers)
    )
    waiting, left = [0.0] * len(flows), [layers] * len(flows)
    done = [math.nan] * len(flows)
    now_s, n = 0.0, 0
    while n < len(releases) or any(waiting):
        rates = _max_min([bytes_ > 0.0 for bytes_ in waiting], rate, cap)
        drains = [now_s + w / r for w, r in zip(waiting, rates, strict=True) if r > 0.0]
        next_s = min([*drains, releases[n][0] if n < len(releases) else math.inf])
        for i, each in enumerate(rates):
            if each > 0.0:
                waiting[i] -= each * (next_s - now_s)
                if waiting[i] < 1e-9:
                    waiting[i] = 0.0
                    if left[i] == 0:
                        done[i] = next_s
        now_s = next_s
        while n < len(releases) and releases[n][0] <= now_s:
            i = releases[n][1]
            waiting[i] += flows[i][2] / layers
            left[i] -= 1
            n += 1
    return done


def _max_min(active: Sequence[bool], rate: float, cap: float) -> list[float]:
    n = sum(active)
    return [min(cap, rate / n) if each else 0.0 for each in active]
