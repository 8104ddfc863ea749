"""Stored ticks decided again: the same verdicts on the same inputs, other knobs, another line."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from routing import commands, scheduler
from routing.models import Action, Fleet, Hold, Tick
from routing.replay import MOST_DIFFERENCES, replay, verify
from tests.rewriting import rewriting_audit
from tests.routing.cases import after, make_fleet, scenario
from tests.routing.test_scheduler import WHO, hold, run_with_traffic, tick

pytestmark = pytest.mark.django_db
SINCE, UNTIL = after(-10.0), after(10_000.0)


def lived(until_s: float = 60.0, mode: str = "active") -> Fleet:
    """A minute of a fleet whose t is far from right: it is raised step by step."""
    fleet = make_fleet(mode=mode)
    run_with_traffic(until_s)
    with rewriting_audit():
        Action.objects.update(at=after(-5.0))  # the audit keeps the real clock
    return _read(fleet)


def _read(fleet: Fleet) -> Fleet:
    return Fleet.objects.select_related("policy").get(pk=fleet.pk)


def set_knobs(at_s: float, **knobs: Any) -> None:
    """A change of policy at that moment of the fleet's life."""
    policy = Fleet.objects.get(pk="f1").policy
    commands.set_policy(
        fleet="f1", changes={"knobs": knobs}, if_version=policy.version, now=after(at_s), **WHO
    )
    with rewriting_audit():
        Action.objects.filter(pk=Action.objects.latest("id").pk).update(at=after(at_s))


def command(*words: str, **more: Any) -> str:
    out = io.StringIO()
    span = {"--from": SINCE.isoformat(), "--to": UNTIL.isoformat(), **more}
    call_command(
        "replay", "--fleet", "f1", *(f"{k}={v}" for k, v in span.items()), *words, stdout=out
    )
    return out.getvalue()


def test_live_tick_and_replay_give_the_same_verdict() -> None:
    """Field by field, through changes, dwell, a hold and the start."""
    fleet = lived()
    found = verify(fleet, SINCE, UNTIL)
    reasons = set(Tick.objects.values_list("reason", flat=True))
    assert {"Initial", "PrefillImbalance", "GainPending"} <= reasons
    assert (found.n_different, found.differences) == (0, ())
    assert (found.n_equal, found.span.n_issued) == (30, 1)
    assert found.span.n_ticks == 31


def test_what_people_wanted_then_is_what_counts_not_what_they_want_now() -> None:
    fleet = make_fleet()
    run_with_traffic(20.0)
    with rewriting_audit():
        Action.objects.update(at=after(-5.0))
    set_knobs(21.0, t_max_step_factor=1.2, min_requests=300)
    tick(22.0)
    hold(9_000, at_s=23.0, until_s=27.0)
    Hold.objects.update(created_at=after(23.0))
    for at_s in (24.0, 26.0, 28.0):
        tick(at_s)
    set_knobs(29.0, t_max_step_factor=3.0, t_min_gain_ratio=0.3)
    tick(30.0)
    found = verify(_read(fleet), SINCE, UNTIL)
    assert "Held" in set(Tick.objects.values_list("reason", flat=True))
    assert (found.n_equal, found.differences) == (15, ())
    # And it would not be so, had the past been forgotten.
    with rewriting_audit():
        Action.objects.filter(verb="policy.change").delete()
    assert verify(_read(fleet), SINCE, UNTIL).n_different > 0


def test_the_scenario_of_then() -> None:
    fleet = make_fleet()
    run_with_traffic(20.0)
    with rewriting_audit():
        Action.objects.update(at=after(-5.0))
    document = scenario()
    document["links"][0]["gbps"] = 8.0
    document["profiles"]["h20"]["prefill"][0][1] = 3.0
    commands.create_fleet(scenario=document, now=after(21.0), **WHO)
    with rewriting_audit():
        Action.objects.filter(verb="fleet.update").update(at=after(21.0))
    tick(22.0)
    found = verify(_read(fleet), SINCE, UNTIL)
    assert (found.n_equal, found.differences) == (11, ())


