"""The newest of everything one fleet reports, in memory, and the live frame made from it.

Pure: readings go in, a plain dict comes out; no database, no clock. What was not measured is None,
never zero; counters become shares and quantiles over the last `SHARE_WINDOW_S`.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from console import missing
from console.context import FORGOTTEN_AFTER_S, STALE_AFTER_S, loop_stale_s
from telemetry import store, wire
from telemetry.store import Reading

SHARE_WINDOW_S: Final = 60.0
SKEW_WINDOW_S: Final = 30.0
FORGET_S: Final = 900.0
"""A source silent for this long leaves the live view; its history stays."""
REREAD_S: Final = 5.0
"""How often the database is read anew while the broker carries nothing."""


@dataclass(frozen=True)
class _Mark:
    """A router's counters at one reading. `ttft` maps side -> (edges, counts)."""

    at_s: float
    epoch_s: float
    local: float
    remote: float
    ttft: dict[str, tuple[tuple[float, ...], tuple[float, ...]]]


@dataclass(frozen=True)
class Ack:
    """What a router said last: that it lives, and which (epoch, version) it runs, if any."""

    router: str
    heard_s: float
    plan: tuple[int, int] | None


@dataclass
class _RouterWindow:
    """Marks of the last minute, since the router's last restart."""

    marks: collections.deque[_Mark] = field(default_factory=collections.deque)

    def add(self, reading: Reading, signals: wire.RouterSignals) -> None:
        local, remote = store.requests_of(signals, "local"), store.requests_of(signals, "remote")
        if local is None or remote is None:
            return
        mark = _Mark(
            at_s=reading.at_s,
            epoch_s=reading.epoch_s,
            local=local,
            remote=remote,
            ttft={
                side: (tuple(histogram.edges), tuple(histogram.counts))
                for side, histogram in (signals.ttft_seconds or {}).items()
            },
        )
        if self.marks and _restarted(self.marks[-1], mark):
            self.marks.clear()
        self.marks.append(mark)
        # The last mark before the window is its base, so one of those is kept.
        while len(self.marks) > 1 and self.marks[1].at_s <= mark.at_s - SHARE_WINDOW_S:
            self.marks.popleft()

    def remote_share(self) -> float | None:
        """Share of the window's arrivals that went remote; None without arrivals."""
        if len(self.marks) < 2:
            return None
        first, last = self.marks[0], self.marks[-1]
        remote, local = last.remote - first.remote, last.local - first.local
        return remote / (remote + local) if remote + local > 0 else None

    def ttft_quantiles(self, *quantiles: float) -> list[float | None]:
        """Quantiles in seconds of the window's TTFT over both sides; None without observations."""
        if len(self.marks) < 2:
            return [None] * len(quantiles)
        first, last = self.marks[0].ttft, self.marks[-1].ttft
        edges: tuple[float, ...] | None = None
        total: list[float] = []
        for side, (side_edges, counts) in last.items():
            base_edges, base = first.get(side, (side_edges, (0.0,) * len(counts)))
            if base_edges != side_edges or edges not in (None, side_edges):
                return [None] * len(quantiles)  # sums of unlike buckets would be a guess
            edges = side_edges
            seen = [now - before for now, before in zip(counts, base, strict=True)]
            total = [a + b for a, b in zip(total, seen, strict=True)] if total else seen
        return [histogram_quantile(edges or (), total, q) for q in quantiles]


def _restarted(before: _Mark, now: _Mark) -> bool:
    return now.epoch_s != before.epoch_s or now.local < before.local or now.remote < before.remote


def histogram_quantile(
    edges: tuple[float, ...], counts: list[float], quantile: float
) -> float | None:
    """The value below which `quantile` of the observations lie, linear inside a bucket.

    `edges` shape (n,), `counts` shape (n + 1,). In the open last bucket only its lower bound is
    known, and that is returned.
    """
    n = sum(counts)
    if n <= 0 or not edges:
        return None
    target, seen, low = quantile * n, 0.0, 0.0
    for edge, count in zip(edges, counts, strict=False):
        if count > 0 and seen + count >= target:
            return low + (edge - low) * (target - seen) / count
        seen, low = seen + count, edge
    return edges[-1]


