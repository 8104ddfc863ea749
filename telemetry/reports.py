"""What agents say of themselves, and what was refused of them: for people, never for decisions.

A report is kept whole, the newest of each agent, in one row that a batch replaces: cheap to write,
and read only where somebody looks. Refusals are counted in memory by whoever answers agents and
added to one row a kind every few seconds, so that a storm of bad batches costs no storm of writes.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
import psycopg
from django.db.models import QuerySet

from telemetry import wire
from telemetry.models import Refusal, StoredReport

MAX_REPORT_BYTES: Final = 1024 * 1024
"""A larger report is kept without its sources, and says so."""
MAX_KINDS: Final = 500
"""Kinds of refusal one process counts apart between two flushes; the rest is summed by status."""
MAX_ROWS: Final = 5_000
KEPT_S: Final = 7 * 86_400.0
"""A kind of refusal that was not seen for so long is forgotten."""
_MAX_TOKENS: Final = 4_096
_MAX_NAMES: Final = 200
_FEW: Final = 100
"""Names a query is given one by one; with more, all rows are read."""
_MAX_TEXT: Final = 500
_INDEX: Final = re.compile(r"\[\d+\]")


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """A report as it stands in its row: what many of its sources share is there once.

    Engines of one release lack the same signals and tell the same strange series, by far the most
    of a report. `shared` says of each source which of `missing` and of `unmatched` are its.
    """

    report: wire.AgentReport
    missing: list[dict[str, str]]
    unmatched: list[list[str]]
    shared: list[tuple[int, int]]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Kept)


async def save(
    connection: psycopg.AsyncConnection, reports: Sequence[tuple[str, wire.AgentReport, float]]
) -> None:
    """Keep (agent, report, received_s) of each agent's newest report, in one statement."""
    newest: dict[str, tuple[wire.AgentReport, float]] = {}
    for agent, report, received_s in reports:
        if agent not in newest or received_s >= newest[agent][1]:
            newest[agent] = (report, received_s)
    if not newest:
        return
    agents = sorted(newest)  # rows are locked in one order, whoever writes
    await connection.execute(
        """
        INSERT INTO telemetry_storedreport AS stored (agent, report, reported_at)
        SELECT * FROM unnest(%s::text[], %s::bytea[], %s::timestamptz[])
        ON CONFLICT (agent) DO UPDATE SET
            report = excluded.report, reported_at = excluded.reported_at
        WHERE excluded.reported_at >= stored.reported_at
        """,
        [
            agents,
            [encoded(newest[agent][0]) for agent in agents],
            [_utc(newest[agent][1]) for agent in agents],
        ],
    )


def encoded(report: wire.AgentReport) -> bytes:
    """A report as its row holds it; without its sources where that is too large."""
    whole = _encode(_kept(report))
    if len(whole) <= MAX_REPORT_BYTES:
        return whole
    words = f"this report has {len(whole)} bytes, too many to keep: its sources are left out"
    return _encode(
        _kept(
            msgspec.structs.replace(
                report, version=report.version[:_MAX_TEXT], warnings=[words], sources=[]
            )
        )
    )


def _kept(report: wire.AgentReport) -> _Kept:
    missing: dict[tuple[tuple[str, str], ...], int] = {}
    unmatched: dict[tuple[str, ...], int] = {}
    shared, sources = [], []
    for source in report.sources:
        shared.append(
            (
                missing.setdefault(tuple(source.missing.items()), len(missing)),
                unmatched.setdefault(tuple(source.unmatched[:_MAX_NAMES]), len(unmatched)),
            )
        )
        sources.append(msgspec.structs.replace(source, missing={}, unmatched=[]))
    return _Kept(
        report=msgspec.structs.replace(report, sources=sources),
        missing=[dict(items) for items in missing],
        unmatched=[list(names) for names in unmatched],
        shared=shared,
    )


@dataclass(frozen=True)
class Told:
    """An agent's newest report and when it came."""

    agent: str
    at_s: float
    report: wire.AgentReport


def told(agents: Collection[str] | None = None) -> dict[str, Told]:
    """The newest report of each agent (of those named, or of all), by its name.

    Nothing in it is trusted: text is printable and short, lists are bounded, numbers finite.
    """
    rows = StoredReport.objects.all()
    if agents is not None and len(agents) <= _FEW:
        rows = rows.filter(agent__in=agents)
    found = {}
    for agent, row, at in rows.values_list("agent", "report", "reported_at"):
        if agents is not None and agent not in agents:
            continue
        try:
            kept = _decoder.decode(row)
        except msgspec.MsgspecError:
            continue  # written by another release; the next report is due in half a minute
        found[agent] = Told(agent, at.timestamp(), _cleaned(kept))
    return found


def _cleaned(kept: _Kept) -> wire.AgentReport:
    report = kept.report
    missing = [
        {name: _text(why) for name, why in list(reasons.items())[:_MAX_NAMES]}
        for reasons in kept.missing
    ]
    unmatched = [_names(tuple(names)) for names in kept.unmatched]
    return msgspec.structs.replace(
        report,
        version=_text(report.version),
        started_s=_finite(report.started_s),
        interval_s=_finite(report.interval_s),
        skew_s=_finite(report.skew_s),
        cpu_s=_finite(report.cpu_s),
        rss_bytes=_finite(report.rss_bytes),
        warnings=[_text(text) for text in report.warnings[:_MAX_NAMES]],
        sources=[
            msgspec.structs.replace(
                source,
                engine=_text(source.engine),
                engine_version=_text(source.engine_version),
                state=_text(source.state),
                error=None if source.error is None else _text(source.error),
                read_s=_finite(source.read_s),
                found=source.found[:_MAX_NAMES],
                missing=missing[why],
                unmatched=unmatched[strange],
                warnings=[_text(text) for text in source.warnings[:_MAX_NAMES]],
            )
            for source, (why, strange) in zip(report.sources, kept.shared, strict=True)
        ],
    )


