"""Pages of what the loop did and did not do: the timeline, one decision, one tick."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import Any, Final

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from console import (
    decision_rows,
    figures,
    inputs,
    plans,
    realised,
    rebalances,
    router_rows,
    spells,
    timeline,
    verdicts,
)
from console.context import Span, loop_stale_s, span_of
from console.core_words import reason_help, reason_words
from console.effects import Effect, Effects
from console.opened import opened
from console.roles import readable
from console.spells import Spell
from console.timeline import Cursor, Filters
from routing import delivery, fleets, knobs
from routing.core.reasons import REASONS
from routing.core.scenario.document import Scenario
from routing.models import Decision, Fleet, Hold, Tick

MOST_STEPS: Final = 300
"""Changes of a plan that the strip chart shows."""
MOST_ACTORS: Final = 100
MOST_GATES: Final = 30
MOST_INPUTS: Final = 12
MOST_STAGES: Final = 16
MOST_BOTTLENECKS: Final = 12
"""Of a large fleet a page shows so many; the rest is in the tick's JSON."""
MOST_FOLLOWING: Final = 9
"""Plans after one that are told of beside what came of it."""
MOST_RADIUS: Final = 6
"""Clusters that a blast radius names beside its button."""
MOST_IN_LABEL: Final = 2
_SAYS_WHEN: Final = {
    *("GainPending", "RolesGainPending", "RolesDwell", "Dwell", "RateLimited", "Congestion"),
    *("Held", "LinkDown", "WarmingUp", "AfterStateFull"),
}
"""Reasons that end at a moment; with the others the loop acts as soon as there is something."""
_BY_MODEL: Final = {
    *("PrefillImbalance", "ShareImbalance", "LinkLimit", "LeastRemote", "RoleImbalance"),
    *("GainPending", "RolesGainPending", "Optimal", "WithinNoise", "Dwell", "RolesDwell"),
}
"""Reasons whose sentences go by what the model finds tightest, whatever was measured."""


@readable
def decisions(request: HttpRequest, fleet: str) -> HttpResponse:
    """What the loop did and did not do in the page's range, newest first."""
    found, scenario = opened(request, fleet)
    how = request.GET.get("format")
    if how in ("csv", "json"):
        entries = timeline.every(found, span_of(request, timezone.now()), filters_of(request))
        return decision_rows.stream(entries, how, f"{fleet}-decisions")
    return render(request, "decisions.html", listed(request, found, scenario, timezone.now()))


def listed(request: HttpRequest, fleet: Fleet, scenario: Scenario, now: datetime) -> dict[str, Any]:
    """Everything the timeline shows."""
    span, filters = span_of(request, now), filters_of(request)
    cursor = Cursor.parse(request.GET.get("before", ""))
    page = timeline.page(fleet, span, filters, cursor)
    clusters = [cluster.name for cluster in scenario.clusters if cluster.kind == "pd"]
    charted = filters.cluster if filters.cluster in clusters else next(iter(clusters), "")
    steps, began = steps_of(fleet, span, charted)
    return {
        "fleet": fleet,
        "span": span,
        "filters": filters,
        "days": _days(page.entries, span if cursor is None else None, now),
        "older": page.older,
        "is_older": cursor is not None,
        "kinds": [(kind, _kind_words(kind)) for kind in timeline.KINDS],
        "reasons": sorted(REASONS),
        "clusters": clusters,
        "actors": _actors(fleet),
        "charted": charted,
        "began": began,
        "page_data": {"strip": strip(fleet, charted, span, steps, began)},
        "last_tick": None if page.entries else fleets.newest_tick(fleet),
    }


def filters_of(request: HttpRequest) -> Filters:
    """The filters in the address; a kind that is none counts as not given."""
    asked = {name: request.GET.get(name, "") for name in ("reason", "cluster", "actor")}
    kind = request.GET.get("kind", "")
    kind = {"adopted": "pushed"}.get(kind, kind)
    return Filters(
        kind=kind if kind in timeline.KINDS else "", text=request.GET.get("q", "").strip(), **asked
    )