class FleetState:
    """One fleet. `link_gbps` are its links by id with the capacity its scenario gives them, `pds`
    its clusters that decode.

    `acks` are the newest of its routers that were read from the database.
    """

    def __init__(
        self,
        fleet: str,
        *,
        link_gbps: Mapping[str, float | None],
        pds: Collection[str] = (),
        tick_s: float = 2.0,
    ) -> None:
        self.fleet = fleet
        self.link_gbps = dict(link_gbps)
        self.pds = frozenset(pds)
        self.loop: dict[str, Any] | None = None
        self.acks: list[Ack] = []
        self._loop_stale_s = loop_stale_s(tick_s)
        self._plan_since_s: float | None = None
        self._newest: dict[str, dict[str, Reading]] = {"instance": {}, "link": {}, "router": {}}
        self._windows: dict[str, _RouterWindow] = {}
        self._agents: dict[str, tuple[float, float]] = {}
        self._reader: dict[tuple[str, str], str] = {}
        self._failing_since_s: dict[tuple[str, str], float] = {}
        self._gone_at_s: dict[str, float] = {}
        self._down_since_s: dict[str, float] = {}
        self._skew_at_s: dict[str, float] = {}

    def owns(self, sample: store.Sample) -> bool:
        """Does a sample belong to this fleet?"""
        if isinstance(sample, wire.LinkSample):
            return sample.id in self.link_gbps
        return sample.id.startswith(f"{self.fleet}/")

    def apply_batch(self, batch: wire.Batch, *, received_s: float) -> None:
        """Take in what a committed batch says of this fleet."""
        samples = (*batch.instances, *batch.links, *batch.routers)
        mine = [sample for sample in samples if self.owns(sample)]
        for sample in mine:
            reading = store.from_sample(sample, received_s=received_s)
            self.apply(reading)
            if reading.state != "gone":
                self.apply_reader(batch.agent, reading.kind, reading.path)
        if mine:
            self.apply_agent(batch.agent, received_s, batch.sent_at_s - received_s)

    def apply_loop(self, message: dict[str, Any], *, plan_since_s: float) -> None:
        """Take in a tick (`scheduler.tick_message`); a plan that is new is from `plan_since_s`."""
        if self.loop is None or _plan(self.loop) != _plan(message):
            self._plan_since_s = plan_since_s
        self.loop = message

    def apply_reader(self, agent: str, kind: str, path: str) -> None:
        """`agent` is the one that reads this source now."""
        self._reader[kind, path] = agent

    def apply(
        self,
        reading: Reading,
        *,
        failing_since_s: float | None = None,
        down_since_s: float | None = None,
    ) -> None:
        """Take in one reading; one older than what is known changes nothing.

        One that went wrong begins a failure, now or `failing_since_s`, unless one is known already;
        that of a link without capacity likewise that it is down. One that says that an instance is
        gone takes it out of the view at once; what comes late of before does not bring it back.
        """
        newest = self._newest[reading.kind]
        known = newest.get(reading.path)
        if known is not None and reading.at_s < known.at_s:
            return
        source = (reading.kind, reading.path)
        if reading.state == "gone":
            self._gone_at_s[reading.path] = reading.at_s
            newest.pop(reading.path, None)
            self._failing_since_s.pop(source, None)
            self._reader.pop(source, None)
            return
        if reading.at_s <= self._gone_at_s.get(reading.path, 0.0):
            return
        self._gone_at_s.pop(reading.path, None)
        newest[reading.path] = reading
        if reading.state != "ok":
            began_s = reading.received_s if failing_since_s is None else failing_since_s
            self._failing_since_s.setdefault(source, began_s)
        else:
            self._failing_since_s.pop(source, None)
            if is_down(reading):
                began_s = reading.received_s if down_since_s is None else down_since_s
                self._down_since_s.setdefault(reading.path, began_s)
            else:
                self._down_since_s.pop(reading.path, None)
        if isinstance(reading.signals, wire.RouterSignals):
            window = self._windows.setdefault(reading.path, _RouterWindow())
            window.add(reading, reading.signals)

    def apply_agent(self, name: str, received_s: float, skew_s: float) -> None:
        """An agent was heard, its clock apparently `skew_s` ahead of ours.

        Transit and a backlog only ever make a clock look late, so the largest of the last
        SKEW_WINDOW_S is shown.
        """
        shown_s = self._agents.get(name, (0.0, skew_s))[1]
        if skew_s >= shown_s or received_s > self._skew_at_s[name] + SKEW_WINDOW_S:
            shown_s, self._skew_at_s[name] = skew_s, received_s
        self._agents[name] = (received_s, shown_s)

    def forget(self, now_s: float) -> None:
        """Drop what has been silent for FORGET_S, and agents that were for FORGOTTEN_AFTER_S.

        An agent is missed for longer: what it read leaves the view, that it is gone must not.
        """
        for kind, newest in self._newest.items():
            for path in [p for p, r in newest.items() if r.received_s < now_s - FORGET_S]:
                del newest[path]
                self._windows.pop(path, None)
                self._failing_since_s.pop((kind, path), None)
                self._down_since_s.pop(path, None)
        self._gone_at_s = {p: at for p, at in self._gone_at_s.items() if at > now_s - FORGET_S}
        gone = [n for n, (at_s, _) in self._agents.items() if at_s < now_s - FORGOTTEN_AFTER_S]
        for name in gone:
            del self._agents[name], self._skew_at_s[name]
        self._reader = {source: a for source, a in self._reader.items() if a in self._agents}

    def missing(
        self,
        now_s: float,
        *,
        database_away_s: float | None = None,
        broker_away_s: float | None = None,
    ) -> list[missing.Finding]:
        """What is missing at `now_s`; the arguments say since when a server does not answer."""
        reads: dict[str, list[tuple[str, str]]] = {}
        for source, agent in self._reader.items():
            reads.setdefault(agent, []).append(source)
        view = missing.View(
            fleet=self.fleet,
            agents={name: heard_s for name, (heard_s, _) in self._agents.items()},
            reads=reads,
            sources=self._all_sources(now_s),
            links=self.link_gbps,
            pds=self.pds,
            loop=self._loop_facts(),
            stale_s=STALE_AFTER_S,
            loop_stale_s=self._loop_stale_s,
            database_away_s=database_away_s,
            broker_away_s=broker_away_s,
            reread_s=REREAD_S,
        )
        return missing.findings(view, now_s)

    def _all_sources(self, now_s: float) -> list[missing.Source]:
        """Everything read by an agent, and routers by the newer of their reading and their ack."""
        found = {
            (kind, path): self._source(reading)
            for kind, newest in self._newest.items()
            for path, reading in newest.items()
        }
        for ack in self.acks:
            if ack.heard_s < now_s - FORGOTTEN_AFTER_S:
                continue
            read = found.get(("router", ack.router))
            if read is None or read.received_s <= ack.heard_s:
                found["router", ack.router] = missing.Source(
                    kind="router",
                    path=ack.router,
                    agent="",
                    received_s=ack.heard_s,
                    plan=ack.plan,
                )
        return list(found.values())

    def _source(self, reading: Reading) -> missing.Source:
        plan = None
        if reading.plan_epoch is not None and reading.plan_version is not None:
            plan = (reading.plan_epoch, reading.plan_version)
        source = (reading.kind, reading.path)
        return missing.Source(
            kind=reading.kind,
            path=reading.path,
            agent=self._reader.get(source, ""),
            received_s=reading.received_s,
            failing_since_s=self._failing_since_s.get(source),
            error=reading.error or "",
            down_since_s=self._down_since_s.get(reading.path),
            plan=plan,
        )

    def _loop_facts(self) -> missing.Loop | None:
        if self.loop is None:
            return None
        return missing.Loop(
            at_s=self.loop["at_s"],
            mode=self.loop["mode"],
            action=self.loop["action"],
            reason=self.loop["reason"],
            plan=_plan(self.loop),
            plan_since_s=self._plan_since_s,
        )

    def body(self, now_s: float) -> dict[str, Any]:
        """What a frame says of the fleet at `now_s`."""
        instances = self._newest["instance"]
        return {
            "fleet": self.fleet,
            "pools": self._pools(instances.values(), now_s),
            "links": {path: self._link(r) for path, r in sorted(self._newest["link"].items())},
            "routers": {
                path: self._router(r) for path, r in sorted(self._newest["router"].items())
            },
            "instances": {path: _instance(r) for path, r in sorted(instances.items())},
            "agents": {
                name: {"received_s": received_s, "skew_s": skew_s}
                for name, (received_s, skew_s) in sorted(self._agents.items())
            },
            "loop": self.loop,
        }

    @staticmethod
    def _pools(readings: Iterable[Reading], now_s: float) -> dict[str, Any]:
        members: dict[str, list[Reading]] = {}
        for reading in readings:
            cluster = reading.path.split("/")[1]
            members.setdefault(f"{cluster}/{reading.role}", []).append(reading)
        return {name: _pool(members[name], now_s) for name in sorted(members)}

    def _link(self, reading: Reading) -> dict[str, Any]:
        signals = reading.signals
        assert isinstance(signals, wire.LinkSignals)
        capacity_gbps = signals.capacity_gbps
        if capacity_gbps is None:
            capacity_gbps = self.link_gbps.get(reading.path)
        utilisation = None
        if signals.tx_gbps is not None and capacity_gbps:
            utilisation = signals.tx_gbps / capacity_gbps
        return {
            **_head(reading),
            "tx_gbps": signals.tx_gbps,
            "capacity_gbps": capacity_gbps,
            "down_since_s": self._down_since_s.get(reading.path),
            "utilisation_ratio": utilisation,
            "retransmit_ratio": signals.retransmit_ratio,
            "rtt_s": signals.rtt_s,
            "connections": signals.connections,
        }

    def _router(self, reading: Reading) -> dict[str, Any]:
        signals = reading.signals
        assert isinstance(signals, wire.RouterSignals)
        window = self._windows[reading.path]
        p50_s, p90_s = window.ttft_quantiles(0.5, 0.9)
        in_flight = signals.in_flight or {}
        return {
            **_head(reading),
            "requests_per_s": signals.requests_per_s,
            "in_flight": {side: in_flight.get(side) for side in ("local", "remote")},
            "upstream_up": signals.upstream_up or {},
            "plan_epoch": reading.plan_epoch,
            "plan_version": reading.plan_version,
            "remote_share": window.remote_share(),
            "ttft_p50_s": p50_s,
            "ttft_p90_s": p90_s,
        }


