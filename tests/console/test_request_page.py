"""The request simulator: its page says what the live rule does, on every boundary, and why."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

import html
import itertools
import json
import re
import shlex
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from routing import commands, delivery, fleets
from routing.core.jsonable import to_jsonable
from routing.core.placement.rule import Prefixes, Situation, judge, route
from routing.gate.plan import parse_plan
from routing.models import Decision, Fleet
from tests.console.api_case import machine, person, send, strict
from tests.console.page_case import busy_fleet, decision
from tests.console.test_pages import words as escaped_words
from tests.routing.cases import make_fleet, scenario
from tests.routing.issuing import issue

pytestmark = pytest.mark.django_db

T, LOW, HIGH = 4000, 3000, 6000
MOVES = {"prfaas->pd": 1000, "pd->prfaas": 2000}
PLANS: dict[str, dict[str, Any]] = {
    "scarce": {"threshold_tokens": T},
    "abundant": {"threshold_tokens": T, "cache_mode": "abundant", "moves": MOVES},
    "t = 0": {"threshold_tokens": 0},
    "t = 0, abundant": {"threshold_tokens": 0, "cache_mode": "abundant", "moves": MOVES},
    "a band": {"threshold_tokens": T, "band": [LOW, HIGH]},
    "a band, abundant": {"threshold_tokens": T, "band": [LOW, HIGH], "cache_mode": "abundant", "moves": MOVES},
    "nothing may go remote": {"threshold_tokens": T, "max_remote_in_flight": 0},
    "always_remote": {"mode": "always_remote", "threshold_tokens": None},
    "always_local": {"mode": "always_local", "threshold_tokens": None},
}  # fmt: skip
UNCACHED = (0, 1, T - 1, T, T + 1, LOW, LOW + 1, HIGH, HIGH + 1, 60_000)
CACHED = ((0, 0), (2000, 0), (0, 999), (0, 1000), (2000, 3000), (9000, 100), (100, 9000))
"""What local and the remote hold; 999 and 1,000 more are on either side of what moves."""
WAITS: tuple[dict[str, float], ...] = (
    {},
    {"local": 1.0, "remote": 2.0},
    {"local": 2.0, "remote": 1.0},
)


def words(page: str) -> str:
    return html.unescape(escaped_words(page))


def run(fleet: Fleet, **entry: Any) -> Decision:
    """A plan in force with this entry for `pd`."""
    issue(fleet, T)
    made = fleets.newest_adopted(fleet)
    assert made is not None
    plan = fleets.plan_of(made)
    pd = replace(plan.clusters["pd"], **entry)
    made.plan = json.loads(json.dumps(to_jsonable(replace(plan, clusters={"pd": pd}))))
    made.save()
    return made


def get(client: Client, **query: Any) -> Any:
    return client.get(reverse("request", args=["f1"]), query)


def ask(client: Client, total: int, local: int = 0, remote: int = 0, **more: Any) -> Any:
    """The page's answer, as its template got it."""
    response = get(client, **{"total": total, "local": local, "remote-prfaas": remote, **more})
    assert response.status_code == 200, words(response.content.decode())
    return response.context


def live(made: Decision, total: int, local: int, remote: int, waits_s: Any) -> tuple[str, str, int]:
    """What a gate does that fetched this plan: the document it parses, the rule it runs."""
    document = msgspec.json.encode(delivery.document(made))
    rule = parse_plan(document, fleet="f1", cluster="pd").rule
    held = Prefixes(total, local, remote, movable_local=local, movable_remote=remote)
    judged = judge(rule, held, to_local="prfaas->pd", to_remote="pd->prfaas")
    up = ["prfaas"]
    chosen = route(rule, Situation(judged, up, up, 0, local_up=True, waits_s=waits_s))
    return chosen.side, chosen.reason, judged.uncached_tokens