def test_a_tick_that_was_decided_otherwise_is_told_by_number_and_field() -> None:
    fleet = lived(30.0)
    odd = Tick.objects.order_by("seq")[5]
    odd.verdict["current"]["headroom"] += 1e-9
    odd.save()
    found = verify(fleet, SINCE, UNTIL)
    assert found.n_different == 1
    [told] = found.differences
    assert (told.seq, told.field, told.follows) == (odd.seq, "current.headroom", True)
    assert told.stored == odd.verdict["current"]["headroom"]
    assert told.replayed == pytest.approx(told.stored, abs=2e-9)
    with pytest.raises(CommandError, match="1 of 15 verdicts differ") as failed:
        command()
    assert failed.value.returncode == 1


def test_a_changed_input_is_found_too() -> None:
    fleet = lived(30.0)
    odd = Tick.objects.order_by("seq")[5]
    odd.observed["pd"]["pd"]["demand_rps"] *= 1.5
    odd.save()
    told = verify(fleet, SINCE, UNTIL).differences[0]
    assert told.seq == odd.seq


def test_only_the_first_differences_are_told_one_by_one() -> None:
    fleet = lived(50.0)
    for row in Tick.objects.all():
        row.verdict["message"] = "Something else."
        row.save()
    found = verify(fleet, SINCE, UNTIL)
    assert (found.n_different, found.n_equal) == (25, 0)
    assert len(found.differences) == MOST_DIFFERENCES


def test_a_verdict_of_another_formula_is_not_compared_and_said() -> None:
    fleet = lived(20.0)
    old = Tick.objects.order_by("seq")[4]
    old.verdict |= {"formula": "exact-0", "message": "As it was said then."}
    old.save()
    found = verify(fleet, SINCE, UNTIL)
    assert (found.n_different, found.span.other_formulas) == (0, {"exact-0": 1})
    assert "1 stored verdicts are of formula exact-0, not exact-" in command()


def test_a_tick_of_another_release_is_counted_with_why() -> None:
    fleet = lived(20.0)
    old = Tick.objects.order_by("seq")[4]
    old.observed["weather"] = "fine"
    old.save()
    found = verify(fleet, SINCE, UNTIL)
    [(why, n)] = found.span.unreadable.items()
    assert n == 1
    assert "another release" in why
    assert "weather" in why
    assert found.n_different == 0


def test_after_a_gap_a_difference_says_so() -> None:
    fleet = lived(30.0)
    rows = list(Tick.objects.order_by("seq"))
    rows[6].delete()
    found = verify(fleet, SINCE, UNTIL)
    assert [told.follows for told in found.differences] in ([], [False])
    rows[9].verdict["message"] = "Else."
    rows[9].save()
    rows[8].delete()
    told = [each for each in verify(fleet, SINCE, UNTIL).differences if each.seq == rows[9].seq]
    assert [each.follows for each in told] == [False]


def test_a_line_with_the_same_knobs_is_the_line_that_was_lived() -> None:
    """Plan and memory carried forward come to the same as those read back from the database."""
    fleet = lived()
    found = replay(fleet, SINCE, UNTIL, {"t_max_step_factor": 1.5})
    assert found.were == {"t_max_step_factor": 1.5}
    assert found.lived == found.replayed
    assert (found.n_other_plan, found.first_divergence) == (0, None)
    assert found.lived.n_changes >= 3
    assert found.lived.headroom_mean is not None


def test_other_knobs_take_another_way_from_the_first_change_on() -> None:
    fleet = lived()
    found = replay(fleet, SINCE, UNTIL, {"t_max_step_factor": 1.1})
    steps = [each.clusters["pd"]["threshold_tokens"] for each in found.replayed.changes]
    assert steps[:3] == [4000, 4400, 4840], "each step from the one before, on its own line"
    was = [each.clusters["pd"]["threshold_tokens"] for each in found.lived.changes]
    assert was[:3] == [4000, 6000, 9000]
    first = found.first_divergence
    assert first is not None
    assert (first.seq, first.at_s) == (found.lived.changes[1].seq, found.lived.changes[1].at_s)
    assert first.lived["pd"]["threshold_tokens"] == 6000
    assert first.replayed["pd"]["threshold_tokens"] == 4400
    assert 0 < found.n_other_plan < found.span.n_ticks
    means = [line.headroom_mean for line in (found.lived, found.replayed)]
    assert means[0] is not None
    assert means[1] is not None
    assert means[1] < means[0], "it stays further from the best t"


