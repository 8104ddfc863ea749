"""The policy editor: every number, what a change would do, a stale form, the way back."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console import knob_words, policy_page
from routing import commands, knobs
from routing.models import Action, Fleet, Policy
from tests.console.api_case import person
from tests.console.page_case import busy_fleet
from tests.console.test_pages import words

pytestmark = pytest.mark.django_db

PATH = "/fleets/f1/policy/"


@pytest.fixture
def fleet() -> Fleet:
    return busy_fleet()


@pytest.fixture
def operator() -> Client:
    return person("operator")


def fields(page: str) -> dict[str, str]:
    """What the form of the page would send, untouched."""
    form = page[page.index('id="policy-form"') : page.index('id="expected"')]
    sent = dict(
        re.findall(r'<input type="(?:text|hidden)"[^>]*? name="([^"]+)" value="([^"]*)"', form)
    )
    for name, options in re.findall(r'<select [^>]*name="([^"]+)"[^>]*>(.*?)</select>', form, re.S):
        chosen = re.search(r'value="([^"]+)" selected', options)
        assert chosen, name
        sent[name] = chosen[1]
    return {name: html.unescape(value) for name, value in sent.items()}


def opened(client: Client, **changes: str) -> dict[str, str]:
    return {**fields(client.get(PATH).content.decode()), **changes}


def change(knob: str, value: Any, *, actor: str = "ben", reason: str = "night") -> None:
    commands.set_policy(
        fleet="f1",
        changes={"knobs": {knob: value}},
        if_version=Policy.objects.get().version,
        actor=actor,
        via="test",
        reason=reason,
        now=timezone.now(),
    )


def test_every_knob_has_its_words_and_its_field(fleet: Fleet, operator: Client) -> None:
    assert knob_words.KNOBS.keys() == knobs.RANGES.keys()
    sent = opened(operator)
    assert knobs.RANGES.keys() <= sent.keys()
    page = html.unescape(words(operator.get(PATH).content.decode()))
    for sentence in (
        "Gain must last t_gain_hold_s seconds How long that gain has to be in sight first. "
        "Range: 0 to 3,600. Default: 20 s.",
        "Range: max_headroom or min_remote. Default: max headroom.",
        "Requests that one gate may have at PrfaaS at a time. Empty: no limit.",
        "Nobody has changed it since the fleet was made",
    ):
        assert sentence in page


def test_who_set_a_number_stands_at_it(fleet: Fleet, operator: Client) -> None:
    change("t_dwell_s", 40.0, reason="calmer")
    change("band_ratio", 0.1, actor="eva")
    page = html.unescape(words(operator.get(PATH).content.decode()))
    assert re.search(r"Now 40 s, default 20 s\. Set by ben [\w ]+: calmer", page)
    assert "Now 10 %, default 20 %" in page


def test_a_form_is_sent_as_it_was_and_changes_nothing(fleet: Fleet, operator: Client) -> None:
    change("max_remote_in_flight", 12)
    sent = opened(operator, reason="x")
    found = words(operator.get(PATH, sent).content.decode())
    assert "Change a number; nothing happens before you confirm here." in found
    assert operator.post(PATH, sent).status_code == 422
    assert Policy.objects.get().version == 2


def test_what_it_would_do_is_said_first(fleet: Fleet, operator: Client) -> None:
    sent = opened(operator, t_max_tokens="5000", reason="less local")
    found = html.unescape(words(operator.get(PATH, sent).content.decode()))
    assert "Most t 131K tok 5K tok" in found
    assert "Changes: in the next tick, on the last readings: Out of bounds" in found
    assert "Goes on: the plan in force, until a tick decides for another" in found
    assert "Undo: go back to v1 in the history" in found
    assert Policy.objects.get().version == 1


def test_confirming_writes_only_what_was_changed(fleet: Fleet, operator: Client) -> None:
    sent = opened(operator, t_dwell_s="45", roles_mode="fixed", reason="calmer")
    assert operator.post(PATH, sent)["Location"] == PATH
    policy = Policy.objects.get()
    assert policy.knobs == {"t_dwell_s": 45.0, "roles_mode": "fixed"}
    assert (policy.version, policy.updated_by) == (2, "operator")
    [action] = Action.objects.filter(verb="policy.change")
    assert (action.via, action.reason) == ("ui", "calmer")
    page = words(operator.get(PATH).content.decode())
    assert "2 numbers changed: the policy is v2." in page
    assert "Undo: the numbers before it" in page


def test_an_empty_field_is_the_default(fleet: Fleet, operator: Client) -> None:
    change("t_dwell_s", 45.0)
    operator.post(PATH, opened(operator, t_dwell_s="", reason="back"))
    assert Policy.objects.get().knobs == {}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"t_dwell_s": "-1"}, "must be in 0..3600"),
        ({"min_requests": "many"}, "must be a whole number"),
        ({"min_requests": "2.5"}, "must be a whole number"),
        ({"band_ratio": "nan"}, "must be in 0..1"),
        ({"roles_mode": "sometimes"}, "must be one of auto, fixed"),
        ({"t_min_tokens": "9000", "t_max_tokens": "8000"}, "must not exceed t_max_tokens"),
    ],
)
def test_a_bad_value_is_named_at_its_field(
    fleet: Fleet, operator: Client, wrong: dict[str, str], says: str
) -> None:
    sent = opened(operator, reason="x", **wrong)
    page = operator.get(PATH, sent).content.decode()
    name = next(iter(wrong))
    at = page[page.index(f'id="k-{name}"') :]
    assert says in at[: at.index("knob-help")]
    assert "1 number cannot be meant" in words(page)
    assert "data-confirm" not in page
    assert operator.post(PATH, sent).status_code == 422
    assert Policy.objects.get().version == 1


def test_a_change_needs_a_reason(fleet: Fleet, operator: Client) -> None:
    sent = opened(operator, t_dwell_s="45")
    page = operator.get(PATH, sent).content.decode()
    assert "Say why first." in words(page)
    assert "data-confirm" not in page
    assert "Say why: it stands in the history" in words(operator.post(PATH, sent).content.decode())
    assert Policy.objects.get().version == 1


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_stale_form_gets_both_changes_and_what_they_were_made_from(
    fleet: Fleet, operator: Client, method: str
) -> None:
    """S-55."""
    sent = opened(operator, t_dwell_s="45", band_ratio="0.1", reason="calmer")
    change("t_dwell_s", 60.0, reason="incident 7")
    change("stale_after_s", 20.0, reason="incident 7")
    n = Action.objects.count()
    response = getattr(operator, method)(PATH, sent)
    page = response.content.decode()
    found = html.unescape(words(page))
    assert response.status_code == 409
    assert "You looked at v1; it is v3 now, changed by ben" in found
    assert "incident 7" in found
    assert "Rest after a change t_dwell_s 20 s 45 s 1 min both, differently" in found
    assert "Band around t band_ratio 20 % 10 % 20 % you" in found
    assert "Telemetry stale after stale_after_s 15 s 15 s 20 s ben" in found
    assert (Policy.objects.get().version, Action.objects.count()) == (3, n)
    on_top = re.search(r'href="([^"]+)">Put mine on top', page)
    assert on_top
    again = operator.get(html.unescape(on_top[1]))
    assert again.status_code == 200
    merged = fields(again.content.decode())
    assert (merged["t_dwell_s"], merged["stale_after_s"], merged["version"]) == ("45", "20", "3")
    operator.post(PATH, merged)
    wanted = {"t_dwell_s": 45.0, "band_ratio": 0.1, "stale_after_s": 20.0}
    assert Policy.objects.get().knobs == wanted


def test_history_leads_back(fleet: Fleet, operator: Client) -> None:
    change("t_dwell_s", 60.0, reason="incident 7")
    change("t_dwell_s", 90.0, reason="incident 8")
    second, first = Action.objects.filter(verb="policy.change").order_by("-id")
    page = operator.get(PATH).content.decode()
    assert "incident 8" in page
    back = operator.get(PATH, {"before": second.pk}).content.decode()
    assert fields(back)["t_dwell_s"] == "60"
    assert fields(operator.get(PATH, {"before": first.pk}).content.decode())["t_dwell_s"] == "20"
    operator.post(PATH, {**fields(back), "reason": "undo"})
    assert Policy.objects.get().knobs == {"t_dwell_s": 60.0}


def test_a_viewer_reads_and_changes_nothing(fleet: Fleet, operator: Client) -> None:
    sent = opened(operator, t_dwell_s="45", reason="x")
    viewer = person("viewer")
    page = viewer.get(PATH, sent)
    assert page.status_code == 200
    assert 'name="t_dwell_s"' not in page.content.decode()
    assert "Only operators change the policy" in words(page.content.decode())
    assert viewer.post(PATH, sent).status_code == 403
    assert Policy.objects.get().version == 1


def test_a_hostile_form_breaks_nothing(fleet: Fleet, operator: Client) -> None:
    for base in ("[1]", "{", "null", json.dumps({"t_dwell_s": "x"}), "[" * 3000):
        sent = opened(operator, base=base, version="9" * 30, t_dwell_s="<script>")
        response = operator.get(PATH, sent)
        assert response.status_code == 409
        assert "<script>" not in response.content.decode().replace("<script src", "").replace(
            "<script type", ""
        ).replace("<script defer", "")


def test_three_sides_are_told_apart() -> None:
    rows = policy_page.diff_rows({}, {"t_dwell_s": 45.0}, {"t_dwell_s": 45.0, "band_ratio": 0.1})
    assert [(r["name"], r["by_me"], r["by_them"], r["clash"]) for r in rows] == [
        ("t_dwell_s", True, True, False),
        ("band_ratio", False, True, False),
    ]
