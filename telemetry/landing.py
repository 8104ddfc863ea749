"""One statement for many batches: who is newer, what is new, and every body as it came.

The only writer of telemetry_batch, telemetry_landing, telemetry_layout, Agent and Source
(`partitions` removes what is past retention). A batch is stored once by (agent, boot, seq),
whichever process receives it, because the unique key decides inside the statement that stores it.
Locks are always taken in the same order (layouts, agents, sources, batches; each sorted), so two
processes cannot deadlock.

`landed_at` is the database's clock under a shared lock that compaction takes alone before it says
up to when it has taken everything: no row can land behind its back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import psycopg

from telemetry import layouts, partitions, pg_arrays, reports
from telemetry.arrivals import Arrival, BatchKey

log = logging.getLogger(__name__)

SEEN_EVERY_S: Final = 10.0
"""An agent's or layout's row is rewritten at most this often while nothing but time changes."""
SOURCE_SEEN_EVERY_S: Final = 300.0
"""A source's row likewise: there are many more of them."""
LANDING_LOCK: Final = 1885757186
"""Advisory lock: held shared by every landing, alone by a compaction that takes its cut."""
_MAX_LAYOUTS: Final = 100_000
"""Layouts remembered by one process."""


@dataclass(frozen=True)
class Outcome:
    """What became of an arrival. `older`: a newer boot of that agent had committed before."""

    state: Literal["stored", "duplicate", "older"]
    newest_boot: int


@dataclass
class _Known:
    """A layout as the database last heard of it from this process."""

    id: int
    seen_s: float
    sources_seen_s: float


@dataclass
class _Agent:
    boot: int
    seen_s: float


@dataclass
class _Rows:
    """One parameter a column of the statement that stores."""

    batch: list[int] = field(default_factory=list)
    layout: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)


# The inner query of `landed` runs after that of `stored`, and both after the lock is held.
_STORE: Final = f"""
    WITH held AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared({LANDING_LOCK})),
    incoming AS (
        SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::timestamptz[])
            WITH ORDINALITY AS new (agent, boot, seq, received_at, place)
    ),
    stored AS (
        INSERT INTO telemetry_batch (agent, boot, seq, received_at)
        SELECT agent, incoming.boot, seq, incoming.received_at FROM held, incoming
        LEFT JOIN telemetry_agent known ON known.name = agent
        WHERE known.boot IS NULL OR incoming.boot > known.boot
            OR (incoming.boot = known.boot AND NOT known.stored @> seq)
        ORDER BY agent, boot, seq
        ON CONFLICT DO NOTHING RETURNING agent, boot, seq
    ),
    landed AS (
        INSERT INTO telemetry_landing (layout_id, landed_at, at, received_at, body)
        SELECT row.layout_id,
            greatest(clock_timestamp(), (SELECT cut FROM telemetry_compaction)),
            row.at, incoming.received_at, row.body
        FROM stored JOIN incoming USING (agent, boot, seq)
        JOIN unnest(%s::bigint[], %s::bigint[], %s::timestamptz[], %s::bytea[])
            AS row (place, layout_id, at, body) ON row.place = incoming.place
    )
    SELECT agent, boot, seq FROM stored
"""


