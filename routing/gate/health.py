"""Whether an upstream may be given requests: probes and real traffic, judged together.

    up --(connection refused, or 2 failures in a row)--> down --(probe ok)--> half_open
    half_open --(a trial request or 2 more probes ok)--> up ; --(any failure)--> down

A refusal is proof, so one is enough: nobody listens, or a remote says itself that it does not serve
now (503). A time-out or any other 5xx, to a request or a probe, is not. Half open admits one trial
request at a time, so a sick upstream costs one request, not many.
"""

from __future__ import annotations

from typing import Literal

FAILURES_TO_DOWN = 2
PROBES_TO_UP = 2

State = Literal["up", "down", "half_open"]


class Health:
    """State of one upstream. Starts up: the first request or probe finds out."""

    def __init__(self, *, now_s: float) -> None:
        self.state: State = "up"
        self.since_s = now_s
        self.error: str | None = None
        self._streak = 0  # failures in a row while up, good probes in a row while half open
        self._trial = False

    def admits(self) -> bool:
        """Whether a request that has another choice may be sent here."""
        return self.state == "up" or (self.state == "half_open" and not self._trial)

    def request_started(self) -> None:
        """A request is being sent; while half open it is the trial."""
        self._trial = self.state == "half_open"

    def request_ok(self, *, sent_s: float, now_s: float) -> None:
        """An answer below 500 began to arrive, to a request sent at `sent_s`."""
        if self.state == "up":
            self._streak = 0
        elif sent_s >= self.since_s:
            self._enter("up", now_s=now_s)
        # What was sent before it went down was half done by then: it tells nothing of the next.

    def request_abandoned(self) -> None:
        """The client left before there was an answer: nothing was learned."""
        self._trial = False

    def failed(self, error: str, *, refused: bool, now_s: float) -> bool:
        """A request or a probe got no answer, or one of 500 and above. True when this took the
        upstream down. `refused`: it was turned away, by whatever is there or because nothing is."""
        self._trial = False
        self.error = error
        if self.state == "up":
            self._streak += 1
            if not refused and self._streak < FAILURES_TO_DOWN:
                return False
        elif self.state == "down":
            return False
        self._enter("down", now_s=now_s)
        return True

    def probe_ok(self, *, now_s: float) -> None:
        """The health endpoint answered."""
        if self.state == "up":
            self._streak = 0
        elif self.state == "down":
            self._enter("half_open", now_s=now_s)
        else:
            self._streak += 1
            if self._streak >= PROBES_TO_UP:
                self._enter("up", now_s=now_s)

    def _enter(self, state: State, *, now_s: float) -> None:
        self.state, self.since_s, self._streak, self._trial = state, now_s, 0, False
        if state == "up":
            self.error = None
