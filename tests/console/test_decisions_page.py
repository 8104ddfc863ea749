"""One decision and one tick: evidence, what came of it, what it waits for; two plans compared."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from console import decisions, inputs, plans, realised, verdicts
from routing.core.jsonable import to_jsonable
from routing.core.types import Wait
from routing.models import Action, Decision, Fleet, Hold, Tick
from tests.console.api_case import person
from tests.console.page_case import busy_fleet, decision, observation, plan, prediction, tick
from tests.console.test_pages import text, words
from tests.rewriting import rewriting_audit
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

AT = datetime(2026, 11, 29, 14, 5, tzinfo=UTC)
EVIDENCE = inputs.Evidence("f1", AT)


def graded(**pd: Any) -> dict[str, inputs.Row]:
    """Rows of the PD cluster by name, of an observation 1 s old that differs by `pd`."""
    observed = to_jsonable(observation("f1", AT.timestamp(), **pd))
    [(title, rows), *_] = inputs.groups(observed, {}, EVIDENCE)
    assert title == "Cluster pd"
    return {row.name: row for row in rows}


@pytest.mark.parametrize(
    ("pd", "name", "grade"),
    [
        ({}, "Demand", "fresh"),
        ({"age_s": 16.0}, "Demand", "stale"),
        ({"demand_rps": None, "demand_state": "missing"}, "Demand", "missing"),
        ({"demand_rps": 0.0, "demand_state": "idle"}, "Demand", "idle"),
        ({"demand_rps": None, "demand_state": "failed"}, "Demand", "failed"),
        ({"lengths": None}, "Uncached lengths", "missing"),
        ({"queue_prefill": 3.0}, "Waiting for prefill", "fresh"),
        ({}, "Waiting for decode", "missing"),
        ({"n_prefill": 0}, "Instances", "assumed: the plan's"),
        ({"prefill_silent": ("f1/pd/e1",)}, "Silent, prefill", "assumed full"),
        ({"gates_silent": ("f1/pd/gw-1",)}, "Silent gates", "assumed as before"),
    ],
)
def test_each_input_has_a_grade(pd: dict[str, Any], name: str, grade: str) -> None:
    state = graded(**pd)[name].state
    assert state is not None
    assert state.text == grade


def test_a_capacity_that_nobody_measured_is_the_scenarios() -> None:
    observed = to_jsonable(observation("f1", AT.timestamp()))
    observed["links"]["prfaas->pd"]["capacity_gbps"] = None
    found = inputs.groups(observed, {}, EVIDENCE, configured_gbps={"prfaas->pd": 100.0})
    rows = {row.name: row for row in found[-1][1]}
    assert rows["Capacity"].value == "100 Gbps"
    assert rows["Capacity"].state is not None
    assert rows["Capacity"].state.text == "assumed: the scenario's"
    observed["links"]["prfaas->pd"]["capacity_gbps"] = 0.0
    rows = {row.name: row for row in inputs.groups(observed, {}, EVIDENCE)[-1][1]}
    assert rows["Capacity"].state is not None
    assert rows["Capacity"].state.text == "down"


def test_each_input_leads_to_its_samples(viewer: Client) -> None:
    make_fleet()
    for row in graded().values():
        assert row.href.startswith("/fleets/f1/signals/?signal=")
        assert f"from={AT.timestamp() - 600:.0f}&to={AT.timestamp() + 300:.0f}" in row.href
        assert viewer.get(row.href).status_code == 200, row.href


def came(decision: Decision, seconds: float, **changes: Any) -> Tick:
    """A tick so long after a decision, whose observation differs."""
    row = tick(decision.fleet, decision.created_at + timedelta(seconds=seconds))
    row.observed["pd"]["pd"] |= changes
    row.save()
    return row


@pytest.fixture
def pushed() -> Decision:
    """v2 of 20 minutes ago, after v1."""
    fleet = make_fleet()
    now = timezone.now()
    decision(fleet, now - timedelta(minutes=40), 1, 4000)
    return decision(fleet, now - timedelta(minutes=20), 2, 6000, previous=4000)


def looked(row: Decision, now: datetime | None = None) -> list[realised.Mark]:
    later = Decision.objects.filter(created_at__gt=row.created_at).order_by("created_at")
    return realised.marks(row, realised.seen_after(row), list(later), now or timezone.now())


def test_what_came_of_it_after_1_5_and_15_minutes(viewer: Client, pushed: Decision) -> None:
    came(pushed, 61, remote_share=0.5)
    came(pushed, 310, remote_share=0.9)
    marks = looked(pushed)
    assert [mark.seen and mark.seen.share for mark in marks] == [0.5, 0.9, None]
    bands = realised.bands(pushed.tick.verdict["adopted"], pushed.tick)
    [share, *_] = realised.table(pushed.tick.verdict["adopted"], bands, marks)
    assert share.expected == "49 %"
    assert [(cell.value, cell.inside) for cell in share.cells] == [
        ("50 %", True),
        ("90 %", False),
        ("no tick then", None),
    ]
    found = text(viewer, "decision", "f1", pushed.pk)
    assert "Remote share 49 %" in found
    assert "90 % outside" in found
    assert "no tick then" in found


def test_until_then_it_says_when(viewer: Client) -> None:
    fleet = make_fleet()
    row = decision(fleet, timezone.now() - timedelta(minutes=2), 1, 4000)
    came(row, 60)
    found = text(viewer, "decision", "f1", row.pk)
    assert f"not yet, at {row.created_at + timedelta(minutes=5):%H:%M:%S}" in found
    assert f"not yet, at {row.created_at + timedelta(minutes=15):%H:%M:%S}" in found


def test_another_plan_and_other_demand_make_a_comparison_doubtful(pushed: Decision) -> None:
    decision(pushed.fleet, pushed.created_at + timedelta(seconds=90), 3, 7000, previous=6000)
    came(pushed, 60, demand_rps=2.6)
    came(pushed, 300, demand_rps=5.0)
    assert [mark.notes for mark in looked(pushed)] == [(), ("under v3", "demand +100 %"), ()]


def test_what_else_changed_is_told_in_its_order(viewer: Client, pushed: Decision) -> None:
    fleet, at = pushed.fleet, pushed.created_at
    decision(fleet, at + timedelta(seconds=90), 3, 7000, previous=6000)
    came(pushed, 300, demand_rps=5.0)
    hold = Hold.objects.create(
        fleet=fleet,
        mode="threshold",
        threshold_tokens=7000,
        owner="ana",
        reason="an experiment",
        expires_at=at + timedelta(minutes=10),
    )
    Hold.objects.filter(pk=hold.pk).update(created_at=at + timedelta(minutes=2))
    change = Action.objects.create(
        actor="zoe", via="ui", verb="policy.change", fleet="f1", target="policy f1"
    )
    with rewriting_audit():
        Action.objects.filter(pk=change.pk).update(at=at + timedelta(minutes=3))
    later = [Decision.objects.get(version=3)]
    told = [event.text for event in realised.meanwhile(pushed, later, looked(pushed))]
    assert told == [
        "v3 (Prefill imbalance): t 6K tok → t 7K tok",
        "ana held every cluster: an experiment",
        "zoe: policy.change policy f1",
        "demand was 5 req/s, +100 % since the decision",
        "the hold of ana on every cluster ended",
    ]
    found = text(viewer, "decision", "f1", pushed.pk)
    assert all(words in found for words in told)
    assert "Nothing: no other plan" not in found


def test_nothing_else_changed_is_told_too(viewer: Client, pushed: Decision) -> None:
    came(pushed, 60)
    assert "Nothing: no other plan, no hold" in text(viewer, "decision", "f1", pushed.pk)


def test_charts_have_gaps_where_nothing_was_measured(pushed: Decision) -> None:
    came(pushed, 60, remote_share=None)
    came(pushed, 62, remote_share=0.4)
    predicted = pushed.tick.verdict["adopted"]
    seen = realised.seen_after(pushed)
    columns = realised.charts(pushed, predicted, realised.bands(predicted, pushed.tick), seen)
    assert columns is not None
    share = columns["charts"]["share"]
    assert share["values"][-2:] == [None, 0.4]
    low, high = share["band"]
    assert low < 0.49 < high
    assert columns["charts"]["gbps"]["values"][-1] == pytest.approx(9.4)
    assert columns["ends_s"] - columns["begins_s"] == 900.0


def test_no_more_is_read_than_a_chart_has_room_for(pushed: Decision) -> None:
    for i in range(300):
        tick(pushed.fleet, pushed.created_at + timedelta(seconds=3 * (i + 1)))
    with CaptureQueriesContext(connection) as asked:
        seen = realised.seen_after(pushed)
    assert len(seen) <= 2 * realised.MOST_POINTS
    assert len(asked) == 1


def test_a_tick_without_a_prediction_is_a_gap(pushed: Decision) -> None:
    tick(pushed.fleet, pushed.created_at + timedelta(seconds=60), current=None)
    row = Tick.objects.order_by("-seq")[0]
    row.observed["links"] = {}
    row.save()
    assert realised.seen_after(pushed)[-1].headroom is None
    assert realised.seen_after(pushed)[-1].gbps is None


def test_advice_has_nothing_to_compare(viewer: Client) -> None:
    busy_fleet()
    row = Decision.objects.get(version=None)
    found = text(viewer, "decision", "f1", row.pk)
    assert "Predicted and realised" not in found
    assert "Advised, not pushed." in found


def test_buttons_stand_beside_what_they_would_change(viewer: Client) -> None:
    busy_fleet()
    row = Decision.objects.get(version=2)
    found = text(person("operator"), "decision", "f1", row.pk)
    assert "Set t from 6,000 to 4,000 tokens, as in v1 (undo)…" in found
    assert "Changes: pd t 6K tok → t 4K tok, on 2 gates with the next tick." in found
    assert "Hold t 6K tok, as in v2: it runs now…" in found
    assert "Goes on: t and mode as they run now." in found
    assert "Stops: deciding for pd until the hold ends." in found
    seen = text(viewer, "decision", "f1", row.pk)
    assert "(undo)" not in seen
    assert "this account may only look" in seen


def test_an_old_decision_offers_what_would_change_now_and_not_to_be_undone(viewer: Client) -> None:
    busy_fleet()
    row = Decision.objects.get(version=2)
    later = decision(row.fleet, timezone.now(), 3, 9800, previous=6000)
    operator = person("operator")
    found = text(operator, "decision", "f1", row.pk)
    assert "Set t from 9,800 to 4,000 tokens, as in v1 (before this decision)…" in found
    assert "Set t from 9,800 to 6,000 tokens, as in v2…" in found
    assert "(undo)" not in found
    newest = text(operator, "decision", "f1", later.pk)
    assert "Set t from 9,800 to 6,000 tokens, as in v2 (undo)…" in newest
    page = operator.get(reverse("roll-back", args=["f1", row.pk])).content.decode()
    assert "<h2>Set t from 9,800 to 6,000 tokens, as in v2</h2>" in page
    assert re.search(r'<a href="/fleets/f1/decisions/\d+/">Decision v2</a>', page)


def test_what_going_back_would_set_is_told_exactly() -> None:
    runs = to_jsonable(plan("f1", 1, 9800))["clusters"]["pd"]
    assert plans.set_words({"pd": runs}, {"pd": {**runs, "threshold_tokens": 9801}}) == [
        "t from 9,800 to 9,801 tokens"
    ]
    local = {**runs, "mode": "always_local", "threshold_tokens": None}
    assert plans.set_words({"a": local, "b": runs}, {"a": runs, "b": runs}) == [
        "a from everything local to t 9.80K tok"
    ]
    assert plans.set_words({"pd": runs}, {"pd": {**runs, "n_prefill": 7}}) == []


def test_a_band_that_going_back_would_end_is_said() -> None:
    runs = to_jsonable(plan("f1", 1, 9800))["clusters"]["pd"]
    found = decisions.radius({"pd": {**runs, "band": [8000, 12000]}}, {"pd": runs}, 1).items
    assert "the band ends: pd 8K to 12K tok." in found[1].text


def test_signs_that_say_another_thing_than_the_sentence_are_named_beside_it(
    viewer: Client,
) -> None:
    """The sentence goes by the model, the signs are measured: a page must not leave both alone."""
    fleet = busy_fleet()
    row = Decision.objects.get(version=2)
    found = text(viewer, "decision", "f1", row.pk)
    assert "Measured signs in pd point to Decode pd" in found
    assert "the model to Local prefill pd; the loop went by the model. What binds" in found
    assert found.count("The model finds Local prefill pd tightest instead") == 1
    Tick.objects.filter(pk=row.tick_id).update(reason="QueuesApart")
    found = text(viewer, "decision", "f1", row.pk)
    assert "Measured signs in" not in found, "its sentence does not go by the model"
    assert "The model finds Local prefill pd tightest instead." in found
    verdict = row.tick.verdict
    verdict["bottlenecks"]["pd"]["stage"] = "local_prefill:pd"
    row.tick.save()
    found = text(viewer, "decision", fleet.pk, row.pk)
    assert "Measured signs in" not in found
    assert "tightest instead" not in found


def test_only_the_clusters_own_stages_are_held_against_its_signs() -> None:
    verdict = {
        "current": {
            "bottleneck": "local_prefill:west",
            "stages": [
                {"name": name, "capacity_rps": 1.0, "utilisation_ratio": use}
                for name, use in (
                    ("local_prefill:west", 0.9),
                    ("decode:pd", 0.8),
                    ("link:far->pd", 0.7),
                    ("remote_prefill:far", 0.85),
                )
            ],
        },
        "bottlenecks": {
            name: {"label": "decode", "stage": f"decode:{name}", "signs": "", "measured": measured}
            for name, measured in (("pd", True), ("west", False))
        },
    }
    assert [found["by_model"] for found in verdicts.bottlenecks(verdict)] == [
        "Remote prefill far",
        "",
    ]


def test_names_of_settings_and_reasons_are_words(viewer: Client) -> None:
    """What they are called elsewhere is on hover."""
    busy_fleet()
    row = Decision.objects.get(version=2)
    page = viewer.get(reverse("decision", args=["f1", row.pk])).content.decode()
    assert '<span title="t_max_step_factor">Largest step of t</span>' in page
    assert 'title="PrefillImbalance: Local and remote prefill were not equally busy' in page
    found = words(re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    assert not re.search(r"\b[a-z]+_[a-z_]+\b", found)
    assert not re.search(r"\b[A-Z][a-z]+[A-Z][a-z]+\b", found)
    assert "±0" not in found


def test_a_radius_names_few_of_many() -> None:
    runs = to_jsonable(plan("f1", 1, 4000))["clusters"]["pd"]
    before = {f"c{i}": runs for i in range(9)}
    after = {name: {**runs, "threshold_tokens": 6000, "n_prefill": 4} for name in before}
    found = [effect.text for effect in decisions.radius(before, after, 1).items]
    assert found[0].endswith("c5 t 4K tok → t 6K tok and 3 more, on 1 gate with the next tick.")
    assert found[1].startswith("roles stay c0 3/5, ")
    assert found[2] == "deciding for 9 clusters until the hold ends."


def test_links_lead_to_the_difference_from_the_previous_and_the_running(viewer: Client) -> None:
    busy_fleet()
    first, second = (Decision.objects.get(version=n) for n in (1, 2))
    page = viewer.get(reverse("decision", args=["f1", first.pk])).content.decode()
    assert "diff/?a=1.1&amp;b=1.2" in page
    page = viewer.get(reverse("decision", args=["f1", second.pk])).content.decode()
    assert page.count("diff/?a=1.1&amp;b=1.2") == 1


def test_each_gates_way_to_the_plan(viewer: Client) -> None:
    busy_fleet()
    row = Decision.objects.get(version=2)
    row.deliveries.filter(router="f1/pd/gw-2").update(state="accepted", applied_at=None)
    found = text(viewer, "decision", "f1", row.pk)
    assert "pd/gw-1 applied" in found
    assert "yes after 120 ms v2, " in found
    assert "pd/gw-2 accepted" in found


def test_a_tick_that_held_says_what_it_wanted_and_waits_for(viewer: Client) -> None:
    fleet = make_fleet()
    now = timezone.now()
    ends_s = (now + timedelta(seconds=70)).timestamp()
    for ago_s in (6, 4):
        row = tick(
            fleet,
            now - timedelta(seconds=ago_s),
            reason="RolesDwell",
            message="Roles pd 3/5 -> 4/4 would gain 8% or more; roles move at most every 120 s.",
            best=prediction(1.3),
            best_plan=plan("f1", 0, 9000).clusters,
            next_action_at_s=ends_s,
            waits=(Wait("RolesDwell", "pd", now.timestamp() - 50, ends_s),),
        )
    found = text(viewer, "tick", "f1", row.seq)
    assert "Kept the plan" in found
    assert f"The loop had said so since {now - timedelta(seconds=6):%H:%M:%S} UTC" in found
    assert "t 4K tok → t 9K tok Headroom +8.33 %" in found
    assert f"Earliest next action {now + timedelta(seconds=70):%H:%M:%S} UTC" in found
    assert "Roles dwell pd" in found
    assert "1 min 14 s" in found


def test_a_tick_without_dampers_says_so(viewer: Client) -> None:
    fleet = make_fleet()
    row = tick(fleet, timezone.now(), next_action_at_s=timezone.now().timestamp() + 20)
    assert "No damper: a better plan that showed" in text(viewer, "tick", "f1", row.seq)
    Tick.objects.update(mode="paused")
    assert "Until somebody resumes the loop" in text(viewer, "tick", "f1", row.seq)


def test_a_tick_of_an_earlier_release_is_shown_as_far_as_it_tells(viewer: Client) -> None:
    fleet = make_fleet()
    row = tick(fleet, timezone.now())
    for name in ("waits", "alternatives", "best_plan", "next_action_at_s"):
        row.verdict.pop(name)
    row.save()
    assert "of a release that does not tell" in text(viewer, "tick", "f1", row.seq)


def test_two_versions_side_by_side(viewer: Client) -> None:
    fleet = busy_fleet()
    decision(fleet, timezone.now(), 3, 9000, previous=6000, message="Third time.")
    found = text(viewer, "decisions-diff", "f1", a="1", b="1.3")
    assert "1 field differs between v1 and v3." in found
    assert "Threshold t 4K tok 9K tok" in found
    assert "fields are the same" in found
    assert "v3 is in force" in found
    steps = found[found.index("How it came to that") :]
    assert steps.index("Third time.") < steps.index("Raised t because")
    assert "The start." not in steps
    back = text(viewer, "decisions-diff", "f1", a="v3", b="v1")
    assert "this is what going back would change" in back
    assert "Threshold t 9K tok 4K tok" in back
    same = text(viewer, "decisions-diff", "f1", a="2", b="2")
    assert "v2 and v2 ask for the same." in same
    assert "No version lies between them." in same


@pytest.mark.parametrize("asked", ["99", "x", "1.99", "7.1", "9" * 40, "=1"])
def test_a_version_that_is_none_is_named(viewer: Client, asked: str) -> None:
    busy_fleet()
    found = text(viewer, "decisions-diff", "f1", a="1", b=asked)
    assert f"{asked} is no version that was pushed here" in found


def test_without_versions_the_page_asks_for_them(viewer: Client) -> None:
    make_fleet()
    assert "Name two versions" in text(viewer, "decisions-diff", "f1")


def test_every_path_of_a_cluster_is_a_row_of_its_own(viewer: Client) -> None:
    fleet: Fleet = busy_fleet()
    row = Decision.objects.get(version=2)
    row.plan["clusters"]["pd"] |= {
        "remote": {"prfaas": 0.75, "west": 0.25},
        "transport": {"prfaas": {"connections": 19, "pacing_gbps": 95.0}},
    }
    row.plan["clusters"]["other"] = row.plan["clusters"]["pd"]
    row.save()
    found = text(viewer, "decisions-diff", fleet.pk, a="1", b="2")
    assert "Remote weights prfaas 1 0.750" in found
    assert "Remote weights west nothing 0.250" in found
    assert "KV transport prfaas no hint over 19 connections, 95 Gbps" in found
    assert "other Before After Mode none by threshold" in found