def is_down(reading: Reading) -> bool:
    """Is it that of a link which says that it has no capacity?"""
    signals = reading.signals
    return isinstance(signals, wire.LinkSignals) and signals.capacity_gbps == 0


def _plan(loop: Mapping[str, Any]) -> tuple[int, int] | None:
    plan = loop["plan"]
    return plan and (plan["epoch"], plan["version"])


def _head(reading: Reading) -> dict[str, Any]:
    return {
        "at_s": reading.at_s,
        "received_s": reading.received_s,
        "state": reading.state,
        "error": reading.error,
    }


def _instance(reading: Reading) -> dict[str, Any]:
    signals = reading.signals
    assert isinstance(signals, wire.InstanceSignals)
    return {
        "role": reading.role,
        **_head(reading),
        "running": signals.requests_running,
        "waiting": signals.requests_waiting,
        "kv_ratio": signals.kv_cache_usage_ratio,
        "prompt_tokens_per_s": signals.prompt_tokens_per_s,
        "generation_tokens_per_s": signals.generation_tokens_per_s,
        "engine": reading.engine,
        "engine_version": reading.engine_version,
    }


def _pool(members: list[Reading], now_s: float) -> dict[str, Any]:
    """Sums and the mean over the members that were read lately; the silent ones are counted."""
    fresh = [
        reading.signals
        for reading in members
        if reading.state == "ok" and reading.received_s >= now_s - STALE_AFTER_S
    ]
    kv_ratios = _known(signals.kv_cache_usage_ratio for signals in fresh)
    return {
        "n": len(members),
        "n_fresh": len(fresh),
        "running": _sum(signals.requests_running for signals in fresh),
        "waiting": _sum(signals.requests_waiting for signals in fresh),
        "kv_ratio": sum(kv_ratios) / len(kv_ratios) if kv_ratios else None,
        "at_s": max(reading.at_s for reading in members),
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _sum(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) if known else None
