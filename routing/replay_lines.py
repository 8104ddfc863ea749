"""What a line of the loop's passes comes to: its changes, reasons, thresholds and headroom."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from routing.core.jsonable import from_jsonable
from routing.core.types import ClusterPlan, Plan
from routing.models import Tick

MOST_CHANGES = 500
"""Told one by one; beyond it they are only counted."""


@dataclass(frozen=True)
class Change:
    """A plan that began to run (`pushed`) or was only advised."""

    seq: int
    at_s: float
    reason: str
    message: str
    pushed: bool
    clusters: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Line:
    """One way the loop went: its plan at both ends, its changes (at most MOST_CHANGES of them).

    `headroom_mean` and `headroom_lowest` are what the model expected, tick by tick, of the plan
    that ran on this line at the recorded traffic; None where no tick could tell.
    `threshold_mean_tokens` is over ticks in which the cluster had a threshold.
    """

    start: dict[str, dict[str, Any]]
    end: dict[str, dict[str, Any]]
    n_changes: int
    n_advised: int
    changes: tuple[Change, ...]
    reasons: dict[str, int]
    headroom_mean: float | None
    headroom_lowest: float | None
    threshold_mean_tokens: dict[str, float]


def brief(plan: Plan) -> dict[str, dict[str, Any]]:
    return {name: _brief_cluster(cluster) for name, cluster in plan.clusters.items()}


def _brief_cluster(plan: ClusterPlan) -> dict[str, Any]:
    names = ("mode", "threshold_tokens", "n_prefill", "n_decode", "cache_mode")
    return {name: getattr(plan, name) for name in names}


@dataclass
class Writer:
    """Writes one line tick by tick, in little memory."""

    start: dict[str, dict[str, Any]] = field(default_factory=dict)
    end: dict[str, dict[str, Any]] = field(default_factory=dict)
    n_changes: int = 0
    n_advised: int = 0
    changes: list[Change] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    headroom_sum: float = 0.0
    headroom_lowest: float | None = None
    n_headroom: int = 0
    threshold_sum: Counter[str] = field(default_factory=Counter)
    n_threshold: Counter[str] = field(default_factory=Counter)

    def issued(self, tick: Tick, plan: Plan) -> None:
        self._change(tick, tick.verdict, brief(plan), pushed=True)
        self.end = brief(plan)

    def seen(self, tick: Tick, verdict: dict[str, Any], plan: Plan, *, pushed: bool) -> None:
        """One pass: its verdict as plain values, and the plan that runs after it."""
        self.reasons[verdict["reason"]] += 1
        running = brief(plan)
        if pushed:
            self._change(tick, verdict, running, pushed=True)
        elif verdict["action"] == "adopt" and self._is_news(verdict):
            advised = from_jsonable(Plan, verdict["plan"])
            self._change(tick, verdict, brief(advised), pushed=False)
        self.end = running
        for name, cluster in running.items():
            if cluster["threshold_tokens"] is not None:
                self.threshold_sum[name] += cluster["threshold_tokens"]
                self.n_threshold[name] += 1
        current = verdict["current"]
        if current is not None and current["headroom"] is not None:
            headroom = current["headroom"]
            self.headroom_sum += headroom
            self.n_headroom += 1
            lowest = self.headroom_lowest
            self.headroom_lowest = headroom if lowest is None else min(lowest, headroom)

    def _is_news(self, verdict: dict[str, Any]) -> bool:
        """Advice is given again with every tick while nobody takes it."""
        last = self.changes[-1] if self.changes else None
        return last is None or last.pushed or last.reason != verdict["reason"]

    def _change(self, tick: Tick, verdict: dict[str, Any], clusters: Any, *, pushed: bool) -> None:
        self.n_changes += pushed
        self.n_advised += not pushed
        if len(self.changes) < MOST_CHANGES:
            at_s = tick.at.timestamp()
            said = (verdict["reason"], verdict["message"])
            self.changes.append(Change(tick.seq, at_s, *said, pushed, clusters))

    def line(self) -> Line:
        return Line(
            start=self.start,
            end=self.end,
            n_changes=self.n_changes,
            n_advised=self.n_advised,
            changes=tuple(self.changes),
            reasons=dict(self.reasons.most_common()),
            headroom_mean=self.headroom_sum / self.n_headroom if self.n_headroom else None,
            headroom_lowest=self.headroom_lowest,
            threshold_mean_tokens={
                name: self.threshold_sum[name] / n for name, n in self.n_threshold.items()
            },
        )
