"""Telemetry rows in, one Observation out: the only translation of samples into core values.

Recomputed from stored rows at every tick, so a lost tick, a second worker or a restart changes
nothing. Demand and lengths come from the gates' cumulative counters, read every `BIN_S` seconds
over `WINDOW_S` and weighted by exp(-age / TAU_S):

    demand_rps = sum_i w_i * arrivals_i / sum_i w_i * elapsed_i
    counts     = sum_i w_i * requests_i,   n_effective = (sum w)^2 / sum w^2 over requests

where i runs over the intervals between two readings of one gate. Estimated lengths are never used;
those of prompts with media are, once the engine counted them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from routing import kv_leaks, paths
from routing.core import drift
from routing.core.model import histograms
from routing.core.scenario.document import Scenario
from routing.core.types import (
    LengthHistogram,
    Observation,
    PdObservation,
    PrefillObservation,
    SignalState,
)
from routing.pools import SILENT_AFTER_S, SILENT_KEPT_S, Pools
from telemetry import counters, store, wire
from telemetry.store import Reading

TAU_S = 300.0
BIN_S = 10.0
WINDOW_S = 4 * TAU_S
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
    # Bins on multiples of their width: two ticks in a row difference the same readings, and the
    # store need not read those again.
    since_s = math.floor(at_s / BIN_S) * BIN_S - WINDOW_S
    until_s = at_s + store.FUTURE_S
    routers = store.window(
        "router", prefix=f"{fleet}/", since_s=since_s, until_s=until_s, bin_s=BIN_S
    )
    instances = store.window(
        "instance",
        prefix=f"{fleet}/",
        since_s=math.floor(at_s / SILENT_AFTER_S) * SILENT_AFTER_S - SILENT_KEPT_S,
        until_s=until_s,
        bin_s=SILENT_AFTER_S,
    )
    links = {r.path: r for r in store.latest("link", now_s=at_s, within_s=WINDOW_S)}
    # A router of another make counts the same requests again, and knows no sides.
    routers = {path: rows for path, rows in routers.items() if rows[-1].engine == wire.GATE_KIND}
    routers = _known(routers, since_s, at_s)
    instances = _known(instances, at_s - SILENT_KEPT_S, at_s)
    pools = Pools(instances, at_s)
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
            pd[cluster.name] = _pd(gates, pools, place, lengths_age_s=at_s - since_s)
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
        links=paths.observed(fleet, scenario, links, gates=routers, instances=instances, at_s=at_s),
        kv_leaks=kv_leaks.warnings(fleet, instances, at_s=at_s),
    )


def _known(
    readings: dict[str, list[Reading]], since_s: float, at_s: float
) -> dict[str, list[Reading]]:
    """What was read after `since_s` and had been received by `at_s`: agents' clocks may run ahead,
    so `at` does not say."""
    kept = {
        path: [r for r in rows if r.at_s > since_s and r.received_s <= at_s]
        for path, rows in readings.items()
    }
    return {path: rows for path, rows in kept.items() if rows}


def _pd(gates: list[_Gate], pools: Pools, place: str, *, lengths_age_s: float) -> PdObservation:
    counted = [gate for gate in gates if gate.ok and gate.quiet_s <= SILENT_KEPT_S]
    rates = [rate for gate in counted if (rate := _rate(gate.intervals)) is not None]
    demand_rps = sum(rates) if rates else None
    return PdObservation(
        demand_rps=demand_rps,
        demand_state=_demand_state(demand_rps, gates),
        lengths=_lengths(gates, lengths_age_s),
        shifts=histograms.shifts(
            [part for gate in gates for part in _parts(gate, lengths_age_s)], drift.SPANS_S
        ),
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
        prefill_warming=pools.warming(place, "prefill"),
        decode_warming=pools.warming(place, "decode"),
        decode_in_transfer=pools.in_transfer(place, "decode"),
        decode_kv_usage_ratio=pools.kv_usage_ratio(place, "decode"),
        preemptions_per_s=pools.preemptions_per_s(place, "decode"),
        n_gates=len(counted),
    )


def _demand_state(demand_rps: float | None, gates: list[_Gate]) -> SignalState:
    if demand_rps is not None:
        return "value" if demand_rps > 0.0 else "idle"
    if gates and all(gate.newest.state != "ok" for gate in gates):
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
    for key in _length_keys(now):
        if not restarted and any(other.count("|") != key.count("|") for other in was):
            continue  # the agent began to read another label: these are no new requests
        # A label set that is new in a process we were already reading began at zero.
        gained = counters.histogram_increase(
            was.get(key, now[key]), now[key], restarted=restarted or key not in was
        )
        if gained is not None and gained.count > 0:
            yield gained


def _length_keys(told: Mapping[str, object]) -> list[str]:
    """The keys, `side|source` or `side|source|modality`, of lengths that count."""
    side = _JUDGED if any(key.startswith(f"{_JUDGED}|") for key in told) else _LOCAL
    return [key for key in told if key.split("|")[:2] in [[side, source] for source in _COUNTED]]


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


def _parts(gate: _Gate, age_s: float) -> list[histograms.Counted]:
    """What a gate counted in intervals younger than `age_s`."""
    return [
        histograms.Counted(interval.age_s, gained.edges, gained.counts)
        for interval in gate.intervals
        if interval.age_s <= age_s
        for gained in interval.lengths
    ]


def _lengths(gates: list[_Gate], age_s: float) -> LengthHistogram | None:
    """Decayed lengths of every gate together."""
    counted = histograms.merge(histograms.tally(_parts(gate, age_s), tau_s=TAU_S) for gate in gates)
    return counted.read(n_seen=sum(_seen(gate) for gate in gates))


def _seen(gate: _Gate) -> float:
    """Raw requests with a usable length: all of the gate's life, or what the window saw of it
    where a restart made that more."""
    if not gate.ok:
        return 0.0
    newest = gate.ok[-1].signals.uncached_tokens or {}
    alive = sum(newest[key].count for key in _length_keys(newest))
    window = sum(gained.count for i in gate.intervals for gained in i.lengths)
    return max(alive, window)