def _kind_words(kind: str) -> str:
    return {
        "pushed": _("pushed"),
        "advised": _("advised only"),
        "refused": _("refused: no gate could run it"),
        "reverted": _("put back to an earlier plan"),
        "held": _("kept: nothing changed"),
    }[kind]


def _actors(fleet: Fleet) -> list[str]:
    owners = Hold.objects.filter(fleet=fleet).order_by("owner").values_list("owner", flat=True)
    return [timeline.LOOP, *owners.distinct()[:MOST_ACTORS]]


def rows(found: list[Decision]) -> list[dict[str, Any]]:
    """Decisions of `timeline.listed` as lists show them."""
    counts = delivery.counts(found)
    return [verdicts.decision_row(decision, counts[decision.pk]) for decision in found]


def _days(
    entries: list[Decision | Spell], newest_of: Span | None, now: datetime
) -> list[tuple[date, list[dict[str, Any]]]]:
    """Entries by the reader's day. `newest_of`: they are the newest of this range."""
    made = iter(rows([entry for entry in entries if isinstance(entry, Decision)]))
    is_live = newest_of is not None and not newest_of.is_pinned
    every = [
        {"spell": spell_row(entry, now, is_live=is_live), "at": entry.since}
        if isinstance(entry, Spell)
        else {**(row := next(made)), "at": row["decision"].created_at}
        for entry in entries
    ]
    zone = timezone.get_current_timezone()
    return [
        (day, list(group))
        for day, group in groupby(every, lambda row: row["at"].astimezone(zone).date())
    ]


def spell_row(spell: Spell, now: datetime, *, is_live: bool) -> dict[str, Any]:
    """A run of ticks that held, as lists show it. `goes_on`: it is what the loop says now."""
    tick_s = settings.ENV["CONSOLE_TICK_S"]
    goes_on = (
        is_live and spell.is_last and (now - spell.last_at).total_seconds() <= loop_stale_s(tick_s)
    )
    next_at_s = spell.next_action_at_s
    waits = spell.reason in _SAYS_WHEN and next_at_s is not None
    return {
        "seq": spell.seq,
        "reason": spell.reason,
        "help": reason_help(spell.reason),
        "message": spell.message,
        "who": timeline.who(spell.reason, spell.message),
        "since": spell.since,
        "is_cut": spell.is_cut,
        "span_s": round((spell.last_at - spell.since).total_seconds() + tick_s),
        "goes_on": goes_on,
        "next_at_s": next_at_s if goes_on and waits else None,
    }


def _pushed(fleet: Fleet) -> QuerySet[Decision]:
    return Decision.objects.filter(fleet=fleet, version__isnull=False)


def steps_of(fleet: Fleet, span: Span, cluster: str) -> tuple[list[Any], Any]:
    """Plans pushed in a range, the newest `MOST_STEPS` of them in their order, and the one that was
    in force as it began; None where that is not known. Of each only what it asked of a cluster is
    read, as `there`: a large fleet's plans are long."""
    newest_first = (
        _pushed(fleet)
        .annotate(there=timeline.cluster_of("plan", cluster))
        .only("version", "reason", "created_at")
        .order_by("-created_at", "-id")
    )
    made = list(
        newest_first.filter(created_at__gte=span.since, created_at__lt=span.until)[: MOST_STEPS + 1]
    )
    if len(made) > MOST_STEPS:
        return made[MOST_STEPS - 1 :: -1], None
    return made[::-1], newest_first.filter(created_at__lt=span.since).first()


