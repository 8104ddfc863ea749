"""All that is wrong with a description is told at once, and nothing that only follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core.alerts.rule import read_rule
from routing.core.scenario.document import parse_scenario
from routing.core.scenario.tables import ScenarioError, Table, every_error, refuse
from tests.core.cases import demo_document


def fields(document: Any) -> set[str]:
    found, errors = every_error(lambda: parse_scenario(document))
    assert (found is None) == bool(errors)
    return {error.field for error in errors}


def test_what_is_right_is_read() -> None:
    found, errors = every_error(lambda: parse_scenario(demo_document()))
    assert errors == []
    assert found == parse_scenario(demo_document())


def test_every_table_is_looked_at_and_the_first_is_what_is_raised_alone() -> None:
    wrong = demo_document()
    wrong["clusters"][0] |= {"instances": -1, "speed": 3}
    wrong["clusters"][1] |= {"kind": "pdx", "instances": "8", "drained": 3}
    wrong["links"][0] |= {"gbps": -1}
    wrong["model"] = {}
    wrong["fleet"]["slo"]["ttft_s"] = "soon"
    assert fields(wrong) >= {
        *("clusters[0].instances", "clusters[0].speed", "clusters[1].kind"),
        *("clusters[1].instances", "clusters[1].drained", "links[0].gbps"),
        *("model.bytes_per_token", "model.state_bytes", "fleet.slo.ttft_s"),
    }
    with pytest.raises(ScenarioError) as first:
        parse_scenario(wrong)
    assert first.value.field in fields(wrong)


def test_what_joins_tables_is_told_once_they_are_right_themselves() -> None:
    wrong = demo_document()
    wrong["links"] += [{"from": "a", "to": "b", "gbps": 1.0}, wrong["links"][0]]
    wrong["clusters"][0]["profile"] = "nothing"
    assert fields(wrong) == {"clusters[0].profile", "links[1].from", "links[1].to", "links[2]"}


@pytest.mark.parametrize("document", [{}, [], 3, None, {"clusters": [1, {}], "links": 7}], ids=str)
def test_anything_at_all_is_told_apart_without_failing(document: Any) -> None:
    assert fields(document)


def test_what_follows_from_a_value_that_is_wrong_is_not_told() -> None:
    rule = {"name": "a", "signal": "x.y", "is": "above", "threshold": "high", "back_at": 3}
    _, errors = every_error(lambda: read_rule(rule, units={"x.y": ""}))
    assert [error.field for error in errors] == ["threshold"]


def test_nothing_is_noted_once_it_is_over() -> None:
    every_error(lambda: Table({"a": 1}, "", known=()))
    with pytest.raises(ScenarioError):
        refuse(ScenarioError("a", 1, "is wrong"))


def test_a_failure_that_is_nobodys_mistake_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        every_error(lambda: 1 // 0)
