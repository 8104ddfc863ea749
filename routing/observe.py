"""Telemetry rows in, one Observation out: the only translation of samples into core values.

Recomputed from stored rows at every tick, so a lost tick, a second worker or a restart changes
nothing. Demand and lengths come from the gates' cumulative counters, read every `BIN_S` seconds
over `WINDOW_S` and weighted by exp(-age / TAU_S):

    demand_rps = sum_i w_i * arrivals_i / sum_i w_i * elapsed_i
    counts     = sum_i w_i * requests_i,   n_effective = (sum w)^2 / sum w^2 over requests

where i runs over the intervals between two readings of one gate. Estimated lengths are never used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from routing.core import drift
from routing.core.scenario import Scenario
from routing.core.types import (
    LengthHistogram,
    LengthShift,
    LinkObservation,
    Observation,
    PdObservation,
    PrefillObservation,
    SignalState,
)
from telemetry import counters, store
from telemetry.store import Reading

TAU_S = 300.0
BIN_S = 10.0
WINDOW_S = 4 * TAU_S
SILENT_AFTER_S = 15.0
"""A source not heard of for this long is silent."""
SILENT_KEPT_S = 60.0
"""A silent gate's last rate, a silent instance's place in its pool, count for this long."""
SHARE_WINDOW_S = 60.0
_COUNTED = ("tokenised", "usage")
_JUDGED, _LOCAL = "judged", "local"
"""Lengths as the rule compared them with t; a gate that tells no such went by its own side."""


@dataclass(frozen=True)
class _Interval:
    """What one gate counted between two readings. `requests` by side, `lengths` by edges."""

    age_s: float
    elapsed_s: float
    arrivals: float
    requests: dict[str, float]
    prompt_tokens: float
    movable_tokens: float | None
    lengths: tuple[counters.HistogramIncrease, ...]

    @property
    def weight(self) -> float:
        return math.exp(-max(self.age_s, 0.0) / TAU_S)


@dataclass(frozen=True)
class _Gate:
    """One gate's readings, its newest good one first asked for."""

    path: str
    newest: Reading
    ok: tuple[Reading, ...]
    intervals: tuple[_Interval, ...]
    quiet_s: float

    @property
    def silent(self) -> bool:
        return self.quiet_s > SILENT_AFTER_S


def observe(
    fleet: str,
    scenario: Scenario,
    *,
    at_s: float,
    lengths_since_s: Mapping[str, float] | None = None,
) -> Observation:
    """The fleet at `at_s` (epoch seconds) as plain values.

    `lengths_since_s` says per cluster from when on lengths count: before it the traffic was other.
    """
    lengths_since_s = lengths_since_s or {}
    # Bins on multiples of their width: two ticks in a row difference the same readings.
    since_s = math.floor(at_s / BIN_S) * BIN_S - WINDOW_S
    until_s = at_s + store.FUTURE_S
    routers = store.window(
        "router", prefix=f"{fleet}/", since_s=since_s, until_s=until_s, bin_s=BIN_S
    )
    instances = store.window(
        "instance",
        prefix=f"{fleet}/",
        since_s=at_s - SILENT_KEPT_S,
        until_s=until_s,
        bin_s=SILENT_AFTER_S,
    )
    links = {r.path: r for r in store.latest("link", now_s=at_s, within_s=WINDOW_S)}
    routers, instances = _known(routers, at_s), _known(instances, at_s)
    pools = _Pools(instances, at_s)
    pd, prefill = {}, {}
    for cluster in scenario.clusters:
        place = f"{fleet}/{cluster.name}/"
        if cluster.kind == "pd":
            gates = [
                _gate(readings, at_s)
                for path, readings in routers.items()
                if path.startswith(place)
            ]
            since_s = lengths_since_s.get(cluster.name, -math.inf)
            pd[cluster.name] = _pd(gates, pools, place, at_s, lengths_age_s=at_s - since_s)
        else:
            prefill[cluster.name] = PrefillObservation(
                n_prefill=pools.count(place, "prefill"),
                queue_prefill=pools.queue(place, "prefill"),
                age_s=pools.age_s(place),
            )
    return Observation(
        now_s=at_s,
        fleet=fleet,
        pd=pd,
        prefill=prefill,
        links={link.id: _link(links.get(link.id), link.gbps, at_s) for link in scenario.links},
    )


