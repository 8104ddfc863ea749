"""What a larger prefix cache would serve, over REST."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from routing import backtests, cache_budget, commands
from routing.core.model.planner import plan_scenario
from routing.core.scenario.document import parse_scenario
from routing.models import Action, Fleet, TraceFile
from tests.console.api_case import conforms, machine, person, send, strict
from tests.routing.backtesting import BY, mooncake, upload
from tests.routing.cases import NOW, make_fleet, scenario

pytestmark = pytest.mark.django_db
TEMPLATE = "/fleets/{fleet}/cache-budget"
ASK = "/fleets/f1/cache-budget"
EXPORT = b'{"at_s": 0, "prompt_tokens": 900, "output_tokens": 20}\n'
CSV = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    cache_budget._curve.cache_clear()


@pytest.fixture
def reader() -> Client:
    return machine("read")


def fleet_holding(tokens: int | None) -> Fleet:
    """Eight h20 instances of so many tokens, of a model without linear layers; nobody knows what
    the h200 hold."""
    document = scenario()
    document["model"]["state_bytes"] = 0
    if tokens is not None:
        document["profiles"]["h20"]["kv_capacity_tokens"] = tokens
    return commands.create_fleet(
        scenario=document, mode="active", actor="test", via="test", reason="", now=NOW
    )


def asked(reader: Client, trace: TraceFile, **query: Any) -> Any:
    words = "".join(f"&{name}={value}" for name, value in query.items())
    return conforms(send(reader, "get", f"{ASK}?trace={trace.pk}{words}"), TEMPLATE)


def conversations(n: int, *, turns: int = 4) -> bytes:
    """`n` prompts of two blocks, each asked once in every turn: all of them come back, as late as
    they can."""
    rows = [
        {
            "timestamp": i,
            "input_length": 1280,
            "output_length": 9,
            "hash_ids": [3 * k, 3 * k + 1, 9],
        }
        for i, k in enumerate(k for _ in range(turns) for k in range(n))
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_where_the_size_is_known_lengths_are_what_it_leaves(reader: Client) -> None:
    """Ten prompts of 1,024 full tokens come back: 10,240 hold them all, less holds none."""
    fleet = fleet_holding(1280)
    found = asked(reader, upload(fleet, conversations(10)))
    assert found["trace"] | {"id": 0} == {
        "id": 0,
        "name": "small.jsonl",
        "n_requests": 40,
        "n_used": 40,
        "n_counted": 20,
        "mean_prompt_tokens": 1280.0,
    }
    assert found["exact_state"] is False
    prefill, pd = found["holds"]
    assert (prefill["cluster"], prefill["kv_capacity_tokens"]) == ("prfaas", None)
    assert prefill["capacity_tokens"] is None is prefill["hit_ratio"]
    assert (pd["instances"], pd["kv_capacity_tokens"]) == (8, 1280.0)
    assert (pd["capacity_tokens"], pd["hit_ratio"]) == (10_240.0, 0.8)
    assert pd["mean_uncached_tokens"] == pytest.approx(256.0)
    assert found["unbounded"]["capacity_tokens"] == 10_240.0
    assert found["enough"] == found["points"][-1]
    assert [p["hit_ratio"] for p in found["points"][:-1]] == [0.0] * (len(found["points"]) - 1)
    assert found["lengths_basis"] == "present"
    best = plan_scenario(parse_scenario(fleet.scenario))["headroom"]
    assert pd["headroom"] == pytest.approx(best)
    assert found["points"][0]["headroom"] < 0.5 * best, "five times as much is left to compute"


def test_where_it_is_not_known_lengths_are_whole_prompts(reader: Client) -> None:
    fleet = fleet_holding(None)
    found = asked(reader, upload(fleet, conversations(10)), cluster="pd")
    assert found["lengths_basis"] == "whole_prompts"
    assert [each["capacity_tokens"] for each in found["holds"]] == [None, None]
    best = plan_scenario(parse_scenario(fleet.scenario))["headroom"]
    assert found["headroom"] == pytest.approx(best)
    assert found["points"][0]["headroom"] == pytest.approx(best), "one block serves nobody here"
    assert found["unbounded"]["headroom"] > 1.3 * best


def test_nothing_left_of_a_prompt_is_a_token_left(reader: Client) -> None:
    """Every counted prompt is there whole: no plan is made for lengths of zero."""
    rows = [{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [7]}] * 4
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    found = asked(reader, upload(fleet_holding(512), data))
    assert found["unbounded"]["hit_ratio"] == 1.0
    assert found["unbounded"]["mean_uncached_tokens"] == 1.0
    assert found["unbounded"]["headroom"] == pytest.approx(found["headroom"])


def test_prompts_that_never_come_back_need_no_cache(reader: Client) -> None:
    found = asked(reader, upload(fleet_holding(512), conversations(10, turns=1)))
    assert found["unbounded"]["hit_ratio"] == 0.0
    assert set(found["enough"].values()) == {None}


def test_a_state_serves_a_prefix_of_its_own_length_only(reader: Client) -> None:
    """The model of the test fleet has linear layers, and its scenario can say otherwise."""
    ids = ([1, 2, 3], [1, 2, 3], [1, 2, 4], [1, 2, 5])
    rows = [{"timestamp": 0, "input_length": 1536, "output_length": 1, "hash_ids": i} for i in ids]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    fleet = make_fleet()
    trace = upload(fleet, data)
    found = asked(reader, trace)
    assert (found["exact_state"], found["unbounded"]["hit_ratio"]) == (True, 0.0)
    fleet.scenario["cache"] = {"linear_state": "none"}
    fleet.save()
    found = asked(reader, trace)
    assert found["exact_state"] is False
    assert found["unbounded"]["hit_ratio"] == pytest.approx(2 / 3)


def test_a_trace_is_read_once(reader: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = upload(fleet_holding(1280))
    first = asked(reader, trace)
    monkeypatch.setattr(cache_budget, "trace_of", None)
    assert asked(reader, trace) == first


@pytest.mark.parametrize(
    ("query", "field", "says"),
    [
        ("", "trace", "required"),
        ("trace=x", "trace", "'x'"),
        ("trace=999999", "trace", "there is no trace 999999 of this fleet"),
        (f"trace={10**30}", "trace", "there is no trace"),
        ("trace={id}&cluster=prfaas", "cluster", "must be a PD cluster in service: pd"),
        ("trace={id}&size=3", "size", "is not a field of this query"),
    ],
)
def test_what_cannot_be_meant_is_422_by_its_name(
    reader: Client, query: str, field: str, says: str
) -> None:
    trace = upload(make_fleet())
    response = send(reader, "get", f"{ASK}?{query.format(id=trace.pk)}")
    assert response.status_code == 422
    errors = strict(response)["errors"]
    assert list(errors) == [field]
    assert says in errors[field][0]


def test_another_fleets_trace_is_none_of_this_one(reader: Client) -> None:
    make_fleet()
    trace = upload(make_fleet("f2"))
    assert send(reader, "get", f"{ASK}?trace={trace.pk}").status_code == 422


@pytest.mark.parametrize("data", [EXPORT, CSV], ids=["export", "azure"])
def test_a_trace_without_prefixes_says_so_by_its_name(reader: Client, data: bytes) -> None:
    trace = upload(make_fleet(), data, name="mine.txt")
    response = send(reader, "get", f"{ASK}?trace={trace.pk}")
    assert response.status_code == 422
    (message,) = strict(response)["errors"]["trace"]
    assert message.startswith("mine.txt: has no full blocks of prompts")


def test_a_bad_row_deep_in_a_trace_is_named_by_its_line(reader: Client) -> None:
    """An upload's beginning only is read when it comes."""
    data = mooncake(9000) + b'{"timestamp": 1, "input_length": 512}\n'
    trace = upload(make_fleet(), data)
    response = send(reader, "get", f"{ASK}?trace={trace.pk}")
    assert response.status_code == 422
    assert "small.jsonl:9001: " in strict(response)["errors"]["trace"][0]


def test_the_page_offers_what_names_blocks_newest_first() -> None:
    fleet = make_fleet()
    upload(fleet, EXPORT, name="export.jsonl")
    upload(fleet, mooncake(4), name="old.jsonl")
    upload(fleet, CSV, name="azure.csv")
    backtests.store_trace(fleet=fleet, name="new.jsonl", data=mooncake(6), **BY)
    upload(make_fleet("f2"), mooncake(8), name="other.jsonl")
    offered = cache_budget.traces_with_prefixes(fleet)
    assert [trace.name for trace in offered] == ["new.jsonl", "old.jsonl"]


def test_looking_is_for_viewers_and_changes_nothing() -> None:
    trace = upload(make_fleet())
    viewer, gate = person("viewer"), machine("router")
    before = Action.objects.count()
    assert send(viewer, "get", f"{ASK}?trace={trace.pk}").status_code == 200
    assert send(gate, "get", f"{ASK}?trace={trace.pk}").status_code == 403
    assert Action.objects.count() == before
