"""Why a request runs where it runs, step by step, and what either side takes for it, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from console import figures
from routing.core.placement import sides
from routing.core.placement.estimate import Estimate
from routing.core.placement.explain import LongerPrefix, Moment, Placement, Request, Shipment
from routing.core.placement.rule import Side
from routing.core.types import ClusterPlan


@dataclass(frozen=True)
class Step:
    """One line of the arithmetic; `decides`: this is what the side follows from."""

    name: str
    sum: str
    note: str
    decides: bool = False


@dataclass(frozen=True)
class CostRow:
    """One line of the comparison; `titles` hold the exact numbers."""

    name: str
    local: str
    remote: str
    titles: tuple[str, str] = ("", "")


def steps(
    found: Placement,
    request: Request,
    plan: ClusterPlan | None,
    moment: Moment,
    *,
    cluster: str,
) -> list[Step]:
    """The rule as it was gone through."""
    if plan is None:
        return [Step("Plan", "none", sides.REASONS[found.reason], decides=True)]
    return [
        _uncached(found, request, plan, cluster),
        _threshold(found, plan),
        _band(found, plan, moment),
        _prefix(found),
        _limit(found, plan, moment),
        *_up(found, moment),
    ]


def _uncached(found: Placement, request: Request, plan: ClusterPlan, cluster: str) -> Step:
    place = cluster if found.holder == "local" else str(found.remote)
    held = request.cached_tokens[found.holder]
    note = (
        "Caches are judged separately: the plan's cache mode is scarce."
        if plan.cache_mode == "scarce"
        else "Cache mode abundant: a longer prefix elsewhere counts if the plan moves it."
    )
    sum_ = f"{request.total_tokens:,} − {held:,} held at {place} = {found.uncached_tokens:,} tok"
    return Step("Uncached", sum_, note)


def _threshold(found: Placement, plan: ClusterPlan) -> Step:
    if plan.threshold_tokens is None:
        mode = plan.mode.replace("_", " ")
        return Step("Mode", mode, "t is not asked.", found.decided_by == "mode")
    above = found.uncached_tokens > plan.threshold_tokens
    sum_ = f"{found.uncached_tokens:,} {'>' if above else '≤'} {plan.threshold_tokens:,} tok"
    note = "Above t: remote." if above else "At or below t: local."
    if found.decided_by != "threshold_tokens":
        note = f"By t alone it would run {'remote' if above else 'local'}."
    return Step("Against t", sum_, note, found.decided_by == "threshold_tokens")


def _band(found: Placement, plan: ClusterPlan, moment: Moment) -> Step:
    if plan.band is None or plan.band[0] == plan.band[1]:
        return Step("Band", "none", "t decides alone.")
    low, high = plan.band
    span = f"{low:,} to {high:,} tok"
    if not low < found.uncached_tokens <= high:
        return Step("Band", span, "Outside: t decides.")
    if found.decided_by == "band":
        waits = " against ".join(
            f"{figures.duration(moment.waits_s[side])} {side}" for side in ("local", "remote")
        )
        return Step("Band", span, f"Inside: the shorter expected wait decides, {waits}.", True)
    return Step("Band", span, "Inside, but no side's expected wait is shorter or known: t decides.")


def _prefix(found: Placement) -> Step:
    longer = found.longer_prefix
    if longer is None:
        return Step("Prefix", "none to move", "Neither side holds more than the other can use.")
    sum_ = f"{longer.tokens:,} tok more over {longer.link.replace('->', ' → ')}"
    return Step("Prefix", sum_, _moved(longer))


def _moved(longer: LongerPrefix) -> str:
    verb = "It moves first" if longer.moved else f"It stays: {longer.why}"
    if longer.transfer_s is None or longer.recompute_s is None:
        return f"{verb}."
    move, compute = (figures.duration(s) for s in (longer.transfer_s, longer.recompute_s))
    return f"{verb}. {move} to move, {compute} to compute."


def _limit(found: Placement, plan: ClusterPlan, moment: Moment) -> Step:
    limit = plan.max_remote_in_flight
    if limit is None:
        return Step("In flight", "no limit", "Any number may run remote at a time.")
    sum_ = f"{moment.remote_in_flight:,} of at most {limit:,} at this gate"
    stops = found.decided_by == "max_remote_in_flight"
    note = "The limit is reached: it stays local." if stops else "Room for this one, if it goes."
    return Step("In flight", sum_, note, stops)


def _up(found: Placement, moment: Moment) -> list[Step]:
    if found.decided_by in ("remote_down", "local_down", "remote"):
        return [Step("Upstreams", found.reason, sides.REASONS[found.reason], decides=True)]
    down = [] if moment.local_up else ["local"]
    down += [] if moment.admissible is None else ["remote"]
    if not down:
        return []
    return [Step("Upstreams", f"{' and '.join(down)} down", "It changes nothing here.")]


def cost_rows(estimates: Mapping[Side, Estimate | None]) -> list[CostRow]:
    """What each side takes; a side that cannot have the request has dashes."""
    pair = (estimates["local"], estimates["remote"])
    tokens = [None if one is None else one.compute_tokens for one in pair]
    prefixes = [None if one is None else one.prefix for one in pair]
    kv = [None if one is None else one.kv for one in pair]
    rows = [
        _row("To prefill", tokens, figures.tokens),
        _row("Prefill", [None if one is None else one.compute_s for one in pair]),
    ]
    if any(prefixes):
        rows.append(_shipped("Prefix moved first", pair, prefixes))
    if any(kv):
        rows.append(_shipped("KV over the link, meanwhile", pair, kv))
    rows.append(_row("To the first token", [None if one is None else one.ttft_s for one in pair]))
    return rows


def _row(
    name: str,
    values: Sequence[float | None],
    write: Callable[[float | None], str] = figures.duration,
) -> CostRow:
    local, remote = values
    titles = (figures.exact(local), figures.exact(remote))
    return CostRow(name, write(local), write(remote), titles)


def _shipped(
    name: str, pair: Sequence[Estimate | None], values: Sequence[Shipment | None]
) -> CostRow:
    local, remote = (
        figures.NONE if one is None else _shipment(sent)
        for one, sent in zip(pair, values, strict=True)
    )
    first, second = ("" if sent is None else f"{sent.tokens:,} tokens" for sent in values)
    return CostRow(name, local, remote, (first, second))


def _shipment(sent: Shipment | None) -> str:
    if sent is None:
        return "none"
    seconds = "unknown time" if sent.seconds is None else figures.duration(sent.seconds)
    return f"{seconds}, {figures.size(sent.bytes)}"
