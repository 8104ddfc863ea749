"""What every plan carries along with t and roles: cache mode, moves, band, limits, transport.

The paper lets caches be judged together where bandwidth is abundant and separately where it is
scarce, and does not say when one turns into the other. Here, per PD cluster, under policy `auto`:

* moving D cached tokens from A to B has to take at most `WORTH` of the time that B's instances
  would compute them in, at the bandwidth that is certainly free while the mode is abundant:

      rtt + 8 S_kv(D) / (1 - scarce_above_ratio) capacity
          <= WORTH * D * (least seconds per token of B's profile)

  The least such D is the link's entry in `moves`; a link too slow for any D has none.
* `abundant` begins when every link into the cluster has been below `abundant_below_ratio` of its
  capacity for `congestion_clear_s`, `cache_dwell_s` after it was last scarce, and gates saw at
  least `LEAST_MOVABLE` of prompt tokens cached on the other side only. It ends, in the same tick,
  when a link passes `scarce_above_ratio`, is congested, down or probed; a link that is not read
  changes nothing.

While the breaker of a link is half open its clusters send little over it (`probe`).

Transport hints (`transport`) join whatever plan is made. They are a plan of their own only where
those that run have become wrong by more than `_ALIKE`, or would cure what a link has, and never
within `congestion_clear_s` of congestion: t moves then, and takes them along.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from routing.core import probe, relief, words
from routing.core.model.kvcache import bytes_per_s
from routing.core.scenario.document import Link
from routing.core.situation import Situation
from routing.core.types import CacheMode, ClusterPlan, Memory, Transport, Verdict

WORTH = 0.5
LEAST_MOVABLE = 0.01
MOST_TOKENS = 1_048_576
_ALIKE = 1.25
"""`moves` and transport hints this close to what runs are not worth a plan of their own."""
_FINAL = ("FloorRestored", "Paused", "RateLimited")


def with_carried(s: Situation, verdict: Verdict) -> Verdict:
    """The verdict with what its plan has to carry; a hold becomes a change where that differs."""
    cached, memory = _cache_modes(s, verdict.memory)
    verdict = dataclasses.replace(verdict, memory=memory)
    if verdict.reason in _FINAL:
        return verdict
    changed: dict[str, ClusterPlan] = {}
    said: list[tuple[str, str]] = []
    adopting = verdict.action == "adopt"
    for name, plan in verdict.plan.clusters.items():
        if name not in s.clusters or name in s.pins:
            continue
        after, sentences = _carrying(s, name, plan, cached[name], adopting=adopting)
        if after != plan:
            changed[name] = after
            said += sentences
    # Alone it is worth a plan, not a piece of advice.
    if not changed or (verdict.action == "hold" and s.params.mode == "advisory"):
        return verdict
    text = " ".join(sentence for _, sentence in said)
    if verdict.action == "adopt":
        clusters = {**verdict.plan.clusters, **changed}
        plan_after = dataclasses.replace(verdict.plan, clusters=clusters)
        message = f"{verdict.message} {text}".rstrip()
        return dataclasses.replace(verdict, plan=plan_after, message=message)
    if (wait := s.too_soon()) is not None:
        text = f"{text} Waiting: {wait[0]}."
        waiting = s.hold("RateLimited", text, next_at_s=wait[1])
        return _still_weighed(dataclasses.replace(waiting, memory=memory), verdict)
    adopted = s.adopt(changed, said[0][0], text)
    kept = dataclasses.replace(
        adopted.memory,
        gain_since_s=memory.gain_since_s,
        roles_gain_since_s=memory.roles_gain_since_s,
        spare_since_s=memory.spare_since_s,
        scarce_at_s=memory.scarce_at_s,
    )
    return _still_weighed(dataclasses.replace(adopted, memory=kept), verdict)


def _still_weighed(verdict: Verdict, held: Verdict) -> Verdict:
    """`verdict` in place of a hold, with what that had weighed and what had limited it."""
    return dataclasses.replace(
        verdict,
        best=held.best,
        best_plan=held.best_plan,
        clamps=held.clamps,
        alternatives=held.alternatives,
    )


def _carrying(
    s: Situation, name: str, plan: ClusterPlan, cached: tuple[CacheMode, str], *, adopting: bool
) -> tuple[ClusterPlan, list[tuple[str, str]]]:
    """(the cluster's plan with what it has to carry, a reason and a sentence for each change)."""
    mode, why = cached
    band, relief_why = relief.band(s, name, plan)
    moves = _moves(s, name) if mode == "abundant" else {}
    after = dataclasses.replace(
        plan,
        cache_mode=mode,
        moves=plan.moves if _alike(plan.moves, moves) else moves,
        band=band,
        max_remote_in_flight=probe.in_flight(s, name, plan),
        remote=probe.remote(s, name, plan),
    )
    sent, worth = _transport(s, name, plan)
    if worth or adopting or after != plan:
        after = dataclasses.replace(after, transport=sent)
    said = []
    if (after.cache_mode, after.moves) != (plan.cache_mode, plan.moves):
        reason = "CacheAbundant" if mode == "abundant" else "CacheScarce"
        said.append((reason, words.cache_mode(name, mode, why)))
    probed, passed = probe.probed(s, name), probe.passed(s, name)
    limited = after.max_remote_in_flight != plan.max_remote_in_flight
    if (probed or passed) and (limited or after.remote != plan.remote):
        said.append(("LinkBack", words.probed(name, probed or passed, over=not probed)))
    everything = relief.every_length(s.params)
    if after.band != plan.band and everything in (after.band, plan.band):
        said.append(("QueuesApart", words.band(name, after, relief_why)))
    differing = () if said and said[-1][0] == "QueuesApart" else ("band",)
    fields = differing if probed or passed else (*differing, "max_remote_in_flight")
    policy = _differing(plan, after, fields)
    if policy and not adopting:
        said.append(("PolicyChanged", words.policy_changed(name, policy)))
    if worth:
        said.append(("TransportChanged", words.transport(name, sent)))
    return after, said


def _cache_modes(s: Situation, memory: Memory) -> tuple[dict[str, tuple[CacheMode, str]], Memory]:
    """The mode of each cluster with a reason in words, and what to remember of the links' room."""
    modes: dict[str, tuple[CacheMode, str]] = {}
    spare, scarce = {}, dict(memory.scarce_at_s)
    for name, plan in s.clusters.items():
        room, why = _room(s, name)
        if room == "spare":
            spare[name] = memory.spare_since_s.get(name, s.now_s)
        elif room == "none" and plan.cache_mode == "abundant":
            scarce[name] = s.now_s
        policy = s.params.cache_mode
        if policy != "auto":
            modes[name] = (policy, f"the policy says {policy}")
        elif plan.cache_mode == "abundant":
            modes[name] = ("scarce" if room == "none" else "abundant", why)
        elif _may_begin(s, name, spare.get(name), scarce.get(name)):
            ratio = s.observation.pd[name].movable_ratio or 0.0
            text = f"{why} and {ratio:.0%} of prompt tokens are cached on the other side only"
            modes[name] = ("abundant", text)
        else:
            modes[name] = ("scarce", why)
    return modes, dataclasses.replace(memory, spare_since_s=spare, scarce_at_s=scarce)


def _may_begin(
    s: Situation, name: str, spare_since_s: float | None, scarce_at_s: float | None
) -> bool:
    if spare_since_s is None or s.now_s - spare_since_s < s.params.congestion_clear_s:
        return False
    if scarce_at_s is not None and 0.0 <= s.now_s - scarce_at_s < s.params.cache_dwell_s:
        return False
    movable = s.observation.pd[name].movable_ratio
    return movable is not None and movable >= LEAST_MOVABLE and bool(_moves(s, name))


def _room(s: Situation, name: str) -> tuple[str, str]:
    """`spare`, `some` or `none`, of the fullest link into the cluster, and why in words."""
    links = s.links_into(name)
    if not links:
        return "none", "no link leads here"
    fullest, fullest_id = 0.0, links[0].id
    unread: list[str] = []
    for link in links:
        view, seen = s.links[link.id], s.observation.links.get(link.id)
        if view.down or view.congested or view.probing:
            state = "down" if view.down else "congested" if view.congested else "being probed"
            return "none", f"link {link.id} is {state}"
        if not view.known:
            unread.append(link.id)
            continue
        used = 0.0 if seen is None or seen.tx_gbps is None else seen.tx_gbps
        ratio = used / view.capacity_gbps if view.capacity_gbps > 0 else math.inf
        if ratio >= fullest:
            fullest, fullest_id = ratio, link.id
    why = f"link {fullest_id} is {fullest:.0%} full"
    if fullest > s.params.scarce_above_ratio:
        return "none", why
    if unread:
        return "some", f"link {unread[0]} is not read"
    return ("spare" if fullest < s.params.abundant_below_ratio else "some"), why


def _moves(s: Situation, name: str) -> dict[str, int]:
    """The fewest tokens worth moving, per link between the cluster and its PrfaaS clusters."""
    sources = {link.source for link in s.links_into(name)}
    found = {}
    for link in s.scenario.links:
        here = (link.target == name and link.source in sources) or (
            link.source == name and link.target in sources
        )
        view = s.links.get(link.id)
        if here and view is not None and not view.down and not view.probing:
            least = fewest_tokens(s, link, view.capacity_gbps)
            if least is not None:
                found[link.id] = least
    return found


def fewest_tokens(s: Situation, link: Link, capacity_gbps: float) -> int | None:
    """The least prefix whose transfer takes at most `WORTH` of its recomputation; None: no prefix.

    Two significant digits, rounded up, so that it stands still while capacity trembles.
    """
    target = s.scenario.cluster(link.target)
    assert target is not None, "a parsed scenario has no link without a target"
    least_s = s.scenario.profiles[target.profile].prefill.least_s_per_token
    rate = bytes_per_s(capacity_gbps) * (1.0 - s.params.scarce_above_ratio)
    if rate <= 0:
        return None
    size = s.scenario.model.curve
    ends = (*size.breaks, float(MOST_TOKENS))
    begins = (0.0, *size.breaks)
    # What a move saves grows with D and its bytes only ever flatten, so the first D that pays is
    # the least one: sought piece by piece, between the lengths at which a window is full.
    for begin, end, fixed, linear in zip(begins, ends, size.constant, size.linear, strict=True):
        per_token_s = WORTH * least_s - linear / rate
        if per_token_s <= 0:
            continue
        tokens = max(((link.rtt_s or 0.0) + fixed / rate) / per_token_s, begin)
        if tokens <= end:
            digit = 10 ** max(math.floor(math.log10(max(tokens, 1.0))) - 1, 0)
            return int(max(math.ceil(tokens / digit) * digit, 1))
    return None


def _transport(s: Situation, name: str, plan: ClusterPlan) -> tuple[dict[str, Transport], bool]:
    """(the hints per remote, whether they are worth a plan of their own)."""
    sent: dict[str, Transport] = {}
    worth = False
    for link in s.links_up(name):
        view, running = s.links[link.id], plan.transport.get(link.source)
        wanted = view.transport
        if wanted is None:
            continue
        alike = running is not None and all(
            1 / _ALIKE <= after / before <= _ALIKE
            for before, after in (
                (running.connections, wanted.connections),
                (running.pacing_gbps, wanted.pacing_gbps),
            )
        )
        sent[link.source] = running if running is not None and alike else wanted
        # While congestion comes and goes t moves anyway, and takes the hints along.
        cleared_s = view.memory.cleared_at_s
        calm = not view.congested and (
            cleared_s is None or s.now_s - cleared_s >= s.params.congestion_clear_s
        )
        own = (running is not None and calm) or view.wants_transport
        worth = worth or (not alike and own)
    # A remote that is gone for the moment keeps its hint: it is not used, and needs no plan.
    return {**plan.transport, **sent}, worth


def _alike(running: dict[str, int], wanted: dict[str, int]) -> bool:
    return running.keys() == wanted.keys() and all(
        1 / _ALIKE <= wanted[link] / max(running[link], 1) <= _ALIKE for link in wanted
    )


def _differing(before: ClusterPlan, after: ClusterPlan, fields: Iterable[str]) -> list[str]:
    return [
        f"{field} {words.number(getattr(before, field))} -> {words.number(getattr(after, field))}"
        for field in fields
        if getattr(before, field) != getattr(after, field)
    ]
