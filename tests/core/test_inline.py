"""Scenario documents whose files are replaced by what they say."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing.core.scenario.document import parse_scenario
from routing.core.scenario.inline import inlined
from routing.core.scenario.length_files import length_buckets
from routing.core.scenario.profile_files import FileError
from routing.core.scenario.tables import ScenarioError
from routing.scenario_files import inline_files
from tests.core.cases import demo_document

SHARED = Path(__file__).parents[2] / "../shared/data"

PREFILL = """\
model,system,backend,tp,ep,isl,batch,ttft_ms,fits_gpu_mem
org/Big-8B,h20_sxm,sglang,8,8,1024,1,100.5,yes
org/Big-8B,h20_sxm,sglang,8,8,4096,1,400,yes
org/Big-8B,h20_sxm,sglang,8,8,4096,2,800,yes
org/Big-8B,h20_sxm,sglang,8,8,65536,1,9000,no
org/Big-8B,h20_sxm,sglang,4,4,1024,1,200,yes
org/Big-8B,h20_sxm,vllm,8,8,1024,1,90,yes
org/Big-8B,h200_sxm,sglang,8,8,1024,1,50,yes
org/Small,h20_sxm,sglang,8,8,1024,1,7,no
"""
DECODE = """\
model,gpu,engine,engine_version,batch,context_tokens,step_s
org/Big-8B,H20,sglang,0.5.9,1,8192,0.010
org/Big-8B,H20,sglang,0.5.9,8,8192,0.020
org/Big-8B,H20,sglang,0.5.8,1,8192,0.011
org/Big-8B,H20,sglang,0.5.8,8,8192,0.022
"""
PREFIX = """\
model,system,backend,tp,ep,isl,prefix,ttft_ms
org/Big-8B,h20_sxm,sglang,8,8,6144,2048,500
"""
FITS = json.dumps(
    {"org/Big-8B": {"1": {"prefill": [20, 0.1, 1e-6]}, "8": {"prefill": [9, 0.02, 0]}}}
)
CONFIG = json.dumps(
    {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_size": 512,
        "torch_dtype": "bfloat16",
    }
)
FACTS = {
    "gpu": "NVIDIA H20",
    "model": "big-8b",
    "engine": "SGLang",
    "engine_version": "0.5.9",
    "parallelism": "TP8 EP8",
}
FILES = {
    "prefill.csv": PREFILL,
    "decode.csv": DECODE,
    "prefix.csv": PREFIX,
    "fits.json": FITS,
    "config.json": CONFIG,
    "lengths.txt": "100\n200\n\n200\n400\n",
    "trace.jsonl": '{"input_length": 100, "out": 7}\n{"input_length": 300, "out": 9}\n',
    "trace.csv": "TIMESTAMP,ContextTokens\n1,374\n2,396\n",
}


def read(name: str) -> str:
    if name not in FILES:
        raise FileError("cannot be read: No such file or directory")
    return FILES[name]


def with_profile(**changes: Any) -> dict[str, Any]:
    """The demo with the facts above in profile h20, and `changes` to it."""
    document = demo_document()
    document["profiles"]["h20"] |= FACTS | changes
    return document


def h20(**changes: Any) -> dict[str, Any]:
    profile: dict[str, Any] = inlined(with_profile(**changes), read)["profiles"]["h20"]
    return profile


def test_prefill_comes_from_the_rows_of_this_hardware_that_fit() -> None:
    prefill = h20(prefill={"file": "prefill.csv"})["prefill"]
    assert prefill["points"] == [[1024.0, 0.1005], [4096.0, 0.4]]
    assert prefill["source"] == (
        "prefill.csv: system=h20_sxm model=org/Big-8B backend=sglang tp=8 ep=8, "
        "less 1 rows that do not fit GPU memory"
    )


def test_decode_comes_by_engine_version() -> None:
    decode = h20(decode={"file": "decode.csv"})["decode"]
    assert decode["table"] == [[1.0, 8192.0, 0.010], [8.0, 8192.0, 0.020]]
    assert "engine_version=0.5.9" in decode["source"]


def test_a_prefix_row_says_the_whole_prompt() -> None:
    assert h20(prefix={"file": "prefix.csv"})["prefix"] == [[2048.0, 4096.0, 0.5]]


def test_fits_by_model_and_parallelism_are_in_milliseconds() -> None:
    prefill = h20(prefill={"file": "fits.json"})["prefill"]
    assert prefill["fit"] == pytest.approx([0.009, 2e-5, 0.0])
    assert prefill["source"] == "fits.json: model=org/Big-8B tp=8"


def test_what_was_inlined_is_a_scenario() -> None:
    document = with_profile(
        prefill={"file": "prefill.csv"},
        prefix={"file": "prefix.csv"},
        decode={"file": "decode.csv"},
    )
    document["model"] = {"config": "config.json"}
    lengths = {"kind": "empirical", "file": "trace.jsonl", "column": "input_length"}
    document["workload"]["lengths"] = lengths
    scenario = parse_scenario(inlined(document, read))
    profile = scenario.profiles["h20@pd"]
    assert profile.prefill.range_tokens == (1024.0, 4096.0)
    assert float(profile.prefill.prefill_s(4096, 2048)) == pytest.approx(0.5)
    assert profile.decode.batch == 8
    # 2 x 4 layers x 2 heads x 64 x 2 bytes
    assert scenario.model.bytes_per_token == 2048
    below = scenario.workloads[0].lengths.cdf([99, 100, 299, 300])
    assert below.tolist() == pytest.approx([0.0, 0.5, 0.5, 1.0])


def test_the_document_itself_is_left_alone() -> None:
    document = with_profile(prefill={"file": "prefill.csv"})
    inlined(document, read)
    assert document["profiles"]["h20"]["prefill"] == {"file": "prefill.csv"}


def test_without_files_nothing_changes() -> None:
    assert inlined(demo_document(), read) == demo_document()


@pytest.mark.parametrize("document", [{}, {"profiles": 3}, {"model": []}, {"workload": [1]}])
def test_what_is_no_scenario_is_left_to_the_parser(document) -> None:
    assert inlined(document, read) == document


# what is changed of the profile, the field named, what is said
BAD = [
    ("missing file", {"prefill": {"file": "none.csv"}}, "prefill", "No such file"),
    (
        "no such gpu",
        {"prefill": {"file": "prefill.csv"}, "gpu": "b300"},
        "prefill",
        "no row of this",
    ),
    ("gpu by part", {"prefill": {"file": "prefill.csv"}, "gpu": "h2"}, "prefill", "no row of this"),
    (
        "several engines",
        {"prefill": {"file": "prefill.csv"}, "engine": ...},
        "prefill",
        "leave 2 kinds of rows: system=h20_sxm model=org/Big-8B backend=sglang tp=8 ep=8; system=",
    ),
    ("several sizes", {"prefill": {"file": "prefill.csv"}, "parallelism": ...}, "prefill", "tp=4"),
    (
        "no size",
        {"prefill": {"file": "prefill.csv"}, "parallelism": "big"},
        "prefill",
        "names no tp",
    ),
    (
        "no memory",
        {"prefill": {"file": "prefill.csv"}, "model": "small"},
        "prefill",
        "none of the 1",
    ),
    ("no column", {"prefill": {"file": "decode.csv"}}, "prefill", "has no column isl"),
    ("not a table", {"decode": {"file": "lengths.txt"}}, "decode", "column"),
    (
        "two versions",
        {"decode": {"file": "decode.csv"}, "engine_version": ...},
        "decode",
        "2 kinds",
    ),
    (
        "no fit",
        {"prefill": {"file": "fits.json"}, "parallelism": "tp2"},
        "prefill",
        "no row of this",
    ),
    ("no fits", {"prefill": {"file": "config.json"}}, "prefill", "no json of prefill fits"),
    ("beside more", {"prefill": {"file": "prefill.csv", "fit": []}}, "prefill", "stand alone"),
    ("no name", {"prefill": {"file": 3}}, "prefill", "name"),
]


@pytest.mark.parametrize(("case", "changes", "key", "says"), BAD, ids=[b[0] for b in BAD])
def test_a_file_that_does_not_give_the_profile_is_refused(case, changes, key, says) -> None:
    document = with_profile(**changes)
    profile = document["profiles"]["h20"]
    document["profiles"]["h20"] = {k: v for k, v in profile.items() if v is not ...}
    with pytest.raises(ScenarioError) as refused:
        inlined(document, read)
    assert refused.value.field == f"profiles.h20.{key}.file"
    assert refused.value.value == changes[key]["file"]
    assert says in refused.value.message


BAD_ROWS = [
    ("not a number", "isl,ttft_ms\n1024,fast\n", "ttft_ms = 'fast'"),
    ("neither yes nor no", "isl,ttft_ms,fits_gpu_mem\n1024,1,maybe\n", "maybe"),
    ("empty", "isl,ttft_ms\n", "no row"),
]


@pytest.mark.parametrize(("case", "text", "says"), BAD_ROWS, ids=[b[0] for b in BAD_ROWS])
def test_a_bad_row_is_named(case, text, says) -> None:
    with pytest.raises(ScenarioError, match=says):
        inlined(with_profile(prefill={"file": "x.csv"}), lambda _: text)


def test_the_same_length_twice_is_refused_by_the_profile() -> None:
    text = "isl,ttft_ms,node\n1024,10,a\n1024,11,b\n4096,40,a\n"
    document = inlined(with_profile(prefill={"file": "x.csv"}), lambda _: text)
    with pytest.raises(ScenarioError, match="tokens must rise"):
        parse_scenario(document)


BAD_MODELS = [
    ({"config": "none.json"}, "model.config", "No such file"),
    ({"config": "lengths.txt"}, "model.config", "is not JSON"),
    ({"config": "fits.json"}, "model.config", "model_type"),
    ({"config": "config.json", "state_bytes": 0}, "model.state_bytes", "beside config"),
]


@pytest.mark.parametrize(("model", "field", "says"), BAD_MODELS, ids=lambda v: str(v)[:24])
def test_a_config_that_cannot_be_sized_is_refused(model, field, says) -> None:
    document = demo_document()
    document["model"] = model
    with pytest.raises(ScenarioError) as refused:
        inlined(document, read)
    assert refused.value.field == field
    assert says in refused.value.message


BAD_LENGTHS = [
    ({"file": "trace.jsonl"}, "input_length, out"),
    ({"file": "trace.jsonl", "column": "in"}, "input_length, out"),
    ({"file": "trace.csv"}, "TIMESTAMP, ContextTokens"),
    ({"file": "trace.csv", "column": "TIMESTAMP", "buckets": []}, "beside buckets"),
    ({"file": "config.json"}, "no length"),
    ({"file": "trace.jsonl", "column": 3}, "texts"),
]


@pytest.mark.parametrize(("lengths", "says"), BAD_LENGTHS, ids=lambda v: str(v)[:44])
@pytest.mark.parametrize("key", ["lengths", "output_tokens"])
def test_a_file_without_lengths_is_refused(lengths, says, key) -> None:
    document = demo_document()
    document["workload"] = [
        document["workload"] | {"cluster": "pd", key: {"kind": "empirical", **lengths}}
    ]
    with pytest.raises(ScenarioError, match=says) as refused:
        inlined(document, read)
    assert refused.value.field == f"workload[0].{key}.file"


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e12", "true", "{}"])
def test_what_is_no_length_is_refused(text) -> None:
    with pytest.raises(FileError, match="line 2 holds no length"):
        length_buckets(f"5\n{text}\n", name="x", column=None)


def test_few_lengths_stay_as_they_are() -> None:
    buckets = length_buckets(FILES["lengths.txt"], name="lengths.txt", column=None)
    assert buckets == [[99, 0], [100, 1], [199, 0], [200, 2], [399, 0], [400, 1]]
    assert length_buckets("0\n1\n", name="x", column=None) == [[2.0, 2]]


def test_many_lengths_are_bucketed_and_keep_their_sums() -> None:
    drawn = np.exp(np.random.default_rng(1).normal(9.0, 1.3, 30_000)).round() + 1
    text = "\n".join(str(int(x)) for x in drawn)
    buckets = length_buckets(text, name="x.txt", column=None)
    edges = [edge for edge, _ in buckets]
    assert len(buckets) < 200
    assert max(b / a for a, b in itertools.pairwise(edges[8:])) < 1.1
    assert sum(weight for _, weight in buckets) == len(drawn)
    document = demo_document()
    document["workload"]["lengths"] = {"kind": "empirical", "buckets": buckets}
    lengths = parse_scenario(document).workloads[0].lengths
    for t in (3000.0, 19_800.0, 60_000.0):
        assert lengths.cdf([t])[0] == pytest.approx(np.mean(drawn <= t), abs=0.003)
    assert lengths.tokens_below([np.inf])[0] == pytest.approx(drawn.mean(), rel=0.005)
    assert lengths.squares_below([np.inf])[0] == pytest.approx((drawn**2).mean(), rel=0.01)


def test_files_are_read_from_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "prefill.csv").write_text(PREFILL)
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(FILES["trace.csv"].encode()))
    document = with_profile(prefill={"file": "prefill.csv"})
    document["workload"]["lengths"] = {
        "kind": "empirical",
        "file": "trace.csv.gz",
        "column": "ContextTokens",
    }
    found = inline_files(document, beside=tmp_path)
    assert len(found["profiles"]["h20"]["prefill"]["points"]) == 2
    assert found["workload"]["lengths"]["buckets"][-1] == [396.0, 1]


UNREADABLE = [("is a folder", None), ("no gzip", b"plain"), ("cut", gzip.compress(b"1" * 99)[:-9])]


@pytest.mark.parametrize(("case", "data"), UNREADABLE, ids=[u[0] for u in UNREADABLE])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, case, data) -> None:
    path = tmp_path / "x.csv.gz"
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    with pytest.raises(ScenarioError, match="cannot be read") as refused:
        inline_files(with_profile(prefill={"file": "x.csv.gz"}), beside=tmp_path)
    assert refused.value.value == "x.csv.gz"


def test_a_file_of_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="is not text"):
        inline_files(with_profile(prefill={"file": "x.csv"}), beside=tmp_path)


def test_the_profiles_of_aiconfigurator_are_read() -> None:
    """Qwen3-235B on 8 H200 with SGLang; 256 requests of 32K do not fit and are left out."""
    folder = SHARED / "profiles"
    if not folder.exists():
        pytest.skip("the folder of profiles is not beside this checkout")
    facts = {"gpu": "H200", "model": "Qwen3-235B-A22B-FP8", "parallelism": "TP8 EP8"}
    document = with_profile(**facts, engine_version="0.5.9")
    document["profiles"]["h20"] |= {
        "prefill": {"file": "aic_prefill.csv"},
        "prefix": {"file": "aic_prefill_prefix.csv"},
        "decode": {"file": "aic_decode.csv"},
    }
    scenario = parse_scenario(inline_files(document, beside=folder))
    profile = scenario.profiles["h20@pd"]
    assert profile.prefill.range_tokens == (1024.0, 131_072.0)
    assert float(profile.prefill.prefill_s(8192)) == pytest.approx(0.241108)
    assert float(profile.prefill.prefill_s(16_384, 49_152)) == pytest.approx(0.92233)
    assert 1.02 / profile.decode.step_s >= 40.0
    assert "less 1 rows" in str(profile.facts["decode_source"])


def test_quadratic_fits_of_distserve_are_read() -> None:
    path = SHARED / "profiles/distserve_a100_profile.json"
    if not path.exists():
        pytest.skip("the folder of profiles is not beside this checkout")
    document = demo_document()
    profile = {"model": "opt-13b", "parallelism": "tp1", "prefill": {"file": path.name}}
    document["profiles"]["h20"] |= profile
    prefill = parse_scenario(inline_files(document, beside=path.parent)).profiles["h20"].prefill
    # 18.1 ms + 0.1019 ms a token + 7.12 ns a pair of tokens
    assert float(prefill.prefill_s(1000)) == pytest.approx(0.0181025 + 0.1019123 + 0.0071223)
    assert bool(prefill.extrapolated(1000)), "the file says no range"
