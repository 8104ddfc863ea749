"""What agents report is kept, the newest of each; what is refused is counted by kind, bounded."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import psycopg
import pytest
from django.utils import timezone

from telemetry import reports, wire
from telemetry.ingest import database_connect
from telemetry.models import ApiToken, Refusal, StoredReport

pytestmark = pytest.mark.django_db(transaction=True)
NOW_S = 1_800_000_000.0


def over(work: Callable[[psycopg.AsyncConnection], Awaitable[None]]) -> None:
    """Do something over a connection as ingest has it, in one transaction."""

    async def run() -> None:
        async with await database_connect() as connection, connection.transaction():
            await work(connection)

    asyncio.run(run())


def report(version: str, **more: object) -> wire.AgentReport:
    return wire.AgentReport(version=version, **more)


def test_the_newest_report_of_each_agent_stands() -> None:
    over(
        lambda c: reports.save(
            c,
            [
                ("b", report("b1"), NOW_S),
                ("a", report("a2"), NOW_S + 2),
                ("a", report("a1"), NOW_S + 1),
            ],
        )
    )
    over(lambda c: reports.save(c, [("a", report("a0"), NOW_S), ("b", report("b2"), NOW_S + 9)]))
    over(lambda c: reports.save(c, []))
    told = reports.told()
    assert {name: (one.report.version, one.at_s) for name, one in told.items()} == {
        "a": ("a2", NOW_S + 2),
        "b": ("b2", NOW_S + 9),
    }
    assert set(reports.told(["b", "nobody"])) == {"b"}


def test_a_report_that_is_too_large_says_so_and_keeps_its_figures() -> None:
    sources = [
        wire.SourceReport(kind="instance", id=f"f/c/{n}", unmatched=[f"{n}" * 400] * 100)
        for n in range(30)
    ]
    huge = report("v", n_dropped_batches=7, sources=sources)
    over(lambda c: reports.save(c, [("a", huge, NOW_S)]))
    kept = reports.told()["a"].report
    assert (kept.n_dropped_batches, kept.sources) == (7, [])
    assert "too many to keep" in kept.warnings[0]


def test_what_sources_share_is_kept_once() -> None:
    names = [f"vllm:strange_{n}" for n in range(150)]
    sources = [
        wire.SourceReport(
            kind="instance",
            id=f"f/c/{n}",
            found=["requests_waiting"],
            missing={"rtt_s": "why"} if n % 2 else {},
            unmatched=names if n else [],
            n_unmatched=150,
        )
        for n in range(8)
    ]
    over(lambda c: reports.save(c, [("a", report("v", sources=sources), NOW_S)]))
    over(lambda c: reports.save(c, [("b", report("v", sources=sources[:3]), NOW_S)]))
    assert len(bytes(StoredReport.objects.get(agent="a").report)) < 5_000
    told = reports.told()
    assert told["a"].report.sources == sources
    assert told["b"].report.sources == sources[:3]


def test_nothing_in_a_report_is_trusted() -> None:
    source = wire.SourceReport(
        kind="instance",
        id="f/c/n",
        read_s=math.nan,
        error="one\ntwo\0three" + "x" * 900,
        unmatched=["a\tb"] * 500,
        missing={"requests_waiting": "\x1b[31m"},
    )
    odd = report("v\0", skew_s=math.inf, warnings=["w" * 600] * 300, sources=[source])
    over(lambda c: reports.save(c, [("a", odd, NOW_S)]))
    kept = reports.told()["a"].report
    assert (kept.version, kept.skew_s) == ("v�", None)
    assert (len(kept.warnings), len(kept.warnings[0])) == (200, 501)
    [read] = kept.sources
    assert read.read_s is None
    assert read.error is not None
    assert read.error.startswith("one�two�three")
    assert len(read.error) == 501
    assert read.unmatched == ["a�b"] * 200
    assert read.missing["requests_waiting"] == "�[31m"


def test_a_report_of_another_release_is_passed_over() -> None:
    StoredReport.objects.create(agent="a", report=b"\x93\x01", reported_at=timezone.now())
    assert reports.told() == {}


def count(refusals: reports.Refusals, n: int = 1, **more: object) -> None:
    facts = {
        "agent": None,
        "token_prefix": "",
        "status": 413,
        "error": "too large",
        "field": "",
        "at_s": NOW_S,
    }
    for _ in range(n):
        refusals.count(**{**facts, **more})  # type: ignore[arg-type]


def kept() -> list[tuple[str, str, int, str, int]]:
    rows = Refusal.objects.order_by("agent", "status", "field", "token")
    return [(r.agent, r.token, r.status, r.field, r.count) for r in rows]


def test_refusals_of_a_kind_are_summed_and_added() -> None:
    refusals = reports.Refusals()
    count(refusals, 3, agent="a", status=422, field="instances[3].at_s", error="first")
    count(refusals, agent="a", status=422, field="instances[40].at_s", error="late", at_s=NOW_S + 5)
    count(refusals, agent="b")
    over(refusals.flush)
    over(refusals.flush)  # nothing twice
    count(refusals, 2, agent="b", error="again", at_s=NOW_S + 60)
    over(refusals.flush)
    assert kept() == [("a", "", 422, "instances[].at_s", 4), ("b", "", 413, "", 3)]
    row = Refusal.objects.get(agent="a")
    assert (row.error, row.first_at.timestamp()) == ("late", NOW_S)
    assert row.last_at.timestamp() == NOW_S + 5
    assert Refusal.objects.get(agent="b").error == "again"


def test_a_body_nobody_read_is_counted_as_the_agent_s_that_uses_the_token_alone() -> None:
    refusals = reports.Refusals()
    for prefix in ("alone", "shared"):
        ApiToken.objects.create(
            name=prefix, prefix=prefix, digest=prefix.encode(), scopes=["ingest"], created_by="t"
        )
    refusals.heard("a", "alone")
    refusals.heard("a", "alone")
    refusals.heard("a", "shared")
    refusals.heard("b", "shared")
    refusals.heard("a", "shared")
    count(refusals, token_prefix="alone")
    count(refusals, token_prefix="shared")
    over(refusals.flush)
    assert kept() == [("", "shared", 413, "", 1), ("a", "alone", 413, "", 1)]


def test_who_guesses_tokens_fills_neither_memory_nor_table() -> None:
    refusals = reports.Refusals()
    for n in range(3 * reports.MAX_KINDS):
        count(refusals, token_prefix=f"guess{n}", status=401)
    over(refusals.flush)
    assert kept() == [("", "", 401, "", 3 * reports.MAX_KINDS)]


def test_the_table_of_refusals_is_bounded_and_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_ROWS", 10)
    refusals = reports.Refusals()
    for n in range(15):
        count(refusals, agent=f"a{n:02}", at_s=NOW_S + n)
    over(refusals.flush)
    assert [row[0] for row in kept()] == [f"a{n:02}" for n in range(5, 15)]
    count(refusals, agent="z", at_s=NOW_S + reports.KEPT_S + 12)
    over(refusals.flush)
    assert [row[0] for row in kept()] == ["a12", "a13", "a14", "z"]


def test_what_could_not_be_written_stays_counted() -> None:
    refusals = reports.Refusals()
    count(refusals, 2, agent="a")

    async def broken() -> None:
        connection = await database_connect()
        await connection.close()
        with pytest.raises(psycopg.Error):
            await refusals.flush(connection)

    asyncio.run(broken())
    count(refusals, agent="a", at_s=NOW_S + 1)
    over(refusals.flush)
    assert kept() == [("a", "", 413, "", 3)]


def test_refusals_are_read_newest_first_since_a_time() -> None:
    refusals, now_s = reports.Refusals(), time.time()
    for name, ago_s in (("old", 7200.0), ("older", 9000.0), ("new", 1.0)):
        count(refusals, agent=name, at_s=now_s - ago_s)
    over(refusals.flush)
    found = reports.refused(since=timezone.now() - timedelta(hours=2, minutes=5))
    assert [row.agent for row in found] == ["new", "old"]