@pytest.mark.parametrize("name", PLANS)
def test_the_answer_is_the_live_rules(fleet: Fleet, viewer: Client, name: str) -> None:
    """S-64 and S-36: t - 1, t, t + 1, 0, the edges of the band and of what moves, and some hundred
    lengths between them, behind every pair of caches. The answer and each point of the plot."""
    made = run(fleet, **PLANS[name])
    waits = WAITS if "band" in PLANS[name] else WAITS[:1]
    lengths = itertools.cycle(UNCACHED)
    sides = set()
    for (local, remote), waits_s in itertools.product(CACHED, waits):
        total = next(lengths) + max(local, remote)
        asked = {f"wait_{side}": value for side, value in waits_s.items()}
        answer = ask(viewer, total, local, remote, **asked)
        found, points = answer["found"], {point.total: point for point in answer["plot"].points}
        said = (found.side, found.reason, found.uncached_tokens)
        assert said == live(made, total, local, remote, waits_s), (total, local, remote)
        assert (points[total].side, points[total].reason) == said[:2]
        if (threshold := made.plan["clusters"]["pd"]["threshold_tokens"]) is not None:
            assert {local + threshold, local + threshold + 1} <= points.keys()
        for point in points.values():
            held = (min(local, point.total), min(remote, point.total))
            want = live(made, point.total, *held, waits_s)
            assert (point.side, point.reason) == want[:2], (point, local, remote)
            sides.add(point.side)
    one_sided = {
        "nothing may go remote": {"local"},
        "always_local": {"local"},
        "always_remote": {"remote"},
    }
    assert sides == one_sided.get(name, {"local", "remote"})


@pytest.mark.parametrize("uncached", UNCACHED)
def test_every_boundary_asked_for_by_itself(fleet: Fleet, viewer: Client, uncached: int) -> None:
    made = run(fleet, **PLANS["a band, abundant"])
    for local, remote in ((0, 0), (2000, 3000)):
        total = uncached + max(local, remote)
        found = ask(viewer, total, local, remote)["found"]
        said = (found.side, found.reason, found.uncached_tokens)
        assert said == live(made, total, local, remote, {}), (total, local, remote)


@pytest.mark.parametrize("name", ["scarce", "a band, abundant"])
def test_the_plot_turns_at_the_very_token_the_rule_does(
    fleet: Fleet, viewer: Client, name: str
) -> None:
    made, waits_s = run(fleet, **PLANS[name]), {"local": 2.0, "remote": 1.0}
    for local, remote in CACHED:
        plot = ask(viewer, 12_000, local, remote, wait_local=2, wait_remote=1)["plot"]

        def side(total: int, held: tuple[int, int] = (local, remote)) -> str:
            return live(made, total, *(min(n, total) for n in held), waits_s)[0]

        flips = [int(flip.words.replace(",", "")) for flip in plot.flips]
        assert all(side(flip - 1) != side(flip) for flip in flips), (flips, local, remote)
        sides = [side(total) for total in range(0, plot.most_tokens, 7)]
        assert plot.n_flips == sum(a != b for a, b in itertools.pairwise(sides))


def test_the_api_answers_the_call_that_the_page_offers(fleet: Fleet, viewer: Client) -> None:
    old = run(fleet, **PLANS["a band, abundant"])
    issue(fleet, 9000)
    questions: list[dict[str, Any]] = [
        {},
        {"decision": old.pk},
        {"decision": old.pk, "wait_local": 2, "wait_remote": 1},
        {"free": 0.9, "in_flight": 4, "remote_down": "on"},
        {"local_down": "on"},
    ]
    for question in questions:
        answer = ask(viewer, 8000, 3500, 100, **question)
        assert "http://testserver/api/v1/fleets/f1/explain" in answer["curl"]
        body = json.loads(shlex.split(answer["curl"])[-1])
        response = send(machine("read"), "post", "/fleets/f1/explain", body)
        assert response.status_code == 200, response.content
        said, found = strict(response), answer["found"]
        for name in ("side", "reason", "sentence", "uncached_tokens", "decided_by", "remote"):
            assert said[name] == getattr(found, name), (question, name)
        for side in ("local", "remote"):
            one = answer["estimates"][side]
            assert said["ttft_s"][side] == (one and pytest.approx(one.ttft_s)), (question, side)
        assert said["decision"] == question.get("decision", fleets.newest_adopted(fleet).pk)  # type: ignore[union-attr]


