"""Scenario documents that cannot be meant: each names its field and its value."""

from __future__ import annotations

import contextlib
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.scenario.document import parse_scenario
from routing.core.scenario.inline import inlined
from routing.core.scenario.tables import ScenarioError
from tests.core.cases import demo_document, demo_scenario


def changed(path: str, value: Any) -> dict[str, Any]:
    """The demo document with the key at `a.b.0.c` set, or deleted where `value` is `...`."""
    document = demo_document()
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    place: Any = document
    for key in parents:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


# where, what stands there, the field the error names, what it says
BAD = [
    ("fleett", {}, "fleett", "known"),
    ("fleet.naem", "x", "fleet.naem", "known"),
    ("fleet.slo.tpot", 1, "fleet.slo.tpot", "known"),
    ("profiles.h20.prefil", [], "profiles.h20.prefil", "known"),
    ("profiles.h20.decode.bach", 2, "profiles.h20.decode.bach", "known"),
    ("clusters.1.start", {"n_prefil": 3}, "clusters[1].start.n_prefil", "known"),
    ("links.0.gbit", 1, "links[0].gbit", "known"),
    ("workload.lengths.mean", 1, "workload.lengths.mean", "known"),
    ("baselines.naive", {}, "baselines.naive", "known"),
    ("fleet", ..., "fleet", "missing"),
    ("fleet.name", "", "fleet.name", "empty"),
    ("model.bytes_per_token", ..., "model.bytes_per_token", "missing"),
    ("model.bytes_per_token", True, "model.bytes_per_token", "number"),
    ("model.bytes_per_token", math.nan, "model.bytes_per_token", "finite"),
    ("model.state_bytes", -1, "model.state_bytes", "at least 0"),
    ("model.config", "config.json", "model.config", "bytes_per_token"),
    ("profiles.h20.prefill", [[1000, 1.0]], "profiles.h20.prefill", "two"),
    ("profiles.h20.prefill", [[1000, 1.0], [2000]], "profiles.h20.prefill[1]", "[number, number]"),
    ("profiles.h20.prefill", 3, "profiles.h20.prefill", "list"),
    ("profiles.h20.prefill", {"fit": [0.1, 1e-4]}, "profiles.h20.prefill.fit", "3 finite"),
    ("profiles.h20.prefill", {"fit": [0.1, 1e-4, -1e-9]}, "profiles.h20.prefill", "c ="),
    (
        "profiles.h20.prefill",
        {"fit": [0.1, 1e-4, 0], "range_tokens": [9, 1]},
        "profiles.h20.prefill",
        "range",
    ),
    (
        "profiles.h20.prefill",
        {"fit": [0.1, 1e-4, 0], "points": []},
        "profiles.h20.prefill.points",
        "beside fit",
    ),
    ("profiles.h20.prefill", {"file": "x.csv"}, "profiles.h20.prefill.file", "file is read"),
    ("profiles.h20.prefix", [[1000, 2000]], "profiles.h20.prefix[0]", "[number, number, number]"),
    ("profiles.h20.prefix", [[1000, 2000, 0.1]], "profiles.h20.prefix", "less than"),
    ("profiles.h20.prefix", {"file": "x.csv"}, "profiles.h20.prefix.file", "file is read"),
    ("profiles.h20.kv_capacity_tokens", "many", "profiles.h20.kv_capacity_tokens", "number"),
    ("profiles.h20.decode", {"table": []}, "profiles.h20.decode.table", "rows"),
    (
        "profiles.h20.decode",
        {"table": [[1, 8192, 0.02], [2, 8192, 0.01]]},
        "profiles.h20.decode.table",
        "falls",
    ),
    (
        "profiles.h20.decode",
        {"table": [[1, 8192, 0.01], [2, 8192, 0.02]], "batch": 20},
        "profiles.h20.decode.batch",
        "beside table",
    ),
    (
        "profiles.h20.decode",
        {"table": [[1, 8192, 0.03], [2, 8192, 0.04]]},
        "fleet.slo.tokens_per_s",
        "profile h20 of pd",
    ),
    ("profiles.h20.decode", {"file": "x.csv"}, "profiles.h20.decode.file", "file is read"),
    ("model.windows", [[0, 100]], "model.windows[0]", "above 0"),
    ("model.windows", [[128.5, 100]], "model.windows[0]", "whole"),
    (
        "workload.lengths",
        {"kind": "empirical", "file": "x.csv"},
        "workload.lengths.file",
        "buckets",
    ),
    ("workload.context_tokens", 0, "workload.context_tokens", "above 0"),
    ("workload.rate_rps", 10**400, "workload.rate_rps", "finite"),
    ("clusters.0.kind", "decode", "clusters[0].kind", "pd or prefill"),
    ("clusters.0.profile", "b300", "clusters[0].profile", "profiles"),
    ("clusters.0.name", "pd", "clusters[1].name", "another"),
    ("clusters.1.instances", 1, "clusters[1].instances", "at least 2"),
    ("clusters.1.instances", 8.5, "clusters[1].instances", "whole"),
    ("clusters.1.min_prefill", 8, "clusters[1].instances", "min_prefill"),
    ("clusters.1.start", {"n_prefill": 8}, "clusters[1].start.n_prefill", "decode"),
    ("clusters.0.start", {"n_prefill": 1}, "clusters[0].start", "kind pd"),
    ("clusters.1.pinned", "yes", "clusters[1].pinned", "true or false"),
    ("clusters", {}, "clusters", "list"),
    ("links.0.to", "prfaas", "links[0].to", "kind prefill with one of kind pd"),
    ("links.0.from", "nowhere", "links[0].from", "is not a cluster"),
    ("links.0.gbps", "fast", "links[0].gbps", "number"),
    ("links.0.gbps", 0, "links[0].gbps", "above 0"),
    ("workload.cluster", "prfaas", "workload.cluster", "kind pd"),
    ("workload.lengths.kind", "zipf", "workload.lengths.kind", "lognormal"),
    ("workload.lengths.max", 100, "workload.lengths.max", "above min"),
    ("workload.lengths.mu", 300.0, "workload.lengths.mu", "at most 50"),
    ("workload.output_tokens", 0, "workload.output_tokens", "above 0"),
    ("fleet.slo.tokens_per_s", 50.0, "fleet.slo.tokens_per_s", "40 tokens/s"),
    ("baselines.homogeneous.profile", "x", "baselines.homogeneous.profile", "profiles"),
]