def _known(readings: dict[str, list[Reading]], at_s: float) -> dict[str, list[Reading]]:
    """What had been received by `at_s`: agents' clocks may run ahead, so `at` does not say."""
    kept = {path: [r for r in rows if r.received_s <= at_s] for path, rows in readings.items()}
    return {path: rows for path, rows in kept.items() if rows}


def _pd(
    gates: list[_Gate], pools: _Pools, place: str, at_s: float, *, lengths_age_s: float
) -> PdObservation:
    counted = [gate for gate in gates if gate.ok and gate.quiet_s <= SILENT_KEPT_S]
    rates = [rate for gate in counted if (rate := _rate(gate.intervals)) is not None]
    demand_rps = sum(rates) if rates else None
    return PdObservation(
        demand_rps=demand_rps,
        demand_state=_demand_state(demand_rps, gates),
        lengths=_lengths(gates, lengths_age_s),
        shifts=_shifts(gates, lengths_age_s),
        n_prefill=pools.count(place, "prefill"),
        n_decode=pools.count(place, "decode"),
        queue_prefill=pools.queue(place, "prefill"),
        queue_decode=pools.queue(place, "decode"),
        remote_share=_remote_share(counted),
        movable_ratio=_movable_ratio(counted),
        gates_silent=tuple(sorted(gate.path for gate in counted if gate.silent)),
        age_s=min((gate.quiet_s for gate in counted), default=None),
        prefill_silent=pools.silent(place, "prefill"),
        decode_silent=pools.silent(place, "decode"),
    )


def _demand_state(demand_rps: float | None, gates: list[_Gate]) -> SignalState:
    if demand_rps is not None:
        return "value" if demand_rps > 0.0 else "idle"
    if gates and all(gate.newest.state == "failed" for gate in gates):
        return "failed"
    return "missing"


def _gate(readings: list[Reading], at_s: float) -> _Gate:
    ok = tuple(r for r in readings if r.state == "ok")
    return _Gate(
        path=readings[-1].path,
        newest=readings[-1],
        ok=ok,
        intervals=tuple(
            _interval(before, after, at_s)
            for before, after in itertools.pairwise(ok)
            if after.at_s > before.at_s
        ),
        quiet_s=max(at_s - ok[-1].received_s, 0.0) if ok else math.inf,
    )


def _interval(before: Reading, after: Reading, at_s: float) -> _Interval:
    restarted = before.epoch_s != after.epoch_s
    # A gate that was not there measured nothing: its downtime is not time without requests.
    began_s = max(before.at_s, min(after.epoch_s, after.at_s)) if restarted else before.at_s
    was, now = before.signals, after.signals
    by_key = (
        counters.keyed_increases(
            was.requests_total or {}, now.requests_total or {}, restarted=restarted
        )
        or {}
    )
    refused = counters.increase(
        was.refused_total or 0.0, now.refused_total or 0.0, restarted=restarted
    )
    requests: dict[str, float] = {}
    for key, gained in by_key.items():
        side = key.partition("|")[0]
        requests[side] = requests.get(side, 0.0) + gained
    return _Interval(
        age_s=at_s - (before.at_s + after.at_s) / 2,
        elapsed_s=after.at_s - began_s,
        arrivals=sum(requests.values()) + (refused or 0.0),
        requests=requests,
        prompt_tokens=_gained(was.prompt_tokens_total, now.prompt_tokens_total, restarted) or 0.0,
        movable_tokens=_gained(was.movable_tokens_total, now.movable_tokens_total, restarted),
        lengths=tuple(_length_increases(before, after, restarted=restarted)),
    )


def _gained(was: float | None, now: float | None, restarted: bool) -> float | None:
    """How much a counter grew; None where it is not exposed."""
    if now is None:
        return None
    return counters.increase(0.0 if was is None else was, now, restarted=restarted)


