"""Telemetry rows in, what the truth checks are made of out (`core.truth`).

The loop's own values are `observe`'s; here is what it does not decide by: where decode engines got
their prompts from, what gates and engines say of caches, leases, and who is there. Everything is
over the last `WINDOW_S`, in bins of `BIN_S`, and recomputed whenever somebody looks.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from routing import kv_leaks
from routing.core.placement import sides
from routing.core.scenario.document import Cluster, Link, Scenario
from routing.core.truth.disaggregation import (
    WINDOW_S,
    DecodeEngine,
    Moved,
    PdCluster,
    Prompts,
    RemoteLink,
    together,
)
from routing.core.truth.kv_memory import Lease, Pool
from routing.core.truth.prerequisites import CachedClaims, KvEvents, PrefillPool
from routing.core.truth.readiness import Member
from routing.pools import SILENT_AFTER_S, SILENT_KEPT_S
from telemetry import counters, store, wire
from telemetry.store import Reading

BIN_S: Final = 30.0
_PREFILL: Final = ("prefill", "both")
_READY: Final = ("ok", "slow")
"""Who does not answer its metrics in time is maybe busy, and serves."""
Rows = Mapping[str, list[Reading]]
Value = Callable[[Any], float | None]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Seen:
    """A fleet's readings from `since_s` to `at_s`: by path, ascending in time.

    Many clusters ask the same of what they share (a far cluster, its engines), so what was found of
    it is found once.
    """

    fleet: str
    at_s: float
    since_s: float
    instances: Rows
    gates: Rows
    links: Rows
    _found: dict[tuple[str, str], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @functools.cached_property
    def instances_by_cluster(self) -> Mapping[str, Rows]:
        return _by_cluster(self.instances)

    @functools.cached_property
    def gates_by_cluster(self) -> Mapping[str, Rows]:
        return _by_cluster(self.gates)

    def of(self, cluster: str, roles: Sequence[str]) -> Rows:
        """The cluster's instances whose newest role is one of `roles`."""
        members = self.instances_by_cluster.get(cluster, {})
        return {path: rows for path, rows in members.items() if rows[-1].role in roles}

    def gates_of(self, cluster: str) -> Rows:
        return self.gates_by_cluster.get(cluster, {})

    def once(self, what: str, of: str, find: Callable[[], Found]) -> Found:
        """What `find` says, asked for the first time only."""
        if (what, of) not in self._found:
            self._found[what, of] = find()
        found: Found = self._found[what, of]
        return found


def _by_cluster(sources: Rows) -> dict[str, dict[str, list[Reading]]]:
    found: dict[str, dict[str, list[Reading]]] = {}
    for path, rows in sources.items():
        found.setdefault(path.split("/", 2)[1], {})[path] = rows
    return found


def read(fleet: str, scenario: Scenario, *, at_s: float) -> Seen:
    """What was received by `at_s` (epoch seconds) of the fleet's instances, gates and links."""
    since_s = math.floor(at_s / BIN_S) * BIN_S - WINDOW_S
    links = {link.id for link in scenario.links}
    routers = _window("router", f"{fleet}/", since_s, at_s)
    return Seen(
        fleet=fleet,
        at_s=at_s,
        since_s=since_s,
        instances={
            path: rows
            for path, rows in _window("instance", f"{fleet}/", since_s, at_s).items()
            if rows[-1].state != "gone"
        },
        gates={path: rows for path, rows in routers.items() if rows[-1].engine == wire.GATE_KIND},
        links={p: rows for p, rows in _window("link", "", since_s, at_s).items() if p in links},
    )


def _window(kind: str, prefix: str, since_s: float, at_s: float) -> dict[str, list[Reading]]:
    found = store.window(
        kind, prefix=prefix, since_s=since_s, until_s=at_s + store.FUTURE_S, bin_s=BIN_S
    )
    kept = {path: [row for row in rows if row.received_s <= at_s] for path, rows in found.items()}
    return {path: rows for path, rows in kept.items() if rows}


