"""What telemetry shows of the twin: samples that come late, or not at all, as one Observation.

Demand and lengths are counted as gates count them (bins of 10 s, decayed over 300 s, on the bounds
of the wire) and read as `routing.observe` reads live rows; a link shows what its counters would.
A sample is taken every tick and is seen `agent_s` later. Of a silent cluster, or a lost sample, the
newest one that came goes on to be seen, older by the tick.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from routing.core import drift
from routing.core.model import histograms
from routing.core.model.histograms import Counted
from routing.core.model.kvcache import gbps
from routing.core.placement.token_edges import TOKEN_EDGES
from routing.core.scenario.document import Link, Scenario
from routing.core.types import (
    LinkObservation,
    Observation,
    PdObservation,
    PrefillObservation,
    RoleChange,
    SignalState,
)
from routing.twin.moves import RoleMoves
from routing.twin.pd import PdCluster
from routing.twin.row import AT, LINK, SITE, UNCACHED, Row
from routing.twin.settings import Delays
from routing.twin.stages import Stages
from routing.twin.transfer import DEFAULT_CONNECTIONS
from routing.twin.trouble import Trouble

TAU_S, BIN_S, SHARE_WINDOW_S = 300.0, 10.0, 60.0
"""As live (docs/contracts.md, Demand and window)."""
_N_BINS = int(4 * TAU_S / BIN_S)
SILENT_AFTER_S, SILENT_KEPT_S = 15.0, 60.0
"""Older than the first a gate counts as silent, older than the second its demand is not known."""
MAX_RETRANSMIT_RATIO, FULL_BACKLOG_S, BUFFER_S = 0.04, 4.0, 0.2
"""A link that is the limit: how much more is sent again once so many seconds of bytes wait, and the
deepest queue of the path itself, which is all that its round trip grows by."""
_EDGES = histograms.finer(tuple(float(edge) for edge in TOKEN_EDGES))
"""As fine as the core reads lengths: gates count the same requests on the coarser ones."""


@dataclass(frozen=True)
class PdSample:
    """Of one PD cluster at `at_s`."""

    at_s: float
    roles: tuple[int, int]
    queue_prefill: float
    queue_decode: float
    in_transfer: float
    kv_ratio: float | None
    role_change: RoleChange | None


@dataclass(frozen=True)
class PrefillSample:
    at_s: float
    n_prefill: int
    queue_prefill: float


@dataclass(frozen=True)
class LinkSample:
    """`tx_bytes_per_s` since the sample before; `waiting_bytes` released and not sent."""

    at_s: float
    capacity_gbps: float
    tx_bytes_per_s: float
    waiting_bytes: float
    usable_bytes_per_s: float
    loss_ratio: float
    rtt_s: float
    connections: int


@dataclass(frozen=True)
class Sample:
    """Everything that was read at one moment. What is silent or lost is not in it."""

    at_s: float
    pd: Mapping[str, PdSample]
    prefill: Mapping[str, PrefillSample]
    links: Mapping[str, LinkSample]


@dataclass
class _Bin:
    """Requests of one cluster in [start_s, start_s + BIN_S)."""

    start_s: float
    counts: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) + 1))
    n: int = 0
    n_remote: int = 0


class _Gates:
    """What the gates of one cluster have counted."""

    def __init__(self) -> None:
        self.bins: deque[_Bin] = deque(maxlen=_N_BINS + 1)
        self.n_seen = 0

    def count(self, rows: Sequence[Row]) -> None:
        for row in rows:
            start_s = math.floor(row[AT] / BIN_S) * BIN_S
            if not self.bins or self.bins[-1].start_s < start_s:
                self.bins.append(_Bin(start_s))
            newest = self.bins[-1]
            newest.counts[bisect_left(_EDGES, row[UNCACHED])] += 1
            newest.n += 1
            newest.n_remote += row[LINK] >= 0
        self.n_seen += len(rows)


class Watch:
    """Counts requests (`count`), keeps samples (`took`), tells what is seen at a tick (`see`)."""

    def __init__(self, fleet: str, sites: Sequence[str], *, agent_s: float) -> None:
        self._fleet, self._agent_s = fleet, agent_s
        self._gates = {name: _Gates() for name in sites}
        self._under_way: deque[Sample] = deque()
        self._pd: dict[str, PdSample] = {}
        self._prefill: dict[str, PrefillSample] = {}
        self._links: dict[str, LinkSample] = {}

    def count(self, site: str, rows: Sequence[Row]) -> None:
        """Requests that arrived, in order, after they were routed."""
        self._gates[site].count(rows)

    def took(self, sample: Sample) -> None:
        self._under_way.append(sample)

    def see(self, now_s: float, lengths_since_s: Mapping[str, float]) -> Observation:
        """Everything that has arrived by `now_s`."""
        while self._under_way and self._under_way[0].at_s <= now_s - self._agent_s + 1e-9:
            sample = self._under_way.popleft()
            self._pd |= sample.pd
            self._prefill |= sample.prefill
            self._links |= sample.links
        return Observation(
            now_s=now_s,
            fleet=self._fleet,
            pd={
                name: self._see_pd(name, seen, now_s, lengths_since_s.get(name, -math.inf))
                for name, seen in self._pd.items()
            },
            prefill={
                name: PrefillObservation(seen.n_prefill, seen.queue_prefill, now_s - seen.at_s)
                for name, seen in self._prefill.items()
            },
            links={name: _see_link(seen, now_s) for name, seen in self._links.items()},
        )

    def _see_pd(self, name: str, seen: PdSample, now_s: float, since_s: float) -> PdObservation:
        age_s = now_s - seen.at_s
        bins = [each for each in self._gates[name].bins if each.start_s < seen.at_s]
        parts = [_counted(each, seen.at_s, now_s) for each in bins]
        lengths = [part for part, each in zip(parts, bins, strict=True) if each.start_s >= since_s]
        demand_rps = _demand_rps(bins, seen.at_s, now_s) if age_s <= SILENT_KEPT_S else None
        recent = [each for each in bins if now_s - each.start_s <= SHARE_WINDOW_S]
        n = sum(each.n for each in recent)
        state: SignalState = "missing"
        if demand_rps is not None:
            state = "value" if demand_rps > 0.0 else "idle"
        return PdObservation(
            demand_rps=demand_rps,
            demand_state=state,
            lengths=histograms.tally(lengths, tau_s=TAU_S).read(n_seen=self._gates[name].n_seen),
            n_prefill=seen.roles[0],
            n_decode=seen.roles[1],
            queue_prefill=seen.queue_prefill,
            queue_decode=seen.queue_decode,
            remote_share=sum(each.n_remote for each in recent) / n if n else None,
            gates_silent=(f"{self._fleet}/{name}",) if age_s > SILENT_AFTER_S else (),
            age_s=age_s,
            shifts=histograms.shifts(lengths, drift.SPANS_S),
            role_change=seen.role_change,
            decode_in_transfer=seen.in_transfer,
            decode_kv_usage_ratio=seen.kv_ratio,
            n_gates=1,
        )


class Eyes:
    """Takes samples of a run's stages as agents would, and hands them to a `Watch`."""

    def __init__(
        self,
        scenario: Scenario,
        stages: Stages,
        moves: Mapping[str, RoleMoves],
        trouble: Trouble,
        *,
        delays: Delays,
        rng: np.random.Generator,
    ) -> None:
        self._scenario, self._stages, self._moves = scenario, stages, moves
        self._trouble, self._delays, self._rng = trouble, delays, rng
        names = [cluster.name for cluster in stages.clusters]
        self._watch = Watch(scenario.fleet, names, agent_s=delays.agent_s)
        self._sent: dict[str, tuple[float, float]] = {}
        """When each link was read last, and what it had sent by then."""

    def count(self, rows: Sequence[Row]) -> None:
        """Requests that arrived and were routed."""
        for cluster in self._stages.clusters:
            mine = [row for row in rows if row[SITE] == cluster.index]
            mine.sort(key=itemgetter(AT))
            self._watch.count(cluster.name, mine)

    def see(self, now_s: float, lengths_since_s: Mapping[str, float]) -> Observation:
        return self._watch.see(now_s, lengths_since_s)

    def look(self, now_s: float) -> None:
        """One sample of everything whose agent speaks and is heard."""
        heard = [c.name for c in self._scenario.clusters if self._is_heard(c.name)]
        self._watch.took(
            Sample(
                now_s,
                pd={
                    cluster.name: self._look_at_pd(cluster, now_s)
                    for cluster in self._stages.clusters
                    if cluster.name in heard
                },
                prefill={
                    name: PrefillSample(now_s, len(pool), pool.n_waiting(now_s))
                    for name, pool in self._stages.pools.items()
                    if name in heard
                },
                # A link is measured where it begins.
                links={
                    link.id: self._look_at_link(link, now_s)
                    for link in self._scenario.links
                    if link.source in heard
                },
            )
        )

    def _is_heard(self, cluster: str) -> bool:
        lost = self._delays.agent_loss_ratio
        return cluster not in self._trouble.silent and (not lost or self._rng.random() >= lost)

    def _look_at_pd(self, cluster: PdCluster, now_s: float) -> PdSample:
        in_transfer = cluster.decode.n_for_kv()
        described = self._scenario.cluster(cluster.name)
        assert described is not None, "a PD cluster of the run is described"
        each = self._scenario.profiles[described.profile].facts.get("kv_capacity_tokens")
        room = None if each is None else float(each) * len(cluster.decode)
        moves = self._moves[cluster.name]
        return PdSample(
            now_s,
            moves.roles,
            queue_prefill=cluster.pool.n_waiting(now_s),
            queue_decode=in_transfer + cluster.decode.n_for_slot(now_s),
            in_transfer=in_transfer,
            kv_ratio=min(1.0, cluster.decode.kv_tokens() / room) if room else None,
            role_change=moves.change,
        )

    def _look_at_link(self, link: Link, now_s: float) -> LinkSample:
        flows = self._stages.links[link.id]
        at_s, sent = self._sent.get(link.id, (0.0, 0.0))
        self._sent[link.id] = (now_s, flows.sent_bytes)
        elapsed_s = now_s - at_s
        return LinkSample(
            now_s,
            capacity_gbps=self._trouble.gbps[link.id],
            tx_bytes_per_s=(flows.sent_bytes - sent) / elapsed_s if elapsed_s > 0.0 else 0.0,
            waiting_bytes=flows.waiting_bytes,
            usable_bytes_per_s=flows.path.capacity_bytes_per_s,
            loss_ratio=self._trouble.loss_ratio[link.id],
            rtt_s=flows.path.rtt_s,
            connections=flows.n_flows * int(link.facts.get("connections", DEFAULT_CONNECTIONS)),
        )