def strip(fleet: Fleet, cluster: str, span: Span, steps: list[Any], began: Any) -> dict[str, Any]:
    """Columns of t and roles of one cluster as plans asked for them, and marks of decisions."""
    begins_s = span.since.timestamp()
    shown = steps if began is None else [began, *steps]
    there = [row.there or {} for row in shown]
    return {
        "cluster": cluster,
        "since_s": begins_s,
        "until_s": span.until.timestamp(),
        "at_s": [max(row.created_at.timestamp(), begins_s) for row in shown],
        "t_tokens": [plan.get("threshold_tokens") for plan in there],
        "n_prefill": [plan.get("n_prefill") for plan in there],
        "n_decode": [plan.get("n_decode") for plan in there],
        "marks": [
            {
                "at_s": row.created_at.timestamp(),
                "text": f"v{row.version} {reason_words(row.reason)}",
                "href": reverse("decision", args=[fleet.pk, row.pk]),
            }
            for row in steps
        ],
        "is_cut": len(steps) == MOST_STEPS,
    }


@readable
def decision(request: HttpRequest, fleet: str, decision_id: int) -> HttpResponse:
    """One decision: what, why, on which inputs, how far it got, what came of it."""
    found, scenario = opened(request, fleet)
    rows = timeline.listed(found).select_related(
        "tick", "fleet__policy", "effect_check__hold", "effect_check"
    )
    row = get_object_or_404(rows, pk=decision_id)
    now = timezone.now()
    around = _around(row)
    summary = delivery.summaries([row])[row.pk]
    deliveries = verdicts.delivery_rows(
        row, summary, newest=around.superseded is None and row.version is not None, now=now
    )
    if len(deliveries) > MOST_GATES:  # of many, those with something to tell
        deliveries.sort(key=lambda sent: sent["mark"].tone == "good")
    moved, n_moved = rebalances.of_decision(row)
    changes = plans.by_cluster(plans.plan_changes(row.previous, row.plan))
    context = {
        "fleet": found,
        "decision": row,
        "row": verdicts.decision_row(row, summary),
        "changes": [one for one in changes if one.changed],
        "same": [one for one in changes if not one.changed],
        "deliveries": deliveries[:MOST_GATES],
        "n_more_deliveries": len(deliveries[MOST_GATES:]),
        "superseded": around.superseded,
        "previous": around.previous if row.version else None,
        "running": around.running,
        "effect": router_rows.effect_of(row),
        "moved": moved,
        "n_more_moved": n_moved - len(moved),
        "buttons": _buttons(row, around, len(deliveries)),
        **_realised(row, around.following, now),
        **_verdict_context(row.fleet, scenario, row.tick),
    }
    return render(request, "decision.html", context)


@dataclass(frozen=True)
class _Around:
    """Plans pushed before and after a decision, and the one that is in force now."""

    previous: Decision | None
    following: list[Decision]
    running: Decision | None

    @property
    def superseded(self) -> Decision | None:
        return self.following[0] if self.following else None


def _around(row: Decision) -> _Around:
    pushed = _pushed(row.fleet)
    later = pushed.filter(created_at__gt=row.created_at).order_by("created_at")
    earlier = pushed.filter(created_at__lt=row.created_at).order_by("-created_at")
    newest = pushed.filter(epoch=row.fleet.epoch).order_by("-version")
    found = list(later[:MOST_FOLLOWING].union(earlier[:1], newest[:1], all=True))
    return _Around(
        next((one for one in found if one.created_at < row.created_at), None),
        sorted(
            {one.pk: one for one in found if one.created_at > row.created_at}.values(),
            key=lambda one: one.created_at,
        )[:MOST_FOLLOWING],
        max(
            (one for one in found if one.epoch == row.fleet.epoch),
            key=lambda one: one.version,
            default=None,
        ),
    )


def _realised(row: Decision, following: list[Decision], now: datetime) -> dict[str, Any]:
    """What came of it; of a plan that nobody ran there is nothing to compare."""
    predicted = row.tick and (row.tick.verdict.get("adopted") or row.tick.verdict.get("current"))
    if not predicted or row.version is None:
        return {}
    seen = realised.seen_after(row)
    looks = realised.marks(row, seen, following, now)
    bands = realised.bands(predicted, row.tick)
    return {
        "looks": looks,
        "outcome": realised.table(predicted, bands, looks),
        "meanwhile": realised.meanwhile(row, following, looks),
        "page_data": {"realised": realised.charts(row, predicted, bands, seen)},
    }