class Landing:
    """Commits arrivals over one autocommit connection, which it owns while in use."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection
        pg_arrays.register(connection)
        self._agents: dict[str, _Agent] = {}
        self._skews_s: dict[str, float] = {}
        self._layouts: dict[layouts.Key, _Known] = {}
        self._current: dict[str, _Known] = {}

    async def commit(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Store what is new; one outcome per arrival. psycopg.Error: nothing was stored."""
        by_key: dict[BatchKey, Arrival] = {}
        for arrival in arrivals:
            by_key.setdefault(arrival.key, arrival)
        ordered = sorted(by_key)
        try:
            async with self._connection.transaction():
                stored = await self._store(by_key, ordered)
        except BaseException:
            # What this transaction taught us was undone with it.
            self._agents.clear()
            self._layouts.clear()
            self._current.clear()
            raise
        newest: dict[str, int] = {}
        if len(stored) < len(by_key):
            newest = await self._newest_boots(sorted({agent for agent, _, _ in by_key}))
        return [_outcome(arrival, newest, stored) for arrival in arrivals]

    async def _store(
        self, by_key: dict[BatchKey, Arrival], ordered: Sequence[BatchKey]
    ) -> dict[BatchKey, Arrival]:
        rows = await self._rows([by_key[key] for key in ordered])
        await self._write_agents([by_key[key] for key in ordered])
        agents, boots, seqs = zip(*ordered, strict=True)
        cursor = await self._connection.execute(
            _STORE,
            [
                pg_arrays.Texts(agents),
                pg_arrays.Int8s(boots),
                pg_arrays.Int8s(seqs),
                pg_arrays.Moments([by_key[key].received_s for key in ordered]),
                pg_arrays.Int8s(rows.batch),
                pg_arrays.Int8s(rows.layout),
                pg_arrays.Moments(rows.at_s),
                pg_arrays.Bytes(rows.body),
            ],
        )
        stored = {key: by_key[key] for key in await cursor.fetchall()}
        await self._save_reports(list(stored.values()))
        return stored

    async def make_partitions(self, now: datetime) -> None:
        """Make the landing partitions due at `now`; later if others hold the table."""
        try:
            async with self._connection.transaction():
                for statement in partitions.LOCK_STATEMENTS:
                    await self._connection.execute(statement)
                cursor = await self._connection.execute(partitions.EXISTING)
                existing = {name for (name,) in await cursor.fetchall()}
                for _, statements in partitions.missing(now, existing):
                    for statement in statements:
                        await self._connection.execute(statement)
        except psycopg.errors.LockNotAvailable:
            log.warning("no partitions for %s yet, rows wait in the default one", now)

    async def _rows(self, arrivals: Sequence[Arrival]) -> _Rows:
        """The landing rows of arrivals; their `batch` counts from 1. Names their layouts first."""
        if len(self._layouts) > _MAX_LAYOUTS:
            self._layouts.clear()  # asked for again when they next report
            self._current.clear()
        due: dict[layouts.Key, float] = {}
        for arrival in arrivals:
            for tick in arrival.ticks:
                key = tick.layout
                known = self._layouts.get(key)
                if known is None or arrival.received_s >= known.seen_s + SEEN_EVERY_S:
                    due[key] = arrival.received_s
                elif self._current.get(key[0]) is not known:
                    # An agent that went back to an earlier layout: roles may have gone back too.
                    self._current[key[0]] = known
                    known.sources_seen_s = float("-inf")
                    due[key] = arrival.received_s
        if due:
            await self._write_layouts(due)
        rows = _Rows()
        for place, arrival in enumerate(arrivals, 1):
            for tick in arrival.ticks:
                rows.batch.append(place)
                rows.layout.append(self._layouts[tick.layout].id)
                rows.at_s.append(tick.at_s)
                rows.body.append(tick.body)
        return rows

    async def _write_layouts(self, seen: dict[layouts.Key, float]) -> None:
        found = {(made := layouts.of(key)).digest: (key, made) for key in seen}
        digests = sorted(found)
        cursor = await self._connection.execute(
            """
            INSERT INTO telemetry_layout AS layout (digest, facts, last_seen_at)
            SELECT * FROM unnest(%b::bytea[], %b::bytea[], %s::timestamptz[])
            ON CONFLICT (digest) DO UPDATE SET
                last_seen_at = greatest(excluded.last_seen_at, layout.last_seen_at)
            RETURNING digest, id
            """,
            [
                digests,
                [found[digest][1].encode() for digest in digests],
                [_utc(seen[found[digest][0]]) for digest in digests],
            ],
        )
        due = []
        for digest, layout_id in await cursor.fetchall():
            key, layout = found[digest]
            known = self._layouts.setdefault(key, _Known(layout_id, seen[key], float("-inf")))
            # Another one, if its row was dropped after a long silence.
            known.id, known.seen_s = layout_id, seen[key]
            self._current[layout.agent] = known
            if seen[key] >= known.sources_seen_s + SOURCE_SEEN_EVERY_S:
                due.append((layout, seen[key], known))
        await self._write_sources([(layout, seen_s) for layout, seen_s, _ in due])
        for _, seen_s, known in due:
            known.sources_seen_s = seen_s

    async def _write_sources(self, seen: Sequence[tuple[layouts.Layout, float]]) -> None:
        rows: dict[tuple[str, str], tuple[Any, ...]] = {}
        for layout, seen_s in sorted(seen, key=lambda pair: pair[1]):
            for kind, facts in layout.sources():
                engine = facts.get("engine", facts.get("kind", ""))
                version = facts.get("engine_version", "")
                rows[kind, facts["id"]] = (
                    facts.get("role", ""),
                    engine,
                    version,
                    layout.agent,
                    _utc(seen_s),
                )
        if not rows:
            return
        keys = sorted(rows)
        roles, engines, versions, agents, times = zip(*(rows[key] for key in keys), strict=True)
        await self._connection.execute(
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
            """,
            [
                [kind for kind, _ in keys],
                [path for _, path in keys],
                list(roles),
                list(engines),
                list(versions),
                list(agents),
                list(times),
            ],
        )

    async def _write_agents(self, arrivals: Sequence[Arrival]) -> None:
        """Rows of agents with a new boot, and of those not rewritten for a while."""
        by_agent: dict[str, list[Arrival]] = {}
        for arrival in arrivals:
            by_agent.setdefault(arrival.agent, []).append(arrival)
        rows = {}
        for name, mine in sorted(by_agent.items()):
            top = max(mine, key=lambda a: (a.boot, a.seq))
            # Transit and a backlog only ever make a clock look late: the largest difference since
            # the row was last written is the best.
            seen_s = max(a.sent_at_s - a.received_s for a in mine)
            self._skews_s[name] = max(seen_s, self._skews_s.get(name, seen_s))
            known = self._agents.get(name)
            if (
                known is not None
                and top.boot == known.boot
                and top.received_s < known.seen_s + SEEN_EVERY_S
            ):
                continue
            rows[name] = (
                top.boot,
                top.seq,
                _utc(top.received_s),
                self._skews_s.pop(name),
            )
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
                stored = CASE WHEN excluded.boot > agent.boot THEN '{}' ELSE agent.stored END,
                last_seq = CASE WHEN excluded.boot > agent.boot THEN excluded.last_seq
                                ELSE greatest(excluded.last_seq, agent.last_seq) END
            WHERE excluded.boot >= agent.boot
            """,
            [list(rows), list(boots), list(seqs), list(seen), list(skews)],
        )
        for name, (boot, _, at, _) in rows.items():
            self._agents[name] = _Agent(boot, at.timestamp())

    async def _newest_boots(self, agents: Sequence[str]) -> dict[str, int]:
        cursor = await self._connection.execute(
            "SELECT name, boot FROM telemetry_agent WHERE name = ANY(%s)", [list(agents)]
        )
        return dict(await cursor.fetchall())

    async def _save_reports(self, stored: Sequence[Arrival]) -> None:
        told = [(a.agent, a.report, a.received_s) for a in stored if a.report is not None]
        if told:
            await reports.save(self._connection, told)


def _outcome(arrival: Arrival, newest: dict[str, int], stored: dict[BatchKey, Arrival]) -> Outcome:
    boot = newest.get(arrival.agent, arrival.boot)
    # `is`: the same batch may wait twice in one group, and only one of the two was stored.
    if stored.get(arrival.key) is arrival:
        return Outcome("stored", arrival.boot)
    if arrival.boot < boot:
        return Outcome("older", boot)
    return Outcome("duplicate", boot)


def _utc(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
