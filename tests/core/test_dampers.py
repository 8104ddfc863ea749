"""Every damper that is not over is told with its end, beside the one that decided."""

from __future__ import annotations

import dataclasses

from routing.core.decide import decide
from routing.core.jsonable import from_jsonable, to_jsonable
from routing.core.types import HeldPlan, Memory, Params, Verdict, Wait
from tests.core.asked import LASTED, says
from tests.core.cases import demo_scenario, plan, seen

ACTIVE = Params(mode="active", band_ratio=0.0, roles_mode="fixed")


def asked(memory: Memory | None = None, *, threshold: int = 4000, **params: object) -> Verdict:
    given = dataclasses.replace(ACTIVE, **params)  # type: ignore[arg-type]
    return decide(seen(), plan(threshold), memory or Memory(), given, demo_scenario())


def ends(verdict: Verdict) -> dict[str, float]:
    return {wait.reason: wait.until_s for wait in verdict.waits}


def test_a_gain_that_has_just_shown_waits_until_it_has_lasted() -> None:
    verdict = asked()
    assert verdict.reason == "GainPending"
    assert verdict.waits == (Wait("GainPending", "t", 1000.0, 1020.0),)
    assert verdict.next_action_at_s == 1020.0


def test_the_longest_comes_first_and_is_when_the_loop_can_act() -> None:
    verdict = asked(Memory(gain_since_s=995.0, last_change_s=999.0, changes_s=(999.0,)))
    assert [wait.reason for wait in verdict.waits] == ["Dwell", "GainPending", "RateLimited"]
    assert ends(verdict) == {"Dwell": 1019.0, "GainPending": 1015.0, "RateLimited": 1001.0}
    assert verdict.next_action_at_s == verdict.waits[0].until_s


def test_what_is_over_is_not_told() -> None:
    verdict = asked(Memory(last_change_s=900.0), threshold=19_800)
    assert verdict.reason in ("Optimal", "WithinNoise")
    assert verdict.waits == ()


def test_after_a_change_its_own_rest_is_told() -> None:
    verdict = asked(Memory(gain_since_s=900.0))
    assert verdict.action == "adopt"
    assert ends(verdict)["Dwell"] == 1020.0


def test_roles_at_rest_are_told_by_cluster() -> None:
    roles = dataclasses.replace(seen().pd["pd"], n_prefill=6, n_decode=2)
    observation = dataclasses.replace(seen(), pd={"pd": roles})
    verdict = says(observation, memory=dataclasses.replace(LASTED, roles_changed_at_s=940.0))
    [wait] = [wait for wait in verdict.waits if wait.reason == "RolesDwell"]
    assert wait == Wait("RolesDwell", "pd", 940.0, 1060.0)
    assert verdict.next_action_at_s == 1060.0


def test_a_hold_is_waited_for_and_a_pause_is_not() -> None:
    pin = HeldPlan("pd", "threshold", 4000, "op", "an experiment", 5000.0)
    assert ends(asked(holds=(pin,)))["Held"] == 5000.0
    assert asked(mode="paused").waits == ()


def test_waits_are_kept_with_the_tick() -> None:
    verdict = asked()
    kept = to_jsonable(verdict)
    assert kept["waits"] == [
        {"reason": "GainPending", "what": "t", "since_s": 1000.0, "until_s": 1020.0}
    ]
    assert from_jsonable(Verdict, kept) == verdict
