"""The one door of the core. Read `decide` first: it is the whole loop in the order of its rules."""

from __future__ import annotations

import dataclasses

import numpy as np

from routing.core import words
from routing.core.carried import with_carried
from routing.core.forced import forced
from routing.core.model.lengths import usable
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
    then t (the short one). Deterministic; never raises for data. The verdict's `memory` goes into
    the next pass, the alternatives say what else was weighed.
    """
    # Absurd but finite inputs may overflow inside the model: nothing comes of it but a hold.
    with np.errstate(all="ignore"):
        situation = survey(observation, plan, memory, params, scenario)
        return explained(situation, with_carried(situation, _ruled(situation)))


def _ruled(s: Situation) -> Verdict:
    rules = (_paused, forced, settled, _nothing_to_choose, _blind, _below_quorum, _no_traffic)
    for rule in (*rules, _warming_up):
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
    return None if s.movable else _nothing_to_tune(s)


def _nothing_to_tune(s: Situation) -> Verdict | None:
    if s.tunable:
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


def _blind(s: Situation) -> Verdict | None:
    """Missing or old inputs. What was never measured is warm-up, not an outage."""
    gaps: list[str] = []
    for name in s.clusters:
        seen = s.observation.pd[name]
        if s.demand_rps(name) is None:
            if seen.lengths is not None or seen.age_s is not None:
                gaps.append(f"demand of {name} ({seen.demand_state})")
        elif seen.age_s is not None and seen.age_s > s.params.stale_after_s:
            gaps.append(f"gates of {name}")
        elif name in s.busy and seen.lengths is not None and not usable(seen.lengths):
            gaps.append(f"lengths of {name}")
    needed = {link.id for name in s.tunable if name in s.busy for link in s.links_up(name)}
    gaps += [f"link {link}" for link in sorted(needed) if not s.links[link].known]
    if not gaps:
        return None
    return s.hold("StaleTelemetry", f"No fresh reading of {', '.join(gaps)}: the plan stays.")


def _below_quorum(s: Situation) -> Verdict | None:
    """So few gates heard that their demand is mostly what they last said."""
    for name in s.busy:
        seen = s.observation.pd[name]
        n_gates = seen.n_gates
        n_heard = None if n_gates is None else n_gates - len(seen.gates_silent)
        if n_heard is not None and n_heard < s.params.quorum_ratio * (n_gates or 0):
            return s.hold("BelowQuorum", words.few_gates(name, n_heard, n_gates or 0))
    return None


def _no_traffic(s: Situation) -> Verdict | None:
    measured = [s.demand_rps(name) for name in {*s.tunable, *s.movable}]
    if any(measured) or None in measured:
        return None
    return s.hold("NoTraffic", "No request arrives, so there is nothing to balance.")


def _warming_up(s: Situation) -> Verdict | None:
    needed = s.params.min_requests
    for name in s.clusters:
        demand, seen = s.demand_rps(name), s.observation.pd[name].lengths
        if demand == 0.0:
            continue
        counted = 0 if seen is None else int(seen.n_seen)
        if demand is None or seen is None or counted < needed:
            left_s = (needed - counted) / demand if demand else s.params.t_gain_hold_s
            at_s = s.now_s + max(left_s, 0.0)
            return s.hold("WarmingUp", words.warming_up(name, counted, needed), next_at_s=at_s)
    return None
