"""How long a side takes to a request's first byte, as one gate sees it from outside: pure.

Nobody tells a gate how many workers a side has or who else sends there. Both show in the gap
between the first bytes of this gate's own requests while some are pending: with c workers of mean
service time S the gap is S / c, and twice that if another gate sends as much. So with n pending

    expected = S(tokens) + max(0, (n + 1) * gap - S(typical))

where S(tokens) is a line fitted to requests that found nothing of ours pending, because the two
sides have different hardware and get different lengths: next to a queue of long prompts a short one
still has its own short service. Up to n = c - 1 a worker is free and nobody waits; from there each
pending request adds one gap. While a side is silent for longer than that, its silence is expected
to go on as long as it has lasted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_DECAY = 0.95
"""Weight of the past at each new sample: the last 20 count."""


class _Mean:
    """Exponentially weighted, without a bias towards its start."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: float) -> None:
        self._sum = self._sum * _DECAY + value
        self._weight = self._weight * _DECAY + 1.0

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight else None


class _Service:
    """Seconds to serve so many tokens: an exponentially weighted line through the samples.

    It rises, and not from below zero: two noisy samples must not promise a negative time.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self._weight = self._weight * _DECAY + 1.0
        self._x = self._x * _DECAY + tokens
        self._y = self._y * _DECAY + seconds
        self._xx = self._xx * _DECAY + tokens * tokens
        self._xy = self._xy * _DECAY + tokens * seconds

    def seconds(self, tokens: float) -> float | None:
        if not self._weight:
            return None
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        slope = 0.0
        if x > 0.0 and variance > 1e-9 * x * x:
            slope = (self._xy / self._weight - x * y) / variance
            slope = min(max(slope, 0.0), y / x)
        return y + slope * (tokens - x)


@dataclass
class Pending:
    """One request that is on its way to its first byte."""

    sent_s: float
    tokens: int
    n_before: int
    _open: bool = field(default=True, repr=False)


class Wait:
    """What one upstream's first bytes tell. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self.n_pending = 0
        self._service = _Service()
        self._gap_s = _Mean()
        self._typical_tokens = _Mean()
        self._since_s = 0.0
        self._since_first_byte = False

    def sent(self, *, tokens: int, now_s: float) -> Pending:
        """A request with so many tokens to compute goes to the upstream."""
        pending = Pending(now_s, tokens, self.n_pending)
        if self.n_pending == 0:
            self._since_s, self._since_first_byte = now_s, False
        self.n_pending += 1
        self._typical_tokens.add(tokens)
        return pending

    def first_byte(self, pending: Pending, *, now_s: float) -> None:
        """Its first byte came."""
        if not self._close(pending):
            return
        if pending.n_before == 0:
            self._service.add(pending.tokens, now_s - pending.sent_s)
        # From idle to the first byte it is a service time, whatever the number of workers.
        if self._since_first_byte:
            self._gap_s.add(now_s - self._since_s)
        self._since_s, self._since_first_byte = now_s, True

    def gone(self, pending: Pending) -> None:
        """It ended, with or without a first byte."""
        self._close(pending)

    def expected_s(self, *, tokens: int, now_s: float) -> float | None:
        """Seconds to the first byte of a request sent now; None while nothing was measured."""
        service_s = self._service.seconds(tokens)
        typical_s = self._service.seconds(self._typical_tokens.value or 0.0)
        if service_s is None or typical_s is None:
            return None
        gap_s = self._gap_s.value
        if gap_s is None:
            gap_s = typical_s  # one worker, until it is seen to be more
        expected_s = service_s + max(0.0, (self.n_pending + 1) * gap_s - typical_s)
        silent_s = now_s - self._since_s if self.n_pending else 0.0
        return max(expected_s, silent_s)

    def _close(self, pending: Pending) -> bool:
        was_open, pending._open = pending._open, False
        self.n_pending -= was_open
        return was_open
