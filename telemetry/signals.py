"""One canonical signal: its value, how sure it is one, and where it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from telemetry.wire import Histogram

NOT_EXPOSED = "not exposed"


@dataclass(frozen=True)
class Signal:
    """One canonical signal.

    `value` folds all ranks (histograms have none: they have `sum` and `count`); `maximum` stands
    beside a mean. `by` splits it, by its declared labels when `labelled`, else by rank. `groups`
    are the histograms of a labelled histogram. `reason` says why it is missing.
    """

    kind: str
    unit: str
    state: str
    value: float | None = None
    maximum: float | None = None
    sum: float | None = None
    count: float | None = None
    buckets: tuple[tuple[str, float], ...] = ()
    histogram: Histogram | None = None
    labelled: bool = False
    by: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, Histogram] = field(default_factory=dict)
    source: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def exposed(self) -> bool:
        """Whether there are series of it at all, usable or not."""
        return self.state != "missing" or bool(self.source)

    def on_wire(self) -> float | dict[str, float] | Histogram | dict[str, Histogram] | None:
        """What a batch carries of it; None when it is missing."""
        if self.state == "missing":
            return None
        if self.kind == "histogram":
            return dict(self.groups) if self.labelled else self.histogram
        return dict(self.by) if self.labelled else self.value

    def to_json(self) -> dict[str, Any]:
        """Plain values, no NaN; `buckets` are cumulative counts by the text of their bound."""
        out: dict[str, Any] = {
            "kind": self.kind,
            "value": self.value,
            "max": self.maximum,
            "sum": self.sum,
            "count": self.count,
            "buckets": dict(self.buckets),
            "by": dict(self.by),
            "state": self.state,
            "unit": self.unit,
            "source": list(self.source),
        }
        if self.reason is not None:
            out["reason"] = self.reason
        return out


def missing(
    kind: str, unit: str, reason: str, *, source: tuple[str, ...] = (), labelled: bool = False
) -> Signal:
    """A signal without a value, and why."""
    return Signal(kind, unit, "missing", source=source, reason=reason, labelled=labelled)
