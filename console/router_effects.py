"""Blast radius of what is done about one router, said before it is confirmed."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from django.utils.translation import gettext as _

from console import figures
from console.effects import Effect, Effects
from console.plans import cluster_words
from routing import fleets, managed, managed_steps
from routing.models import ManagedRouter, RouterState


def of_adopt(row: ManagedRouter) -> Effects:
    """What becomes desired; nothing is told to anybody."""
    desired, seen = row.desired or {}, (row.observed or {}).get("workers", {})
    items = [
        Effect.changes(_("it %(words)s: that is desired from now on.") % {"words": one.words})
        for one in managed_steps.differences(desired, seen, moving=())
    ]
    items += [
        Effect.goes_on(_("routing: neither the router nor an engine is told anything.")),
        *_others(row),
        Effect.undo(
            _("the list desired before stands in the audit; nothing puts it back by itself.")
        ),
    ]
    return Effects(tuple(items))


def of_override(row: ManagedRouter) -> Effects:
    """Each step on the router, what requests notice, and what is left in each role after it."""
    planned = managed.preview(row)
    if isinstance(planned, str):
        return Effects((Effect("bad", "bad", _("Not possible:"), f"{planned}."),))
    seen = (row.observed or {}).get("workers", {})
    items = []
    for step in planned:
        n = seen.get(step.url, {}).get("requests")
        told = _("the router is told to %(words)s.")
        if n is not None:
            told = _("the router is told to %(words)s (%(n)s requests on it now).")
        items.append(Effect.changes(told % {"words": step.words, "n": n}))
    after = {url: entry for url, entry in seen.items() if entry["status"] == "ready"}
    for step in planned:
        if step.role is None:
            after.pop(step.url, None)
        else:
            after[step.url] = {"role": step.role, "status": "ready"}
    counts = Counter(entry["role"] for entry in after.values())
    drain = {
        "until_idle": _("requests under way finish where they are."),
        "fixed": _("requests under way on an instance that is taken out are cut after a while."),
        "none": _("what becomes of requests on an instance that is taken out is not known."),
    }[(row.capabilities or {}).get("drain", "none")]
    items += [
        Effect.goes_on(
            _("%(prefill)s prefill and %(decode)s decode instances are ready.")
            % {"prefill": counts["prefill"], "decode": counts["decode"]}
        ),
        Effect.goes_on(drain),
        *_others(row),
        Effect(
            "", "warn", _("Watch:"), _("whoever changed it may change it again; that shows here.")
        ),
        Effect.undo(_("stop it between two steps, or adopt what is there.")),
    ]
    return Effects(tuple(items))


def _others(row: ManagedRouter) -> list[Effect]:
    others = ManagedRouter.objects.filter(fleet_id=row.fleet_id, cluster=row.cluster)
    names = [other.name for other in others.exclude(pk=row.pk).order_by("name")]
    if not names:
        return []
    return [
        Effect.goes_on(
            _("%(names)s: other routers of %(cluster)s are not touched.")
            % {"names": ", ".join(names), "cluster": row.cluster}
        )
    ]


def of_cancel(row: ManagedRouter) -> Effects:
    return Effects(
        (
            Effect(
                "bad", "bad", _("Stops:"), _("telling %(name)s anything more.") % {"name": row.name}
            ),
            Effect.goes_on(_("what was done stays; what still differs is shown as drift.")),
            Effect.undo(_("override it again.")),
        )
    )


def of_on_drift(row: ManagedRouter, wanted: str) -> Effects:
    if wanted == "show":
        return Effects(
            (
                Effect.changes(
                    _("drift is shown, and left until a person adopts or overrides it.")
                ),
                Effect.goes_on(_("reading it each cycle.")),
                Effect.undo(_("choose to put drift back again.")),
            )
        )
    minutes = managed.OVERRIDES_WITHIN_S / 60
    return Effects(
        (
            Effect.changes(
                _(
                    "whatever anybody changes on %(name)s is put back within a "
                    "cycle, at most %(MOST_OVERRIDES)s times in %(minutes)s "
                    "minutes."
                )
                % {
                    "name": row.name,
                    "MOST_OVERRIDES": managed.MOST_OVERRIDES,
                    "minutes": f"{minutes:.0f}",
                }
            ),
            Effect.goes_on(
                _("floors and the number of instances are kept; moves of roles are left alone.")
            ),
            Effect.undo(_("choose only to show drift again.")),
        )
    )


def of_gate_adopt(state: RouterState) -> Effects:
    """One gate's rule becomes its cluster's hold."""
    found = state.override
    until = datetime.fromtimestamp(found["until_s"], UTC)
    running = fleets.newest_adopted(state.fleet)
    before = cluster_words(running.plan["clusters"].get(state.cluster)) if running else _("no plan")
    return Effects(
        (
            Effect.changes(
                _(
                    "every gate of %(cluster)s goes from %(before)s to %(found)s "
                    "with the next tick, not this one alone."
                )
                % {"cluster": state.cluster, "before": before, "found": cluster_words(found)}
            ),
            Effect(
                "bad",
                "bad",
                _("Stops:"),
                _("deciding for %(cluster)s until %(until)s.")
                % {"cluster": state.cluster, "until": figures.stamp(until)},
            ),
            Effect.goes_on(_("the loop says what it would choose, as advice.")),
            Effect.undo(_("release the hold from the fleet page.")),
        )
    )


def of_gate_release(state: RouterState) -> Effects:
    running = fleets.newest_adopted(state.fleet)
    plan = cluster_words(running.plan["clusters"].get(state.cluster)) if running else _("no plan")
    return Effects(
        (
            Effect.changes(
                _(
                    "this gate goes from %(override)s to the plan (%(plan)s) as "
                    "soon as it hears of it."
                )
                % {"override": cluster_words(state.override), "plan": plan}
            ),
            Effect.goes_on(_("all other gates: they run the plan already.")),
            Effect.undo(_("set the override on the gate again.")),
        )
    )
