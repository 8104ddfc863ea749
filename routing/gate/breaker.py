"""The circuit breaker of one upstream: judged by real requests alone, whatever its probes say.

    closed --(failures in a row, or their share of a window)--> open
    open --(open_s, twice that after each failed trial)--> half_open
    half_open --(one real request answered)--> closed ; --(it failed)--> open

`health` asks whether anybody is there. A stack whose health endpoint answers while its requests
fail would come back with every good probe; here it comes back with a good request only.
"""

from __future__ import annotations

from typing import Literal

from routing.gate.settings import BreakerConfig

State = Literal["closed", "open", "half_open"]
STATES: tuple[State, ...] = ("closed", "open", "half_open")


class Breaker:
    """Times are of one monotonic clock, in seconds. `n_opens` counts since the start."""

    def __init__(self, config: BreakerConfig) -> None:
        self.config = config
        self.n_opens = 0
        self.reason: str | None = None
        self._opened_s: float | None = None
        self._open_for_s = config.open_s
        self._trial = False
        self._in_a_row = 0
        # The window slides by half of itself: this half and the one before, as (all, failed).
        self._half_since_s: float | None = None
        self._this, self._before = [0, 0], [0, 0]

    @property
    def is_closed(self) -> bool:
        return self._opened_s is None

    def state(self, now_s: float) -> State:
        if self._opened_s is None:
            return "closed"
        return "half_open" if now_s >= self._opened_s + self._open_for_s else "open"

    def admits(self, now_s: float) -> bool:
        """Whether a request that has another choice may be sent."""
        return self._opened_s is None or (self.state(now_s) == "half_open" and not self._trial)

    def sent(self, now_s: float) -> bool:
        """A request is being sent. True: it is the trial, and must be told of as such."""
        if self._opened_s is None or not self.admits(now_s):
            return False
        self._trial = True
        return True

    def answered(self, *, trial: bool) -> None:
        """The first byte of an answer below 500. For a trial that is enough; others count at their
        end, so that a stack that breaks off every stream is not taken for a good one."""
        if trial:
            self._close()

    def succeeded(self, now_s: float) -> None:
        """A whole answer below 500."""
        if self._opened_s is None:
            self._in_a_row = 0
            self._count(now_s, failed=False)

    def failed(self, error: str, *, trial: bool, now_s: float) -> bool:
        """No answer, half of one, or one of 500 and above. True: this opened it."""
        if self._opened_s is not None:
            # What was sent before it opened, or for want of anybody else, tells nothing new.
            if trial:
                self._open_for_s = min(self._open_for_s * 2.0, self.config.max_open_s)
                self._open(f"on trial: {error}", now_s=now_s)
            return trial
        self._in_a_row += 1
        n, n_failed = self._count(now_s, failed=True)
        if self._in_a_row >= self.config.failures:
            self._open(f"{self._in_a_row} failures in a row, the last: {error}", now_s=now_s)
        elif n >= self.config.min_requests and n_failed / n >= self.config.failure_ratio:
            self._open(f"{n_failed} of {n} requests failed, the last: {error}", now_s=now_s)
        return self._opened_s is not None

    def abandoned(self, *, trial: bool) -> None:
        """It ended without telling anything: the client left."""
        if trial:
            self._trial = False

    def _count(self, now_s: float, *, failed: bool) -> tuple[int, int]:
        """Adds one to the window; its sums."""
        half_s = self.config.window_s / 2.0
        if self._half_since_s is None:
            self._half_since_s = now_s
        age_s = now_s - self._half_since_s
        if age_s >= half_s:
            self._before = self._this if age_s < 2.0 * half_s else [0, 0]
            self._this, self._half_since_s = [0, 0], now_s
        self._this[0] += 1
        self._this[1] += failed
        return self._this[0] + self._before[0], self._this[1] + self._before[1]

    def _open(self, reason: str, *, now_s: float) -> None:
        self._opened_s, self._trial, self.reason = now_s, False, reason
        self.n_opens += 1
        self._forget()

    def _close(self) -> None:
        self._opened_s, self._trial, self.reason = None, False, None
        self._open_for_s = self.config.open_s
        self._forget()

    def _forget(self) -> None:
        self._in_a_row, self._half_since_s = 0, None
        self._this, self._before = [0, 0], [0, 0]
