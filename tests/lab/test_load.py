"""The load generator: traces, lengths, arrivals, prompts, and a run against a real stack."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from routing.lab.arrivals import Arrival, Drawn, Replay
from routing.lab.content import WORDS, as_form, random_ids, trace_ids
from routing.lab.errors import LabError
from routing.lab.lengths import FixedLengths, LogNormalLengths, parse_lengths
from routing.lab.load import drive, main, parse_args
from routing.lab.prompt import of_ids, of_text
from routing.lab.runner import MAX_FAILURE_KINDS, Runner, percentiles
from routing.lab.serve import open_port
from routing.lab.traces import BLOCK_TOKENS, read_trace
from tests.lab.serving import lab
from tests.lab.virtual import run_virtual

TRACES = Path(__file__).parents[2] / "../shared/data/traces"

MOONCAKE = """\
{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 1500, "input_length": 1300, "output_length": 0, "hash_ids": [0, 1, 3]}

{"timestamp": 3000, "input_length": 512, "output_length": 2, "hash_ids": [9]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    raw = text.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_mooncake_trace(tmp_path: Path, name: str) -> None:
    rows = read_trace(write(tmp_path, name, MOONCAKE))
    assert [(r.line, r.at_s, r.prompt_tokens, r.output_tokens) for r in rows] == [
        (1, 0.0, 1100, 5),
        (2, 0.5, 1300, 1),
        (4, 2.0, 512, 2),
    ]
    assert rows[1].hash_ids == (0, 1, 3)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_an_azure_trace(tmp_path: Path, name: str) -> None:
    rows = read_trace(write(tmp_path, name, AZURE))
    assert [(r.prompt_tokens, r.output_tokens, r.hash_ids) for r in rows] == [
        (374, 44, None),
        (396, 109, None),
    ]
    assert rows[1].at_s == pytest.approx(4.314579)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.jsonl", "", "has no rows"),
        ("t.jsonl", "\n\n", "has no rows"),
        ("t.csv", "", "has no rows"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no rows"),
        ("t.csv", "a,b,c\n", "t.csv:1: needs the columns"),
        ("t.csv", AZURE + "2023-11-16 18:15:51,x,3\n", "t.csv:4: is not an Azure row"),
        ("t.csv", AZURE + "2023-11-16 18:15:51,3\n", "t.csv:4: is not an Azure row"),
        ("t.csv", AZURE + "2023-11-16 18:15:51,0,3\n", "t.csv:4: needs a prompt"),
        ("t.csv", AZURE + "2023-11-16 18:15:50,3,3\n", "t.csv:4: is earlier"),
        ("t.jsonl", MOONCAKE + "nonsense\n", "t.jsonl:5: is not a Mooncake row"),
        ("t.jsonl", MOONCAKE.replace("[9]", '["x"]'), "t.jsonl:4: is not a Mooncake row"),
        ("t.jsonl", MOONCAKE.replace("[9]", "[9, 10]"), "t.jsonl:4: hash_ids: 512 tokens fill 1"),
        ("t.jsonl", MOONCAKE.replace("1500", "900"), "t.jsonl:2: is earlier"),
        ("t.jsonl", MOONCAKE.replace("500", "NaN"), "t.jsonl:2: is not a Mooncake row"),
        ("t.txt", "", "a trace is .jsonl or .csv"),
    ],
)
def test_a_bad_trace_names_file_and_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(LabError) as refused:
        read_trace(write(tmp_path, name, text))
    assert says in str(refused.value)


def test_a_trace_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="cannot be read"):
        read_trace(tmp_path / "absent.jsonl")
    for raw in (b"no gzip at all", gzip.compress(b"{}")[:-4]):
        path = tmp_path / "broken.jsonl.gz"
        path.write_bytes(raw)
        with pytest.raises(LabError, match="cannot be"):
            read_trace(path)