@pytest.mark.parametrize(("where", "value", "field", "says"), BAD, ids=lambda v: str(v)[:28])
def test_a_bad_document_names_field_and_value(where, value, field, says) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse_scenario(changed(where, value))
    assert refused.value.field == field
    assert says in refused.value.message
    assert field in str(refused.value)


@pytest.mark.parametrize("document", [None, [], "x", {"fleet": 3}, {"fleet": {"name": "a"}}])
def test_anything_else_is_refused_too(document) -> None:
    with pytest.raises(ScenarioError):
        parse_scenario(document)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, as the keys that lead there."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


def everything() -> dict[str, Any]:
    """The demo with each optional form in it."""
    document = demo_document()
    document["model"]["windows"] = [[128, 1000.0]]
    document["profiles"]["h200"] |= {
        "prefill": {"fit": [0.3, 4e-5, 2e-10], "range_tokens": [1000, 90_000]},
        "prefix": [[10_000, 10_000, 0.9]],
        "gpu": "H200",
        "cost_per_hour": 2.5,
    }
    document["profiles"]["h20"] |= {"decode": {"table": table()}, "kv_capacity_tokens": 4_000_000}
    document["clusters"][1]["start"] = {"n_prefill": 3, "threshold_tokens": 4000}
    lengths = {"kind": "empirical", "buckets": [[1000, 1], [2000, 2]]}
    document["workload"] |= {"output_tokens": lengths, "context_tokens": 20_000}
    return document