def _length_increases(
    before: Reading, after: Reading, *, restarted: bool
) -> Iterable[counters.HistogramIncrease]:
    was, now = before.signals.uncached_tokens or {}, after.signals.uncached_tokens or {}
    for source in _length_keys(now):
        current = now.get(source)
        if current is None:
            continue
        # A label set that is new in a process we were already reading began at zero.
        gained = counters.histogram_increase(
            was.get(source, current), current, restarted=restarted or source not in was
        )
        if gained is not None and gained.count > 0:
            yield gained


def _length_keys(histograms: Mapping[str, object]) -> list[str]:
    side = _JUDGED if any(key.startswith(f"{_JUDGED}|") for key in histograms) else _LOCAL
    return [f"{side}|{source}" for source in _COUNTED]


def _rate(intervals: Sequence[_Interval]) -> float | None:
    elapsed_s = sum(i.weight * i.elapsed_s for i in intervals)
    if elapsed_s <= 0.0:
        return None
    return sum(i.weight * i.arrivals for i in intervals) / elapsed_s


def _remote_share(gates: list[_Gate]) -> float | None:
    """Remote part of what was routed in the last minute; None when nothing was."""
    recent = [i for gate in gates for i in gate.intervals if i.age_s <= SHARE_WINDOW_S]
    remote = sum(i.requests.get("remote", 0.0) for i in recent)
    routed = remote + sum(i.requests.get("local", 0.0) for i in recent)
    return remote / routed if routed > 0 else None


def _movable_ratio(gates: list[_Gate]) -> float | None:
    """Of recent prompt tokens, what only a remote side's cache held; None where no gate tells."""
    told = [i for gate in gates for i in gate.intervals if i.movable_tokens is not None]
    prompts = sum(i.weight * i.prompt_tokens for i in told)
    if prompts <= 0.0:
        return None
    return min(sum(i.weight * (i.movable_tokens or 0.0) for i in told) / prompts, 1.0)


Piece = tuple[_Interval, counters.HistogramIncrease]


def _pieces(gates: list[_Gate], age_s: float) -> list[Piece]:
    """What was counted in intervals younger than `age_s`."""
    young = [i for gate in gates for i in gate.intervals if i.age_s <= age_s]
    return [(interval, gained) for interval in young for gained in interval.lengths]


def _shifts(gates: list[_Gate], age_s: float) -> tuple[LengthShift, ...]:
    """The last moments of the window against what came before them, shortest span first."""
    ages, counts, centres = [], [], []
    for interval, gained in _pieces(gates, age_s):
        edges = np.asarray(gained.edges)
        held = np.asarray(gained.counts)
        middle = np.log(np.sqrt(edges * np.concatenate(([max(edges[0] / 2, 1.0)], edges[:-1]))))
        centres.append(np.append(middle, np.log(edges[-1])))
        counts.append(held)
        ages.append(np.full(len(held), interval.age_s))
    if not counts:
        return ()
    age, n, ln = np.concatenate(ages), np.concatenate(counts), np.concatenate(centres)
    shifts = []
    for span_s in drift.SPANS_S:
        now, then = np.where(age <= span_s, n, 0.0), np.where(age > span_s, n, 0.0)
        n_now, n_then = float(now.sum()), float(then.sum())
        if n_now > 0 and n_then > 0:
            mean_now, mean_then = float(now @ ln) / n_now, float(then @ ln) / n_then
            squares = now @ (ln - mean_now) ** 2 + then @ (ln - mean_then) ** 2
            sd = math.sqrt(float(squares) / (n_now + n_then))
            shifts.append(LengthShift(span_s, n_now, mean_now, n_then, mean_then, sd))
    return tuple(shifts)