@pytest.mark.parametrize(
    ("name", "n_rows"),
    [
        ("mooncake_conversation_trace.jsonl.gz", 12_031),
        ("mooncake_arxiv_trace_first1000.jsonl.gz", 1_000),
        ("azure2023_conv.csv.gz", 19_366),
    ],
)
def test_real_traces_are_accepted_whole(name: str, n_rows: int) -> None:
    if not (TRACES / name).exists():
        pytest.skip(f"{name} is not beside the repository")
    assert len(read_trace(TRACES / name)) == n_rows


def test_log_normal_lengths_are_those_of_the_truncated_distribution() -> None:
    lengths, random = LogNormalLengths(9.90, 1.00, 128, 131_072), Random(7)
    drawn = [lengths.draw(random) for _ in range(20_000)]
    assert min(drawn) >= 128
    assert max(drawn) <= 131_072
    # Mean of the truncated distribution about 27,486; share above 19,400 tokens .4957.
    assert fmean(drawn) == pytest.approx(27_486, rel=0.02)
    assert fmean(n > 19_400 for n in drawn) == pytest.approx(0.4957, abs=0.01)


@pytest.mark.parametrize(
    "value",
    [
        0,
        True,
        "long",
        None,
        {"kind": "gamma"},
        {"kind": "lognormal", "mu": 9.9, "sigma": 1.0, "min": 128},
        {"kind": "lognormal", "mu": 9.9, "sigma": 0.0, "min": 128, "max": 1024},
        {"kind": "lognormal", "mu": float("nan"), "sigma": 1.0, "min": 128, "max": 1024},
        {"kind": "lognormal", "mu": 9.9, "sigma": 1.0, "min": 1024, "max": 128},
        {"kind": "lognormal", "mu": 99.0, "sigma": 0.1, "min": 128, "max": 1024},
        {"kind": "lognormal", "mu": 9.9, "sigma": 1.0, "min": 1, "max": 9, "mean": 3},
    ],
)
def test_bad_lengths_are_refused(value: Any) -> None:
    with pytest.raises(LabError, match="lengths"):
        parse_lengths(value, field="lengths", source="load.toml")


def test_prompts_of_a_trace_share_exactly_the_prefixes_of_their_hash_ids(tmp_path: Path) -> None:
    rows = read_trace(write(tmp_path, "t.jsonl", MOONCAKE))
    prompts = [trace_ids(r.hash_ids or (), r.prompt_tokens, seed=1) for r in rows]
    assert [len(p) for p in prompts] == [1100, 1300, 512]
    assert prompts[0][:1024] == prompts[1][:1024]
    assert prompts[0][1024:1100] != prompts[1][1024:1100]
    blocks = [of_ids(p, block_tokens=BLOCK_TOKENS).blocks for p in prompts]
    assert blocks[0] == blocks[1] == blocks[0][:2]
    assert blocks[2][0] not in blocks[0]


def test_text_has_five_bytes_and_one_word_a_token() -> None:
    ids = random_ids(1000, Random(3))
    text = as_form(ids, "text")
    assert isinstance(text, str)
    assert len(text) == 5 * 1000 - 1
    assert of_text(text, block_tokens=512).tokens == 1000
    assert len(set(WORDS)) == len(WORDS) == 65_536
    assert as_form(ids, "ids") == ids


def _take(source: Drawn | Replay, n: int) -> list[Arrival]:
    async def taking() -> list[Arrival]:
        taken: list[Arrival] = []
        async for arrival in source.arrivals():
            taken.append(arrival)
            if len(taken) == n:
                break
        return taken

    return run_virtual(taking())


def _drawn(rate_rps: float, seed: int = 5) -> Drawn:
    lengths = LogNormalLengths(6.0, 1.0, 16, 4096)
    return Drawn(rate_rps=rate_rps, lengths=lengths, outputs=FixedLengths(8), seed=seed)