texts = st.text(max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
anything = st.recursive(
    scalars | st.just(10**400),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=8), each, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_stands_anywhere_is_accepted_or_named(data: st.DataObject) -> None:
    document = everything()
    *parents, last = data.draw(st.sampled_from(places(document)[1:]))
    place: Any = document
    for key in parents:
        place = place[key]
    place[last] = data.draw(anything)
    with contextlib.suppress(ScenarioError):
        scenario = parse_scenario(inlined(document, lambda name: name))
        assert scenario.workloads


def test_tables_of_the_simulation_are_let_through() -> None:
    document = demo_document()
    document.update(
        arrivals={"kind": "poisson"}, cache={}, faults=[{"at_s": 3}], delays={"agent_s": 1}
    )
    assert parse_scenario(document).fleet == "prfaas-1t"


def test_lengths_may_be_buckets() -> None:
    document = demo_document()
    document["workload"]["lengths"] = {"kind": "empirical", "buckets": [[1000, 3], [4000, 1]]}
    lengths = parse_scenario(document).workloads[0].lengths
    assert lengths.cdf([1000, 4000]).tolist() == pytest.approx([0.75, 1.0])


def test_outputs_may_be_a_distribution() -> None:
    document = demo_document()
    document["workload"]["output_tokens"] = {"kind": "empirical", "buckets": [[1000, 0], [1001, 1]]}
    assert parse_scenario(document).workloads[0].output_tokens == pytest.approx(1000.5)


def test_prefill_may_be_a_fit_with_its_range() -> None:
    fit = {"fit": [0.3, 4e-5, 2e-10], "range_tokens": [1000, 90_000], "source": "x: gpu=h20"}
    profile = parse_scenario(changed("profiles.h20.prefill", fit)).profiles["h20"]
    assert float(profile.prefill.prefill_s(10_000)) == pytest.approx(0.72)
    assert profile.prefill.extrapolated([500, 1000, 90_001]).tolist() == [True, False, True]
    assert profile.facts["prefill_source"] == "x: gpu=h20"


def test_points_may_stand_in_a_table() -> None:
    points = demo_document()["profiles"]["h20"]["prefill"]
    in_a_table = parse_scenario(changed("profiles.h20.prefill", {"points": points}))
    assert in_a_table.profiles["h20"].prefill == demo_scenario().profiles["h20"].prefill


def test_a_prefix_is_measured_beside_the_prefill() -> None:
    profile = parse_scenario(changed("profiles.h20.prefix", [[10_000, 10_224, 2.5]])).profiles[
        "h20"
    ]
    assert float(profile.prefill.prefill_s(10_224, 10_000)) == pytest.approx(2.5)
    assert float(profile.prefill.prefill_s(10_224)) == pytest.approx(1.829)


def test_a_model_may_be_all_windows() -> None:
    document = demo_document()
    document["model"] = {"bytes_per_token": 0, "state_bytes": 0, "windows": [[128, 1000.0]]}
    assert parse_scenario(document).model.kv_bytes([64, 128, 9999]).tolist() == [
        6.4e4,
        1.28e5,
        1.28e5,
    ]


def table() -> list[list[float]]:
    """Steps of 5 ms + 0.1 ms a request + 20 ns a KV token."""
    points = ((1, 4096), (64, 4096), (1, 65_536), (64, 65_536))
    return [
        [batch, context, 5e-3 + 1e-4 * batch + 2e-8 * batch * context] for batch, context in points
    ]


def two_pd_clusters() -> dict[str, Any]:
    """The demo with a second PD cluster of the same hardware, whose prompts are short."""
    document = demo_document()
    document["profiles"]["h20"]["decode"] = {"table": table()}
    document["clusters"].append({**document["clusters"][1], "name": "chat"})
    document["links"].append({**document["links"][0], "to": "chat"})
    long = {**document.pop("workload"), "cluster": "pd"}
    short = {"kind": "empirical", "buckets": [[4095, 0], [4096, 1]]}
    document["workloads"] = [long, {**long, "cluster": "chat", "lengths": short, "rate_rps": 1.0}]
    return document


def test_a_decode_table_is_put_at_the_context_of_each_workload() -> None:
    scenario = parse_scenario(two_pd_clusters())
    pd, chat = (scenario.cluster(name) for name in ("pd", "chat"))
    assert (pd.profile, chat.profile) == ("h20@pd", "h20@chat")
    # A prompt of 26.8K (the truncated log-normal's mean) or 4,096 tokens and half of 1,024.
    assert scenario.workload("chat").context_tokens == pytest.approx(4608, abs=1)
    for cluster in (pd, chat):
        context = scenario.workload(cluster.name).context_tokens
        most = int((1.02 / 40.0 - 5e-3) / (1e-4 + 2e-8 * context))
        decode = scenario.profiles[cluster.profile].decode
        assert decode.batch == min(most, 64)
        assert decode.step_s == pytest.approx(5e-3 + decode.batch * (1e-4 + 2e-8 * context))
        assert not decode.extrapolated
    assert scenario.profiles["h20@chat"].decode.batch == 64
    # The baseline carries both mixes, 3 requests/s of long ones to 1 of short ones.
    baseline = scenario.profiles[scenario.homogeneous.profile].decode
    long, short = (scenario.profiles[f"h20@{name}"].decode.batch for name in ("pd", "chat"))
    assert long < baseline.batch < short


def test_a_context_that_is_said_wins_and_kv_that_is_known_binds() -> None:
    document = demo_document()
    document["profiles"]["h20"] |= {"decode": {"table": table()}, "kv_capacity_tokens": 200_000}
    document["workload"]["context_tokens"] = 50_000
    scenario = parse_scenario(document)
    assert scenario.profiles["h20@pd"].decode.batch == 4
    document["workload"]["context_tokens"] = 100_000
    assert parse_scenario(document).profiles["h20@pd"].decode.extrapolated


def test_a_constant_step_is_not_touched() -> None:
    scenario = demo_scenario()
    assert scenario.cluster("pd").profile == "h20"
    assert scenario.homogeneous.profile == "h20"
    assert scenario.profiles["h20"].decode.requests_per_s(1024) == 20 / (0.025 * 1024)


def test_what_plans_may_use_of_a_link() -> None:
    assert demo_scenario().links[0].usable_gbps == 100.0
    assert demo_scenario(cap_gbps=40.0, background_gbps=15.0).links[0].usable_gbps == 25.0


def test_the_demo_file_is_the_case_study() -> None:
    path = Path(__file__).parents[2] / "routing/lab/prfaas_1t.toml"
    scenario = parse_scenario(tomllib.loads(path.read_text()))
    case = demo_scenario()
    assert scenario.profiles == case.profiles
    assert scenario.model == case.model
    assert (scenario.clusters[1].start.n_prefill, scenario.workloads[0].rate_rps) == (3, 2.5)
