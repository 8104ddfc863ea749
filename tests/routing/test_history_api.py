"""Signals over REST: series, bands, heat maps, rights and refusals, older ranges read back."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from django.test import Client

from routing import history_api
from telemetry import tokens, wire
from telemetry.doors import promql
from tests.routing import cases
from tests.telemetry.batches import instance

pytestmark = pytest.mark.django_db

T0 = float(int(time.time()) // 600 * 600 - 600)


@pytest.fixture
def headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.issue('reader', ['read'], '', 'tests')[1]}"}


@pytest.fixture
def fleet() -> None:
    """Ten instances of f1, one of another fleet; instance i waits for i requests, i from 0."""
    cases.make_fleet()
    cases.feed(
        instance(f"f1/pd/i{i}", T0 + step, signals={"requests_waiting": float(i)})
        for i in range(10)
        for step in (0.0, 30.0)
    )
    cases.feed([instance("f2/pd/x", T0, signals={"requests_waiting": 99.0})])


def ask(client: Client, headers: dict[str, str], path: str, **query: Any) -> Any:
    asked = {"signal": "requests_waiting", "start_s": T0, "end_s": T0 + 60, "points": 6, **query}
    return client.get(f"/api/v1/{path}", asked, headers=headers)


@pytest.mark.usefixtures("fleet")
def test_one_array_a_source(client: Client, headers: dict[str, str]) -> None:
    answer = ask(client, headers, "telemetry/series", prefix="f1/pd/i").json()
    assert answer["t"] == [T0 + 10 * i for i in range(6)]
    assert answer["bin_s"] == 10.0
    assert answer["series"]["f1/pd/i3"] == [3.0, None, None, 3.0, None, None]
    assert len(answer["series"]) == 10


@pytest.mark.usefixtures("fleet")
def test_bins_may_be_of_any_width(client: Client, headers: dict[str, str]) -> None:
    answer = ask(client, headers, "telemetry/series", prefix="f1/pd/i7", bin_s=12).json()
    assert answer["bin_s"] == 12.0
    assert answer["series"]["f1/pd/i7"] == [7.0, None, 7.0, None, None]


@pytest.mark.usefixtures("fleet")
def test_a_fleet_sees_its_own(client: Client, headers: dict[str, str]) -> None:
    answer = ask(client, headers, "fleets/f1/telemetry/series").json()
    assert sorted(answer["series"]) == [f"f1/pd/i{i}" for i in range(10)]
    other = ask(client, headers, "fleets/f1/telemetry/series", paths="f1/pd/i1,f2/pd/x")
    assert (other.status_code, other.json()["errors"]) == (
        422,
        {"paths": ["f2/pd/x is not of fleet f1"]},
    )


@pytest.mark.usefixtures("fleet")
def test_bands_are_quantiles_over_the_sources(client: Client, headers: dict[str, str]) -> None:
    answer = ask(
        client, headers, "telemetry/series/bands", prefix="f1/", quantiles="0,0.5,1"
    ).json()
    assert answer["n"] == [10, 0, 0, 10, 0, 0]
    assert answer["bands"]["0"][:2] == [0.0, None]
    assert answer["bands"]["0.5"][0] == 4.5
    assert answer["bands"]["1"][3] == 9.0


@pytest.mark.usefixtures("fleet")
def test_a_heat_map_counts_sources_by_level(client: Client, headers: dict[str, str]) -> None:
    answer = ask(client, headers, "telemetry/series/heat", prefix="f1/", levels=3).json()
    assert answer["edges"] == [0.0, 3.0, 6.0, 9.0]
    assert [row[0] for row in answer["counts"]] == [3, 3, 4]  # the top edge belongs to its level
    assert [row[1] for row in answer["counts"]] == [0, 0, 0]


def test_quantiles_say_when_they_are_above_the_largest_bound(
    client: Client, headers: dict[str, str]
) -> None:
    cases.make_fleet()
    for step, counts in ((0.0, [0.0, 0.0, 0.0]), (1.0, [8.0, 0.0, 2.0])):
        seen = wire.Histogram(edges=[0.5, 1.0], counts=counts, sum=1.0)
        cases.feed([instance("f1/pd/a", T0 + step, signals={"ttft_seconds": seen})])
    asked = {"signal": "ttft_seconds", "paths": "f1/pd/a"}
    answer = ask(client, headers, "telemetry/series/quantiles", **asked).json()
    assert answer["n"] == [10.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert answer["quantiles"]["0.5"][:2] == [0.3125, None]
    assert (answer["quantiles"]["0.9"][0], answer["above"]["0.9"][0]) == (1.0, True)
    assert answer["above"]["0.5"] == [False] * 6
    assert answer["largest_bound"] == 1.0
    heat = ask(client, headers, "telemetry/series/heat", **asked).json()
    assert heat["edges"] == [0.0, 0.5, 1.0]
    assert [row[0] for row in heat["counts"]] == [8.0, 0.0, 2.0]
    plain = ask(client, headers, "telemetry/series/quantiles")
    assert (plain.status_code, list(plain.json()["errors"])) == (422, ["signal"])


def test_heat_levels_of_a_ratio_span_the_whole() -> None:
    edges, counts = history_api.heat(np.array([[0.1, np.nan, 1.0]]), 2, "kv_cache_usage_ratio")
    assert edges.tolist() == [0.0, 0.5, 1.0]
    assert counts.tolist() == [[1], [1]]
    _, none = history_api.heat(np.full((2, 1), math.nan), 2, "requests_waiting")
    assert none.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"signal": "nodes"}, "signal"),
        ({"signal": "requests_waiting_by_stage"}, "signal"),
        ({"kind": "node"}, "kind"),
        ({"end_s": T0}, "end_s"),
        ({"start_s": "soon"}, "start_s"),
        ({"start_s": "nan"}, "start_s"),
        ({"points": 0}, "points"),
        ({"bin_s": 0.5}, "bin_s"),
        ({"quantiles": "0.5,2"}, "quantiles"),
        ({"quantiles": "half"}, "quantiles"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
@pytest.mark.usefixtures("fleet")
def test_a_question_that_cannot_be_answered_names_its_field(
    client: Client, headers: dict[str, str], change: dict[str, Any], field: str
) -> None:
    answer = ask(client, headers, "telemetry/series/bands", **change)
    assert answer.status_code == 422
    assert field in answer.json()["errors"]


@pytest.mark.usefixtures("fleet")
def test_who_may_not_read_is_refused(client: Client) -> None:
    other = {"Authorization": f"Bearer {tokens.issue('agent', ['ingest'], '', 'tests')[1]}"}
    assert ask(client, {}, "telemetry/series").status_code == 401
    assert ask(client, other, "telemetry/series").status_code == 403
    bound = {"Authorization": f"Bearer {tokens.issue('bound', ['read'], 'f2', 'tests')[1]}"}
    assert ask(client, bound, "fleets/f1/telemetry/series").status_code == 403
    assert ask(client, bound, "telemetry/series").status_code == 403


@pytest.mark.usefixtures("fleet")
def test_what_is_older_than_kept_is_read_back(
    client: Client, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which client is asked, and what becomes of its answers; the real ones are in tests/doors."""
    asked = []

    def answer(client: Any, kind: str, field: str, **span: Any) -> dict[str, Any]:
        asked.append((client, kind, field, span["bin_s"]))
        return {"t": [1e9], "bin_s": 3600.0, "series": {p: [7.0] for p in span["paths"]}}

    monkeypatch.setattr(history_api.doors, "history", lambda: "the client")
    monkeypatch.setattr(history_api.forwarded, "series", answer)
    found = ask(client, headers, "telemetry/series", prefix="f1/pd/i1", start_s=1e9, end_s=1.001e9)
    assert found.json()["series"] == {"f1/pd/i1": [7.0]}
    assert asked == [("the client", "instance", "requests_waiting", 172_800.0)]
    recent = ask(client, headers, "telemetry/series", prefix="f1/pd/i1")
    assert recent.json()["series"]["f1/pd/i1"][0] == 1.0

    def fail(*_: Any, **__: Any) -> Any:
        raise promql.QueryFailed("no answer")

    monkeypatch.setattr(history_api.forwarded, "series", fail)
    broken = ask(client, headers, "telemetry/series", start_s=1e9, end_s=1.001e9)
    assert broken.status_code == 502
    assert "no answer" in broken.json()["error"]
