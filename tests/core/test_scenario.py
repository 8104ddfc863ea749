"""Scenario documents that cannot be meant: each names its field and its value."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from routing.core.scenario import ScenarioError, parse_scenario
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
    ("profiles.h20.prefill", {"fit": [1, 2, 3]}, "profiles.h20.prefill", "list"),
    ("profiles.h20.decode", {"table": []}, "profiles.h20.decode.table", "batch"),
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
    ("workload.lengths.mu", 300.0, "workload.lengths.mu", "no prompt"),
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
