"""An alert rule as people write it: defaults, what is refused, written again."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core.alerts.rule import Source, read_rule, written
from routing.core.scenario.tables import ScenarioError

UNITS = {"instance.kv_cache_usage_ratio": "", "link.rtt_s": "s", "loop.age_s": "s"}
LEAST: dict[str, Any] = {
    "name": "kv-full",
    "signal": "instance.kv_cache_usage_ratio",
    "is": "above",
    "threshold": 0.95,
}
FULL: dict[str, Any] = LEAST | {
    "fleet": "prfaas-1t",
    "where": {"cluster": "pd*", "role": "decode", "source": "*/d?"},
    "back_at": 0.9,
    "for_s": 30,
    "keep_firing_s": 120,
    "no_data_for_s": 60,
    "severity": "page",
    "group_by": "source",
    "repeat_s": 3600,
    "runbook_url": "https://wiki.example/kv",
    "summary": "KV memory is nearly full",
    "receivers": ["on-call", "chat"],
}


def test_what_is_not_said_is_as_documented() -> None:
    rule = read_rule(LEAST, units=UNITS)
    assert (rule.back_at, rule.for_s, rule.keep_firing_s, rule.no_data_for_s) == (
        *(0.95, 0.0, 60.0, None),
    )
    assert (rule.severity, rule.group_by, rule.repeat_s, rule.kind) == (
        *("warn", "cluster", None, "instance"),
    )


@pytest.mark.parametrize("document", [LEAST, FULL], ids=["least", "full"])
def test_it_reads_as_it_is_written(document: dict[str, Any]) -> None:
    rule = read_rule(document, units=UNITS)
    assert read_rule(written(rule), units=UNITS) == rule
    assert document.items() <= written(rule).items()


BAD = [
    ({"name": "KV full"}, "name", "small letters"),
    ({"name": ""}, "name", "not empty"),
    ({"signal": "kv_cache_usage_ratio"}, "signal", "did you mean instance.kv_cache_usage_ratio?"),
    ({"signal": "link.nothing"}, "signal", "no signal there is"),
    ({"is": "over"}, "is", "above or below"),
    ({"threshold": float("nan")}, "threshold", "finite"),
    ({"threshold": "0.9"}, "threshold", "finite"),
    ({"threshold": True}, "threshold", "finite"),
    ({"back_at": 0.99}, "back_at", "well side"),
    ({"is": "below", "back_at": 0.5}, "back_at", "well side"),
    ({"for_s": -1}, "for_s", "at least 0"),
    ({"for_s": 7 * 86400 + 1}, "for_s", "7 days"),
    ({"no_data_for_s": "1m"}, "no_data_for_s", "finite"),
    ({"severity": "critical"}, "severity", "page or warn or info"),
    ({"group_by": "fleet"}, "group_by", "rule or cluster or source"),
    ({"where": {"clusters": "a"}}, "where.clusters", "not a known key"),
    ({"where": {"cluster": "a b"}}, "where.cluster", "must be a name"),
    ({"where": []}, "where", "table"),
    ({"runbook_url": "javascript:alert(1)"}, "runbook_url", "http"),
    ({"summary": "two\nlines"}, "summary", "a line"),
    ({"summary": "x" * 501}, "summary", "a line"),
    ({"receivers": ["a", "a"]}, "receivers", "twice"),
    ({"receivers": "a"}, "receivers", "list"),
    ({"treshold": 1}, "treshold", "not a known key"),
]


@pytest.mark.parametrize(("change", "field", "words"), BAD, ids=lambda v: str(v)[:40])
def test_what_is_wrong_is_named(change: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ScenarioError) as wrong:
        read_rule(LEAST | change, units=UNITS)
    assert wrong.value.field == field
    assert words in str(wrong.value)


@pytest.mark.parametrize("missing", ["name", "signal", "is", "threshold"])
def test_what_is_missing_is_named(missing: str) -> None:
    document = {key: value for key, value in LEAST.items() if key != missing}
    with pytest.raises(ScenarioError) as wrong:
        read_rule(document, units=UNITS)
    assert wrong.value.field == missing


@pytest.mark.parametrize(
    ("change", "watched"),
    [
        ({}, True),
        ({"fleet": "f"}, True),
        ({"fleet": "g"}, False),
        ({"where": {"cluster": "pd"}}, True),
        ({"where": {"cluster": "p"}}, False),
        ({"where": {"role": "pre*"}}, True),
        ({"where": {"role": "decode"}}, False),
        ({"where": {"source": "f/pd/d?"}}, True),
        ({"where": {"source": "F/PD/D1"}}, False),
    ],
)
def test_what_it_watches(change: dict[str, Any], watched: bool) -> None:
    rule = read_rule(LEAST | change, units=UNITS)
    assert rule.watches(Source("f", "pd", "prefill", "f/pd/d1")) == watched


@pytest.mark.parametrize(
    ("group_by", "group"), [("rule", "f"), ("cluster", "f/pd"), ("source", "f/pd/d1")]
)
def test_which_incident_it_belongs_to(group_by: str, group: str) -> None:
    rule = read_rule(LEAST | {"group_by": group_by}, units=UNITS)
    assert rule.group_of(Source("f", "pd", "prefill", "f/pd/d1")) == group