def _lengths(gates: list[_Gate], age_s: float) -> LengthHistogram | None:
    """Decayed lengths of every gate together, on the bucket edges most requests were counted on."""
    pieces = _pieces(gates, age_s)
    if not pieces:
        return None
    seen_on: dict[tuple[float, ...], float] = {}
    for _, gained in pieces:
        seen_on[gained.edges] = seen_on.get(gained.edges, 0.0) + gained.count
    edges = max(seen_on, key=lambda e: seen_on[e])
    counts = np.zeros(len(edges) + 1)  # (n_edges + 1,)
    weight = weight_squared = 0.0
    for interval, gained in pieces:
        w = interval.weight
        counts += w * _on_edges(gained, edges)
        weight += w * gained.count
        weight_squared += w * w * gained.count
    return LengthHistogram(
        edges=edges,
        counts=tuple(np.round(counts, 6).tolist()),
        n_effective=weight * weight / weight_squared,
        n_seen=sum(_seen(gate) for gate in gates),
        oldest_s=max(interval.age_s for interval, _ in pieces),
    )


def _on_edges(gained: counters.HistogramIncrease, edges: tuple[float, ...]) -> np.ndarray:
    """`gained` counted on other buckets: each of its own goes where its upper edge falls."""
    if gained.edges == edges:
        return np.asarray(gained.counts)
    counts = np.zeros(len(edges) + 1)
    where = np.searchsorted(edges, gained.edges)
    np.add.at(counts, [*where, len(edges)], gained.counts)
    return counts


def _seen(gate: _Gate) -> float:
    """Raw requests with a usable length: all of the gate's life, or what the window saw of it
    where a restart made that more."""
    if not gate.ok:
        return 0.0
    newest = gate.ok[-1].signals.uncached_tokens or {}
    alive = sum(newest[key].count for key in _length_keys(newest) if key in newest)
    window = sum(gained.count for i in gate.intervals for gained in i.lengths)
    return max(alive, window)


def _link(reading: Reading | None, configured_gbps: float, at_s: float) -> LinkObservation:
    if reading is None:
        return LinkObservation(capacity_gbps=configured_gbps, tx_gbps=None, state="missing")
    signals = reading.signals
    state: SignalState = "value"
    if reading.state == "failed":
        state = "failed"
    elif signals.tx_gbps is None:
        state = "missing"
    elif signals.tx_gbps == 0.0:
        state = "idle"
    return LinkObservation(
        capacity_gbps=(configured_gbps if signals.capacity_gbps is None else signals.capacity_gbps),
        tx_gbps=signals.tx_gbps,
        state=state,
        retransmit_ratio=signals.retransmit_ratio,
        rtt_s=signals.rtt_s,
        age_s=max(at_s - reading.received_s, 0.0),
    )


class _Pools:
    """Instances by place and role, from readings of the last `SILENT_KEPT_S`.

    A scrape that fails for a moment says "busy" more often than "gone" (R-01), so an instance
    keeps its place until it was not read for a minute.
    """

    def __init__(self, readings: dict[str, list[Reading]], at_s: float) -> None:
        self.at_s = at_s
        self.newest = {
            path: ok[-1]
            for path, found in readings.items()
            if (ok := [r for r in found if r.state == "ok"])
        }

    def _of(self, place: str, role: str | None = None) -> list[Reading]:
        return [
            reading
            for path, reading in self.newest.items()
            if path.startswith(place) and (role is None or reading.role in (role, "both"))
        ]

    def count(self, place: str, role: str) -> int:
        return len(self._of(place, role))

    def silent(self, place: str, role: str) -> tuple[str, ...]:
        """Those of the pool that were not read lately: busy or gone, nobody knows."""
        return tuple(
            sorted(
                reading.path
                for reading in self._of(place, role)
                if self.at_s - reading.received_s > SILENT_AFTER_S
            )
        )

    def queue(self, place: str, role: str) -> float | None:
        """Waiting requests of the pool; None when no instance of it measured them lately."""
        waiting = [
            reading.signals.requests_waiting
            for reading in self._of(place, role)
            if self.at_s - reading.received_s <= SILENT_AFTER_S
            and reading.signals.requests_waiting is not None
        ]
        return sum(waiting) if waiting else None

    def age_s(self, place: str) -> float | None:
        ages = [max(self.at_s - reading.received_s, 0.0) for reading in self._of(place)]
        return min(ages, default=None)