def test_advice_moves_no_plan() -> None:
    fleet = lived(mode="advisory")
    found = replay(fleet, SINCE, UNTIL, {"t_max_step_factor": 1.1})
    for line in (found.lived, found.replayed):
        assert (line.n_changes, line.start) == (0, line.end)
        assert line.n_advised > 0
    assert found.first_divergence is None


def test_rows_are_read_as_they_are_needed() -> None:
    """A span of any length takes a fixed number of queries, and one cursor over the ticks."""
    fleet = lived(60.0)
    with CaptureQueriesContext(connection) as short:
        verify(fleet, SINCE, after(10.0))
    with CaptureQueriesContext(connection) as long:
        verify(fleet, SINCE, UNTIL)
    assert len(long) == len(short) <= 8


def test_the_command_prints_it_and_says_what_it_cannot_know() -> None:
    lived()
    said = command()
    assert said.splitlines()[0].startswith("f1: 31 ticks, 2026-11-29 12:00:00 UTC to ")
    assert "All 30 verdicts are the same" in said
    said = command("--set", "t_max_step_factor=1.1")
    assert "Replayed with t_max_step_factor = 1.1 (was 1.5)" in said
    assert "lived     pd t = 6,000, 3/5  PrefillImbalance: " in said
    assert "the twin's question" in said
    body = json.loads(command("--set", "t_max_step_factor=1.1", "--json"))
    assert (body["fleet"], body["knobs"]) == ("f1", {"t_max_step_factor": 1.1})
    assert body["replayed"]["changes"][1]["clusters"]["pd"]["threshold_tokens"] == 4400
    assert "as recorded" in body["note"]
    assert json.loads(command("--json"))["n_equal"] == 30


WRONG: list[tuple[str, dict[str, str], tuple[str, ...], str]] = [
    # case, span, words, says
    ("no such fleet", {"--fleet": "none"}, (), r"--fleet='none': is no fleet"),
    ("an empty span", {"--to": "2026-11-29T11:59:55Z"}, (), r"no tick is stored there; the stored ones are of 2026-11-29 12:00:00 to"),
    ("the end before the beginning", {"--to": "-99999h"}, (), r"--to='-99999h': must be after --from"),
    ("from is to", {"--from": "5", "--to": "5"}, (), r"--to='5': must be after --from"),
    ("no time", {"--from": "yesterday"}, (), r"--from='yesterday': is neither epoch seconds"),
    ("not a number of seconds", {"--to": "nan"}, (), r"--to='nan': is no time"),
    ("no such knob", {}, ("--set", "t_mix=5"), r"--set='t_mix=5': no such knob; there are abundant_below_ratio, "),
    ("not of its kind", {}, ("--set", "min_requests=many"), r"--set='min_requests=many': must be a whole number"),
    ("out of range", {}, ("--set", "t_min_gain_ratio=7"), r"--set='t_min_gain_ratio=7': must be in 0..0.5"),
    ("against the other", {}, ("--set", "t_min_tokens=9000", "--set", "t_max_tokens=8000"), r"--set='t_min_tokens=9000': must not exceed t_max_tokens"),
    ("no value", {}, ("--set", "t_dwell_s"), r"--set='t_dwell_s': must be knob=value"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "span", "words", "says"), WRONG, ids=[c[0] for c in WRONG])
def test_what_cannot_be_meant_is_exit_2(
    case: str, span: dict[str, str], words: tuple[str, ...], says: str
) -> None:
    make_fleet()
    tick()
    with pytest.raises(CommandError, match=says) as refused:
        command(*words, **span)
    assert refused.value.returncode == 2
    assert "\n" not in str(refused.value)


def test_a_fleet_whose_loop_never_ran() -> None:
    """S-64: replay of an empty recording is a clear error."""
    make_fleet()
    with pytest.raises(CommandError, match="the loop has written no tick of this fleet") as refused:
        command("--set", "t_dwell_s=5")
    assert refused.value.returncode == 2


def test_a_span_back_from_now() -> None:
    make_fleet()
    scheduler.run_tick("f1", now=timezone.now() - timedelta(seconds=90), tick_s=2.0)
    scheduler.run_tick("f1", now=timezone.now(), tick_s=2.0)
    spans = ("-1m", "-0.5h", "-2d")
    counts = [
        json.loads(command("--json", **{"--from": back, "--to": "now"}))["span"]["n_ticks"]
        for back in spans
    ]
    assert counts == [1, 2, 2]
