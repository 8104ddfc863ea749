"""The newest figures of everything that a rule may watch, as columns."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from django.db.models import Count, OuterRef, Q, Subquery

from routing import bills, fleets
from routing.alerts.signals import TOTAL
from routing.approvals.models import Proposal
from routing.core.alerts.rule import Source
from routing.core.alerts.track import Floats
from routing.delivery import LATE_AFTER_S, SILENT_AFTER_S
from routing.models import Decision, EffectCheck, Fleet, ManagedRouter, RouterState, Tick
from telemetry import counters, store
from telemetry.store import Reading

STALE_S: Final = 15.0
"""A reading that came in earlier is no figure of now."""
_KNOWN_S: Final = 86400.0
"""A source that has been silent for longer is forgotten, as elsewhere."""
_RATE_S: Final = 60.0
_RATE_BIN_S: Final = 10.0
_NAN: Final = float("nan")


@dataclass(frozen=True)
class Facts:
    """Sources of one kind, ascending by name, and of each signal its figures: shape (n,), NaN where
    nothing was measured."""

    sources: tuple[Source, ...]
    columns: dict[str, Floats]


def read(kind: str, signals: Collection[str], *, now: datetime.datetime) -> Facts:
    """The figures of these signals (KIND.NAME) now."""
    return _READERS[kind](tuple(signals), now)


def _readings(kind: str) -> Callable[[tuple[str, ...], datetime.datetime], Facts]:
    def read_kind(signals: tuple[str, ...], now: datetime.datetime) -> Facts:
        now_s = now.timestamp()
        found = store.latest(kind, now_s=now_s, within_s=_KNOWN_S)
        names = [signal.partition(".")[2] for signal in signals]
        earlier: dict[str, list[Reading]] = {}
        if any(name.endswith(TOTAL) for name in names):
            since_s = now_s - _RATE_S
            earlier = store.window(kind, since_s=since_s, until_s=now_s, bin_s=_RATE_BIN_S)
        links = _links() if kind == "link" else {}
        columns = {
            signal: np.array(
                [
                    _figure(name, reading, earlier.get(reading.path, ()), links, now_s)
                    for reading in found
                ],
                np.float64,
            )
            for signal, name in zip(signals, names, strict=True)
        }
        return Facts(tuple(_source(reading, links) for reading in found), columns)

    return read_kind


@dataclass(frozen=True)
class _Link:
    fleet: str
    gbps: float


def _links() -> dict[str, _Link]:
    """Links by id: a reading of one does not say whose it is."""
    return {
        link.id: _Link(fleet.pk, link.gbps)
        for fleet in Fleet.objects.order_by("-name")
        for link in fleets.scenario_of(fleet).links
    }


def _source(reading: Reading, links: dict[str, _Link]) -> Source:
    """A link runs between clusters: it is counted to the sending one."""
    if reading.kind == "link":
        known = links.get(reading.path)
        cluster = reading.path.partition("->")[0]
        return Source(known.fleet if known else "", cluster, "", reading.path)
    fleet, _, rest = reading.path.partition("/")
    return Source(fleet, rest.partition("/")[0], reading.role, reading.path)


def _figure(
    name: str,
    reading: Reading,
    earlier: Collection[Reading],
    links: dict[str, _Link],
    now_s: float,
) -> float:
    age_s = max(now_s - reading.received_s, 0.0)
    if name == "age_s":
        return age_s
    is_down = reading.state != "ok" or age_s > STALE_S
    if name == "down":
        return float(is_down)
    if is_down:
        return _NAN
    if name == "use_ratio":
        known, used_gbps = links.get(reading.path), getattr(reading.signals, "tx_gbps", None)
        return _NAN if known is None or used_gbps is None else used_gbps / known.gbps
    if name.endswith(TOTAL):
        return _rate(name, [*earlier, reading])
    value = getattr(reading.signals, name)
    return _NAN if value is None else float(value)


def _rate(name: str, readings: list[Reading]) -> float:
    """Gain a second from the first of the last minute to the newest."""
    known = [r for r in readings if getattr(r.signals, name) is not None]
    if len(known) < 2 or known[-1].at_s <= known[0].at_s:
        return _NAN
    gains = [
        counters.increase(
            getattr(before.signals, name),
            getattr(after.signals, name),
            restarted=after.epoch_s > before.epoch_s > 0.0,
        )
        for before, after in itertools.pairwise(known)
    ]
    return sum(gain for gain in gains if gain is not None) / (known[-1].at_s - known[0].at_s)


def _loops(signals: tuple[str, ...], now: datetime.datetime) -> Facts:
    """Loops and plans: one source a fleet, the fleet itself."""
    newest = Tick.objects.filter(fleet=OuterRef("pk")).order_by("-seq")
    plans = Decision.objects.filter(fleet=OuterRef("pk"), version__isnull=False)
    plans = plans.order_by("-epoch", "-version")
    checks = EffectCheck.objects.filter(decision__fleet=OuterRef("pk")).exclude(outcome="pending")
    rows = list(
        Fleet.objects.order_by("name").values(
            "name",
            tick_at=Subquery(newest.values("at")[:1]),
            tick_ms=Subquery(newest.values("duration_ms")[:1]),
            tick_reason=Subquery(newest.values("reason")[:1]),
            plan_at=Subquery(plans.values("created_at")[:1]),
            plan_epoch=Subquery(plans.values("epoch")[:1]),
            plan_version=Subquery(plans.values("version")[:1]),
            outcome=Subquery(checks.order_by("-checked_at").values("outcome")[:1]),
        )
    )
    gates: dict[str, list[RouterState]] = {}
    if {"plan.gates_behind", "plan.gates_silent"} & set(signals):
        for state in RouterState.objects.all():
            gates.setdefault(state.fleet_id, []).append(state)
    drifted: dict[str, int] = {}
    if "plan.routers_drifted" in signals:
        counted = ManagedRouter.objects.values("fleet")
        counts = counted.annotate(n=Count("pk", filter=Q(state="drifted")))
        drifted = {row["fleet"]: row["n"] for row in counts}
    figures: dict[str, Callable[[dict[str, Any]], float | None]] = {
        "loop.age_s": lambda row: row["tick_at"] and (now - row["tick_at"]).total_seconds(),
        "loop.duration_ms": lambda row: row["tick_ms"],
        "loop.is_held": lambda row: row["tick_reason"] and float(row["tick_reason"] == "Held"),
        "plan.gates_behind": lambda row: _behind(row, gates.get(row["name"], []), now),
        "plan.gates_silent": lambda row: _silent(gates.get(row["name"], []), now),
        "plan.routers_drifted": lambda row: drifted.get(row["name"]),
        "plan.did_harm": lambda row: row["outcome"] and float(row["outcome"] == "harm"),
    }
    columns = {
        signal: np.array([_or_nan(figures[signal](row)) for row in rows], np.float64)
        for signal in signals
    }
    return Facts(tuple(Source(row["name"], "", "", row["name"]) for row in rows), columns)


def _or_nan(value: float | None) -> float:
    return _NAN if value is None else float(value)


def _behind(row: dict[str, Any], gates: list[RouterState], now: datetime.datetime) -> float | None:
    """Gates that are heard and do not run the newest plan although they had time to."""
    if not gates or row["plan_at"] is None:
        return None
    if (now - row["plan_at"]).total_seconds() <= LATE_AFTER_S:
        return 0.0
    newest = (row["plan_epoch"], row["plan_version"])
    return float(
        sum(
            (gate.epoch_running, gate.version_running) != newest and not _is_silent(gate, now)
            for gate in gates
        )
    )


def _silent(gates: list[RouterState], now: datetime.datetime) -> float | None:
    return float(sum(_is_silent(gate, now) for gate in gates)) if gates else None


def _is_silent(gate: RouterState, now: datetime.datetime) -> bool:
    return (now - gate.last_seen_at).total_seconds() > SILENT_AFTER_S


def _bills(signals: tuple[str, ...], now: datetime.datetime) -> Facts:
    """The running 95th percentile of each link that has a cap, over the cap."""
    rows = [
        (Source(fleet.pk, row["id"].partition("->")[0], "", row["id"]), row)
        for fleet in Fleet.objects.order_by("name")
        for row in bills.bills(fleet, now_s=now.timestamp())
        if row["cap_gbps"]
    ]
    ratios = np.array(
        [
            _NAN if row["billed_gbps"] is None else row["billed_gbps"] / row["cap_gbps"]
            for _, row in rows
        ],
        np.float64,
    )
    return Facts(tuple(source for source, _ in rows), dict.fromkeys(signals, ratios))


def _approvals(signals: tuple[str, ...], now: datetime.datetime) -> Facts:
    """Changes that wait for a second person, each a source. One that is decided is none any more,
    and what fired of it is over."""
    rows = Proposal.objects.filter(state="open", expires_at__gt=now)
    found = sorted(
        (f"{fleet}/proposal-{pk}" if fleet else f"proposal-{pk}", fleet, asked_at, expires_at)
        for pk, fleet, asked_at, expires_at in rows.values_list(
            "pk", "fleet", "asked_at", "expires_at"
        )
    )
    figures = {
        "approval.waits_s": [(now - asked_at).total_seconds() for *_, asked_at, _ in found],
        "approval.ends_in_s": [(ends_at - now).total_seconds() for *_, ends_at in found],
    }
    return Facts(
        tuple(Source(fleet, "", "", name) for name, fleet, *_ in found),
        {signal: np.array(figures[signal], np.float64) for signal in signals},
    )


_READERS: Final = {
    "instance": _readings("instance"),
    "link": _readings("link"),
    "router": _readings("router"),
    "loop": _loops,
    "plan": _loops,
    "bill": _bills,
    "approval": _approvals,
}