@functools.lru_cache(maxsize=5_000)
def _names(names: tuple[str, ...]) -> list[str]:
    """One list for all sources that tell the same, in whichever report: never changed."""
    return [_text(name) for name in names]


@functools.lru_cache(maxsize=50_000)
def _text(text: str) -> str:
    # A thousand agents say the same few hundred words.
    short = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    return short if short.isprintable() else "".join(c if c.isprintable() else "�" for c in short)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass
class _Counted:
    n: int
    first_s: float
    last_s: float
    error: str


_Key = tuple[str, str, int, str]


class Refusals:
    """Counts batches that were refused, in this process, until `flush` adds them to the table.

    Many are refused before anybody could read whose they are (413 most of all). Where a token has
    been used by one agent only, as `heard` tells, they are counted as that agent's.
    """

    def __init__(self) -> None:
        self._counted: dict[_Key, _Counted] = {}
        self._agents: dict[str, str | None] = {}

    def heard(self, agent: str, token_prefix: str) -> None:
        """A batch of `agent` was read under this token."""
        known = self._agents.get(token_prefix, agent)
        if known == agent and token_prefix in self._agents:
            return
        if len(self._agents) >= _MAX_TOKENS:
            self._agents.clear()
        self._agents[token_prefix] = agent if known == agent else None

    def count(
        self,
        agent: str | None,
        token_prefix: str,
        status: int,
        error: str,
        field: str,
        at_s: float,
    ) -> None:
        """One batch answered with `status`. `agent` is None where the body was not read.

        Positions in `field` are dropped: a thousand entries with one fault are one kind.
        """
        whose = agent or self._agents.get(token_prefix) or ""
        key = (_name(whose, 200), _name(token_prefix, 12), status, _name(_general(field), 300))
        if key not in self._counted and len(self._counted) >= MAX_KINDS:
            key = ("", "", status, "")
        error = _name(error, _MAX_TEXT)
        counted = self._counted.setdefault(key, _Counted(0, at_s, at_s, error))
        counted.n += 1
        counted.last_s, counted.error = max(counted.last_s, at_s), error

    async def flush(self, connection: psycopg.AsyncConnection) -> None:
        """Add what was counted to the table. psycopg.Error: it stays counted for the next time."""
        taken, self._counted = self._counted, {}
        if not taken:
            return
        try:
            async with connection.transaction():
                await self._write(connection, taken)
        except BaseException:
            for key, counted in taken.items():
                self._put_back(key, counted)
            raise

    def _put_back(self, key: _Key, earlier: _Counted) -> None:
        later = self._counted.get(key)
        if later is None:
            self._counted[key] = earlier
        else:
            later.n += earlier.n
            later.first_s = min(later.first_s, earlier.first_s)

    @staticmethod
    async def _write(connection: psycopg.AsyncConnection, counted: dict[_Key, _Counted]) -> None:
        # Who guesses tokens must not fill the table: a prefix that is nobody's is left out, and
        # so rows that differed by it only are summed.
        known = await connection.execute(
            "SELECT prefix FROM telemetry_apitoken WHERE prefix = ANY(%s)",
            [sorted({token for _, token, _, _ in counted})],
        )
        prefixes = {prefix for (prefix,) in await known.fetchall()}
        rows: dict[_Key, _Counted] = {}
        for (agent, token, status, field), found in counted.items():
            key = (agent, token if token in prefixes else "", status, field)
            summed = rows.setdefault(key, _Counted(0, found.first_s, found.last_s, found.error))
            summed.n += found.n
            summed.first_s = min(summed.first_s, found.first_s)
            if found.last_s >= summed.last_s:
                summed.last_s, summed.error = found.last_s, found.error
        keys = sorted(rows)
        agents, tokens, statuses, fields = zip(*keys, strict=True)
        await connection.execute(
            """
            INSERT INTO telemetry_refusal AS kept
                (agent, token, status, field, count, error, first_at, last_at)
            SELECT * FROM unnest(%s::text[], %s::text[], %s::smallint[], %s::text[], %s::bigint[],
                %s::text[], %s::timestamptz[], %s::timestamptz[])
            ON CONFLICT (agent, token, status, field) DO UPDATE SET
                count = kept.count + excluded.count,
                error = CASE WHEN excluded.last_at >= kept.last_at THEN excluded.error
                             ELSE kept.error END,
                last_at = greatest(kept.last_at, excluded.last_at)
            """,
            [
                list(agents),
                list(tokens),
                list(statuses),
                list(fields),
                [rows[key].n for key in keys],
                [rows[key].error for key in keys],
                [_utc(rows[key].first_s) for key in keys],
                [_utc(rows[key].last_s) for key in keys],
            ],
        )
        newest_s = max(found.last_s for found in rows.values())
        await connection.execute(
            """
            DELETE FROM telemetry_refusal WHERE last_at < %s OR id IN (
                SELECT id FROM telemetry_refusal ORDER BY last_at DESC, id DESC OFFSET %s)
            """,
            [_utc(newest_s - KEPT_S), MAX_ROWS],
        )


def refused(*, since: datetime) -> QuerySet[Refusal]:
    """Kinds of refusal seen at or after `since`, the newest first."""
    return Refusal.objects.filter(last_at__gte=since).order_by("-last_at", "-id")


def _general(field: str) -> str:
    return _INDEX.sub("[]", field)


def _name(text: str, longest: int) -> str:
    # PostgreSQL keeps no NUL, and pages no control characters.
    return _text(text[:longest])


def _utc(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
