"""The signals page: what an address comes down to, what it refuses, what it says is missing."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import time
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from console import signals
from console.signal_words import SIGNALS
from routing.models import Fleet
from telemetry import chunks
from tests.console import onboarding_case as case
from tests.console.api_case import person
from tests.routing import cases
from tests.telemetry import batches

pytestmark = pytest.mark.django_db


def ask(viewer: Client, **query: str) -> Any:
    return viewer.get(reverse("signals", args=["f1"]), query)


def page_of(response: Any) -> str:
    return html.unescape(response.content.decode())


def data_of(response: Any) -> dict[str, Any]:
    [found] = re.findall(r'id="page-data"[^>]*>(.*?)</script>', response.content.decode())
    said: dict[str, Any] = json.loads(found)
    return said


def errors_of(response: Any) -> list[str]:
    return [html.unescape(e) for e in re.findall(r"<li>(.*?)</li>", response.content.decode())]


def test_every_plain_signal_and_histogram_has_its_line_and_nothing_else_has() -> None:
    drawn = {
        f"{kind}.{name}"
        for kind in ("instance", "router", "link")
        for name, shape in chunks.SHAPES[kind].items()
        if shape not in ("labelled", "text")
    }
    assert set(SIGNALS) == drawn | {"link.use"}


def test_units_follow_the_names() -> None:
    ends = {"_ratio": "ratio", "_seconds": "s", "_tokens": "tok", "_per_s": "/s"}
    for signal in SIGNALS.values():
        for end, unit in ends.items():
            if signal.name.endswith(end):
                assert signal.shown_unit.endswith(unit), signal.name
    assert SIGNALS["instance.kv_transfer_bytes_total"].shown_unit == "Gbps"
    assert SIGNALS["instance.prompt_tokens_total"].shown_unit == "tok/s"


@pytest.mark.parametrize(
    ("name", "bin_s"),
    [("5m", 10), ("15m", 10), ("1h", 10), ("6h", 60), ("24h", 300), ("7d", 1800)],
)
def test_no_range_asks_for_finer_bins_than_agents_read(name: str, bin_s: float) -> None:
    assert signals.bin_s(signals.SPANS[name]) == bin_s


def test_the_address_comes_down_to_a_question_to_the_api(fleet: Fleet, viewer: Client) -> None:
    case.well()
    everyone = data_of(ask(viewer))
    assert everyone["query"] == {
        "kind": "instance",
        "signal": "requests_waiting",
        "prefix": "f1/",
    }
    assert (everyone["view"], everyone["n"], everyone["span_s"]) == ("bands", 12, 900)
    assert everyone["api"] == "/api/v1/fleets/f1/telemetry/series"
    few = data_of(ask(viewer, cluster="pd", role="decode", range="7d"))
    assert few["query"]["prefix"] == "f1/pd/"
    assert few["query"]["role"] == "decode"
    assert (few["view"], few["n"], few["bounds"]) == ("lines", 5, None)
    one = data_of(ask(viewer, source="pd/h20-4", signal="instance.ttft_seconds"))
    assert one["query"]["paths"] == "f1/pd/h20-4"
    assert (one["view"], one["n"]) == ("quantiles", 1)


def test_the_api_takes_what_the_page_asks(fleet: Fleet, viewer: Client) -> None:
    case.well()
    for query in (
        {"cluster": "pd", "role": "decode"},
        {"signal": "router.ttft_seconds", "side": "remote"},
    ):
        asked = data_of(ask(viewer, **query))
        ranked = ("/ranked", "/bands", "/heat")
        for path in ("/quantiles", "/heat") if asked["view"] == "quantiles" else ranked:
            answer = viewer.get(asked["api"] + path, {**asked["query"], "bin_s": asked["bin_s"]})
            assert answer.status_code == 200, answer.content


def test_a_role_narrows_what_the_api_answers(fleet: Fleet, viewer: Client) -> None:
    case.well()
    asked = data_of(ask(viewer, cluster="pd", role="prefill"))
    answer = viewer.get(asked["api"], {**asked["query"], "bin_s": 10}).json()
    assert sorted(answer["series"]) == ["f1/pd/h20-1", "f1/pd/h20-2", "f1/pd/h20-3"]


def test_moments_are_utc_and_epoch_seconds_do_as_well(fleet: Fleet, viewer: Client) -> None:
    case.well()
    moments = {"from": "2026-01-31T14:05", "to": "2026-01-31T15:05"}
    said = data_of(ask(viewer, range="7d", **moments))
    assert said["bounds"] == [1769868300.0, 1769871900.0]
    assert data_of(ask(viewer, **{"from": "1769868300", "to": "1769871900"})) == said
    shown = page_of(ask(viewer, **{"from": "1769868300", "to": "1769871900"}))
    assert 'value="2026-01-31T14:05:00"' in shown


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"signal": "instance.nonsense"}, "instance.nonsense is none of those"),
        ({"cluster": "elsewhere"}, "elsewhere is none of those"),
        ({"role": "king"}, "king is none of those"),
        ({"signal": "router.requests_waiting", "role": "decode"}, "Gates have no role."),
        ({"side": "local"}, "local is none of those"),
        ({"signal": "router.ttft_seconds", "side": "up"}, "up is none of those"),
        ({"source": "pd/none"}, "No instance f1/pd/none ever reported."),
        ({"source": "pd/h20-1", "role": "decode"}, "is not of the cluster and role chosen"),
        ({"range": "3w"}, "3w is none of those"),
        ({"range": "3w", "from": "1769868300", "to": "1769868400"}, "3w is none of those"),
        ({"from": "yesterday", "to": "2026-01-31T15:05"}, "yesterday is no moment"),
        ({"from": "2026-01-31T15:05"}, "A range needs both its ends."),
        ({"from": "2026-01-31T15:05", "to": "2026-01-31T15:04"}, "before it begins"),
        ({"from": "2190-01-01", "to": "2190-01-02"}, "is yet to come"),
        ({"from": "9" * 30, "to": "2026-01-31T15:04"}, "is no moment"),
    ],
)
def test_what_cannot_be_meant_is_said_beside_it(
    fleet: Fleet, viewer: Client, query: dict[str, str], error: str
) -> None:
    case.well()
    response = ask(viewer, **query)
    assert response.status_code == 422
    assert [e for e in errors_of(response) if error in e], errors_of(response)
    assert "page-data" not in response.content.decode()


def test_what_the_page_does_not_know_is_left_out_and_said(fleet: Fleet, viewer: Client) -> None:
    case.well()
    response = ask(viewer, colour="red")
    assert response.status_code == 200
    assert "also has colour, which this page does not know" in page_of(response)


def test_without_any_report_the_next_command_is_there(fleet: Fleet, viewer: Client) -> None:
    page = page_of(ask(viewer))
    assert "No instance of fleet f1 has reported." in page
    assert "python -m telemetry.agent --config agent.toml --once --print" in page
    assert reverse("fleet-onboarding", args=["f1"]) in page
    case.well(n_prefill=0)
    assert "No instance that was chosen ever reported." in page_of(ask(viewer, cluster="prfaas"))


def test_of_many_sources_the_console_ranks_what_has_no_bands(fleet: Fleet, viewer: Client) -> None:
    case.well()
    total = {"signal": "instance.prompt_tokens_total"}
    assert data_of(ask(viewer, **total))["view"] == "ranked"
    assert data_of(ask(viewer, **total, cluster="prfaas"))["view"] == "lines"
    page = page_of(ask(viewer, **total))
    assert "chart-rows" in page
    assert "chart-heat" not in page


def test_links_are_those_of_the_fleet_and_have_no_role(fleet: Fleet, viewer: Client) -> None:
    case.source("prfaas->pd", kind="link")
    case.source("a->b", kind="link")
    use = data_of(ask(viewer, signal="link.use", cluster="pd"))
    assert use["query"] == {
        "kind": "link",
        "signal": "tx_gbps",
        "paths": "prfaas->pd",
        "over": "capacity_gbps",
    }
    assert (use["n"], use["unit"]) == (1, "ratio")
    assert "a->b" not in page_of(ask(viewer, signal="link.rtt_s"))
    assert "Links have no role." in errors_of(ask(viewer, signal="link.rtt_s", role="decode"))


def table(viewer: Client, **query: str) -> Any:
    return viewer.get(reverse("signals-csv", args=["f1"]), query)


def test_the_table_has_a_row_for_each_source_and_bin(fleet: Fleet, viewer: Client) -> None:
    t0 = float(int(time.time()) // 600 * 600 - 600)
    cases.feed(
        batches.instance(f"f1/pd/i{i}", t0 + step, signals={"requests_waiting": float(i)})
        for i in range(3)
        for step in ((0.0, 30.0) if i else (0.0,))
    )
    answer = table(viewer, cluster="pd", **{"from": str(t0), "to": str(t0 + 60)})
    assert answer.status_code == 200
    assert answer["Content-Disposition"].startswith('attachment; filename="f1-requests_waiting-')
    rows = list(csv.reader(io.StringIO(answer.getvalue().decode())))
    assert rows[0] == ["time_utc", "source", "signal", "value", "unit"]
    assert [row[1:4] for row in rows[1:]] == [
        [f"f1/pd/i{i}", "requests_waiting", f"{i}.0"] for i in (0, 1, 2, 1, 2)
    ]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"role": "king"}, "role: king is none of those"),
        ({"signal": "instance.ttft_seconds"}, "a histogram has no one value"),
    ],
)
def test_a_table_of_what_cannot_be_meant_says_so(
    fleet: Fleet, viewer: Client, query: dict[str, str], words: str
) -> None:
    answer = table(viewer, **query)
    assert answer.status_code == 422
    assert words in answer.content.decode()


def test_what_a_signal_serves_is_said(fleet: Fleet, viewer: Client) -> None:
    page = page_of(ask(viewer))
    assert "Serves roles, bottleneck. Without it its queue counts for nothing" in page


def test_another_fleets_sources_are_not_offered(fleet: Fleet, viewer: Client) -> None:
    case.well()
    case.source("f2/pd/stranger")
    assert "stranger" not in page_of(ask(viewer))
    assert ask(viewer, source="f2/pd/stranger").status_code == 422


def test_people_of_no_group_see_nothing(fleet: Fleet) -> None:
    assert ask(person("nobody")).status_code == 403
