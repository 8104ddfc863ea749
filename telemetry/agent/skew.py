"""How far this machine's clock is ahead of the console's, from the Date of its answers.

A Date is cut to whole seconds and servers renew it once a second, so one answer only bounds the
skew: the console's clock stood in [Date, Date + 2 s) somewhere between sending and receiving. The
bounds of many answers together are narrower than those of any.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

DATE_WIDTH_S: Final = 2.0
RENEW_S: Final = 600.0
"""Bounds this old are forgotten: clocks drift, and are set."""


@dataclass
class Skew:
    """`skew_s` is this clock less the console's; None before the first answer with a Date."""

    skew_s: float | None = None
    _lowest_s: float = 0.0
    _highest_s: float = 0.0
    _since_s: float = 0.0

    def heard(self, date: str | None, *, sent_s: float, received_s: float) -> None:
        """Take in one answer; times by this machine's clock."""
        try:
            console_s = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        lowest_s, highest_s = sent_s - console_s - DATE_WIDTH_S, received_s - console_s
        old = self.skew_s is None or not 0.0 <= received_s - self._since_s < RENEW_S
        apart = lowest_s > self._highest_s or highest_s < self._lowest_s
        if old or apart:
            self._since_s = received_s
        else:
            lowest_s = max(lowest_s, self._lowest_s)
            highest_s = min(highest_s, self._highest_s)
        self._lowest_s, self._highest_s = lowest_s, highest_s
        self.skew_s = (lowest_s + highest_s) / 2
