"""The one sentence of each verdict. Steady: it changes when the facts do, not with every tick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from routing.core.links.state import LinkView
from routing.core.scenario.document import Cluster
from routing.core.types import (
    ClusterPlan,
    Freeze,
    HeldPlan,
    Params,
    Prediction,
    RoleChange,
    Transport,
)

if TYPE_CHECKING:  # threshold asks situation, which speaks
    from routing.core.threshold import Proposal

_LAST_PRINTABLE_S = 253_402_300_799.0
"""The end of the year 9999."""

_CACHES = {"abundant": "together, prefixes move over the link", "scarce": "separately"}
_STAGES = {
    "local_prefill": "local prefill of",
    "remote_prefill": "remote prefill of",
    "decode": "decode of",
    "link": "the link",
}


def running(plan: ClusterPlan) -> str:
    """`t = 19,400`, `always local`, `always remote`."""
    if plan.mode == "threshold" and plan.threshold_tokens is not None:
        return f"t = {plan.threshold_tokens:,}"
    return plan.mode.replace("_", " ")


def stage(name: str) -> str:
    kind, _, where = name.partition(":")
    return f"{_STAGES.get(kind, kind)} {where}"


_MOST_NAMED = 4
"""Clusters in a sentence: a fleet of a hundred must not fill the row of its tick."""


def _listed(parts: Iterable[str], between: str = ", ") -> str:
    """The first few parts, and how many more there are."""
    every = list(parts)
    rest = len(every) - _MOST_NAMED
    return between.join(every[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _each(plans: Mapping[str, ClusterPlan]) -> str:
    return _listed(f"{name} {running(plan)}" for name, plan in plans.items())


def plans(before: Mapping[str, ClusterPlan], after: Mapping[str, ClusterPlan]) -> str:
    """`pd t = 19,526, 3/5` of the clusters that differ from `before`, of all where none does."""
    differ = {name: plan for name, plan in after.items() if plan != before.get(name)} or after
    named = (
        f"{name} {running(plan)}, {roles((plan.n_prefill, plan.n_decode))}"
        for name, plan in differ.items()
    )
    return _listed(named, "; ")


def moves(before: Mapping[str, ClusterPlan], after: Mapping[str, ClusterPlan]) -> str:
    return _listed(_move(n, before[n], p) for n, p in after.items() if p != before[n])


def _move(name: str, before: ClusterPlan, after: ClusterPlan) -> str:
    if running(before) == running(after) and before.remote != after.remote:
        return f"{name} {shares(before.remote)} -> {shares(after.remote)}"
    return f"{name} {running(before)} -> {running(after)}"


def shares(remote: Mapping[str, float]) -> str:
    """`east 75%, west 25%`."""
    return ", ".join(f"{name} {share:.0%}" for name, share in sorted(remote.items()))


def held(name: str, plan: ClusterPlan, pin: HeldPlan) -> str:
    return f"{name} runs {running(plan)}: {_pin(pin)}."


def roles_held(name: str, before: ClusterPlan, plan: ClusterPlan, pin: HeldPlan) -> str:
    was, asked = (f"{each.n_prefill}/{each.n_decode}" for each in (before, plan))
    return f"{name} gets roles {asked} for {was}: {_pin(pin)}."


def still_held(name: str, pin: HeldPlan) -> str:
    return f"{name} stays as it is: {_pin(pin)}."


def _pin(pin: HeldPlan) -> str:
    until = _moment(pin.expires_at_s)
    return f"held by {pin.owner} until {until} UTC, {pin.reason or 'no reason given'}"


def frozen(freeze: Freeze) -> str:
    """`freeze black-friday until 2026-12-01 06:00:00 UTC: peak trading`."""
    why = f": {freeze.why}" if freeze.why else ""
    return f"freeze {freeze.name} until {_moment(freeze.until_s)} UTC{why}"


def held_back(freeze: Freeze, message: str) -> str:
    """What a freeze kept from being adopted."""
    return f"Kept back by {frozen(freeze)}. Without it: {message}"


def _moment(at_s: float) -> str:
    # numpy knows UTC, so the core needs no clock module to print a time it was given.
    at_s = int(min(max(at_s, 0.0), _LAST_PRINTABLE_S))
    return str(np.datetime64(at_s, "s")).replace("T", " ")


def link_down(name: str, links: Sequence[LinkView], plan: ClusterPlan) -> str:
    rest = "prefills everything locally"
    if plan.mode != "always_local":
        rest = f"sends to {', '.join(sorted(plan.remote))} only"
    names = ", ".join(view.id for view in links)
    if all(view.maintenance_until_s is not None for view in links):
        return f"Link {names} is in maintenance until {_maintained(links)}: {name} {rest}."
    if all(view.failing for view in links):
        return f"Transfers over link {names} fail: {name} {rest}."
    return f"Link {names} is down: {name} {rest}."


def remote_gone(name: str, gone: Sequence[str], plan: ClusterPlan) -> str:
    rest = "prefills everything locally"
    if plan.mode != "always_local":
        rest = f"sends to {', '.join(sorted(plan.remote))} only"
    return f"{', '.join(gone) or 'No PrfaaS cluster'} serves {name} no more: it {rest}."


def still_down(links: Sequence[LinkView], params: Params) -> str:
    names = ", ".join(view.id for view in links)
    if all(view.maintenance_until_s is not None for view in links):
        until = _maintained(links)
        return f"Link {names} is in maintenance until {until}: everything stays local."
    if all(view.failing for view in links):
        return f"Transfers over link {names} failed: everything stays local until the next probe."
    wait = f"{params.congestion_clear_s:g} s"
    return f"Link {names} is down, or up for less than {wait}: everything stays local."


def _maintained(links: Sequence[LinkView]) -> str:
    """When the first of these links is given back."""
    return f"{_moment(min(view.maintenance_until_s or 0.0 for view in links))} UTC"


def link_back(name: str, links: Iterable[str], plan: ClusterPlan) -> str:
    return f"Link {', '.join(links)} is up again: {name} returns to {running(plan)}."


def bounded(name: str, before: ClusterPlan, after: ClusterPlan, params: Params) -> str:
    return (
        f"{name} {running(before)} -> {running(after)}: the policy allows "
        f"{params.t_min_tokens:,} to {params.t_max_tokens:,} tokens."
    )


def warming_up(name: str, counted: int, needed: int) -> str:
    return f"{name}: warming up {counted} of {needed} requests before the first change."


def optimal(plans: Mapping[str, ClusterPlan], params: Params) -> str:
    return f"{_each(plans)} stays: no threshold gains {params.t_min_gain_ratio:.0%}."


def within_noise(plans: Mapping[str, ClusterPlan]) -> str:
    return f"{_each(plans)} stays: the gain in sight is not clear of sampling noise."


def not_lowered(links: Iterable[str], views: Mapping[str, LinkView], params: Params) -> str:
    names = ", ".join(dict.fromkeys(links))
    return f"t stays: link {names} was congested within the last {params.congestion_clear_s:g} s."


def pending(
    before: Mapping[str, ClusterPlan],
    aimed: Mapping[str, ClusterPlan],
    gain_ratio: float,
    why: str,
) -> str:
    return f"{moves(before, aimed)} would gain {gain_ratio:.0%}; {why}."


def adopted(
    before: Mapping[str, ClusterPlan],
    after: Mapping[str, ClusterPlan],
    aim: Proposal,
    current: Prediction,
    expected: Prediction | None,
) -> str:
    """Raised t of pd from 13,500 to 19,526 because ...: capacity 2.69 -> 3.02 requests/s."""
    moves = _listed((_moved(name, before[name], plan) for name, plan in after.items()), " ")
    best = "" if after == aim.plans else f" on the way to {_each(aim.plans)}"
    capacity = "" if expected is None else f" -> {expected.lambda_max_rps:.2f}"
    return (
        f"{moves}{best}, because {stage(current.bottleneck)} limits: capacity "
        f"{current.lambda_max_rps:.2f}{capacity} requests/s, "
        f"{aim.promised_ratio:+.0%} at the best t."
    )


def roles(of: tuple[int, int]) -> str:
    """`3/5`: prefill / decode."""
    return f"{of[0]}/{of[1]}"


def role_moves(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> str:
    return _listed(f"{n} {roles(before[n])} -> {roles(to)}" for n, to in after.items())


def roles_pending(
    before: Mapping[str, tuple[int, int]],
    after: Mapping[str, tuple[int, int]],
    gain_ratio: float,
    why: str,
) -> str:
    return f"Roles {role_moves(before, after)} would gain {gain_ratio:.0%} or more; {why}."


def roles_adopted(
    before: Mapping[str, tuple[int, int]],
    after: Mapping[str, tuple[int, int]],
    current: Prediction,
    expected: Prediction,
) -> str:
    """Roles pd 6/2 -> 4/4, because decode of pd limits: capacity 1.56 -> 3.12 requests/s."""
    return (
        f"Roles {role_moves(before, after)} (prefill/decode), because "
        f"{stage(current.bottleneck)} limits: capacity at the best t "
        f"{current.lambda_max_rps:.2f} -> {expected.lambda_max_rps:.2f} requests/s."
    )


def below_quorum(name: str, n_read: int, n: int) -> str:
    return f"only {n_read} of the {n} instances of {name} are read"


def left_alone(name: str, why: str) -> str:
    return f"{name} is left as it runs: {why}"


def unsure(remotes: Iterable[str]) -> str:
    names = ", ".join(dict.fromkeys(remotes))
    return f"t is not lowered: what others send to {names} is not known."


def after_state_full(name: str, held: float, expected: float) -> str:
    return (
        f"decode KV of {name} is {held:.0%} full and would be {expected:.0%} with fewer instances"
    )


def few_gates(name: str, n_heard: int, n: int) -> str:
    return f"Only {n_heard} of the {n} gates of {name} are heard: the plan stays."


def no_step(before: Mapping[str, ClusterPlan], aimed: Mapping[str, ClusterPlan]) -> str:
    return f"{moves(before, aimed)} would gain, but no single step towards it does: the plan stays."


def not_as_congestion(links: Iterable[str]) -> str:
    names = ", ".join(dict.fromkeys(links))
    return (
        f"t stays: link {names} is held up by its connections or by bursts, not by what it can "
        "carry, so sending less would not help."
    )


def forbidden(name: str, before: tuple[int, int], after: tuple[int, int], why: str) -> str:
    """`pd: decode limits, which forbids adding prefill`."""
    action = "adding prefill" if after[0] > before[0] else "taking prefill"
    return f"{name}: {why}, which forbids {action}"


def roles_unneeded(name: str, running: ClusterPlan, why: str) -> str:
    wanted = roles((running.n_prefill, running.n_decode))
    return f"The move of {name} to {wanted} is called back: {why}."


def roles_followed(
    name: str, running: ClusterPlan, present: tuple[int, int], change: RoleChange | None
) -> str:
    wanted = roles((running.n_prefill, running.n_decode))
    text = f"Engines of {name} run {roles(present)}, the plan said {wanted}: the plan follows"
    if change is not None and (change.n_prefill, change.n_decode) == (
        running.n_prefill,
        running.n_decode,
    ):
        text += f" (the move {change.state}{': ' + change.why if change.why else ''})"
    return text.rstrip(".") + "."


def floor(name: str, present: tuple[int, int], wanted: tuple[int, int], cluster: Cluster) -> str:
    return (
        f"Roles {name} {roles(present)} -> {roles(wanted)}: at least {cluster.min_prefill} must "
        f"prefill and {cluster.min_decode} decode."
    )


def cache_mode(name: str, mode: str, why: str) -> str:
    return f"Caches of {name} are judged {_CACHES[mode]}: {why}."


def number(value: int | tuple[int, int] | None) -> str:
    """`none`, `12`, `15,600..24,375`."""
    if isinstance(value, tuple):
        return f"{value[0]:,}..{value[1]:,}"
    return "none" if value is None else f"{value:,}"


def probed(name: str, links: Iterable[str], *, over: bool) -> str:
    names = ", ".join(links)
    if over:
        return f"Transfers over link {names} succeed again: {name} sends as before."
    return f"A few requests of {name} probe link {names} before it is used in full."


def transport(name: str, sent: Mapping[str, Transport]) -> str:
    """pd sends KV from prfaas over 8 connections paced at 95 Gbps."""
    hints = ", ".join(
        f"from {source} over {hint.connections} connections paced at {hint.pacing_gbps:g} Gbps"
        for source, hint in sent.items()
    )
    return f"KV for {name} should be sent {hints}."


def band(name: str, after: ClusterPlan, why: str) -> str:
    if why:
        return f"Gates of {name} take the side that answers sooner, whatever the length: {why}."
    return f"Queues of {name} are even again: gates choose by waits in {number(after.band)} only."


def policy_changed(name: str, what: Iterable[str]) -> str:
    return f"{name} takes over from the policy: {', '.join(what)}."


def _moved(name: str, before: ClusterPlan, after: ClusterPlan) -> str:
    was, now = before.threshold_tokens, after.threshold_tokens
    if was is None or now is None:
        return f"Changed {name} from {running(before)} to {running(after)}"
    if was == now:
        change = f"from {shares(before.remote)} to {shares(after.remote)}"
        return f"Shared the remote requests of {name} out anew, {change}"
    verb = "Raised" if now > was else "Lowered"
    return f"{verb} t of {name} from {was:,} to {now:,}"