# What counters gained


def _pairs(rows: Iterable[Reading], role: str = "") -> Iterator[tuple[Reading, Reading]]:
    """Neighbouring good readings; with `role`, those between which it was the instance's."""
    good = [row for row in rows if row.state == "ok"]
    for before, after in itertools.pairwise(good):
        if before.at_s < after.at_s and (not role or before.role == after.role == role):
            yield before, after


def _gained(rows: Iterable[Reading], value: Value) -> float | None:
    """What a counter gained over the readings; None where no two neighbours show it."""
    total = None
    for before, after in _pairs(rows):
        more = counters.increase(
            value(before.signals),
            value(after.signals),
            restarted=before.epoch_s != after.epoch_s,
        )
        if more is not None:
            total = more if total is None else total + more
    return total


def _gained_by_all(instances: Rows, value: Value) -> float | None:
    return _sum(_gained(rows, value) for rows in instances.values())


def _keyed(rows: Iterable[Reading], name: str) -> dict[str, float] | None:
    """The same of a labelled counter, by key."""
    total: dict[str, float] | None = None
    for before, after in _pairs(rows):
        more = _gains(before, after, name)
        if more is not None:
            total = total or {}
            for key, gained in more.items():
                total[key] = total.get(key, 0.0) + gained
    return total


