"""Ground truth of the lab, counted where things happen and not by the counters under test."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

SIDES = ("local", "remote")


@dataclass
class Record:
    """One request. `kv_bytes` is what of its KV left over the link (0 when local); `held_tokens`
    what the PD cluster had already; `moved_tokens` of its prefix were brought to its prefill over
    `moved_link`, of which `moved_bytes` left; `at_s` epoch seconds of its arrival."""

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
    moved_link: str | None = None
    moved_tokens: int = 0
    moved_bytes: int = 0
    prefill: str | None = None
    decode: str | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    state: str = "in_flight"


class _Totals:
    """Of one PD cluster. Keys are sides, links, or (side, how a request ended)."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.ended: Counter[tuple[str, str]] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.cached_tokens: Counter[str] = Counter()
        self.output_tokens: Counter[str] = Counter()
        self.shipped_bytes: Counter[str] = Counter()
        self.moved_tokens: Counter[str] = Counter()
        self.moved_bytes: Counter[str] = Counter()

    def add(self, other: _Totals) -> None:
        for name, counter in vars(self).items():
            counter.update(getattr(other, name))

    def document(self) -> dict[str, Any]:
        sides = {}
        for side in SIDES:
            ended = {
                state: self.ended[side, state] for state in ("completed", "cancelled", "refused")
            }
            sides[side] = {
                "requests": self.requests[side],
                "in_flight": self.requests[side] - sum(ended.values()),
                **ended,
                "prompt_tokens": self.prompt_tokens[side],
                "cached_tokens": self.cached_tokens[side],
                "moved_tokens": self.moved_tokens[side],
                "output_tokens": self.output_tokens[side],
            }
        return {
            "sides": sides,
            "kv_shipped_bytes_total": self.shipped_bytes.total(),
            "kv_shipped_bytes_by_link": dict(self.shipped_bytes),
            "kv_moved_bytes_total": self.moved_bytes.total(),
            "kv_moved_bytes_by_link": dict(self.moved_bytes),
        }


class Truth:
    """Totals since the start, per PD cluster and over all, and the last `n_records` requests that
    ended. What a link's counter shows is the sum of what was shipped and moved over it.

    A request ends `completed`, `cancelled` (its client went away) or `refused` (503).
    """

    def __init__(self, n_records: int, clusters: Iterable[str]) -> None:
        self._records: deque[Record] = deque(maxlen=n_records)
        self._totals = {cluster: _Totals() for cluster in clusters}

    def arrived(self, record: Record) -> None:
        totals = self._totals[record.cluster]
        totals.requests[record.side] += 1
        totals.prompt_tokens[record.side] += record.prompt_tokens

    def moved(self, record: Record, link: str, n_bytes: int) -> None:
        """That much of a prefix left for the request's prefill."""
        record.moved_link, record.moved_bytes = link, n_bytes
        self._totals[record.cluster].moved_bytes[link] += n_bytes

    def prefilled(self, record: Record) -> None:
        totals = self._totals[record.cluster]
        totals.cached_tokens[record.side] += record.cached_tokens or 0
        totals.moved_tokens[record.side] += record.moved_tokens

    def shipped(self, record: Record, kv_bytes: int) -> None:
        assert record.link is not None
        record.kv_bytes = kv_bytes
        self._totals[record.cluster].shipped_bytes[record.link] += kv_bytes

    def ended(self, record: Record, state: str) -> None:
        totals = self._totals[record.cluster]
        record.state = state
        totals.ended[record.side, state] += 1
        if state == "completed":
            totals.output_tokens[record.side] += record.output_tokens
        self._records.append(record)

    def document(self, n_records: int) -> dict[str, Any]:
        """Totals per side, the same for each PD cluster, and the last `n_records` ended requests,
        oldest first."""
        everything = _Totals()
        for totals in self._totals.values():
            everything.add(totals)
        last = list(self._records)[-n_records:] if n_records > 0 else []
        return {
            **everything.document(),
            "clusters": {cluster: totals.document() for cluster, totals in self._totals.items()},
            "records": [asdict(record) for record in last],
        }
