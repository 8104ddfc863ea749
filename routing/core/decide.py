"""The one door of the core. Read `decide` first: it is the whole loop in the order of its rules."""

from __future__ import annotations

import dataclasses

import numpy as np

from routing.core import words
from routing.core.carried import with_carried
from routing.core.dampers import waits
from routing.core.evidence import Gap
from routing.core.forced import forced
from routing.core.frozen import frozen
from routing.core.roles.facts import settled
from routing.core.roles.step import step
from routing.core.scenario.document import Scenario
from routing.core.situation import Situation, survey
from routing.core.tuning import tuned
from routing.core.types import Memory, Observation, Params, Plan, Verdict
from routing.core.weighed import explained


def decide(
    observation: Observation, plan: Plan, memory: Memory, params: Params, scenario: Scenario
) -> Verdict:
    """What the fleet should run now: adopt a changed plan, or hold, with the reason.

    Rules in order of precedence; the first that speaks decides. A person's word comes before the
    state of links, that before missing inputs, and tuning comes last: roles (the long timescale),
    then t (the short one). What a freeze forbids is decided all the same, and held (`frozen`).
    Deterministic; never raises for data. The verdict's `memory` goes into the next pass, the
    alternatives say what else was weighed.
    """
    # Absurd but finite inputs may overflow inside the model: nothing comes of it but a hold.
    with np.errstate(all="ignore"):
        situation = survey(observation, plan, memory, params, scenario)
        ruled = frozen(situation, _ruled(situation))
        carried = frozen(situation, with_carried(situation, ruled), held=ruled)
        verdict = explained(situation, carried)
        return dataclasses.replace(verdict, waits=waits(situation, verdict))


def _ruled(s: Situation) -> Verdict:
    for rule in (_paused, forced, settled, _nothing_to_choose, _unjudged, _no_traffic):
        verdict = rule(s)
        if verdict is not None:
            return verdict
    roles = step(s)
    return roles.verdict or roles.joined(_nothing_to_tune(s) or tuned(s))


def _paused(s: Situation) -> Verdict | None:
    if s.params.mode != "paused":
        return None
    verdict = s.hold("Paused", "The loop is paused: the plan stays until it is resumed.")
    return dataclasses.replace(verdict, next_action_at_s=None)


def _nothing_to_choose(s: Situation) -> Verdict | None:
    return None if s.staffed else _nothing_to_tune(s)


def _nothing_to_tune(s: Situation) -> Verdict | None:
    if s.linked:
        return None
    if s.pins:
        pins = {id(pin): pin for pin in s.pins.values()}
        until_s = max(pin.expires_at_s for pin in pins.values())
        text = " ".join(words.still_held(name, pin) for name, pin in s.pins.items())
        return s.hold("Held", text, next_at_s=until_s)
    down = [view for view in s.links.values() if view.down]
    if down:
        back_s = min(view.clear_at_s(s.params, s.now_s) for view in down)
        return s.hold("LinkDown", words.still_down(down, s.params), next_at_s=back_s)
    return s.hold("NoRemote", "No PrfaaS cluster is linked to this fleet: everything is local.")


def _unjudged(s: Situation) -> Verdict | None:
    """Nobody with traffic can be judged. As long as one can, the others are left as they run."""
    chosen = {*s.linked, *s.staffed}
    if any(s.demand_rps(name) for name in chosen if name not in s.gaps):
        return None
    gaps = [gap for name, gap in s.gaps.items() if name in chosen]
    if not gaps:
        return None
    gap = Gap.together(gaps)
    return s.hold(gap.reason, gap.text, next_at_s=gap.next_at_s)


def _no_traffic(s: Situation) -> Verdict | None:
    if any(s.demand_rps(name) for name in {*s.tunable, *s.movable}):
        return None
    return s.hold("NoTraffic", "No request arrives, so there is nothing to balance.")
