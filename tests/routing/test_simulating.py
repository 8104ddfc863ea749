"""`manage.py simulate` and what it is made of: a scenario, a trace, options; errors for people."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from django.core.management import CommandError, call_command

from routing.core.scenario.tables import ScenarioError
from routing.simulating import DEFAULT_DURATION_S, Options, SimulateError, run_of, run_timed
from routing.trace_files import trace_of
from routing.twin.policies import PolicyError
from routing.twin.trace_rows import TraceError
from tests.core.cases import demo_document

KEYS = {
    *("requests", "completed", "throughput_rps", "goodput_rps", "ttft_s", "stages_s"),
    *("remote_fraction", "links", "plans", "wall_s"),
}
MOONCAKE = [
    {"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]},
    {"timestamp": 4000, "input_length": 1536, "output_length": 10, "hash_ids": [1, 2, 3]},
    {"timestamp": 8000, "input_length": 40000, "output_length": 10, "hash_ids": [*range(9, 88)]},
]
RATES = '{"at_s": 0, "for_s": 100, "demand_rps": 2.0}\n{"at_s": 100, "for_s": 100, "demand_rps": 4}'


def lines(*rows: dict[str, Any]) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def document(**tables: Any) -> dict[str, Any]:
    return demo_document() | tables


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "case.toml"
    path.write_text(tomli_w.dumps(demo_document()))
    return path


def answer(*words: object) -> dict[str, Any]:
    out = io.StringIO()
    call_command("simulate", *map(str, words), "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def refused(*words: object) -> str:
    out = io.StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("simulate", *map(str, words), stdout=out)
    assert caught.value.returncode == 2
    assert not out.getvalue(), "nothing was simulated"
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_json_is_one_object_with_the_keys_of_the_contract(scenario: Path) -> None:
    found = answer(scenario, "--duration", 600, "--policy", "static:20000")
    assert set(found) >= KEYS
    assert set(found["ttft_s"]) == {"mean", "p50", "p90", "p99"}
    assert set(found["stages_s"]) == {"queue", "prefill", "transfer", "decode_wait"}
    assert set(found["links"]) == {"prfaas->pd"}
    assert found["plans"][0]["threshold_tokens"] == 20_000
    assert 0 < found["completed"] <= found["requests"]
    assert found["wall_s"] > 0.0
    assert (found["fleet"], found["seed"], found["duration_s"]) == ("prfaas-1t", 1, 600.0)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(scenario: Path) -> None:
    first, again, other = (answer(scenario, "--duration", 300, "--seed", s) for s in (7, 7, 8))
    assert first.pop("wall_s") != 0.0
    again.pop("wall_s")
    assert json.dumps(first) == json.dumps(again)
    assert first["ttft_s"] != other["ttft_s"]


def test_several_policies_meet_the_same_requests(scenario: Path) -> None:
    found = answer(
        scenario, "--duration", 300, "--policy", "always_local", "--policy", "always_remote"
    )
    local, remote = found["policies"]
    assert (local["policy"], remote["policy"]) == ("always_local", "always_remote")
    assert (local["remote_fraction"], remote["remote_fraction"]) == (0.0, 1.0)
    assert local["requests"] == remote["requests"]


def test_hindsight_is_not_below_the_optimum(scenario: Path) -> None:
    words = (scenario, "--duration", 120, "--rate", 3.2)
    found = answer(*words, "--policy", "oracle", "--policy", "paper")["policies"]
    assert [each["policy"] for each in found] == ["oracle", "paper"]
    assert found[0]["good"] >= found[1]["good"]


def test_the_rate_and_the_warm_up_are_kept(scenario: Path) -> None:
    found = answer(scenario, "--duration", 2000, "--warmup", 1000, "--rate", 0.5)
    assert found["requests"] == pytest.approx(500, abs=100)
    assert found["warmup_s"] == 1000.0


def test_without_json_it_is_a_table_for_people(scenario: Path) -> None:
    out = io.StringIO()
    call_command("simulate", str(scenario), "--duration", "300", stdout=out)
    text = out.getvalue()
    assert text.startswith("prfaas-1t: 5 min simulated, seed 1\n")
    for name in ("policy", "goodput", "TTFT p90", "prfaas->pd", "t = 19,4"):
        assert name in text


def test_a_trace_takes_the_place_of_the_arrivals(scenario: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(lines(*MOONCAKE))
    found = answer(scenario, "--trace", trace, "--policy", "static:20000")
    # Two gaps of 4 s, and one more to where a fourth would come.
    assert (found["requests"], found["duration_s"]) == (3, 12.0)
    assert found["remote_fraction"] == pytest.approx(1 / 3)


def test_a_trace_is_made_as_fast_as_the_rate_says() -> None:
    trace = trace_of(lines(*MOONCAKE), source="trace.jsonl")
    run = run_of(demo_document(), Options(rate_rps=2.0), recorded=trace)
    assert run.duration_s == pytest.approx(1.5)
    assert [p.at_s.tolist() for p in run.workload.pieces(1)] == [pytest.approx([0.0, 0.5, 1.0])]


def test_prefixes_of_a_trace_are_found_where_the_scenario_has_a_cache() -> None:
    trace = trace_of(lines(*MOONCAKE), source="trace.jsonl")
    computed = {}
    for name, tables in (("none", {}), ("cache", {"cache": {"linear_state": "none"}})):
        options = Options(policy="always_local", duration_s=100.0)
        report = run_timed(run_of(document(**tables), options, recorded=trace))
        computed[name] = report.tokens["computed"]
    assert computed == {"none": 42_560, "cache": 42_560 - 1024}


def test_recorded_intervals_are_drawn_anew_at_their_rates_or_at_another() -> None:
    recording = trace_of(RATES.encode(), source="export.jsonl")
    run = run_of(demo_document(), Options(), recorded=recording)
    assert run.duration_s == 200.0
    n = sum(map(len, run.workload.pieces(1)))
    assert n == pytest.approx(600, abs=80)
    half = run_of(demo_document(), Options(rate_rps=1.5), recorded=recording)
    assert sum(map(len, half.workload.pieces(1))) == pytest.approx(300, abs=60)


def test_without_a_trace_an_hour_is_simulated() -> None:
    assert run_of(demo_document(), Options()).duration_s == DEFAULT_DURATION_S == 3600.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--duration", "0"), "duration_s = 0.0: must be"),
        (("--duration", "-5"), "duration_s = -5.0: must be"),
        (("--duration", "nan"), "--duration = 'nan': must be"),
        (("--duration", "inf"), "--duration = 'inf': must be"),
        (("--duration", "soon"), "--duration = 'soon': must be"),
        (("--rate", "0"), "rate_rps = 0.0: must be"),
        (("--warmup", "-1"), "warmup_s = -1.0: must be"),
        (("--warmup", "3600"), "warmup_s = 3600.0: must be below the 3600 s"),
        (("--seed", "-1"), "--seed = '-1': must be"),
        (("--seed", "1.5"), "--seed = '1.5': must be"),
        (("--policy", "best"), "policy 'best': unknown, one of paper, adaptive"),
        (("--policy", "static:x"), "policy 'static:x': T of static:T"),
        (("--policy", "static:"), "policy 'static:': T of static:T"),
        (("--histograms", "h.jsonl"), "--histograms = 'h.jsonl': needs a --trace"),
        (("--trace", "/no/such.csv"), "/no/such.csv: cannot be read: No such file"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_an_option_that_cannot_be_meant_is_one_line(
    scenario: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in refused(scenario, *words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.jsonl: is empty"),
        ('{"at_s": 0, "prompt_tokens": 5, "output_tokens": 2}\n{"at_s": 1', "t.jsonl:2: "),
        (
            '{"timestamp": 0, "input_length": -3, "output_length": 1, "hash_ids": [1]}',
            "t.jsonl:1: input_length = -3: ",
        ),
        ("a,b\n1,2\n", "t.jsonl:1: header"),
        ('{"at_s": 5, "prompt_tokens": 5, "output_tokens": 2}', "duration_s = None: is needed"),
        (
            '{"at_s": 0, "for_s": 9, "demand_rps": 0}',
            "t.jsonl: trace = 'recorded intervals': the recording has no traffic",
        ),
    ],
    ids=["empty", "cut off", "negative", "other columns", "one moment", "no traffic"],
)
def test_a_bad_trace_says_file_line_and_value(
    scenario: Path, tmp_path: Path, text: str, said: str
) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(text)
    assert said in refused(scenario, "--trace", trace)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"delays": {"agent_s": -1.0}}, "case.toml: delays.agent_s = -1.0: "),
        ({"arrivals": {"kind": "daily"}}, "case.toml: arrivals.kind = 'daily': "),
        ({"arrivals": {"kind": "trace"}}, "case.toml: arrivals.kind = 'trace': "),
        ({"fault": []}, "case.toml: fault = []: is not a known key"),
    ],
    ids=["delays", "arrivals", "a trace's arrivals without a trace", "unknown table"],
)
def test_a_bad_scenario_says_file_field_and_value(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "case.toml"
    path.write_text(tomli_w.dumps(document(**change)))
    assert said in refused(path)


def test_a_file_that_is_no_scenario_is_one_line(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.toml").endswith("none.toml: No such file or directory")
    (tmp_path / "bad.toml").write_text("= 3")
    assert "bad.toml: is not TOML: " in refused(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"duration_s": float("nan")}, SimulateError),
        ({"rate_rps": float("inf")}, SimulateError),
        ({"warmup_s": float("nan")}, SimulateError),
        ({"seed": -1}, SimulateError),
        ({"policy": ""}, PolicyError),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_options_are_checked_whoever_asks(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        run_of(demo_document(), Options(**changes))


def test_a_document_that_cannot_be_meant_is_told_whoever_asks() -> None:
    with pytest.raises(ScenarioError):
        run_of({}, Options())
    drained = demo_document()
    drained["clusters"][1]["drained"] = True
    with pytest.raises(ScenarioError, match=r"clusters\[1\].drained = True: nobody plans"):
        run_of(drained, Options())
    alone = demo_document()
    alone |= {"clusters": alone["clusters"][1:], "links": []}
    with pytest.raises(PolicyError, match="no PrfaaS cluster"):
        run_of(alone, Options(policy="always_remote"))
    rows = [{"at_s": t, "prompt_tokens": 9, "output_tokens": 9, "cluster": "x"} for t in (0, 1)]
    trace = trace_of(lines(*rows), source="t")
    with pytest.raises(TraceError, match="is no PD cluster"):
        run_of(demo_document(), Options(), recorded=trace)