def test_the_same_seed_gives_the_same_requests_at_any_rate() -> None:
    slow, fast, other = _take(_drawn(1.0), 50), _take(_drawn(4.0), 50), _take(_drawn(1.0, 6), 50)
    assert [a.prompt_tokens for a in slow] == [a.prompt_tokens for a in fast]
    assert [a.prompt_tokens for a in slow] != [a.prompt_tokens for a in other]
    gaps = [(b.due_s - a.due_s) for a, b in pairwise(slow)]
    quick = [(b.due_s - a.due_s) for a, b in pairwise(fast)]
    assert [4 * g for g in quick] == pytest.approx(gaps)
    assert _drawn(1.0).prompt(slow[3]) == _drawn(4.0).prompt(fast[3])


def test_arrivals_are_poisson() -> None:
    taken = _take(_drawn(2.5), 5000)
    gaps = [(b.due_s - a.due_s) for a, b in pairwise(taken)]
    mean = fmean(gaps)
    assert mean == pytest.approx(0.4, rel=0.05)
    assert fmean((g - mean) ** 2 for g in gaps) == pytest.approx(mean**2, rel=0.1)


def test_a_changed_rate_acts_on_the_arrival_being_waited_for() -> None:
    async def story() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        source, start_s = _drawn(0.0), loop.time()
        first = asyncio.ensure_future(anext(aiter(source.arrivals())))
        await asyncio.sleep(100.0)
        source.rate_rps = 1.0
        at_one = (await first).due_s - start_s - 100.0
        twice = _drawn(1.0)
        start_s = loop.time()
        first = asyncio.ensure_future(anext(aiter(twice.arrivals())))
        await asyncio.sleep(at_one / 2.0)
        twice.rate_rps = 0.5
        return at_one, (await first).due_s - start_s

    at_one, changed = run_virtual(story())
    # Half of the gap at 1/s, the other half at half the speed.
    assert changed == pytest.approx(at_one * 1.5)


def test_a_replay_keeps_the_times_of_its_trace_at_its_speed(tmp_path: Path) -> None:
    rows = read_trace(write(tmp_path, "t.jsonl", MOONCAKE))
    taken = _take(Replay(rows, speed=2.0, seed=0), 3)
    assert [a.due_s - taken[0].due_s for a in taken] == pytest.approx([0.0, 0.25, 1.0])
    assert [a.row.line for a in taken if a.row] == [1, 2, 4]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([], {"p50": None, "p90": None, "p99": None}),
        ([3.0], {"p50": 3.0, "p90": 3.0, "p99": 3.0}),
        ([float(n) for n in range(100, 0, -1)], {"p50": 50.0, "p90": 90.0, "p99": 99.0}),
    ],
)
def test_percentiles_by_nearest_rank(values: list[float], want: dict[str, float | None]) -> None:
    assert percentiles(values) == want


async def _run(runner: Runner, **options: float) -> dict[str, Any]:
    async with runner:
        await runner.run(asyncio.Event(), duration_s=options.get("duration_s"), drain_s=30.0)
        return runner.summary()


async def test_a_run_against_a_stack_shares_real_prefixes_and_records_each_request(
    tmp_path: Path,
) -> None:
    """Two rows share two blocks of 512; which of the two engines serves them does not matter."""
    rows = read_trace(write(tmp_path, "t.jsonl", MOONCAKE))
    record = tmp_path / "record.jsonl"
    async with lab(tmp_path, slow_prefill_s=0.002, extra="cache_scope = 'cluster'") as served:
        runner = Runner(
            Replay(rows, speed=5.0, seed=0),
            targets=[served.local],
            form="text",
            model="small",
            seed=0,
            limit=None,
            record=record,
        )
        summary = await _run(runner)
        cached = served.fleet.truth.document(0)["sides"]["local"]["cached_tokens"]
    assert (summary["requests"], summary["completed"], summary["failed"]) == (3, 3, 0)
    assert summary["prompt_tokens"] == 1100 + 1300 + 512
    assert summary["cached_tokens"] == cached == 1024
    lines = {row["row"]: row for row in map(json.loads, record.read_text().splitlines())}
    assert [lines[n]["cached_tokens"] for n in (1, 2, 4)] == [0, 1024, 0]
    assert lines[2]["id"] == "load-0-1"
    assert lines[2]["status"] == 200
    assert lines[2]["completed"] is True
    assert lines[2]["total_s"] >= lines[2]["ttft_s"] > 0.0
    assert lines[2]["side"] is None, "no gate was asked, so none named a side"