def _buttons(row: Decision, around: _Around, n_gates: int) -> list[dict[str, Any]]:
    """What can be done about it, each with what that would change."""
    if row.version is None:
        return []
    running = around.running
    runs = running.plan["clusters"] if running else {}
    found = [
        {
            "to": row,
            "label": f"{set_label(runs, row)}…",
            "effects": radius(runs, row.plan["clusters"], n_gates),
        }
    ]
    before = around.previous
    if before is not None:
        # Plans that followed are in force by now: going back behind an old one undoes them as well.
        text = _("%(what)s (before this decision)…") if around.superseded else _("%(what)s (undo)…")
        label = text % {"what": set_label(runs, before)}
        effects = radius(runs, before.plan["clusters"], n_gates)
        found.insert(0, {"to": before, "label": label, "effects": effects})
    return found


def set_label(runs: dict[str, Any], to: Decision) -> str:
    """What holding an earlier plan would do to what runs: `set t from 9,800 to 6,100 tokens, as in
    v3`."""
    wanted = to.plan["clusters"]
    moves = plans.set_words(runs, wanted)
    said = {"version": to.version, "moves": _first_of(moves, MOST_IN_LABEL)}
    if moves:
        return _("Set %(moves)s, as in v%(version)d") % said
    if len(wanted) == 1:
        said["plan"] = plans.cluster_words(next(iter(wanted.values())))
        return _("Hold %(plan)s, as in v%(version)d: it runs now") % said
    return _("Hold t of every cluster, as in v%(version)d: it runs now") % said


def radius(runs: dict[str, Any], wanted: dict[str, Any], n_gates: int) -> Effects:
    """What holding `wanted` would move, from what is known without asking the model."""
    moves, apart, banded = [], [], []
    for cluster, plan in wanted.items():
        before = runs.get(cluster)
        if plans.cluster_words(before) != plans.cluster_words(plan):
            words = f"{cluster} {plans.cluster_words(before)} → {plans.cluster_words(plan)}"
            moves.append(words)
        if before is not None and plans.roles(before) != plans.roles(plan):
            apart.append(f"{cluster} {plans.roles(before)}")
        if before is not None and plans.band_words(before):
            banded.append(f"{cluster} {plans.band_words(before)}")
    gates = _("%(n)d gates") % {"n": n_gates} if n_gates != 1 else _("1 gate")
    items = [
        Effect.changes(
            _("%(moves)s, on %(gates)s with the next tick.")
            % {"moves": _first_of(moves), "gates": gates}
        )
        if moves
        else Effect.goes_on(_("t and mode as they run now."))
    ]
    if banded:
        words = _("t alone decides while it is held; the band ends: %(bands)s.")
        items.append(Effect.changes(words % {"bands": _first_of(banded)}))
    if apart:
        words = _("roles stay %(roles)s.") % {"roles": _first_of(apart)}
        items.append(Effect("warn", "warn", _("Not part of it:"), words))
    items.append(Effect.stops(_("deciding for %(n)d clusters until the hold ends.")
                              % {"n": len(wanted)}
                              if len(wanted) != 1
                              else _("deciding for %(name)s until the hold ends.")
                              % {"name": next(iter(wanted))}))  # fmt: skip
    return Effects(tuple(items))


def _first_of(words: list[str], most: int = MOST_RADIUS) -> str:
    rest = len(words) - most
    more = _(" and %(n)d more") % {"n": rest} if rest > 0 else ""
    return ", ".join(words[:most]) + more


