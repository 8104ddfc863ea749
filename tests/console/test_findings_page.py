"""Findings on their page, on the overview and over REST: one list, and unknown is never well."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console import findings as page
from console import verdicts
from routing.core.truth.finding import (
    CHECKS,
    GRADES,
    Clear,
    Figure,
    Finding,
    Outcome,
    Unknown,
    report,
)
from routing.models import Fleet
from telemetry import wire
from tests.console.api_case import conforms, machine
from tests.console.page_case import prediction, tick
from tests.console.test_pages import text
from tests.routing import cases
from tests.routing.cases import feed

pytestmark = pytest.mark.django_db


def fake() -> None:
    """Five minutes in which the one decode engine computes every prompt itself."""
    now_s = timezone.now().timestamp()
    for i in range(10):
        at_s = now_s - 290.0 + 30.0 * i
        tokens = {"local_compute": 3000.0 * i, "local_cache_hit": 0.0, "external_kv_transfer": 0.0}
        for name, role in (("d0", "decode"), ("p0", "prefill")):
            feed(
                [
                    wire.InstanceSample(
                        id=f"f1/pd/{name}",
                        role=role,
                        engine="vllm",
                        at_s=at_s,
                        signals=wire.InstanceSignals(prompt_tokens_by_source_total=tokens),
                    )
                ]
            )


def test_the_page_says_what_how_sure_and_what_to_do(fleet: Fleet, viewer: Client) -> None:
    fake()
    shown = html.unescape(text(viewer, "findings", "f1"))
    assert "Fake disaggregation" in shown
    assert "every decode instance (d0) computed the prompts themselves" in shown
    assert "of these computed on decode 100 % measured" in shown
    assert "KV transfers counted by engines not measured KV bytes" in shown
    assert "What to do Check that engines and router speak the same KV connector" in shown
    assert "for at least" in shown


def test_what_could_not_be_checked_stands_apart_with_its_reason(
    fleet: Fleet, viewer: Client
) -> None:
    shown = text(viewer, "findings", "f1")
    assert "Nothing was found, because nothing could be checked." in shown
    assert "could not be made" in shown
    assert "No effect pd the loop has not looked lately" in shown
    assert "nothing found" not in text(viewer, "fleet-overview", "f1")


def test_page_api_and_overview_show_the_same(fleet: Fleet, viewer: Client) -> None:
    fake()
    answer = machine("read").get("/api/v1/fleets/f1/findings")
    assert answer.status_code == 200
    told = conforms(answer, "/fleets/{fleet}/findings")
    (one,) = [each for each in told["findings"] if each["name"] == "FakeDisaggregation"]
    assert (one["subject"], one["severity"], one["longer"]) == ("f1/pd", "bad", True)
    assert {"what": "of these computed on decode", "value": 1.0, "unit": "ratio",
            "grade": "measured"} in one["evidence"]  # fmt: skip
    for shown in (text(viewer, "findings", "f1"), text(viewer, "fleet-overview", "f1")):
        assert one["sentence"] in html.unescape(shown)
    page_text = text(viewer, "findings", "f1")
    for each in told["unknown"]:
        assert each["why"] in html.unescape(page_text)


def test_over_rest_only_with_the_right_to_read(fleet: Fleet) -> None:
    assert Client().get("/api/v1/fleets/f1/findings").status_code == 401
    assert machine("ingest").get("/api/v1/fleets/f1/findings").status_code == 403
    assert machine("read").get("/api/v1/fleets/nope/findings").status_code == 404
    assert machine("read").get("/api/v1/fleets/f1/findings?x=1").status_code == 422


def test_it_is_in_the_frame_and_needs_a_login(fleet: Fleet, viewer: Client) -> None:
    path = reverse("findings", args=["f1"])
    assert Client().get(path).status_code == 302
    assert f'href="{path}" aria-current="page"' in viewer.get(path).content.decode()
    assert viewer.get(reverse("findings", args=["nope"])).status_code == 404


def test_a_subject_is_text_and_no_markup(fleet: Fleet, viewer: Client) -> None:
    now_s = timezone.now().timestamp() - cases.NOW_S
    feed([cases.instance("f1/pd/<b>x", role="decode", at_s=now_s - 5.0, state="failed")])
    assert "<b>x" not in viewer.get(reverse("findings", args=["f1"])).content.decode()


WELL = Clear("FlowLimited", "a->b", "well")
NOT_KNOWN = Unknown("NoEffect", "f1/pd", "why", "next")


def finding(severity: Any) -> Finding:
    return Finding("LeakSuspected", "f1/pd/d0", severity, "it leaks", (), "restart it")


@pytest.mark.parametrize(
    ("outcomes", "tone", "words", "headline"),
    [
        ([], "off", "nothing to check", "No check found anything wrong."),
        ([WELL], "good", "nothing found", "No check found anything wrong. 1 found nothing."),
        (
            [WELL, NOT_KNOWN],
            "off",
            "1 not checked",
            "No check found anything wrong. 1 check could not be made, 1 found nothing.",
        ),
        ([finding("info"), WELL], "good", "nothing found",
         "No check found anything wrong. 1 found nothing."),
        ([finding("warn"), NOT_KNOWN], "warn", "1 finding",
         "1 warning. 1 check could not be made."),
        (
            [finding("warn"), finding("bad"), finding("bad")],
            "bad",
            "3 findings",
            "2 bad findings, 1 warning.",
        ),
    ],
)  # fmt: skip
def test_a_report_in_a_word(outcomes: list[Outcome], tone: str, words: str, headline: str) -> None:
    found = report(outcomes, at_s=0.0)
    assert (page.mark(found).tone, page.mark(found).text) == (tone, words)
    assert page.headline(found) == headline


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.985, "ratio", "98.5 %"),
        (None, "ratio", "not measured"),
        (0.0, "transfers", "0 transfers"),
        (1.0, "instances", "1 instance"),
        (27_000.0, "tokens", "27K tok"),
        (480.0, "s", "8 min"),
        (3e9, "bytes", "2.79 GiB"),
        (9.2, "gbps", "9.20 Gbps"),
        ("half open", "", "half open"),
    ],
)
def test_a_figure_has_its_unit_and_nothing_is_a_zero(value: Any, unit: str, shown: str) -> None:
    assert page.value(Figure("x", value, unit, "measured")) == shown


def test_every_check_and_grade_is_documented() -> None:
    words = (Path(__file__).parents[2] / "docs/findings.md").read_text()
    missing = [name for name in (*CHECKS, *GRADES) if f"`{name}`" not in words]
    assert not missing, f"docs/findings.md does not name {missing}"


def test_the_overview_says_first_what_is_over_its_capacity(fleet: Fleet, viewer: Client) -> None:
    """Its figures show it: no sentence beside them may sound as if all were well."""
    tick(fleet, timezone.now(), current=prediction(0.89))
    shown = text(viewer, "fleet-overview", "f1")
    first = "Over its capacity: Local prefill pd. More arrives than it carries, so queues grow."
    assert f"{first} No check found anything else" in shown
    assert "No check found anything wrong" not in shown
    html_ = viewer.get(reverse("fleet-overview", args=["f1"])).content.decode()
    assert 'data-over="local_prefill:pd"' in html_, "scripts compare it with the figures"
    tick(fleet, timezone.now(), current=prediction(1.2))
    shown = text(viewer, "fleet-overview", "f1")
    assert "capacity:" not in shown
    assert "No check found anything wrong" in shown


def test_what_is_over_its_capacity_is_named_few_of_many() -> None:
    names = [f"decode:c{i}" for i in range(6)]
    stages = [{"name": name, "capacity_rps": 1.0, "utilisation_ratio": 1.01} for name in names]
    gone = {"name": "link:a->b", "capacity_rps": 0.0, "utilisation_ratio": None}
    full = {"name": "decode:full", "capacity_rps": 1.0, "utilisation_ratio": 1.0}
    over = verdicts.over_capacity({"current": {"stages": [gone, full, *stages]}})
    assert over == [*names, "link:a->b"]
    assert page._over_words(over).startswith(
        "Over their capacity: Decode c0, Decode c1, Decode c2, Decode c3 and 3 more."
    )
    assert verdicts.over_capacity({"current": None}) == []