async def test_what_a_gate_says_is_recorded(tmp_path: Path) -> None:
    """Two targets take turns; headers of the gate stand in the record under their own names."""
    seen: Counter[str] = Counter()
    record = tmp_path / "record.jsonl"
    headers = {
        "X-PrfaaS-Side": "remote",
        "X-PrfaaS-Reason": "AboveThreshold",
        "X-PrfaaS-Plan": "1.7",
        "X-PrfaaS-Uncached-Tokens": "123",
        "X-PrfaaS-Length-Source": "tokenised",
        "X-PrfaaS-Upstream": "far",
    }

    def gate(name: str) -> web.Application:
        async def completions(request: web.Request) -> web.Response:
            seen[name] += 1
            return web.json_response({"error": "no"}, status=503, headers=headers)

        app = web.Application()
        app.router.add_post("/v1/completions", completions)
        return app

    async with AsyncExitStack() as closing:
        urls = [await open_port(gate(n), "127.0.0.1", 0, closing) for n in ("a", "b")]
        runner = Runner(
            _drawn(500.0), targets=urls, form="ids", model="", seed=0, limit=6, record=record
        )
        summary = await _run(runner)
    assert seen == {"a": 3, "b": 3}
    assert (summary["requests"], summary["failed"], summary["remote_share"]) == (6, 6, 1.0)
    assert summary["reasons"] == {"AboveThreshold": 6}
    row = json.loads(record.read_text().splitlines()[0])
    assert (row["side"], row["reason"], row["plan"]) == ("remote", "AboveThreshold", "1.7")
    assert (row["uncached_tokens"], row["length_source"]) == (123, "tokenised")
    assert row["gate"] == {"upstream": "far"}
    assert (row["status"], row["completed"]) == (503, False)
    assert row["error"] == '{"error": "no"}'
    (failure,) = summary["failures"]
    assert (failure["status"], failure["error"], failure["requests"]) == (503, row["error"], 6)
    assert failure["first_at_s"] <= failure["last_at_s"]
    assert failure["last_id"].startswith("load-0-")


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        ("data: {}\n\n", 200, "the stream ended early"),
        ("data: {}\n\ndata: [DONE]\n\n", 200, "the stream had no usage"),
        (
            'data: {"usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n',
            200,
            "1 of 8 tokens came",
        ),
        ("no! " * 1000, 500, ("no! " * 1000)[:200]),
    ],
)
async def test_a_failed_request_says_why_and_is_not_sent_again(
    answer: str, status: int, error: str
) -> None:
    (failure,) = await _failures(2, lambda n: (answer, status))
    assert (failure["status"], failure["error"], failure["requests"]) == (status, error, 2)


async def test_only_so_many_kinds_of_failure_are_told_apart() -> None:
    failures = await _failures(MAX_FAILURE_KINDS + 10, lambda n: (f"error {n}", 500))
    assert [f["requests"] for f in failures] == [10] + [1] * MAX_FAILURE_KINDS
    assert (failures[0]["status"], failures[0]["error"]) == (None, "other")


async def _failures(limit: int, answer: Callable[[int], tuple[str, int]]) -> list[dict[str, Any]]:
    """What a summary says of that many requests, each answered once by its number."""
    asked: Counter[str] = Counter()

    async def completions(request: web.Request) -> web.Response:
        id = request.headers["X-Request-Id"]
        asked[id] += 1
        text, status = answer(int(id.rpartition("-")[2]))
        return web.Response(text=text, status=status)

    app = web.Application()
    app.router.add_post("/v1/completions", completions)
    async with AsyncExitStack() as closing:
        url = await open_port(app, "127.0.0.1", 0, closing)
        runner = Runner(
            _drawn(500.0), targets=[url], form="ids", model="", seed=0, limit=limit, record=None
        )
        summary = await _run(runner)
    assert summary["failed"] == len(asked) == asked.total() == limit
    failures: list[dict[str, Any]] = summary["failures"]
    return failures