def _gains(before: Reading, after: Reading, name: str) -> dict[str, float] | None:
    return counters.keyed_increases(
        getattr(before.signals, name),
        getattr(after.signals, name),
        restarted=before.epoch_s != after.epoch_s,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# Disaggregation


def pd_cluster(
    seen: Seen,
    scenario: Scenario,
    cluster: Cluster,
    *,
    sends_remote: bool,
    keeps_short: bool,
) -> PdCluster:
    """What its engines counted. `sends_remote`: the plan sends requests to its PrfaaS clusters."""
    senders = [seen.of(cluster.name, ("prefill",))]
    if sends_remote:
        senders += [seen.of(link.source, _PREFILL) for link in _feeding(scenario, cluster.name)]
    prefill = {path: rows for group in senders for path, rows in group.items()}
    return PdCluster(
        subject=f"{seen.fleet}/{cluster.name}",
        since_s=seen.since_s,
        decode=tuple(_decode(p, rows) for p, rows in seen.of(cluster.name, ("decode",)).items()),
        n_prefill=len(prefill),
        prefilled_tokens=_sum(_prefilled(seen, path, rows) for path, rows in prefill.items()),
        sent=together(
            seen.once("moved", path, functools.partial(_moved, rows))
            for path, rows in prefill.items()
        ),
        keeps_short=keeps_short,
    )


def _prefilled(seen: Seen, path: str, rows: list[Reading]) -> float | None:
    """Prompt tokens that an engine computed."""
    return seen.once("prefilled", path, lambda: _gained(rows, lambda s: s.prompt_tokens_total))


def _decode(path: str, rows: list[Reading]) -> DecodeEngine:
    prompts: list[Prompts] = []
    told = False
    for before, after in _pairs(rows, role="decode"):
        gained = _gains(before, after, "prompt_tokens_by_source_total")
        if gained is None or _RECEIVED not in gained:
            continue
        told = True
        prompts.append(
            Prompts(
                since_s=before.at_s,
                computed=gained.get("local_compute", 0.0),
                received=gained[_RECEIVED],
                cached=gained.get("local_cache_hit", 0.0),
            )
        )
    return DecodeEngine(path, tuple(prompts) if told else None, _moved(rows))


_RECEIVED: Final = "external_kv_transfer"
"""An engine that does not tell received KV apart shows only its own work, and is no witness."""


def _moved(rows: list[Reading]) -> Moved:
    return Moved(
        transfers=_gained(
            rows, lambda s: None if s.kv_transfer_seconds is None else s.kv_transfer_seconds.count
        ),
        n_bytes=_gained(rows, lambda s: s.kv_transfer_bytes_total),
    )


def remote_links(
    seen: Seen, scenario: Scenario, least_tokens: Mapping[str, float]
) -> Iterator[RemoteLink]:
    """Links over which alone a cluster's gates send; `least_tokens` by cluster: the fewest tokens
    that the rule sent remote in the window."""
    for cluster in scenario.clusters:
        feeding = _feeding(scenario, cluster.name)
        if len(feeding) != 1 or cluster.name not in least_tokens:
            continue
        (link,) = feeding
        yield RemoteLink(
            subject=link.id,
            since_s=seen.since_s,
            requests=_sum(_sent(rows) for rows in seen.gates_of(cluster.name).values()),
            least_tokens=least_tokens[cluster.name],
            bytes_per_token=scenario.model.bytes_per_token,
            carried_bytes=_carried(seen.links.get(link.id, [])),
        )


def _sent(rows: list[Reading]) -> float | None:
    """Requests that the rule sent remote, less those that the far side failed."""
    by_key = _keyed(rows, "requests_total")
    if by_key is None:
        return None
    failed = (_keyed(rows, "errors_total") or {}).get("remote", 0.0)
    short = f"remote|{sides.LOCAL_DOWN}"
    sent = sum(n for key, n in by_key.items() if key.startswith("remote|") and key != short)
    return max(sent - failed, 0.0)


def _carried(rows: list[Reading]) -> float | None:
    counted = _gained(rows, lambda s: s.tx_bytes_total)
    if counted is not None:
        return counted
    spans = [
        (after.signals.tx_gbps, after.at_s - before.at_s)
        for before, after in _pairs(rows)
        if isinstance(after.signals, wire.LinkSignals)
    ]
    known = [gbps * elapsed_s for gbps, elapsed_s in spans if gbps is not None]
    return sum(known) * 1.25e8 if known else None


def _feeding(scenario: Scenario, cluster: str) -> list[Link]:
    """The links over which KV of remotely prefilled requests comes to the cluster."""
    far = {each.name for each in scenario.clusters if each.kind == "prefill"}
    return [link for link in scenario.links_to.get(cluster, []) if link.source in far]


# Prerequisites


def kv_events(seen: Seen, cluster: str) -> Iterator[KvEvents]:
    """Of each gate of the cluster, each place whose engines it listens to."""
    for path, rows in seen.gates_of(cluster).items():
        heard = _keyed(rows, "kv_events_total") or {}
        for place in sorted({key.partition("|")[0] for key in heard}):
            engines = seen.of(place, _PREFILL)
            yield KvEvents(
                gate=path,
                place=place,
                since_s=seen.since_s,
                events=sum(n for key, n in heard.items() if key.startswith(f"{place}|")),
                computed_tokens=_sum(_prefilled(seen, p, rows) for p, rows in engines.items()),
            )


def prefill_pool(seen: Seen, cluster: str) -> PrefillPool:
    return seen.once("prefill pool", cluster, lambda: _prefill_pool(seen, cluster))


def _prefill_pool(seen: Seen, cluster: str) -> PrefillPool:
    engines = seen.of(cluster, _PREFILL)
    return PrefillPool(
        subject=f"{seen.fleet}/{cluster}",
        since_s=seen.since_s,
        instances=tuple(sorted(engines)),
        silent=tuple(sorted(path for path, rows in engines.items() if not _counts_hits(rows))),
        queries_tokens=_gained_by_all(engines, lambda s: s.prefix_cache_queries_total),
        hits_tokens=_gained_by_all(engines, _hits),
        computed_tokens=_sum(_prefilled(seen, path, rows) for path, rows in engines.items()),
    )


def _hits(signals: Any) -> float | None:
    """Where lookups are counted, hits that are not there yet are none so far."""
    if signals.prefix_cache_hits_total is None and signals.prefix_cache_queries_total is not None:
        return 0.0
    found: float | None = signals.prefix_cache_hits_total
    return found


def _counts_hits(rows: list[Reading]) -> bool:
    names = ("prefix_cache_queries_total", "prefix_cache_hits_total", "prefix_cache_hit_ratio")
    return any(
        getattr(row.signals, name) is not None
        for row in rows
        if row.state == "ok"
        for name in names
    )


def cached_claims(seen: Seen, scenario: Scenario, cluster: str) -> Iterator[CachedClaims]:
    """Of each gate of the cluster and each side, beside what that side's prefill engines say."""
    own = prefill_pool(seen, cluster).hit_ratio
    far = [prefill_pool(seen, link.source).hit_ratio for link in _feeding(scenario, cluster)]
    engines = {"local": own, "remote": max((r for r in far if r is not None), default=None)}
    for path, rows in seen.gates_of(cluster).items():
        prompts, cached = _keyed(rows, "engine_prompt_tokens_total"), _keyed(rows, _CACHED)
        for side, ratio in engines.items():
            yield CachedClaims(
                gate=path,
                side=side,
                since_s=seen.since_s,
                prompt_tokens=None if prompts is None else prompts.get(side),
                cached_tokens=None if cached is None else cached.get(side),
                engines=ratio,
            )


_CACHED: Final = "engine_cached_tokens_total"

# KV memory


def lease(seen: Seen, scenario: Scenario, cluster: Cluster) -> Lease | None:
    """Of the cluster's prefill engines and the gates that wait for them; None without an engine."""
    engines = seen.of(cluster.name, ("prefill",))
    if not engines:
        return None
    waiting = [cluster.name] if cluster.kind == "pd" else []
    waiting += [link.target for link in scenario.links if link.source == cluster.name]
    timeouts = [
        row.signals.read_timeout_s
        for name in waiting
        for rows in seen.gates_of(name).values()
        for row in rows[-1:]
        if isinstance(row.signals, wire.RouterSignals) and row.signals.read_timeout_s is not None
    ]
    return Lease(
        subject=f"{seen.fleet}/{cluster.name}",
        since_s=seen.since_s,
        expired=_gained_by_all(engines, lambda s: s.kv_expired_total),
        failed=_gained_by_all(engines, lambda s: s.kv_transfer_failures_total),
        timeout_s=max(timeouts, default=None),
        lease_s=None,
    )


def leaking(seen: Seen, clusters: Iterable[Cluster]) -> Iterator[Pool]:
    """The suspected leaks of each cluster, and who does not tell enough to be suspected."""
    suspected = kv_leaks.suspected(seen.fleet, seen.instances, at_s=seen.at_s)
    for cluster in clusters:
        place = f"{seen.fleet}/{cluster.name}/"
        paths = list(seen.instances_by_cluster.get(cluster.name, {}))
        yield Pool(
            subject=place.rstrip("/"),
            n=len(paths),
            leaks=[leak for leak in suspected if leak.instance.startswith(place)],
            untold=[path for path in paths if not _tells_use(seen, path)],
        )


def _tells_use(seen: Seen, path: str) -> bool:
    newest = seen.instances[path][-1]
    if newest.state != "ok" or seen.at_s - newest.received_s > SILENT_KEPT_S:
        return False
    use = kv_leaks.use_of(newest)
    return None not in (use.running, use.waiting, use.kv_usage_ratio)


# Who is there


def engine_pool(seen: Seen, cluster: str, role: str) -> tuple[Member, ...] | None:
    """The instances of a role by their own readings; None where none was read at all."""
    found = seen.of(cluster, (role, "both"))
    if not found:
        return None
    return tuple(_member(path, rows, seen.at_s) for path, rows in sorted(found.items()))


def _member(path: str, rows: list[Reading], at_s: float) -> Member:
    newest = rows[-1]
    silent = at_s - newest.received_s > (
        SILENT_KEPT_S if newest.state == "slow" else SILENT_AFTER_S
    )
    if newest.state in _READY and not silent:
        return Member(path, "ready")
    if newest.state != "down":
        return Member(path, "unread", newest.received_s)
    run = itertools.takewhile(lambda row: row.state == "down", reversed(rows))
    return Member(path, "down", min(row.at_s for row in run))