@readable
def tick(request: HttpRequest, fleet: str, seq: int) -> HttpResponse:
    """One pass of the loop that may have changed nothing: the same page as a decision."""
    found, scenario = opened(request, fleet)
    row = get_object_or_404(Tick, fleet=found, seq=seq)
    made = Decision.objects.filter(tick=row).first()
    if made is not None:
        return redirect("decision", fleet, made.pk)
    around = Tick.objects.filter(fleet=found)
    [spell] = spells.held(
        found.pk,
        since=row.at - timedelta(hours=24),
        until=row.at + timedelta(microseconds=1),
        before=row.at,
        including=True,
        limit=1,
    ) or [None]
    context = {
        "fleet": found,
        "spell": spell if row.action == "hold" else None,
        "wanted": wanted(row),
        "waits": waits(row),
        "says_when": row.reason in _SAYS_WHEN,
        "earlier": around.filter(seq__lt=seq).order_by("-seq").values("seq").first(),
        "later": around.filter(seq__gt=seq).order_by("seq").values("seq").first(),
        **_verdict_context(found, scenario, row),
    }
    return render(request, "tick.html", context)


def wanted(row: Tick) -> dict[str, Any] | None:
    """What a pass that held would have done and gain; None where it wanted nothing else."""
    verdict = row.verdict
    best, current = verdict.get("best"), verdict.get("current")
    aimed = verdict.get("best_plan") or {}
    runs = verdict["plan"]["clusters"]
    known = [name for name in aimed if name in runs]
    now = {"clusters": {name: _aimed_at(runs[name], runs[name]) for name in known}}
    there = {"clusters": {name: _aimed_at(runs[name], aimed[name]) for name in known}}
    parts = plans.headline(now, there) if known else []
    if not parts or not best:
        return None
    gain = verdicts.gain_ratio(current and current["headroom"], best["headroom"])
    return {
        "parts": parts,
        "gain": figures.change(gain) if gain is not None else "",
        "headroom": best["headroom"],
    }


def _aimed_at(running: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """A cluster's plan as far as the model chooses it: the rest follows the plan that runs."""
    chosen = {key: plan[key] for key in ("mode", "threshold_tokens", "n_prefill", "n_decode")}
    return {**running, **chosen, "band": None}


def waits(row: Tick) -> list[dict[str, Any]]:
    """The dampers that were not over then, the longest first."""
    return [
        {
            **wait,
            "what": wait["what"].replace("->", " → "),
            "help": reason_help(wait["reason"]),
            "left_s": wait["until_s"] - row.at.timestamp(),
        }
        # A tick of an earlier release tells of none.
        for wait in row.verdict.get("waits", [])
    ]


def _verdict_context(fleet: Fleet, scenario: Scenario, row: Tick | None) -> dict[str, Any]:
    if row is None:
        return {"tick": None}
    verdict = row.verdict
    limits = knobs.effective(fleet.policy.knobs)
    seen = inputs.groups(
        row.observed,
        fleets.memory_after(row).links,
        inputs.Evidence(fleet.pk, row.at),
        stale_after_s=limits["stale_after_s"],
        configured_gbps={link.id: link.gbps for link in scenario.links},
    )
    # Of many, those with something to tell.
    if len(seen) > MOST_INPUTS:
        seen.sort(key=inputs.is_plain)
    limiting = sorted(verdicts.bottlenecks(verdict), key=lambda found: not found["measured"])
    binds = verdicts.binds(verdict)
    return {
        "tick": row,
        "verdict": verdict,
        "inputs": seen[:MOST_INPUTS],
        "n_more_inputs": len(seen[MOST_INPUTS:]),
        "stale_after_s": limits["stale_after_s"],
        "binds": {**binds, "stages": binds["stages"][:MOST_STAGES]},
        "n_more_stages": len(binds["stages"][MOST_STAGES:]),
        "alternatives": verdicts.alternatives(verdict),
        "bottlenecks": limiting[:MOST_BOTTLENECKS],
        "otherwise": next(
            (one for one in limiting if one["by_model"] and row.reason in _BY_MODEL), None
        ),
        "n_more_bottlenecks": len(limiting[MOST_BOTTLENECKS:]),
        "warnings": verdict.get("warnings", [])[:MOST_BOTTLENECKS],
        "clamps": verdict.get("clamps", [])[:MOST_STAGES],
        "reason_help": reason_help(row.reason),
    }
