"""What the agent says of itself, when, and how much of it."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from telemetry import wire
from telemetry.agent import app, report
from telemetry.agent.collector import Last
from telemetry.agent.report import Reporter, short, summary
from telemetry.agent.skew import Skew
from tests.agent.site import Eventually, Site, samples


class Fixed:
    """A source that says what a test wants."""

    def __init__(self, name: str, *warnings: str) -> None:
        self.name, self.warnings = name, warnings

    async def read(self) -> Any:
        raise AssertionError("a report reads nothing by itself")


def last(state: str = "ok", read_s: float = 0.01) -> Last:
    sample = wire.LinkSample(id="a->b", at_s=1.7e9, measured_layer="tcp", state=state)
    return Last(sample, read_s)


def test_a_report_is_due_at_the_start_after_a_change_and_every_half_minute() -> None:
    reporter = Reporter(version="1", started_s=0.0)
    source = Fixed("a->b")

    def due(now_s: float, **more: Any) -> bool:
        return reporter.due({source: last(**more)}, [], now_s=now_s)

    assert due(0.0)
    assert not due(1.0)
    assert not due(6.0, read_s=9.0), "what always moves is no change"
    assert due(7.0, state="down")
    assert not due(8.0), "news waits, so that flapping is no flood"
    assert due(12.5)
    assert not due(42.0)
    assert due(42.5)
    assert due(1.0), "a clock that was set back does not silence it"


def test_warnings_are_few_short_and_on_one_line() -> None:
    said = short([f"line\n{i}\u202e" + "x" * 1000 for i in range(50)])
    assert len(said) == report.MAX_WARNINGS
    assert said[-1] == "and 31 more"
    assert all(text.isprintable() and len(text) <= report.MAX_WARNING_CHARS for text in said)


async def test_the_first_batch_says_what_was_found_of_each_source(
    site: Site, console: Any, engine: Any, gate: Any
) -> None:
    engine.pages["/metrics"] += "nobody_knows_this 1\nx{ 2\n"
    site.engine(engine.url)
    site.engine("http://127.0.0.1:1", "down")
    site.add("routers", id="f/pd/gate-0", url=f"{gate.url}/metrics")
    await site.once()
    said = console.batches[0].report
    assert said.version == app.version()
    assert said.interval_s == 0.1
    assert said.rss_bytes > 1e6
    assert said.cpu_s > 0.0
    by_id = {source.id: source for source in said.sources}
    fine = by_id["f/pd/p0"]
    assert (fine.kind, fine.engine, fine.state) == ("instance", "vllm", "ok")
    assert {"requests_waiting", "ttft_seconds"} <= set(fine.found)
    assert "gpu_power_w" in fine.missing
    made_here = {"prompt_tokens_per_s", "prefix_cache_hit_ratio"}
    assert not made_here & fine.missing.keys(), "rates, which wait for a second reading"
    assert fine.unmatched == ["nobody_knows_this"]
    assert (fine.n_unmatched, fine.n_bad_lines) == (1, 1)
    assert 0.0 < fine.read_s < 5.0
    down = by_id["f/pd/down"]
    assert (down.state, down.found, down.missing) == ("down", [], {})
    assert "Cannot connect" in down.error
    assert (by_id["f/pd/gate-0"].kind, by_id["f/pd/gate-0"].engine) == ("router", "gate")
    assert wire.decode(wire.encode(console.batches[0])) == console.batches[0]


async def test_a_report_is_bounded_whatever_a_text_contains(
    site: Site, console: Any, engine: Any
) -> None:
    names = [f"unknown_{i}_{'x' * 300}" for i in range(500)]
    engine.pages["/metrics"] += "".join(f"{name} 1\n" for name in names)
    site.engine(engine.url)
    await site.once()
    [source] = console.batches[0].report.sources
    assert source.n_unmatched == 500
    assert len(source.unmatched) == report.MAX_NAMES
    assert max(map(len, source.unmatched)) <= report.MAX_NAME_CHARS


async def test_what_went_wrong_is_reported_while_it_lasts(
    site: Site, console: Any, engine: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "AT_MOST_EVERY_S", 0.0)
    site.engine(engine.url)

    def reports() -> list[wire.AgentReport]:
        return [batch.report for batch in console.batches if batch.report is not None]

    def states() -> list[str]:
        """As told last. A source that was not read yet is in no report."""
        return [source.state for source in reports()[-1].sources]

    async with site.running():
        await eventually(lambda: reports())
        engine.status = 500
        await eventually(lambda: states() == ["failed"])
        engine.status = 200
        await eventually(lambda: states() == ["ok"])
        await eventually(lambda: reports()[-1].skew_s is not None)
        n = len(reports())
        n_read = len(samples(console, "f/pd/p0"))
        await eventually(lambda: len(samples(console, "f/pd/p0")) > n_read + 5)
        assert len(reports()) == n, "no news, no report"
    # One clock on this machine: what is left is the second a Date is cut to.
    assert abs(reports()[-1].skew_s) <= 2.0


@pytest.mark.fault
async def test_once_print_says_what_was_found_and_what_not(
    site: Site, console: Any, engine: Any
) -> None:
    engine.pages["/metrics"] += "nobody_knows_this 1\n"
    site.engine(engine.url)
    site.engine("http://127.0.0.1:1", "down")
    process = await site.process("--once", "--print")
    out, errors = await process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["report"]["sources"][0]["n_unmatched"] == 1
    said = errors.decode()
    assert "instance f/pd/p0: vllm, ok in 0." in said
    assert "found" in said
    assert "requests_waiting" in said
    assert "missing, not exposed: " in said
    assert "1 series no map knows: nobody_knows_this" in said
    assert "instance f/pd/down: unknown, down" in said
    assert console.offers == []


def test_a_summary_names_every_trouble() -> None:
    source = wire.SourceReport(
        kind="instance",
        id="f/pd/p0",
        engine="vllm",
        engine_version="0.33.0",
        read_s=0.0123,
        found=["requests_running"],
        missing={"a": "not exposed", "b": "not exposed", "c": "x is NaN"},
        unmatched=[f"m{i}" for i in range(9)],
        n_unmatched=12,
        n_bad_lines=3,
        warnings=["line 7: no metric name"],
    )
    assert summary(wire.AgentReport(warnings=["discover[0]: away"], sources=[source])) == (
        "! discover[0]: away\n"
        "instance f/pd/p0: vllm 0.33.0, ok in 0.012 s\n"
        "  found 1: requests_running\n"
        "  missing, not exposed: a, b\n"
        "  missing, x is NaN: c\n"
        "  12 series no map knows: m0, m1, m2, m3, m4, m5, m6, m7, …\n"
        "  3 lines could not be read\n"
        "  ! line 7: no metric name"
    )


# -- the clock -------------------------------------------------------------------------------


def heard(skew: Skew, ahead_s: float, at_s: float, *, took_s: float = 0.02) -> None:
    """One answer by a clock that is `ahead_s` ahead of the console's, whose time is `at_s`."""
    date = f"Tue, 14 Nov 2023 22:13:{int(at_s) - 1_700_000_000 + 20:02d} GMT"
    skew.heard(date, sent_s=at_s + ahead_s - took_s, received_s=at_s + ahead_s)


