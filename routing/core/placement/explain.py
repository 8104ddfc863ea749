"""Where one request would run under a plan, and why: the routing rule with its numbers.

The answer is that of `placement.judge` and `placement.route`, which gates run. Around it stands
what it rests on and what follows: tokens and bytes over each link, and what the other side's longer
prefix would take to move against what it would take to compute,

    transfer_s = rtt + S_kv(D) / bytes_per_s       recompute_s = T(L, C) - T(L - D, C + D)

with D the tokens the target lacks, L what it has to compute without them behind the C it holds, and
T(uncached, cached) its prefill time. Like `placement` this imports no numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from routing.core.placement import sides
from routing.core.placement.rule import (
    Judged,
    Prefixes,
    Route,
    Rule,
    Side,
    Situation,
    WeightedTurns,
    judge,
    route,
)
from routing.core.types import ClusterPlan

DECIDED_BY = {
    sides.NO_PLAN: "no_plan",
    sides.ALWAYS_LOCAL: "mode",
    sides.ALWAYS_REMOTE: "mode",
    sides.SHORT: "threshold_tokens",
    sides.LONG: "threshold_tokens",
    sides.BAND_LOCAL: "band",
    sides.BAND_REMOTE: "band",
    sides.UNMEASURED: "length",
    sides.NO_REMOTE: "remote",
    sides.REMOTE_DOWN: "remote_down",
    sides.REMOTE_LIMIT: "max_remote_in_flight",
    sides.LOCAL_DOWN: "local_down",
}
"""What of the plan, or of the moment, decided: by reason."""


class RequestError(ValueError):
    """A request that cannot be: which field, what stood there, why not."""

    def __init__(self, field: str, value: int | None, message: str) -> None:
        super().__init__(f"{field} = {value}: {message}")
        self.field, self.value, self.message = field, value, message


@dataclass(frozen=True)
class Request:
    """A prompt of `total_tokens`, of which each side's cache holds the first `cached_tokens`.

    Raises RequestError.
    """

    total_tokens: int
    cached_tokens: Mapping[Side, int]

    def __post_init__(self) -> None:
        if self.total_tokens < 0:
            raise RequestError("total_tokens", self.total_tokens, "must not be negative")
        for side in ("local", "remote"):
            held = self.cached_tokens.get(side)
            if held is None or not 0 <= held <= self.total_tokens:
                message = f"must be in 0..{self.total_tokens}, the prompt's tokens"
                raise RequestError(f"cached_tokens.{side}", held, message)


@dataclass(frozen=True)
class Moment:
    """What besides the plan decides. As it stands: everything is up, nothing is in flight.

    `admissible` are the remotes that may take a request now, None all that the plan names;
    `waits_s` the expected seconds to the first byte on each side, which only the band asks for.
    """

    admissible: Collection[str] | None = None
    remote_in_flight: int = 0
    local_up: bool = True
    waits_s: Mapping[Side, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Path:
    """What a link gives to one transfer."""

    bytes_per_s: float
    rtt_s: float = 0.0

    def seconds(self, size_bytes: float) -> float | None:
        """To bring that many bytes across; None over a link that carries nothing."""
        return self.rtt_s + size_bytes / self.bytes_per_s if self.bytes_per_s > 0.0 else None


@dataclass(frozen=True)
class Costs:
    """What moving and computing cost. What is not known is left out, and stays None in the answer.

    `kv_bytes` sizes the KV of so many tokens, `prefill_s` is by cluster the seconds for so many
    uncached and cached tokens on one of its instances, `paths` holds the links by id.
    """

    kv_bytes: Callable[[int], float] | None = None
    prefill_s: Mapping[str, Callable[[int, int], float]] = field(default_factory=dict)
    paths: Mapping[str, Path] = field(default_factory=dict)

    def seconds(self, place: str | None, tokens: int, cached_tokens: int) -> float | None:
        """To prefill `tokens` behind `cached_tokens` at `place`; None where nobody knows."""
        prefill_s = self.prefill_s.get(place) if place is not None else None
        return prefill_s(tokens, cached_tokens) if prefill_s is not None else None


NOW = Moment()
UNPRICED = Costs()


@dataclass(frozen=True)
class Shipment:
    """`tokens` of KV that cross `link`: a moved `prefix`, or the `kv` of a remote prefill (layer by
    layer while it runs). None: the size or the link is not known."""

    link: str
    what: Literal["prefix", "kv"]
    tokens: int
    bytes: float | None
    seconds: float | None


@dataclass(frozen=True)
class LongerPrefix:
    """What one side's cache holds beyond the other's, and whether it is moved `to` that side.

    `least_tokens` is what the plan moves at least over the link, None where it moves nothing.
    """

    link: str
    to: Side
    tokens: int
    least_tokens: int | None
    moved: bool
    why: str
    transfer_s: float | None
    recompute_s: float | None


@dataclass(frozen=True)
class Placement:
    """Where a request runs. `remote` is the PrfaaS cluster that would take it, or was compared.

    `uncached_tokens` is what was compared with t, `holder` the side whose prefix counted in it;
    `compute_tokens` and `compute_s` are what each side would have left to prefill, and how long one
    of its instances takes for it. `decided_by` names the field of the plan, or what else decided.
    """

    side: Side
    reason: str
    sentence: str
    decided_by: str
    remote: str | None
    uncached_tokens: int
    threshold_tokens: int | None
    holder: Side
    compute_tokens: Mapping[Side, int]
    compute_s: Mapping[Side, float | None]
    shipments: tuple[Shipment, ...]
    longer_prefix: LongerPrefix | None


def explain(
    request: Request,
    plan: ClusterPlan | None,
    *,
    cluster: str,
    moment: Moment = NOW,
    costs: Costs = UNPRICED,
) -> Placement:
    """Where `request` runs when it reaches a gate of `cluster` under `plan` (None: never had one).

    Of several remotes it is the next in turn of a gate that has sent none yet: the heaviest.
    """
    rule = None if plan is None else Rule.of(plan)
    weights = {name: w for name, w in (rule.remote if rule else {}).items() if w > 0.0}
    admissible = [n for n in weights if moment.admissible is None or n in moment.admissible]
    candidate = WeightedTurns().next(weights, admissible)
    remote = candidate or next(iter(weights), None)
    to_local = f"{remote}->{cluster}"
    local_held, remote_held = request.cached_tokens["local"], request.cached_tokens["remote"]
    may_move = candidate is not None
    held = Prefixes(
        total=request.total_tokens,
        local=local_held,
        remote=remote_held,
        movable_local=local_held if may_move and moment.local_up else 0,
        movable_remote=remote_held if may_move else 0,
    )
    judged = judge(rule, held, to_local=to_local, to_remote=f"{cluster}->{remote}")
    chosen = route(
        rule,
        Situation(
            judged=judged,
            remotes=weights,
            admissible=admissible,
            remote_in_flight=moment.remote_in_flight,
            local_up=moment.local_up,
            waits_s=moment.waits_s,
        ),
    )
    compute_tokens = _compute_tokens(held, judged, chosen)
    places: dict[Side, str | None] = {"local": cluster, "remote": remote}
    longer = _longer_prefix(rule, held, chosen, costs, places)
    shipments = []
    if longer is not None and longer.moved:
        shipments.append(_shipment(longer.link, "prefix", longer.tokens, costs))
    if chosen.side == "remote" and (missing := held.total - held.local) > 0:
        # What the decode side lacks: the prefilled part, and what the remote's cache held of it.
        shipments.append(_shipment(to_local, "kv", missing, costs))
    return Placement(
        side=chosen.side,
        reason=chosen.reason,
        sentence=_sentence(rule, judged, chosen, longer, remote, moment),
        decided_by=DECIDED_BY[chosen.reason],
        remote=remote,
        uncached_tokens=judged.uncached_tokens,
        threshold_tokens=rule.threshold_tokens if rule else None,
        holder=judged.holder,
        compute_tokens=compute_tokens,
        compute_s={
            side: costs.seconds(places[side], tokens, held.total - tokens)
            for side, tokens in compute_tokens.items()
        },
        shipments=tuple(shipments),
        longer_prefix=longer,
    )


def _compute_tokens(held: Prefixes, judged: Judged, chosen: Route) -> dict[Side, int]:
    """What each side has left to prefill. A prefix that counted but stays where it is (the mode is
    always_local) is computed after all."""
    left = dict(judged.compute_tokens)
    if chosen.link is None and judged.mover == chosen.side:
        left[chosen.side] = held.total - (held.local if chosen.side == "local" else held.remote)
    return left


def _longer_prefix(
    rule: Rule | None,
    held: Prefixes,
    chosen: Route,
    costs: Costs,
    places: Mapping[Side, str | None],
) -> LongerPrefix | None:
    source: Side
    to: Side
    source, to = ("remote", "local") if held.movable_remote > held.local else ("local", "remote")
    link = f"{places[source]}->{places[to]}"
    there = held.local if to == "local" else held.remote
    tokens = (held.movable_remote if to == "local" else held.movable_local) - there
    if tokens <= 0:
        return None
    left = held.total - there
    without_s = costs.seconds(places[to], left, there)
    with_s = costs.seconds(places[to], left - tokens, there + tokens)
    moved = chosen.link == link
    return LongerPrefix(
        link=link,
        to=to,
        tokens=tokens,
        least_tokens=rule.moves.get(link) if rule else None,
        moved=moved,
        why="it is moved there before the prefill" if moved else _why_not(rule, chosen, to, link),
        transfer_s=_shipment(link, "prefix", tokens, costs).seconds,
        recompute_s=None if without_s is None or with_s is None else without_s - with_s,
    )


def _why_not(rule: Rule | None, chosen: Route, to: Side, link: str) -> str:
    if chosen.side != to:
        return f"the prefill is {chosen.side}, where it is"
    if rule is None or rule.mode == "always_local":
        return "nothing is asked of the link"
    if rule.cache_mode == "scarce":
        return "caches are judged separately while bandwidth is scarce"
    if link not in rule.moves:
        return f"the plan moves nothing over {link}"
    return f"the plan moves {rule.moves[link]:,} tokens or more over {link}"


def _shipment(link: str, what: Literal["prefix", "kv"], tokens: int, costs: Costs) -> Shipment:
    size = costs.kv_bytes(tokens) if costs.kv_bytes else None
    path = costs.paths.get(link)
    seconds = None if size is None or path is None else path.seconds(size)
    return Shipment(link, what, tokens, size, seconds)


def _sentence(
    rule: Rule | None,
    judged: Judged,
    chosen: Route,
    longer: LongerPrefix | None,
    remote: str | None,
    moment: Moment,
) -> str:
    said = sides.REASONS[chosen.reason]
    tokens = f"{judged.uncached_tokens:,} uncached tokens"
    if judged.holder == "remote":
        tokens += f", with what {remote} holds,"
    if rule is not None and chosen.reason == sides.SHORT:
        said = f"Local: {tokens} are at or below the threshold of {rule.threshold_tokens:,}."
    elif rule is not None and chosen.reason == sides.LONG:
        said = (
            f"Remote, at {remote}: {tokens} are above the threshold of {rule.threshold_tokens:,}."
        )
    elif rule is not None and rule.band is not None and DECIDED_BY[chosen.reason] == "band":
        waits = " against ".join(f"{moment.waits_s[s]:.3g} s {s}" for s in ("local", "remote"))
        said = (
            f"{chosen.side.capitalize()}: {tokens} are inside the band of {rule.band[0]:,} to "
            f"{rule.band[1]:,}, and the expected wait is {waits}."
        )
    if longer is not None and longer.moved:
        said += f" {longer.tokens:,} tokens of prefix come over {longer.link} first."
    return said
