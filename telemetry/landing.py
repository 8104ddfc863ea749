"""One transaction for many batches: who is new, what is newer, and all rows by binary COPY.

The only writer of telemetry_batch, Agent, Source and the sample tables (`partitions` removes what
is past retention). A batch is stored once by
(agent, boot, seq) whichever process receives it, because the unique key decides inside the same
transaction that copies its samples. Locks are always taken in the same order (batches, agents,
sources, tables; each sorted), so two processes cannot deadlock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec
import psycopg

from telemetry import partitions, store, wire

log = logging.getLogger(__name__)

SEEN_EVERY_S: Final = 10.0
"""An agent's or source's row is rewritten at most this often while nothing but time changes."""

_SAMPLE: Final = (
    ("source_id", "int8"),
    ("at", "timestamptz"),
    ("received_at", "timestamptz"),
    ("state", "text"),
    ("error", "text"),
    ("detail", "bytea"),
)
# How each typed column is read from a sample. The names are those of the table and of
# `store.COLUMNS`.
_INSTANCE: Final[dict[str, str]] = {
    "running": "requests_running",
    "waiting": "requests_waiting",
    "kv_ratio": "kv_cache_usage_ratio",
    "prompt_tokens_total": "prompt_tokens_total",
    "generation_tokens_total": "generation_tokens_total",
    "prompt_tokens_per_s": "prompt_tokens_per_s",
    "generation_tokens_per_s": "generation_tokens_per_s",
    "kv_transfer_bytes_total": "kv_transfer_bytes_total",
    "preemptions_total": "preemptions_total",
}
_LINK: Final = (
    "tx_bytes_total",
    "rx_bytes_total",
    "tx_gbps",
    "rx_gbps",
    "segments_sent_total",
    "segments_retransmitted_total",
    "retransmit_ratio",
    "rtt_s",
    "connections",
    "capacity_gbps",
)


@dataclass(frozen=True)
class Arrival:
    """A checked batch and when it came in."""

    batch: wire.Batch
    received_s: float

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.batch.agent, self.batch.boot, self.batch.seq)


@dataclass(frozen=True)
class Outcome:
    """What became of an arrival. `older`: a newer boot of that agent had committed before."""

    state: Literal["stored", "duplicate", "older"]
    newest_boot: int


@dataclass(frozen=True)
class _Kind:
    name: str
    table: str
    samples: Callable[[wire.Batch], Sequence[Any]]
    columns: tuple[tuple[str, str], ...]
    row: Callable[[Any], tuple[Any, ...]]


def _instance_row(sample: wire.InstanceSample) -> tuple[Any, ...]:
    return (sample.role, *(getattr(sample.signals, name) for name in _INSTANCE.values()))


def _link_row(sample: wire.LinkSample) -> tuple[Any, ...]:
    return tuple(getattr(sample.signals, name) for name in _LINK)


def _router_row(sample: wire.RouterSample) -> tuple[Any, ...]:
    signals = sample.signals
    in_flight = signals.in_flight or {}
    return (
        sample.plan_epoch,
        sample.plan_version,
        signals.requests_per_s,
        store.requests_of(signals, "local"),
        store.requests_of(signals, "remote"),
        in_flight.get("local"),
        in_flight.get("remote"),
    )


_KINDS: Final = (
    _Kind(
        "instance",
        "telemetry_instance_sample",
        lambda batch: batch.instances,
        (("role", "text"), *((name, "float8") for name in _INSTANCE)),
        _instance_row,
    ),
    _Kind(
        "link",
        "telemetry_link_sample",
        lambda batch: batch.links,
        tuple((name, "float8") for name in _LINK),
        _link_row,
    ),
    _Kind(
        "router",
        "telemetry_router_sample",
        lambda batch: batch.routers,
        (
            ("plan_epoch", "int8"),
            ("plan_version", "int8"),
            *(
                (name, "float8")
                for name in (
                    "requests_per_s",
                    "requests_local_total",
                    "requests_remote_total",
                    "in_flight_local",
                    "in_flight_remote",
                )
            ),
        ),
        _router_row,
    ),
)


@dataclass(frozen=True)
class _Source:
    """A source as the database last heard of it from this process."""

    id: int
    role: str
    engine: str
    engine_version: str
    agent: str
    written_s: float


@dataclass
class _Staged:
    """What a transaction wrote, to be believed only once it has committed."""

    agents: dict[str, tuple[int, float]] = field(default_factory=dict)
    sources: dict[tuple[str, str], _Source] = field(default_factory=dict)


class Landing:
    """Commits arrivals over one connection, which it owns while in use."""

    def __init__(self, connection: psycopg.AsyncConnection, *, retention: timedelta) -> None:
        self._connection = connection
        self._retention = retention
        self._encode = msgspec.msgpack.Encoder().encode
        self._partitions: set[int] = set()
        self._agents: dict[str, tuple[int, float]] = {}
        self._skews_s: dict[str, float] = {}
        self._sources: dict[tuple[str, str], _Source] = {}

    async def commit(self, arrivals: Sequence[Arrival], *, now_s: float) -> list[Outcome]:
        """Store what is new; one outcome per arrival. psycopg.Error: nothing was stored."""
        await self._ensure_partitions(arrivals, now_s)
        staged = _Staged()
        async with self._connection.transaction():
            newest = await self._newest_boots(arrivals)
            current = [a for a in arrivals if a.batch.boot >= newest.get(a.batch.agent, 0)]
            stored = await self._insert_batches(current)
            new = list(stored.values())
            if new:
                await self._write_agents(new, staged)
                await self._write_sources(new, staged)
                for kind in _KINDS:
                    await self._copy(kind, new, staged)
        self._agents |= staged.agents
        self._sources |= staged.sources
        return [self._outcome(a, newest, stored) for a in arrivals]

    @staticmethod
    def _outcome(
        arrival: Arrival, newest: dict[str, int], stored: dict[tuple[str, int, int], Arrival]
    ) -> Outcome:
        boot = newest.get(arrival.batch.agent, arrival.batch.boot)
        if arrival.batch.boot < boot:
            return Outcome("older", boot)
        # `is`: the same batch may wait twice in one group, and only one of the two was copied.
        return Outcome("stored" if stored.get(arrival.key) is arrival else "duplicate", boot)

    async def _newest_boots(self, arrivals: Sequence[Arrival]) -> dict[str, int]:
        # Read every time: another process may have committed a newer boot meanwhile.
        cursor = await self._connection.execute(
            "SELECT name, boot FROM telemetry_agent WHERE name = ANY(%s)",
            [sorted({a.batch.agent for a in arrivals})],
        )
        return dict(await cursor.fetchall())

    async def _insert_batches(
        self, arrivals: Sequence[Arrival]
    ) -> dict[tuple[str, int, int], Arrival]:
        by_key: dict[tuple[str, int, int], Arrival] = {}
        for arrival in arrivals:
            by_key.setdefault(arrival.key, arrival)
        keys = sorted(by_key)
        if not keys:
            return {}
        agents, boots, seqs = zip(*keys, strict=True)
        cursor = await self._connection.execute(
            """
            INSERT INTO telemetry_batch (agent, boot, seq, received_at)
            SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::timestamptz[])
            ON CONFLICT DO NOTHING RETURNING agent, boot, seq
            """,
            [list(agents), list(boots), list(seqs), [_utc(by_key[k].received_s) for k in keys]],
        )
        return {key: by_key[key] for key in await cursor.fetchall()}

    async def _write_agents(self, new: Sequence[Arrival], staged: _Staged) -> None:
        by_agent: dict[str, list[Arrival]] = {}
        for arrival in new:
            by_agent.setdefault(arrival.batch.agent, []).append(arrival)
        rows = {}
        for name, mine in sorted(by_agent.items()):
            top = max(mine, key=lambda a: (a.batch.boot, a.batch.seq))
            boot, written_s = self._agents.get(name, (-1, 0.0))
            # Transit and a backlog only ever make a clock look late: the largest difference since
            # the row was last written is the best.
            seen_s = max(a.batch.sent_at_s - a.received_s for a in mine)
            self._skews_s[name] = max(seen_s, self._skews_s.get(name, seen_s))
            if top.batch.boot == boot and top.received_s < written_s + SEEN_EVERY_S:
                continue
            staged.agents[name] = (top.batch.boot, top.received_s)
            skew_s = self._skews_s.pop(name)
            rows[name] = (top.batch.boot, top.batch.seq, _utc(top.received_s), skew_s)
        if not rows:
            return
        boots, seqs, seen, skews = zip(*rows.values(), strict=True)
        await self._connection.execute(
            """
            INSERT INTO telemetry_agent AS agent
                (name, boot, last_seq, first_seen_at, last_seen_at, skew_s)
            SELECT name, boot, seq, seen, seen, skew FROM unnest(
                %s::text[], %s::bigint[], %s::bigint[], %s::timestamptz[], %s::float8[]
            ) AS new (name, boot, seq, seen, skew)
            ON CONFLICT (name) DO UPDATE SET
                boot = excluded.boot, last_seen_at = excluded.last_seen_at,
                skew_s = excluded.skew_s,
                last_seq = CASE WHEN excluded.boot > agent.boot THEN excluded.last_seq
                                ELSE greatest(excluded.last_seq, agent.last_seq) END
            WHERE excluded.boot >= agent.boot
            """,
            [list(rows), list(boots), list(seqs), list(seen), list(skews)],
        )

    async def _write_sources(self, new: Sequence[Arrival], staged: _Staged) -> None:
        due: dict[tuple[str, str], tuple[Any, Arrival]] = {}
        for kind in _KINDS:
            for arrival in new:
                for sample in kind.samples(arrival.batch):
                    key = (kind.name, sample.id)
                    if self._is_due(key, sample, arrival):
                        known = due.get(key)
                        if known is None or sample.at_s >= known[0].at_s:
                            due[key] = (sample, arrival)
        if not due:
            return
        keys = sorted(due)
        facts = [_facts(*due[key]) for key in keys]
        roles, engines, versions, agents = zip(*facts, strict=True)
        cursor = await self._connection.execute(
            """
            INSERT INTO telemetry_source AS source
                (kind, path, role, engine, engine_version, agent, first_seen_at, last_seen_at)
            SELECT kind, path, role, engine, version, agent, seen, seen FROM unnest(
                %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
                %s::timestamptz[]
            ) AS new (kind, path, role, engine, version, agent, seen)
            ON CONFLICT (kind, path) DO UPDATE SET
                role = excluded.role, engine = excluded.engine, agent = excluded.agent,
                engine_version = coalesce(
                    nullif(excluded.engine_version, ''), source.engine_version),
                last_seen_at = greatest(excluded.last_seen_at, source.last_seen_at)
            RETURNING kind, path, id
            """,
            [
                [kind for kind, _ in keys],
                [path for _, path in keys],
                list(roles),
                list(engines),
                list(versions),
                list(agents),
                [_utc(due[key][1].received_s) for key in keys],
            ],
        )
        for kind_name, path, source_id in await cursor.fetchall():
            sample, arrival = due[kind_name, path]
            staged.sources[kind_name, path] = _Source(
                source_id, *_facts(sample, arrival), arrival.received_s
            )

    def _is_due(self, key: tuple[str, str], sample: Any, arrival: Arrival) -> bool:
        known = self._sources.get(key)
        if known is None or arrival.received_s >= known.written_s + SEEN_EVERY_S:
            return True
        role, engine, version, agent = _facts(sample, arrival)
        # An engine that cannot be read has no version to tell; that is not a change of version.
        same_version = not version or version == known.engine_version
        return not (
            same_version and (role, engine, agent) == (known.role, known.engine, known.agent)
        )

    async def _copy(self, kind: _Kind, new: Sequence[Arrival], staged: _Staged) -> None:
        rows = list(self._rows(kind, new, staged))
        if not rows:
            return
        columns = (*_SAMPLE, *kind.columns)
        names = ", ".join(name for name, _ in columns)
        statement = f"COPY {kind.table} ({names}) FROM STDIN (FORMAT BINARY)"
        async with (
            self._connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            copy.set_types([type_name for _, type_name in columns])
            for row in rows:
                await copy.write_row(row)

    def _rows(
        self, kind: _Kind, new: Sequence[Arrival], staged: _Staged
    ) -> Iterable[tuple[Any, ...]]:
        for arrival in new:
            received_at = _utc(arrival.received_s)
            for sample in kind.samples(arrival.batch):
                key = (kind.name, sample.id)
                source = staged.sources.get(key) or self._sources[key]
                yield (
                    source.id,
                    _utc(sample.at_s),
                    received_at,
                    sample.state,
                    sample.error,
                    self._encode(sample),
                    *kind.row(sample),
                )

    async def _ensure_partitions(self, arrivals: Sequence[Arrival], now_s: float) -> None:
        """Make the hours these samples fall into, if they are within retention and missing."""
        wanted = {
            int(sample.at_s // 3600)
            for arrival in arrivals
            for kind in _KINDS
            for sample in kind.samples(arrival.batch)
        }
        oldest = (now_s - self._retention.total_seconds()) // 3600
        absent = {hour for hour in wanted - self._partitions if hour >= oldest}
        if not absent:
            return
        await self.make_partitions([_utc(hour * 3600.0) for hour in absent])

    async def make_partitions(self, hours: Sequence[datetime]) -> None:
        """Make the partitions of `hours` that do not exist yet; later if others hold the tables."""
        try:
            # Its own transaction: an advisory lock must not be awaited while rows are locked.
            async with self._connection.transaction():
                for statement in partitions.LOCK_STATEMENTS:
                    await self._connection.execute(statement)
                cursor = await self._connection.execute(partitions.EXISTING)
                existing = {name for (name,) in await cursor.fetchall()}
                for _, statements in partitions.missing(hours, existing):
                    for statement in statements:
                        await self._connection.execute(statement)
        except psycopg.errors.LockNotAvailable:
            log.warning("no partition for %s yet, its rows wait in the default one", hours[0])
            return
        self._partitions |= {int(hour.timestamp() // 3600) for hour in hours}


def _facts(sample: Any, arrival: Arrival) -> tuple[str, str, str, str]:
    """(role, engine, engine version, agent): what the inventory says of a source."""
    agent = arrival.batch.agent
    if isinstance(sample, wire.InstanceSample):
        return (sample.role, sample.engine, sample.engine_version, agent)
    return ("", sample.kind if isinstance(sample, wire.RouterSample) else "", "", agent)


def _utc(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
