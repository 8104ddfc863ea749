"""Which side prefills one request: the routing rule, pure.

Remote iff uncached > t, where uncached = l_total - l_pd counts only what the *local* side holds
(cache mode `scarce`: the caches are judged separately, nothing moves). All lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from routing.gate import reasons

Side = Literal["local", "remote"]
Mode = Literal["always_local", "always_remote", "threshold"]


@dataclass(frozen=True)
class Rule:
    """What the plan asks of this gate's cluster.

    `threshold_tokens` is None unless mode is `threshold`; 0 is a threshold like any other and sends
    every request with at least one uncached token remote. `remote` maps PrfaaS cluster to weight.
    `max_remote_in_flight` None means no limit; 0 means none may be in flight.
    """

    mode: Mode
    threshold_tokens: int | None
    remote: Mapping[str, float]
    max_remote_in_flight: int | None = None

    def __str__(self) -> str:
        """As a log line says it."""
        words: str = self.mode
        if self.threshold_tokens is not None:
            words += f" {self.threshold_tokens} tokens"
        shares = ", ".join(f"{name} {weight:g}" for name, weight in self.remote.items())
        words += f", remote {shares or 'nobody'}"
        if self.max_remote_in_flight is not None:
            words += f", at most {self.max_remote_in_flight} in flight"
        return words


@dataclass(frozen=True)
class Situation:
    """What the gate sees at this moment.

    `uncached_local_tokens` is None when the prompt could not be measured. `remotes` are the names
    with an upstream and weight in the plan; `admissible` those of them that may take a request now.
    """

    uncached_local_tokens: int | None
    remotes: Collection[str]
    admissible: Collection[str]
    remote_in_flight: int
    local_up: bool


@dataclass(frozen=True)
class Route:
    """The side and why."""

    side: Side
    reason: str


def route(rule: Rule | None, situation: Situation) -> Route:
    """The side for one request; `rule` is None while the gate never had a plan."""
    wanted = _wanted(rule, situation.uncached_local_tokens)
    if rule is None:
        return wanted
    obstacle = _obstacle(rule, situation)
    if wanted.side == "remote":
        return wanted if obstacle is None else Route("local", obstacle)
    # Under always_local the link itself may be what is broken: only a threshold is overruled.
    if rule.mode == "threshold" and not situation.local_up and obstacle is None:
        return Route("remote", reasons.LOCAL_DOWN)
    return wanted


def _wanted(rule: Rule | None, uncached_local_tokens: int | None) -> Route:
    """What the plan asks for, whatever the state of the upstreams."""
    if rule is None:
        return Route("local", reasons.NO_PLAN)
    if rule.mode == "always_local":
        return Route("local", reasons.ALWAYS_LOCAL)
    if rule.mode == "always_remote":
        return Route("remote", reasons.ALWAYS_REMOTE)
    if rule.threshold_tokens is None:
        raise ValueError("mode threshold needs threshold_tokens; null is not 0")
    if uncached_local_tokens is None:
        return Route("local", reasons.UNMEASURED)
    if uncached_local_tokens > rule.threshold_tokens:
        return Route("remote", reasons.LONG)
    return Route("local", reasons.SHORT)


def _obstacle(rule: Rule, situation: Situation) -> str | None:
    """Why no request may go remote now, or None."""
    if not situation.remotes:
        return reasons.NO_REMOTE
    if not situation.admissible:
        return reasons.REMOTE_DOWN
    limit = rule.max_remote_in_flight
    if limit is not None and situation.remote_in_flight >= limit:
        return reasons.REMOTE_LIMIT
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
