"""Which side prefills one request, and why: the routing rule, pure. All lengths in tokens.

Remote iff uncached > t. In cache mode `scarce` the caches are judged separately and nothing moves:

    uncached = l_total - l_pd

In `abundant` the other side's longer prefix counts as well if the plan says that moving so much of
it is worth the link, and is then moved to where the compute runs:

    uncached = l_total - max(l_pd, l_prfaas)

Inside the plan's band around t the side with the smaller expected wait is taken instead. (The two
rules are those of arXiv:2604.15039, prefix-cache affinity; band and `moves` are ours.)

Gates route by this module and `explain.py` explains by it, so that they cannot disagree. It imports
no numpy: a gate installs without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from routing.core.placement import sides
from routing.core.types import CacheMode, ClusterPlan, Mode

Side = Literal["local", "remote"]


@dataclass(frozen=True)
class Rule:
    """What the plan asks of this gate's cluster.

    `threshold_tokens` is None unless mode is `threshold`; 0 is a threshold like any other and sends
    every request with at least one uncached token remote. `remote` maps PrfaaS cluster to weight.
    `max_remote_in_flight` None means no limit; 0 means none may be in flight. `moves` maps a
    directed link `"A->B"` to the fewest tokens worth moving over it; an absent link moves nothing.
    `band` is (t_low, t_high) around t; None is [t, t], which holds nothing.
    """

    mode: Mode
    threshold_tokens: int | None
    remote: Mapping[str, float]
    max_remote_in_flight: int | None = None
    cache_mode: CacheMode = "scarce"
    moves: Mapping[str, int] = field(default_factory=dict)
    band: tuple[int, int] | None = None

    @classmethod
    def of(cls, plan: ClusterPlan) -> Rule:
        """The rule in a plan's entry for the cluster."""
        return cls(
            plan.mode,
            plan.threshold_tokens,
            plan.remote,
            max_remote_in_flight=plan.max_remote_in_flight,
            cache_mode=plan.cache_mode,
            moves=plan.moves,
            band=plan.band,
        )

    def in_band(self, uncached_tokens: int) -> bool:
        """Whether the expected wait decides, not t."""
        return self.band is not None and self.band[0] < uncached_tokens <= self.band[1]

    def __str__(self) -> str:
        """As a log line says it."""
        words: str = self.mode
        if self.threshold_tokens is not None:
            words += f" {self.threshold_tokens} tokens"
        if self.band is not None and self.band[0] < self.band[1]:
            words += f" in the band {self.band[0]}..{self.band[1]}"
        shares = ", ".join(f"{name} {weight:g}" for name, weight in self.remote.items())
        words += f", remote {shares or 'nobody'}"
        if self.max_remote_in_flight is not None:
            words += f", at most {self.max_remote_in_flight} in flight"
        words += f", caches {self.cache_mode}"
        if self.cache_mode == "abundant":
            worth = ", ".join(f"{link} from {least}" for link, least in self.moves.items())
            words += f", moving {worth or 'nothing'}"
        return words


@dataclass(frozen=True)
class Prefixes:
    """A prompt of `total` tokens and what each side holds of it.

    `movable_local`, `movable_remote`: how much of it that side could send to the other now; 0 while
    the side is not well or its prefill still runs.
    """

    total: int
    local: int
    remote: int
    movable_local: int = 0
    movable_remote: int = 0


@dataclass(frozen=True)
class Judged:
    """`uncached_tokens` is what is compared with t, `holder` whose prefix counted in it.

    `link` is the way of the prefix that is worth moving, if one is, and `mover` the side that needs
    it: should the other side compute, nothing moves. `compute_tokens` is what each side would have
    left to compute after that.
    """

    uncached_tokens: int
    holder: Side
    compute_tokens: Mapping[Side, int]
    mover: Side | None = None
    link: str | None = None


def judge(rule: Rule | None, prefixes: Prefixes, *, to_local: str, to_remote: str) -> Judged:
    """What counts as cached; `to_local` and `to_remote` are the two links between the sides."""
    held = prefixes
    left: dict[Side, int] = {"local": held.total - held.local, "remote": held.total - held.remote}
    if rule is None or rule.cache_mode == "scarce":
        return Judged(left["local"], "local", left)
    if _is_worth(rule, to_local, held.movable_remote - held.local):
        left["local"] = held.total - held.movable_remote
        return Judged(left["local"], "remote", left, "local", to_local)
    if _is_worth(rule, to_remote, held.movable_local - held.remote):
        left["remote"] = held.total - held.movable_local
        return Judged(left["local"], "local", left, "remote", to_remote)
    return Judged(left["local"], "local", left)