async def test_arrivals_do_not_wait_for_answers(tmp_path: Path) -> None:
    """An upstream that takes for ever does not slow the load down; the end cancels and says so."""
    async with lab(tmp_path, slow_prefill_s=3600.0) as served:
        runner = Runner(
            _drawn(1000.0),
            targets=[served.local],
            form="ids",
            model="",
            seed=0,
            limit=40,
            record=None,
        )
        stop = asyncio.Event()
        async with runner:
            running = asyncio.create_task(runner.run(stop, duration_s=None, drain_s=60.0))
            while runner.summary()["requests"] < 40:
                await asyncio.sleep(0.005)
            assert runner.summary()["in_flight"] == 40
            stop.set()
            await running
            summary = runner.summary()
        await served.settled()
    assert (summary["cancelled"], summary["completed"], summary["failed"]) == (40, 0, 0)


async def test_nobody_listening_is_counted_not_raised() -> None:
    runner = Runner(
        _drawn(500.0),
        targets=["http://127.0.0.1:9"],
        form="ids",
        model="",
        seed=0,
        limit=3,
        record=None,
    )
    summary = await _run(runner)
    assert (summary["failed"], summary["ttft_s"]["p50"]) == (3, None)


async def test_load_is_steered_while_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with lab(tmp_path) as served:
        argv = f"--target {served.local} --scenario {tmp_path / 'scenario.toml'} --admin-port 0"
        config, stop = (
            parse_args([*argv.split(), "--rate-rps", "0", "--drain-s", "20"]),
            asyncio.Event(),
        )
        running = asyncio.create_task(drive(config, stop))
        out = ""
        while not out:
            await asyncio.sleep(0.005)
            out = capsys.readouterr().out
        admin = json.loads(out)["admin"]
        for path, body, status in (
            ("mix", {"mu": 2.0, "sigma": 0.2}, 200),
            ("mix", {"mu": 2.0, "sigma": -1}, 422),
            ("mix", {"mean": 3}, 422),
            ("rate", {"rate_rps": -1}, 422),
            ("rate", {"rate_rps": 200.0}, 200),
        ):
            async with served.session.put(f"{admin}/{path}", json=body) as response:
                assert response.status == status, path
        while (await _summary(served.session, admin))["completed"] < 5:
            await asyncio.sleep(0.005)
        stop.set()
        await running
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["requests"] >= 5
    assert last["prompt_tokens"] / last["completed"] < 12, "the new mix has mean 7.5"


async def _summary(session: aiohttp.ClientSession, admin: str) -> dict[str, Any]:
    async with session.get(f"{admin}/summary") as response:
        document: dict[str, Any] = await response.json()
        return document


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "load.toml"
    path.write_text('targets = ["http://a"]\nrate_rps = 1.0\nseed = 3\ntrace = "t.jsonl"\n')
    config = parse_args(["--config", str(path), "--rate-rps", "2.5", "--target", "http://b"])
    assert (config.targets, config.rate_rps, config.seed) == (["http://b"], 2.5, 3)
    assert config.trace == str(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "targets"),
        (["--target", "http://a"], "rate_rps: set it"),
        (["--target", "http://a", "--rate-rps", "-1"], "rate_rps"),
        (["--target", "http://a", "--rate-rps", "1"], "lengths"),
        (["--target", "http://a", "--trace", "absent.jsonl"], "absent.jsonl: cannot be read"),
        (["--config", "absent.toml"], "absent.toml: cannot be read"),
        (["--target", "http://a", "--scenario", "absent.toml"], "absent.toml: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