def test_what_each_side_takes(fleet: Fleet, viewer: Client) -> None:
    """A prompt of 27,486 tokens: an H20 takes 4.265 s, an H200 1.63 s and the link 0.18 s meanwhile."""
    run(fleet, threshold_tokens=4000)
    answer = ask(viewer, 27_486)
    local, remote = answer["estimates"]["local"], answer["estimates"]["remote"]
    assert (local.ttft_s, local.kv) == (pytest.approx(4.265), None)
    assert remote.ttft_s == pytest.approx(1.63265), "layer by layer: the slower of the two"
    assert remote.kv.seconds == pytest.approx(0.005 + 8 * (182_347_366 + 17_280 * 27_486) / 30e9)
    slow = ask(viewer, 27_486, free=0.01)["estimates"]["remote"]
    assert slow.ttft_s == pytest.approx(0.005 + 8 * (182_347_366 + 17_280 * 27_486) / 1e9)
    page = words(get(viewer, total=27_486).content.decode())
    assert "To prefill 27.5K tok 27.5K tok Prefill 4.26 s 1.63 s" in page
    assert "To the first token 4.26 s 1.63 s" in page


def test_a_moved_prefix_comes_first(fleet: Fleet, viewer: Client) -> None:
    run(fleet, threshold_tokens=19_400, cache_mode="abundant", moves={"prfaas->pd": 0})
    answer = ask(viewer, 30_000, 10_000, 25_000)
    local, remote = answer["estimates"]["local"], answer["estimates"]["remote"]
    assert (answer["found"].side, local.compute_tokens, remote.compute_tokens) == (
        "local",
        5000,
        5000,
    )
    assert local.prefix.tokens == 15_000
    assert local.ttft_s == pytest.approx(local.prefix.seconds + local.compute_s)
    assert remote.kv.tokens == 20_000
    page = words(
        get(viewer, total=30_000, local=10_000, **{"remote-prfaas": 25_000}).content.decode()
    )
    assert "30,000 − 25,000 held at prfaas = 5,000 tok" in page
    assert "5,000 ≤ 19,400 tok" in page
    assert "15,000 tok more over prfaas → pd It moves first." in page


STEPS = [
    # name, entry, question, what the page says
    ("scarce", {}, {"total": 30_000, "local": 10_000}, ["30,000 − 10,000 held at pd = 20,000 tok", "judged separately", "20,000 > 4,000 tok", "decides"]),
    ("at t", {}, {"total": 4000}, ["4,000 ≤ 4,000 tok", "At or below t: local."]),
    ("t = 0, all cached", {"threshold_tokens": 0}, {"total": 512, "local": 512}, ["512 − 512 held at pd = 0 tok", "0 ≤ 0 tok"]),
    ("in the band", {"band": [3000, 6000]}, {"total": 5000, "wait_local": 1, "wait_remote": 2}, ["3,000 to 6,000 tok", "Inside: the shorter expected wait decides, 1 s local against 2 s remote", "By t alone it would run remote."]),
    ("in the band, nobody measured", {"band": [3000, 6000]}, {"total": 5000}, ["no side's expected wait is shorter or known: t decides"]),
    ("outside", {"band": [3000, 6000]}, {"total": 7000}, ["Outside: t decides."]),
    ("the limit", {"max_remote_in_flight": 3}, {"total": 7000, "in_flight": 3}, ["3 of at most 3 at this gate", "The limit is reached: it stays local."]),
    ("no remote answers", {}, {"total": 7000, "remote_down": "on"}, ["RemoteDown", "The remote cannot have it now."]),
    ("local does not answer", {}, {"total": 700, "local_down": "on"}, ["LocalDown", "Local cannot have it now."]),
    ("by mode", {"mode": "always_local", "threshold_tokens": None}, {"total": 7000}, ["always local", "t is not asked."]),
    ("nobody to send to", {"remote": {}}, {"total": 7000}, ["NoRemote", "The plan gives weight to no remote."]),
]  # fmt: skip


@pytest.mark.parametrize(("case", "entry", "question", "says"), STEPS, ids=[c[0] for c in STEPS])
def test_the_arithmetic_in_words(
    fleet: Fleet, viewer: Client, case: str, entry: Any, question: Any, says: list[str]
) -> None:
    run(fleet, **{"threshold_tokens": T, **entry})
    page = words(get(viewer, **question).content.decode())
    for each in says:
        assert each in page


