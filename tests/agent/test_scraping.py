"""Reading less of a text gives the same signals; what runs away with its series is bounded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from telemetry import canonical, exposition
from telemetry.agent.http import ReadError
from telemetry.agent.scrape import Look, Scrape
from telemetry.agent.sieve import FULL_EVERY, Recorded, Sieve, bound
from tests.bench.agent_cost import text_like_vllm, variants

DATA = Path(__file__).parents[2] / "../shared/data"
SETTINGS = {"engine": "auto", "kind": "instance", "timeout_s": 5.0, "max_series": 1000}
REAL = sorted([*DATA.glob("metrics/*.txt"), *DATA.glob("captures/*/metrics*.txt")])


def learnt(text: str) -> tuple[Sieve, canonical.Canonical]:
    parsed = exposition.parse(text)
    samples = parsed.samples = Recorded(parsed.samples)
    whole = canonical.canonicalise(parsed)
    sieve = Sieve()
    sieve.learn(text, samples.asked)
    return sieve, whole


def same_signals(text: str) -> float:
    """What is left of a text that is cut, as a part of it; its signals are those of the whole."""
    sieve, whole = learnt(text)
    cut = sieve.cut(text)
    found = canonical.canonicalise(exposition.parse(cut), whole.engine)
    assert found.signals == whole.signals
    assert (found.epoch_s, found.engine_version) == (whole.epoch_s, whole.engine_version)
    return len(cut) / len(text)


def test_most_of_a_text_feeds_no_signal_and_is_skipped() -> None:
    assert same_signals(text_like_vllm()) < 0.5


def test_a_text_without_help_lines_is_cut_by_its_types(vllm_text: str, gate_text: str) -> None:
    types_only = re.sub("(?m)^# HELP .*\n", "", text_like_vllm())
    assert same_signals(types_only) < 0.5
    assert same_signals(vllm_text) <= 1.0
    # No comments at all: nothing to cut by.
    sieve, _ = learnt(gate_text)
    assert sieve.cut(gate_text) == gate_text


@pytest.mark.skipif(not REAL, reason="captures of real engines are not part of the project")
def test_a_real_text_that_is_cut_gives_the_same_signals() -> None:
    for path in REAL:
        text = path.read_text(encoding="utf-8", errors="replace")
        if canonical.canonicalise(exposition.parse(text), kind="instance").recognised:
            # Where a cut would say less, as of a queue that is only half there, none is made.
            reader = Scrape(**SETTINGS, session=None, url="")  # type: ignore[arg-type]
            want, again = (reader._understand(text, None) for _ in range(2))
            assert again.signals == want.signals, path.name


def test_a_family_that_has_no_series_yet_is_not_skipped() -> None:
    text = text_like_vllm()
    empty = re.sub(r"(?m)^vllm:prompt_tokens_total\{.*\n", "", text)
    sieve, whole = learnt(empty)
    assert whole.signals["prompt_tokens_total"].state == "missing"
    found = canonical.canonicalise(exposition.parse(sieve.cut(text)), "vllm")
    assert found.signals["prompt_tokens_total"].value == 1000.0


def test_a_text_with_too_many_series_keeps_those_a_map_knows(vllm_text: str) -> None:
    """S-14: the allow-list; what is dropped is counted."""
    flood = "".join(f'vllm:per_user_total{{user="{i}"}} 1\n' for i in range(5000))
    text, n_dropped = bound(flood + vllm_text, kind="instance", max_series=1000)
    _, n_unknown = bound(vllm_text, kind="instance", max_series=0)
    assert n_dropped == 5000 + n_unknown
    assert n_unknown < 5
    want = canonical.canonicalise(exposition.parse(vllm_text)).signals
    assert canonical.canonicalise(exposition.parse(text)).signals == want
    assert bound(vllm_text, kind="instance", max_series=1000) == (vllm_text, 0)


@pytest.fixture
async def scrape(engine: Any) -> Any:
    async with aiohttp.ClientSession() as session:
        yield Scrape(f"{engine.url}/metrics", session=session, **SETTINGS)


async def test_every_reading_says_what_the_whole_text_says(scrape: Scrape, engine: Any) -> None:
    for i, body in enumerate([*variants(text_like_vllm()), *variants(text_like_vllm())]):
        text = body.decode()
        if i == 40:
            # Another process: other counters, one signal less, one unknown family more.
            text = text.replace("1.79595e+09", "1.79596e+09").replace("_preemptions_", "_swaps_")
        engine.pages["/metrics"] = text
        read = await scrape.read()
        want = canonical.canonicalise(exposition.parse(text))
        assert read.signals == want.signals, i
        assert read.epoch_s == want.epoch_s
        if i == 40:
            assert "vllm:num_swaps_total" in scrape.look.unmatched


async def test_what_is_besides_the_signals_is_looked_at_now_and_then(
    scrape: Scrape, engine: Any
) -> None:
    engine.pages["/metrics"] = text_like_vllm()
    await scrape.read()
    before = scrape.look
    assert before.n_series > 400
    engine.pages["/metrics"] = (
        "# HELP x\n# TYPE x gauge\nx{ 1\nnobody_knows_this 2\n" + text_like_vllm()
    )
    for _ in range(FULL_EVERY - 2):
        await scrape.read()
        if scrape.look != before:
            break
    else:
        await scrape.read()
    assert "nobody_knows_this" in scrape.look.unmatched
    assert scrape.look.n_bad_lines == 1


async def test_a_flood_of_series_does_not_fail_the_reading(
    scrape: Scrape, engine: Any, vllm_text: str
) -> None:
    flood = "".join(f'vllm:per_user_total{{user="{i}"}} 1\n' for i in range(5000))
    engine.pages["/metrics"] = flood + vllm_text
    for n in (1, 2):
        read = await scrape.read()
        assert read.signals["requests_waiting"].value == 40.0
        assert n * 5000 <= scrape.n_dropped < n * 5005


async def test_a_text_of_nobody_leaves_no_trace_of_the_one_before(
    scrape: Scrape, engine: Any
) -> None:
    engine.pages["/metrics"] = text_like_vllm()
    await scrape.read()
    engine.pages["/metrics"] = "<html>restarting</html>"
    with pytest.raises(ReadError, match="no series of a known engine"):
        await scrape.read()
    engine.pages["/metrics"] = text_like_vllm()
    assert (await scrape.read()).recognised
    assert scrape.look != Look()