def _is_worth(rule: Rule, link: str, gain_tokens: int) -> bool:
    least = rule.moves.get(link)
    return least is not None and gain_tokens > 0 and gain_tokens >= least


@dataclass(frozen=True)
class Situation:
    """What the gate sees at this moment.

    `judged` is None when the prompt could not be measured. `remotes` are the names with an upstream
    and weight in the plan; `admissible` those of them that may take a request now. `waits_s` is the
    expected time to the first byte on each side, None where nothing was measured; only a request in
    the band needs it.
    """

    judged: Judged | None
    remotes: Collection[str]
    admissible: Collection[str]
    remote_in_flight: int
    local_up: bool
    waits_s: Mapping[Side, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """The side and why; `link` is where a prefix is moved over before that side computes."""

    side: Side
    reason: str
    link: str | None = None


def route(rule: Rule | None, situation: Situation) -> Route:
    """The side for one request; `rule` is None while the gate never had a plan."""
    chosen = _choose(rule, situation)
    judged = situation.judged
    # Under always_local the link itself may be what is broken: nothing is asked of it.
    if rule is None or rule.mode == "always_local" or judged is None or judged.link is None:
        return chosen
    return replace(chosen, link=judged.link) if judged.mover == chosen.side else chosen


def _choose(rule: Rule | None, situation: Situation) -> Route:
    wanted = _wanted(rule, situation)
    if rule is None:
        return wanted
    obstacle = _obstacle(rule, situation)
    if wanted.side == "remote":
        return wanted if obstacle is None else Route("local", obstacle)
    # For the same reason only a threshold is overruled.
    if rule.mode == "threshold" and not situation.local_up and obstacle is None:
        return Route("remote", sides.LOCAL_DOWN)
    return wanted


def _wanted(rule: Rule | None, situation: Situation) -> Route:
    """What the plan asks for, whatever the state of the upstreams."""
    if rule is None:
        return Route("local", sides.NO_PLAN)
    if rule.mode == "always_local":
        return Route("local", sides.ALWAYS_LOCAL)
    if rule.mode == "always_remote":
        return Route("remote", sides.ALWAYS_REMOTE)
    if rule.threshold_tokens is None:
        raise ValueError("mode threshold needs threshold_tokens; null is not 0")
    if situation.judged is None:
        return Route("local", sides.UNMEASURED)
    uncached_tokens = situation.judged.uncached_tokens
    if rule.in_band(uncached_tokens):
        local_s, remote_s = situation.waits_s.get("local"), situation.waits_s.get("remote")
        if local_s is not None and remote_s is not None and local_s != remote_s:
            if local_s < remote_s:
                return Route("local", sides.BAND_LOCAL)
            return Route("remote", sides.BAND_REMOTE)
    if uncached_tokens > rule.threshold_tokens:
        return Route("remote", sides.LONG)
    return Route("local", sides.SHORT)


def _obstacle(rule: Rule, situation: Situation) -> str | None:
    """Why no request may go remote now, or None."""
    if not situation.remotes:
        return sides.NO_REMOTE
    if not situation.admissible:
        return sides.REMOTE_DOWN
    limit = rule.max_remote_in_flight
    if limit is not None and situation.remote_in_flight >= limit:
        return sides.REMOTE_LIMIT
    return None


class WeightedTurns:
    """Shares requests between remotes by weight, evenly spread and without randomness.

    Each turn every candidate earns its weight; the richest is taken and pays the sum of weights.
    Over any run of turns each is within one turn of its exact share.
    """

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def next(self, weights: Mapping[str, float], candidates: Collection[str]) -> str | None:
        """Who would be taken now, or None without a candidate. Takes no turn."""
        return max(
            sorted(candidates),
            key=lambda name: self._credit.get(name, 0.0) + weights[name],
            default=None,
        )

    def take(self, name: str, weights: Mapping[str, float], candidates: Collection[str]) -> None:
        """Books the turn of `name` among `candidates`."""
        # Remotes that left the candidates lose what they were owed: no burst on their return.
        credit = {c: self._credit.get(c, 0.0) + weights[c] for c in candidates}
        credit[name] -= sum(weights[c] for c in candidates)
        self._credit = credit