def test_it_says_by_which_plan(viewer: Client) -> None:
    fleet = busy_fleet()
    newest = fleets.newest_adopted(fleet)
    assert newest is not None
    page = words(get(viewer, total=7000).content.decode())
    assert "by v2 , in force, issued" in page
    first = Decision.objects.get(version=1)
    page = words(get(viewer, total=5000, decision=first.pk).content.decode())
    assert re.search(r"by v1 of 20 min ago ?; in force is v2", page)
    assert "above the threshold of 4,000" in page
    advised = Decision.objects.get(version=None)
    page = words(get(viewer, total=7000, decision=advised.pk).content.decode())
    assert "by the plan advised 17 min ago , which no gate runs" in page
    assert "at or below the threshold of 9,000" in page


def test_a_plan_older_than_the_list_can_be_asked_for(viewer: Client) -> None:
    fleet = make_fleet()
    now = timezone.now()
    rows = [decision(fleet, now - timedelta(hours=40 - i), i + 1, 5000 + i) for i in range(40)]
    page = get(viewer, total=5001, decision=rows[0].pk)
    assert page.status_code == 200
    assert f'<option value="{rows[0].pk}" selected>v1, t 5K tok' in page.content.decode()
    assert str(rows[3].pk) not in re.findall(r'option value="(\d+)"', page.content.decode())


def test_before_any_plan_everything_is_local(fleet: Fleet, viewer: Client) -> None:
    page = words(get(viewer).content.decode())
    assert "no plan yet" in page
    assert "the gate never had a plan" in page
    assert "Every length up to 50,000 tokens runs local." in page


WRONG = [
    ("nothing", {"total": ""}, "This field is required"),
    ("not a number", {"total": "many"}, "Enter a whole number"),
    ("negative", {"total": -1}, "greater than or equal to 0"),
    ("longer than any", {"total": 10**7}, "less than or equal to 1048576"),
    (
        "more cached than there is",
        {"total": 10, "local": 11},
        "11 is more than the prompt's 10 tokens.",
    ),
    (
        "so at a remote",
        {"total": 10, "remote-prfaas": 11},
        "11 is more than the prompt's 10 tokens.",
    ),
    ("no such cluster", {"cluster": "nowhere"}, "nowhere is not one of the available choices"),
    ("no such decision", {"decision": "999999"}, "999999 is not one of the available choices"),
    ("no number of a decision", {"decision": "9" * 40}, "is not one of the available choices"),
    ("one wait", {"wait_local": 1}, "give both, or none"),
    ("a wait that is none", {"wait_local": "nan", "wait_remote": 1}, "Enter a number"),
    ("more than all of the link", {"free": 1.5}, "less than or equal to 1"),
]


@pytest.mark.parametrize(("case", "question", "says"), WRONG, ids=[c[0] for c in WRONG])
def test_what_cannot_be_meant_is_said_beside_its_field(
    fleet: Fleet, viewer: Client, case: str, question: dict[str, Any], says: str
) -> None:
    response = get(viewer, **{"total": 100, **question})
    assert response.status_code == 422
    page = words(response.content.decode())
    assert says in page
    assert "No answer: the request cannot be meant like this." in page


def test_of_several_remotes_each_has_its_turn(viewer: Client) -> None:
    document = scenario()
    document["clusters"].append({**document["clusters"][0], "name": "far"})
    document["links"].append({"from": "far", "to": "pd", "gbps": 10.0, "rtt_ms": 30.0})
    who: dict[str, Any] = {"actor": "ada", "via": "test", "reason": ""}
    fleet = commands.create_fleet(scenario=document, mode="active", now=timezone.now(), **who)
    run(fleet, threshold_tokens=4000, remote={"prfaas": 1.0, "far": 3.0})
    response = get(viewer, total=30_000, **{"remote-prfaas": 29_000, "remote-far": 1000})
    turns = response.context["turns"]
    assert [(t.remote, t.share, t.cached_tokens) for t in turns] == [
        ("far", 0.75, 1000),
        ("prfaas", 0.25, 29_000),
    ]
    assert response.context["found"].remote == "far"
    assert turns[1].estimates["remote"].compute_tokens == 1000
    page = words(response.content.decode())
    assert "far 75 % 1K tok remote" in page
    assert "prfaas 25 % 29K tok remote" in page


def test_who_may_ask(fleet: Fleet) -> None:
    path = reverse("request", args=["f1"])
    assert Client().get(path)["Location"] == f"/login/?next={path}"
    assert person("nobody").get(path).status_code == 403
    assert person("viewer").get(reverse("request", args=["none"])).status_code == 404
    assert person("operator").get(path).status_code == 200
