"""What deciding was worth: which recorded hours are replayed, and what is kept of each replay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LEAST_HOURS = 3
"""Below it an interval says nothing that a single hour does not."""
MOST_HOURS = 24
LIVED, STATIC, PAPER = "lived", "static", "paper"
_GB_BITS = 8.0
_HOUR_S = 3600.0


def spread_out(hours: Sequence[T], most: int = MOST_HOURS) -> list[T]:
    """At most so many of them, evenly from the first to the last."""
    if len(hours) <= most:
        return list(hours)
    return [hours[math.floor((i + 0.5) * len(hours) / most)] for i in range(most)]


def figures_of(report: Mapping[str, Any], gb_prices: Mapping[str, float]) -> dict[str, Any]:
    """What is kept of one report of the twin. `gb_prices` by link: egress has money only where
    each of its links has a price."""
    sent = {
        link: found["mean_gbps"] * _HOUR_S / _GB_BITS for link, found in report["links"].items()
    }
    priced = bool(sent) and sent.keys() <= gb_prices.keys()
    return {
        "goodput_rps": report["goodput_rps"],
        "good_fraction": report["good_fraction"],
        "ttft_p90_s": report["ttft_s"]["p90"],
        "egress_gb_per_h": sum(sent.values()) if sent else None,
        "egress_money_per_h": sum(gb * gb_prices[link] for link, gb in sent.items())
        if priced
        else None,
    }
