"""The newest of everything one fleet reports, in memory, and the live frame made from it.

Pure: readings go in, a plain dict comes out; no database, no clock. What was not measured is None,
never zero; counters become shares and quantiles over the last minute (`router_window`).

A frame of a small fleet holds every instance and agent. Of more than `MOST_ROWS` of a kind it holds
those in trouble, the busiest and what a page asks for by name (`Scope`), and counts all of them:
frames then do not grow with the fleet.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from console import missing
from console.context import FORGOTTEN_AFTER_S, STALE_AFTER_S, loop_stale_s
from console.router_window import RouterWindow
from telemetry import store, wire
from telemetry.store import Reading

SKEW_WINDOW_S: Final = 30.0
FORGET_S: Final = 900.0
"""A source silent for this long leaves the live view; its history stays."""
REREAD_S: Final = 5.0
"""How often the database is read anew while the broker carries nothing."""

MOST_ROWS: Final = 300
"""A fleet with more instances or agents than this is told of in part."""
_MOST_TROUBLED: Final = 50
_N_BUSIEST: Final = 20


class Scope(NamedTuple):
    """What a page shows of a large fleet: paths of instances, names of agents."""

    instances: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()


NO_ROWS: Final = Scope()


@dataclass(frozen=True)
class Ack:
    """What a router said last: that it lives, and which (epoch, version) it runs, if any."""

    router: str
    heard_s: float
    plan: tuple[int, int] | None


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
        self._pools: dict[str, dict[str, Reading]] = {}
        self._windows: dict[str, RouterWindow] = {}
        self._agents: dict[str, tuple[float, float]] = {}
        self._reader: dict[tuple[str, str], str] = {}
        self._failing_since_s: dict[tuple[str, str], float] = {}
        self._gone_at_s: dict[str, float] = {}
        self._down_since_s: dict[str, float] = {}
        self._skew_at_s: dict[str, float] = {}
        self._struck: tuple[float, set[str]] = (float("-inf"), set())

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
            self._leave_pool(known)
            self._failing_since_s.pop(source, None)
            self._reader.pop(source, None)
            return
        if reading.at_s <= self._gone_at_s.get(reading.path, 0.0):
            return
        self._gone_at_s.pop(reading.path, None)
        newest[reading.path] = reading
        if reading.kind == "instance":
            if known is not None and known.role != reading.role:
                self._leave_pool(known)
            self._pools.setdefault(_pool_of(reading), {})[reading.path] = reading
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
            window = self._windows.setdefault(reading.path, RouterWindow())
            window.add(reading, reading.signals)

    def _leave_pool(self, reading: Reading | None) -> None:
        if reading is None or reading.kind != "instance":
            return
        members = self._pools[_pool_of(reading)]
        del members[reading.path]
        if not members:
            del self._pools[_pool_of(reading)]

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
                self._leave_pool(newest.pop(path))
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
        silent = self._silent_agents(now_s)
        # Of all that is read only what a silent agent reads is asked for, and that is rare.
        reads: dict[str, list[tuple[str, str]]] = {name: [] for name in silent}
        for source, agent in self._reader.items() if silent else ():
            if agent in reads:
                reads[agent].append(source)
        view = missing.View(
            fleet=self.fleet,
            agents={name: heard_s for name, (heard_s, _) in self._agents.items()},
            reads=reads,
            sources=self._sources(now_s),
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

    def _silent_agents(self, now_s: float) -> set[str]:
        limit_s = now_s - STALE_AFTER_S
        return {name for name, (heard_s, _) in self._agents.items() if heard_s < limit_s}

    def _troubled(self, now_s: float) -> list[Reading]:
        """Instances that were not read lately or not well, those without a word the longest first.

        One loop over the whole fleet, so it does as little as can be.
        """
        limit_s = now_s - STALE_AFTER_S
        found = [
            reading
            for members in self._pools.values()
            for reading in members.values()
            if reading.received_s < limit_s or reading.state != "ok"
        ]
        return sorted(found, key=lambda reading: (reading.received_s, reading.path))

    def _sources(self, now_s: float) -> list[missing.Source]:
        """Instances in trouble, links, and routers by the newer of their reading and their ack."""
        readings = (
            *self._troubled(now_s),
            *self._newest["link"].values(),
            *self._newest["router"].values(),
        )
        found = {(reading.kind, reading.path): self._source(reading) for reading in readings}
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

    def body(self, now_s: float, scope: Scope = NO_ROWS) -> dict[str, Any]:
        """What a frame says of the fleet at `now_s` to a page that shows `scope`."""
        return self.common(now_s) | self.rows(now_s, scope)

    @property
    def partial(self) -> bool:
        """Is the fleet too large for a frame to tell all of it?"""
        return max(len(self._newest["instance"]), len(self._agents)) > MOST_ROWS

    def common(self, now_s: float) -> dict[str, Any]:
        """The part of `body` that is the same for every page."""
        silent = self._silent_agents(now_s)
        return {
            "fleet": self.fleet,
            "pools": {name: _pool(self._pools[name], now_s) for name in sorted(self._pools)},
            "links": {path: self._link(r) for path, r in sorted(self._newest["link"].items())},
            "routers": {
                path: self._router(r) for path, r in sorted(self._newest["router"].items())
            },
            "loop": self.loop,
            "partial": self.partial,
            "counts": {
                "instances": len(self._newest["instance"]),
                "agents": len(self._agents),
                "agents_silent": len(silent),
                "agents_silent_since_s": min((self._agents[n][0] for n in silent), default=None),
            },
        }

    def rows(self, now_s: float, scope: Scope = NO_ROWS) -> dict[str, Any]:
        """The part of `body` that tells of instances and agents one by one."""
        instances, agents = self._newest["instance"], self._agents
        paths: Iterable[str] = instances
        names: Iterable[str] = agents
        if self.partial:
            paths = {*self._striking(now_s), *(p for p in scope.instances if p in instances)}
            striking = self._silent_agents(now_s) | {
                name for name, (_, skew_s) in agents.items() if abs(skew_s) > missing.CLOCK_AHEAD_S
            }
            first = heapq.nsmallest(_MOST_TROUBLED, striking, key=lambda name: agents[name])
            names = {*first, *(name for name in scope.agents if name in agents)}
        return {
            "instances": {path: _instance(instances[path]) for path in sorted(paths)},
            "agents": {
                name: {"received_s": agents[name][0], "skew_s": agents[name][1]}
                for name in sorted(names)
            },
        }

    def _striking(self, now_s: float) -> set[str]:
        """Of a large fleet the instances to tell of unasked: some in trouble, the busiest."""
        if self._struck[0] != now_s:
            troubled = self._troubled(now_s)[:_MOST_TROUBLED]
            busiest = heapq.nlargest(_N_BUSIEST, self._newest["instance"].values(), key=_load)
            self._struck = (now_s, {reading.path for reading in (*troubled, *busiest)})
        return self._struck[1]

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
            "path_trouble": path_trouble(reading),
            "utilisation_ratio": utilisation,
            "retransmit_ratio": signals.retransmit_ratio,
            "rtt_s": signals.rtt_s,
            "connections": signals.connections,
        }

    def _router(self, reading: Reading) -> dict[str, Any]:
        signals = reading.signals
        assert isinstance(signals, wire.RouterSignals)
        window = self._windows[reading.path]
        p50, p90 = window.ttft_quantiles(0.5, 0.9)
        in_flight = signals.in_flight or {}
        return {
            **_head(reading),
            "requests_per_s": window.requests_per_s(),
            "in_flight": {side: in_flight.get(side) for side in ("local", "remote")},
            "upstream_up": signals.upstream_up or {},
            "plan_epoch": reading.plan_epoch,
            "plan_version": reading.plan_version,
            "remote_share": window.remote_share(),
            "ttft_p50_s": p50.value,
            "ttft_p90_s": p90.value,
            # The largest bound of the histogram is shown then, and it is no estimate.
            "ttft_p50_is_above": p50.is_above,
            "ttft_p90_is_above": p90.is_above,
        }


def is_down(reading: Reading) -> bool:
    """Is it that of a link which says that it has no capacity?"""
    signals = reading.signals
    return isinstance(signals, wire.LinkSignals) and signals.capacity_gbps == 0


def path_trouble(reading: Reading) -> str:
    """What is wrong with the path of a link that still carries: a bond on one leg, say."""
    signals = reading.signals
    if not isinstance(signals, wire.LinkSignals) or signals.path_state != "degraded":
        return ""
    n, n_up = signals.n_members, signals.n_members_up
    if n is None or n_up is None:
        return "path degraded"
    if n_up < n:
        return f"path degraded: {n_up:g} of {n:g} members up"
    return "path degraded: the speed of a member is not known"


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


def _pool_of(reading: Reading) -> str:
    return f"{reading.path.split('/', 2)[1]}/{reading.role}"


def _load(reading: Reading) -> float:
    signals = reading.signals
    assert isinstance(signals, wire.InstanceSignals)
    return (signals.requests_running or 0.0) + (signals.requests_waiting or 0.0)


def _pool(members: Mapping[str, Reading], now_s: float) -> dict[str, Any]:
    """Sums and the mean over the members that were read lately; the silent ones are counted."""
    fresh_s = now_s - STALE_AFTER_S
    fresh: list[Any] = [
        reading.signals
        for reading in members.values()
        if reading.received_s >= fresh_s and reading.state == "ok"
    ]
    kv_ratios = _known([signals.kv_cache_usage_ratio for signals in fresh])
    return {
        "n": len(members),
        "n_fresh": len(fresh),
        "running": _sum([signals.requests_running for signals in fresh]),
        "waiting": _sum([signals.requests_waiting for signals in fresh]),
        "kv_ratio": sum(kv_ratios) / len(kv_ratios) if kv_ratios else None,
        "at_s": max([reading.at_s for reading in members.values()]),
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _sum(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum(known) if known else None
