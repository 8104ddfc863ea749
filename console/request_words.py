"""Why a request runs where it runs, step by step, and what either side takes for it, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext as _

from console import figures
from routing.core.placement import sides
from routing.core.placement.estimate import Estimate
from routing.core.placement.explain import LongerPrefix, Moment, Placement, Request, Shipment
from routing.core.placement.rule import Side
from routing.core.types import ClusterPlan


def reason_words(reason: str) -> str:
    """The core's sentence for a reason."""
    return gettext(sides.REASONS[reason])


def sentence(found: Placement) -> str:
    """Why, with its numbers; in other languages without them, as the steps beside it have them."""
    english = get_language() == settings.LANGUAGE_CODE
    return found.sentence if english else reason_words(found.reason)


def side_word(side: str) -> str:
    return _("remote") if side == "remote" else _("local")


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
        return [Step(_("Plan"), _("none"), reason_words(found.reason), decides=True)]
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
        _("Caches are judged separately: the plan's cache mode is scarce.")
        if plan.cache_mode == "scarce"
        else _("Cache mode abundant: a longer prefix elsewhere counts if the plan moves it.")
    )
    sum_ = _("%(total)s − %(held)s held at %(place)s = %(left)s tok") % {
        "total": f"{request.total_tokens:,}",
        "held": f"{held:,}",
        "place": place,
        "left": f"{found.uncached_tokens:,}",
    }
    return Step(_("Uncached"), sum_, note)


def _threshold(found: Placement, plan: ClusterPlan) -> Step:
    if plan.threshold_tokens is None:
        mode = plan.mode.replace("_", " ")
        return Step(_("Mode"), mode, _("t is not asked."), found.decided_by == "mode")
    above = found.uncached_tokens > plan.threshold_tokens
    sum_ = _("%(uncached_tokens)s %(value)s %(threshold_tokens)s tok") % {
        "uncached_tokens": f"{found.uncached_tokens:,}",
        "value": ">" if above else "≤",
        "threshold_tokens": f"{plan.threshold_tokens:,}",
    }
    note = _("Above t: remote.") if above else _("At or below t: local.")
    if found.decided_by != "threshold_tokens":
        note = (
            _("By t alone it would run remote.") if above else _("By t alone it would run local.")
        )
    return Step(_("Against t"), sum_, note, found.decided_by == "threshold_tokens")


def _band(found: Placement, plan: ClusterPlan, moment: Moment) -> Step:
    if plan.band is None or plan.band[0] == plan.band[1]:
        return Step(_("Band"), _("none"), _("t decides alone."))
    low, high = plan.band
    span = _("%(low)s to %(high)s tok") % {"low": f"{low:,}", "high": f"{high:,}"}
    if not low < found.uncached_tokens <= high:
        return Step(_("Band"), span, _("Outside: t decides."))
    if found.decided_by == "band":
        note = _(
            "Inside: the shorter expected wait decides, %(local)s local against %(remote)s remote."
        )
        waits = {side: figures.duration(moment.waits_s[side]) for side in ("local", "remote")}
        return Step(_("Band"), span, note % waits, True)
    return Step(
        _("Band"), span, _("Inside, but no side's expected wait is shorter or known: t decides.")
    )


def _prefix(found: Placement) -> Step:
    longer = found.longer_prefix
    if longer is None:
        return Step(
            _("Prefix"), _("none to move"), _("Neither side holds more than the other can use.")
        )
    sum_ = _("%(tokens)s tok more over %(replace)s") % {
        "tokens": f"{longer.tokens:,}",
        "replace": longer.link.replace("->", " → "),
    }
    return Step(_("Prefix"), sum_, _moved(longer))


def _moved(longer: LongerPrefix) -> str:
    verb = _("It moves first") if longer.moved else _("It stays: %(why)s") % {"why": longer.why}
    if longer.transfer_s is None or longer.recompute_s is None:
        return f"{verb}."
    move, compute = (figures.duration(s) for s in (longer.transfer_s, longer.recompute_s))
    return _("%(verb)s. %(move)s to move, %(compute)s to compute.") % {
        "verb": verb,
        "move": move,
        "compute": compute,
    }


def _limit(found: Placement, plan: ClusterPlan, moment: Moment) -> Step:
    limit = plan.max_remote_in_flight
    if limit is None:
        return Step(_("In flight"), _("no limit"), _("Any number may run remote at a time."))
    sum_ = _("%(remote_in_flight)s of at most %(limit)s at this gate") % {
        "remote_in_flight": f"{moment.remote_in_flight:,}",
        "limit": f"{limit:,}",
    }
    stops = found.decided_by == "max_remote_in_flight"
    note = (
        _("The limit is reached: it stays local.") if stops else _("Room for this one, if it goes.")
    )
    return Step(_("In flight"), sum_, note, stops)


def _up(found: Placement, moment: Moment) -> list[Step]:
    if found.decided_by in ("remote_down", "local_down", "remote"):
        return [Step(_("Upstreams"), found.reason, reason_words(found.reason), decides=True)]
    down = [] if moment.local_up else [_("local")]
    down += [] if moment.admissible is None else [_("remote")]
    if not down:
        return []
    return [
        Step(
            _("Upstreams"),
            _("%(sides)s down") % {"sides": ", ".join(down)},
            _("It changes nothing here."),
        )
    ]


def cost_rows(estimates: Mapping[Side, Estimate | None]) -> list[CostRow]:
    """What each side takes; a side that cannot have the request has dashes."""
    pair = (estimates["local"], estimates["remote"])
    tokens = [None if one is None else one.compute_tokens for one in pair]
    prefixes = [None if one is None else one.prefix for one in pair]
    kv = [None if one is None else one.kv for one in pair]
    rows = [
        _row(_("To prefill"), tokens, figures.tokens),
        _row(_("Prefill"), [None if one is None else one.compute_s for one in pair]),
    ]
    if any(prefixes):
        rows.append(_shipped(_("Prefix moved first"), pair, prefixes))
    if any(kv):
        rows.append(_shipped(_("KV over the link, meanwhile"), pair, kv))
    rows.append(
        _row(_("To the first token"), [None if one is None else one.ttft_s for one in pair])
    )
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
    first, second = (
        "" if sent is None else _("%(tokens)s tokens") % {"tokens": f"{sent.tokens:,}"}
        for sent in values
    )
    return CostRow(name, local, remote, (first, second))


def _shipment(sent: Shipment | None) -> str:
    if sent is None:
        return _("none")
    seconds = _("unknown time") if sent.seconds is None else figures.duration(sent.seconds)
    return f"{seconds}, {figures.size(sent.bytes)}"