def _counted(each: _Bin, seen_s: float, now_s: float) -> Counted:
    end_s = min(each.start_s + BIN_S, seen_s)
    return Counted(now_s - (each.start_s + end_s) / 2.0, _EDGES, each.counts)


def _demand_rps(bins: Sequence[_Bin], seen_s: float, now_s: float) -> float | None:
    """Decayed arrivals over decayed time, from the first second on."""
    first_s = max(0.0, math.floor(seen_s / BIN_S) * BIN_S - _N_BINS * BIN_S)
    starts = np.arange(first_s, seen_s, BIN_S)
    if not len(starts):
        return None
    ends = np.minimum(starts + BIN_S, seen_s)
    elapsed_s = float(np.exp(-(now_s - (starts + ends) / 2.0) / TAU_S) @ (ends - starts))
    arrived = math.fsum(
        math.exp(-(now_s - (b.start_s + min(b.start_s + BIN_S, seen_s)) / 2.0) / TAU_S) * b.n
        for b in bins
    )
    return arrived / elapsed_s


def _see_link(seen: LinkSample, now_s: float) -> LinkObservation:
    usable = seen.usable_bytes_per_s
    backlog_s = seen.waiting_bytes / usable if usable > 0.0 else 0.0
    busy = backlog_s > 0.0 and seen.tx_bytes_per_s > 0.95 * usable
    queue_s = min(BUFFER_S, backlog_s) if busy else 0.0
    again = MAX_RETRANSMIT_RATIO * min(1.0, backlog_s / FULL_BACKLOG_S) if busy else 0.0
    tx_gbps = gbps(seen.tx_bytes_per_s)
    return LinkObservation(
        capacity_gbps=seen.capacity_gbps,
        tx_gbps=tx_gbps,
        state="value" if tx_gbps > 0.0 else "idle",
        retransmit_ratio=seen.loss_ratio + again,
        rtt_s=seen.rtt_s + queue_s,
        age_s=now_s - seen.at_s,
        connections=float(seen.connections),
    )
