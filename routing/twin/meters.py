"""What links carried, pools worked and decode instances held, told stretch by stretch.

A stretch is (from, until) in seconds of the run, in order and without gaps: nobody said what
happened in a gap, and it would count as nothing. What lies before the measured window is cut off.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from routing.core.links import billing
from routing.core.scenario.document import Link

PEAK_WINDOW_S = 1.0
"""A link's peak is the highest mean over one of the windows of this length, side by side; where it
was told of in longer stretches, over one of those."""
MONTH_S = 30 * 86400.0
BITS_PER_GB = 8e-9
_HOUR_S = 3600.0
_SAME_S = 1e-6


class Stretches:
    """Checks that stretches of `name` follow each other, and cuts them to the measured window."""

    def __init__(self, name: str, since_s: float) -> None:
        self._name = name
        self._since_s = since_s
        self._until_s: float | None = None

    def cut(self, from_s: float, until_s: float) -> tuple[float, float]:
        """What of it is measured; nothing where it ends before it begins. Raises ValueError."""
        if not from_s <= until_s < math.inf:
            raise ValueError(f"{self._name}: from {from_s!r} until {until_s!r} s is no stretch")
        if self._until_s is not None and abs(from_s - self._until_s) > _SAME_S:
            raise ValueError(
                f"{self._name}: from {from_s!r} s does not follow the last one, "
                f"until {self._until_s!r} s"
            )
        self._until_s = until_s
        return max(from_s, self._since_s), until_s


class _Windows:
    """Mean rates over windows of one length, side by side from `since_s` on."""

    def __init__(self, since_s: float, length_s: float) -> None:
        self._since_s = since_s
        self._length_s = length_s
        self._number = 0
        self.open_bytes = 0.0

    def add(self, from_s: float, until_s: float, n_bytes: float) -> list[tuple[float, int]]:
        """(bytes, how many such windows) of those that are over."""
        rate = n_bytes / (until_s - from_s)
        last = int((until_s - self._since_s) / self._length_s)
        if last <= self._number:
            self.open_bytes += n_bytes
            return []
        ends_s = self._since_s + (self._number + 1) * self._length_s
        done = [(self.open_bytes + rate * max(ends_s - from_s, 0.0), 1)]
        whole = last - self._number - 1
        if whole:
            done.append((rate * self._length_s, whole))
        begins_s = self._since_s + last * self._length_s
        self._number, self.open_bytes = last, rate * max(until_s - begins_s, 0.0)
        return done


class LinkMeter:
    """One directed link."""

    def __init__(self, link: Link, since_s: float) -> None:
        self.link = link
        self._stretches = Stretches(link.id, since_s)
        self._bytes = 0.0
        self._capacity_bytes = 0.0
        self._peaks = _Windows(since_s, PEAK_WINDOW_S)
        self._peak_bytes = 0.0
        self._longest_s = 0.0
        self._samples = _Windows(since_s, billing.SAMPLE_S)
        self._sample_gbps: list[float | None] = []

    def add(self, from_s: float, until_s: float, n_bytes: float, capacity_bytes: float) -> None:
        """`n_bytes` evenly over the stretch, of `capacity_bytes` it could have carried."""
        begins_s, ends_s = self._stretches.cut(from_s, until_s)
        if not (0.0 <= n_bytes < math.inf and 0.0 <= capacity_bytes < math.inf):
            raise ValueError(f"{self.link.id}: {n_bytes!r} of {capacity_bytes!r} bytes")
        if ends_s <= begins_s:
            return
        share = (ends_s - begins_s) / (until_s - from_s)
        n_bytes, capacity_bytes = n_bytes * share, capacity_bytes * share
        self._longest_s = max(self._longest_s, until_s - from_s)
        self._bytes += n_bytes
        self._capacity_bytes += capacity_bytes
        for peak, _ in self._peaks.add(begins_s, ends_s, n_bytes):
            self._peak_bytes = max(self._peak_bytes, peak)
        for sample, n in self._samples.add(begins_s, ends_s, n_bytes):
            self._sample_gbps += [sample * BITS_PER_GB / billing.SAMPLE_S] * n

    def report(self, window_s: float, back: LinkMeter | None) -> dict[str, Any]:
        """`back` is the meter of the way back, which counts for links billed by the greater."""
        peak = max(self._peak_bytes, self._peaks.open_bytes)
        price = self.link.facts.get("cost_per_gbps_month")
        per_month = None if price is None else self._bill(window_s, back).cost(price)
        return {
            "bytes": round(self._bytes),
            "mean_gbps": self._bytes * BITS_PER_GB / window_s,
            "peak_gbps": peak * BITS_PER_GB / min(PEAK_WINDOW_S, window_s),
            "peak_window_s": max(PEAK_WINDOW_S, self._longest_s),
            "utilisation": self._bytes / self._capacity_bytes if self._capacity_bytes else None,
            "billed_gbps": self._bill(window_s, back).billed_gbps,
            "cost_per_month": per_month,
            "cost": None if per_month is None else per_month * window_s / MONTH_S,
        }

    def _bill(self, window_s: float, back: LinkMeter | None) -> billing.Bill:
        out, into = self._five_minutes(window_s), None
        if back is not None and self.link.facts.get("p95_counts") == "max":
            into = back._five_minutes(window_s)
            out, into = out[: len(into)], into[: len(out)]
        return billing.bill(out, into, cap_gbps=self.link.facts.get("p95_cap_gbps"))

    def _five_minutes(self, window_s: float) -> list[float | None]:
        """A run too short for one sample is one; of a longer one, whole samples count."""
        return self._sample_gbps or [self._bytes * BITS_PER_GB / window_s]


class PoolMeter:
    """Instances of one cluster that have one role; `facts` are those of their profile.

    `cost_per_hour` is of an instance: a profile describes one.
    """

    def __init__(self, name: str, facts: Mapping[str, Any], since_s: float) -> None:
        self._facts = facts
        self._stretches = Stretches(name, since_s)
        self._instance_s = 0.0
        self._busy_s = 0.0

    def add(self, from_s: float, until_s: float, n_instances: float, busy_s: float) -> None:
        """`busy_s` instance-seconds of the n_instances * (until - from) of the stretch."""
        begins_s, ends_s = self._stretches.cut(from_s, until_s)
        if ends_s > begins_s:
            self._instance_s += n_instances * (ends_s - begins_s)
            self._busy_s += busy_s * (ends_s - begins_s) / (until_s - from_s)

    def report(self) -> dict[str, float | None]:
        hours = self._instance_s / _HOUR_S
        gpus, price = self._facts.get("gpus_per_instance"), self._facts.get("cost_per_hour")
        return {
            "instance_hours": hours,
            "utilisation": self._busy_s / self._instance_s if self._instance_s else None,
            "gpu_hours": None if gpus is None else hours * float(gpus),
            "cost": None if price is None else hours * float(price),
        }


class KvMeter:
    """KV that decode instances hold: what is told holds until the next is told."""

    def __init__(self, since_s: float) -> None:
        self._since_s = since_s
        self._at_s: float | None = None
        self._used = 0.0
        self._capacity: float | None = None
        self._peak = 0.0
        self._token_s = 0.0
        self._capacity_token_s: float | None = 0.0
        self._measured_s = 0.0

    def add(self, at_s: float, used_tokens: float, capacity_tokens: float | None) -> None:
        """`capacity_tokens` None: without a limit. Raises ValueError for a step back in time."""
        if self._at_s is not None and at_s < self._at_s:
            raise ValueError(f"KV at {at_s!r} s was told after {self._at_s!r} s")
        self._hold(at_s)
        self._at_s, self._used, self._capacity = at_s, used_tokens, capacity_tokens
        if at_s >= self._since_s:
            self._peak = max(self._peak, used_tokens)

    def report(self, until_s: float) -> dict[str, float | None]:
        """Does not change what is held: more may be told after `until_s`."""
        held = copy.copy(self)
        held._hold(until_s)
        if not held._measured_s:
            return dict.fromkeys(("mean_tokens", "peak_tokens", "capacity_tokens", "mean_ratio"))
        limit = held._capacity_token_s
        return {
            "mean_tokens": held._token_s / held._measured_s,
            "peak_tokens": held._peak,
            "capacity_tokens": held._capacity,
            "mean_ratio": held._token_s / limit if limit else None,
        }

    def _hold(self, until_s: float) -> None:
        if self._at_s is None:
            return
        span_s = until_s - max(self._at_s, self._since_s)
        if span_s <= 0.0:
            return
        self._peak = max(self._peak, self._used)
        self._measured_s += span_s
        self._token_s += span_s * self._used
        if self._capacity is None or self._capacity_token_s is None:
            self._capacity_token_s = None
        else:
            self._capacity_token_s += span_s * self._capacity