@pytest.mark.parametrize("ahead_s", [-7.5, 0.0, 0.4, 120.0])
def test_skew_is_bounded_by_every_answer(ahead_s: float) -> None:
    skew = Skew()
    assert skew.skew_s is None
    for i in range(30):
        heard(skew, ahead_s, 1_700_000_000.0 + 1.1 * i)
    assert skew.skew_s == pytest.approx(ahead_s, abs=1.0)


def test_a_clock_that_is_set_is_seen_at_once_and_no_date_says_nothing() -> None:
    skew = Skew()
    for i in range(5):
        heard(skew, 0.0, 1_700_000_000.0 + i)
    heard(skew, 30.0, 1_700_000_006.0)
    assert skew.skew_s == pytest.approx(30.0, abs=1.1)
    for nothing in (None, "", "soon", "Tue, 99 Nov 2023"):
        skew.heard(nothing, sent_s=1.0, received_s=2.0)
    assert skew.skew_s == pytest.approx(30.0, abs=1.1)


# -- the configuration file ------------------------------------------------------------------


async def test_a_changed_file_is_followed_and_a_bad_one_is_not(
    site: Site, console: Any, engine: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "LOOK_S", 0.0)
    monkeypatch.setattr(report, "AT_MOST_EVERY_S", 0.0)
    site.engine(engine.url, "a")
    site.engine(engine.url, "b")

    def warned(text: str) -> bool:
        last = [batch.report for batch in console.batches if batch.report is not None][-1]
        return any(text in warning for warning in last.warnings)

    async with site.running():
        await eventually(lambda: samples(console, "f/pd/b"))
        path = site.write()
        path.write_text(path.read_text().replace('"f/pd/b"', '"b"'))
        await eventually(lambda: warned("instances[1].id='b'"))
        assert not warned(str(path)), "the file is named once"
        assert samples(console, "f/pd/b")[-1].state == "ok"
        site.tables.pop()
        site.engine(engine.url, "c")
        site.settings = {"agent": "another", "interval_s": 0.2}
        site.write()
        await eventually(lambda: samples(console, "f/pd/b")[-1].state == "gone")
        await eventually(lambda: samples(console, "f/pd/c"))
        await eventually(lambda: warned("agent='another'"))
    assert {batch.agent for batch in console.batches} == {"pd"}
    reported = [batch.report for batch in console.batches if batch.report is not None]
    assert reported[-1].interval_s == 0.2


@pytest.mark.fault
async def test_sighup_reads_the_file_again(
    site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    """At once, where looking at the file by itself would take a moment."""
    site.engine(engine.url, "a")
    process = await site.process()
    await eventually(lambda: samples(console, "f/pd/a"))
    site.engine(engine.url, "b")
    site.write()
    process.send_signal(signal.SIGHUP)
    await eventually(lambda: samples(console, "f/pd/b"))
    process.terminate()
    _, errors = await process.communicate()
    assert process.returncode == 0
    assert b"read again" in errors


async def test_a_batch_goes_out_even_if_there_is_nothing_to_read_yet(
    site: Site, console: Any, eventually: Eventually
) -> None:
    """Or an agent whose discovery finds nothing would look like one that does not run."""
    site.add("discover", source="file", id="f/pd/{name}", role="both", path="none.json")
    async with site.running():
        await eventually(lambda: console.batches)
        await asyncio.sleep(0.3)
    assert len(console.batches) < 4
    assert console.batches[0].report.sources == []


def test_a_link_has_no_engine_to_be_unknown() -> None:
    source = wire.SourceReport(kind="link", id="a->b", read_s=0.5, found=["tx_gbps"])
    said = summary(wire.AgentReport(sources=[source]))
    assert said == "link a->b: ok in 0.500 s\n  found 1: tx_gbps"
