"""Ground truth of the lab, counted where things happen and not by the counters under test."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

SIDES = ("local", "remote")


@dataclass
class Record:
    """One request. `kv_bytes` is what of its KV left over the link (0 when local); `held_tokens`
    what the PD cluster had already; `at_s` epoch seconds of its arrival."""

    id: str
    cluster: str
    side: str
    link: str | None
    at_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    held_tokens: int | None = None
    kv_bytes: int = 0
    prefill: str | None = None
    decode: str | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    state: str = "in_flight"


class Truth:
    """Totals since the start and the last `n_records` requests that ended.

    A request ends `completed`, `cancelled` (its client went away) or `refused` (503).
    """

    def __init__(self, n_records: int) -> None:
        self._records: deque[Record] = deque(maxlen=n_records)
        self._requests: Counter[str] = Counter()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._prompt_tokens: Counter[str] = Counter()
        self._cached_tokens: Counter[str] = Counter()
        self._output_tokens: Counter[str] = Counter()
        self._shipped_bytes: Counter[str] = Counter()

    def arrived(self, record: Record) -> None:
        self._requests[record.side] += 1
        self._prompt_tokens[record.side] += record.prompt_tokens

    def prefilled(self, record: Record) -> None:
        self._cached_tokens[record.side] += record.cached_tokens or 0

    def shipped(self, record: Record, kv_bytes: int) -> None:
        assert record.link is not None
        record.kv_bytes = kv_bytes
        self._shipped_bytes[record.link] += kv_bytes

    def ended(self, record: Record, state: str) -> None:
        record.state = state
        self._ended[record.side, state] += 1
        if state == "completed":
            self._output_tokens[record.side] += record.output_tokens
        self._records.append(record)

    def document(self, n_records: int) -> dict[str, Any]:
        """Totals per side, and the last `n_records` ended requests, oldest first."""
        sides = {}
        for side in SIDES:
            ended = {
                state: self._ended[side, state] for state in ("completed", "cancelled", "refused")
            }
            sides[side] = {
                "requests": self._requests[side],
                "in_flight": self._requests[side] - sum(ended.values()),
                **ended,
                "prompt_tokens": self._prompt_tokens[side],
                "cached_tokens": self._cached_tokens[side],
                "output_tokens": self._output_tokens[side],
            }
        last = list(self._records)[-n_records:] if n_records > 0 else []
        return {
            "sides": sides,
            "kv_shipped_bytes_total": self._shipped_bytes.total(),
            "kv_shipped_bytes_by_link": dict(self._shipped_bytes),
            "records": [asdict(record) for record in last],
        }
