"""A cluster's routers, engines, how roles are given, and groups: every wrong word is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from routing.core.scenario.document import Cluster, parse_scenario
from routing.core.scenario.tables import ScenarioError
from tests.core.cases import demo_document

SMG = {"kind": "smg", "url": "http://smg:30000/", "token_file": "smg.key"}


def cluster(**keys: Any) -> Cluster:
    asked = copy.deepcopy(demo_document())
    asked["clusters"][1].pop("control_urls", None)
    asked["clusters"][1] |= keys
    found = parse_scenario(asked).cluster("pd")
    assert found is not None
    return found


def test_without_any_there_is_nobody_to_ask() -> None:
    found = cluster()
    assert (found.routers, found.engines, found.groups) == ((), {}, {})
    assert found.role_switch == "engine"


def test_stacks_come_first_and_each_has_a_name() -> None:
    found = cluster(
        control_urls=["http://stack:9000/clusters/pd"],
        routers=[SMG, {"kind": "vllm-router", "url": "http://v:1", "name": "edge"}],
    ).routers
    assert [(r.kind, r.name, r.url) for r in found] == [
        ("stack", "stack-1", "http://stack:9000/clusters/pd"),
        ("smg", "smg-2", "http://smg:30000"),
        ("vllm-router", "edge", "http://v:1"),
    ]
    assert found[1].settings == {"url": "http://smg:30000", "token_file": "smg.key"}
    assert found[1].field == "clusters[1].routers[0]"


def test_a_router_need_not_be_reached_by_http() -> None:
    [found] = cluster(routers=[{"kind": "llm-d", "url": "file://endpoints.yaml"}]).routers
    assert found.url == "file://endpoints.yaml"


def test_engines_and_groups_go_by_name() -> None:
    engines = {f"h20-{i}": f"http://h20-{i}:8000/" for i in (1, 2, 3)}
    found = cluster(engines=engines, groups={"ep": ["h20-1", "h20-2"]}, role_switch="label")
    assert found.engines["h20-3"] == "http://h20-3:8000"
    assert found.groups == {"ep": ("h20-1", "h20-2")}
    assert found.role_switch == "label"


ENGINE = {"h20-1": "http://a:1"}


@pytest.mark.parametrize(
    ("keys", "field", "value", "why"),
    [
        ({"routers": "x"}, "routers", "x", "must be a list of tables"),
        ({"routers": ["x"]}, "routers[0]", "x", "must be a table"),
        ({"routers": [{"url": "http://a"}]}, "routers[0].kind", None, "is missing"),
        ({"routers": [{"kind": "smg"}]}, "routers[0].url", None, "is missing"),
        ({"routers": [SMG | {"kind": "SMG!"}]}, "routers[0].kind", "SMG!", "must be small"),
        ({"routers": [SMG | {"url": "smg:1"}]}, "routers[0].url", "smg:1", "must be http://HOST"),
        ({"routers": [SMG | {"url": "http://u@a"}]}, "routers[0].url", "http://u@a", "must be ht"),
        ({"routers": [SMG | {"name": "a/b"}]}, "routers[0].name", "a/b", "must be letters"),
        ({"routers": [SMG, SMG]}, "routers[1].url", "http://smg:30000", "is listed twice"),
        ({"control_urls": ["x"]}, "control_urls[0]", "x", "must be http://HOST"),
        ({"control_urls": "http://a"}, "control_urls", "http://a", "must be a list of URLs"),
        ({"engines": ["http://a"]}, "engines", ["http://a"], "must be a table"),
        ({"engines": {"a b": "http://a"}}, "engines.a b", "http://a", "is no name"),
        ({"engines": {"a": 1}}, "engines.a", 1, "must be http://HOST"),
        ({"engines": ENGINE | {"b": "http://a:1/"}}, "engines.b", "http://a:1/", "is the URL of"),
        ({"role_switch": "both"}, "role_switch", "both", "must be engine or label"),
        ({"engine_token_file": "/etc/x"}, "engine_token_file", "/etc/x", "without a folder"),
        ({"decode_cuda_graph_memory_gb": 0}, "decode_cuda_graph_memory_gb", 0, "must be above 0"),
        ({"groups": {"g": ["a"]}}, "groups.g", ["a"], "at least two"),
        ({"groups": {"g": ["a", 1]}}, "groups.g[1]", 1, "must be the name"),
        ({"groups": {"g": ["a", "a"]}}, "groups.g[1]", "a", "is in a group already"),
        ({"groups": {"g": ["a", "b"], "h": ["c", "b"]}}, "groups.h[1]", "b", "is in a group"),
        (
            {"engines": ENGINE, "groups": {"g": ["h20-1", "b"]}},
            "groups.g[1]", "b", "is not in engines",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_named(
    keys: dict[str, Any], field: str, value: Any, why: str
) -> None:
    with pytest.raises(ScenarioError, match=why) as refused:
        cluster(**keys)
    assert (refused.value.field, refused.value.value) == (f"clusters[1].{field}", value)


def test_two_routers_do_not_share_a_name() -> None:
    other = {"kind": "smg", "url": "http://b:1", "name": "edge"}
    with pytest.raises(ScenarioError, match="two are named edge"):
        cluster(routers=[SMG | {"name": "edge"}, other])


def test_more_engines_than_instances_cannot_be() -> None:
    many = {f"e{i}": f"http://e{i}:1" for i in range(99)}
    with pytest.raises(ScenarioError, match=r"names 99, of \d+ instances"):
        cluster(engines=many)
