"""Freezes, change windows and maintenance in the words of pages. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console.context import BAD, GOOD, OFF, WARN, Mark
from console.effects import Effect, Effects
from routing.jobs.when import DAYS
from routing.windows import maintenance
from routing.windows.document import ALL, Of, WindowDocument
from routing.windows.frozen import Frozen, following
from routing.windows.models import Maintenance, Window
from routing.windows.spans import Span, Weekly

OF_WORDS = {
    "plans": (
        _lazy("Plans of the loop"),
        _lazy("It goes on deciding, and says what it would push."),
    ),
    "roles": (_lazy("Moves of roles"), _lazy("By the loop, by people and by jobs.")),
    "people": (
        _lazy("What people ask for"),
        _lazy("Policy, holds, roles, breakers and routers; by hand, by script or by a job."),
    ),
}
_KIND_WORDS = {
    "freeze": _lazy("freeze"),
    "changes": _lazy("change window"),
}


def states(frozen: dict[Of, Frozen]) -> list[dict[str, Any]]:
    """Of each kind of change whether it is allowed now."""
    return [
        {
            "label": OF_WORDS[of][0],
            "help": OF_WORDS[of][1],
            "frozen": frozen.get(of),
            "mark": Mark(*WARN, _("frozen")) if of in frozen else Mark(*GOOD, _("may change")),
        }
        for of in ALL
    ]


def window_row(row: Window, document: WindowDocument | None, now: datetime) -> dict[str, Any]:
    """One freeze or change window as the list shows it."""
    shown: dict[str, Any] = {"window": row, "of": [], "when": "", "kind": "", "next": None}
    if document is None:
        return shown | {"mark": Mark(*BAD, _("cannot be read"))}
    spans = following(document, now, 1) if row.enabled else []
    return shown | {
        "kind": _KIND_WORDS[document.kind],
        "of": [_("everything")] if document.of == ALL else [OF_WORDS[of][0] for of in document.of],
        "when": when_words(document),
        "reason": document.reason,
        "next": _both(spans[0], document) if spans else None,
        "mark": _window_mark(row, document, spans, now),
    }


def _window_mark(row: Window, document: WindowDocument, spans: list[Span], now: datetime) -> Mark:
    if not row.enabled:
        return Mark(*OFF, _("switched off"))
    if not spans:
        return Mark(*OFF, _("over"))
    within = spans[0].holds(now)
    if document.kind == "freeze":
        return Mark(*WARN, _("in force")) if within else Mark("info", "wait", _("to come"))
    return Mark(*GOOD, _("open")) if within else Mark(*WARN, _("closed"))


def when_words(document: WindowDocument) -> str:
    """`mon, tue 08:00-18:00 Europe/Paris`, or that it comes once."""
    when = document.when
    if isinstance(when, Weekly):
        days = ", ".join(DAYS[day] for day in sorted(when.days))
        return f"{days} {when.begin:%H:%M}–{when.end:%H:%M} {when.zone.key}"
    return _("once")


def _both(span: Span, document: WindowDocument) -> dict[str, Any]:
    """A span by the window's own clock, and as itself."""
    zone = document.when.zone
    begin, end = span.begin.astimezone(zone), span.end.astimezone(zone)
    short = "%H:%M" if begin.date() == end.date() else "%F %H:%M"
    return {
        "begin": span.begin,
        "end": span.end,
        "local": f"{begin:%a %F %H:%M} – {end.strftime(short)} {zone.key}",
    }


def trial_words(document: WindowDocument, now: datetime, n: int = 3) -> str:
    """What a document would mean, before it is kept."""
    spans = following(document, now, n)
    if not spans:
        return _("All of it is over: it would forbid nothing.")
    listed = "; ".join(_both(span, document)["local"] for span in spans)
    if document.kind == "freeze":
        return _("It would forbid changes: %(spans)s.") % {"spans": listed}
    return _("It would allow changes only then: %(spans)s.") % {"spans": listed}


def maintenance_row(row: Maintenance, now: datetime) -> dict[str, Any]:
    """One maintenance as lists show it."""
    state = maintenance.state_of(row, now)
    marks = {
        "planned": Mark("info", "wait", _("planned")),
        "now": Mark(*WARN, _("under way")),
        "over": Mark(*OFF, _("over")),
    }
    return {"row": row, "what": what_words(row), "state": state, "mark": marks[state]}


def what_words(row: Maintenance) -> str:
    """`link prfaas → pd`, `cluster pd`."""
    if row.link:
        return _("link %(name)s") % {"name": row.link.replace("->", " → ")}
    return _("cluster %(name)s") % {"name": row.cluster}


def of_maintenance(what: str, *, is_remote: bool, is_link: bool, mode: str) -> Effects:
    """What maintenance takes away, and that it is given back by itself."""
    if is_link:
        traffic = _("its breaker is held open, and nothing is sent over it.")
    elif is_remote:
        traffic = _("no prefill is sent to it: PD clusters use their other links, or none.")
    else:
        traffic = _("everything of it is prefilled locally, and the loop moves no roles there.")
    items = [
        Effect.stops(f"{what}: {traffic}" if what else traffic),
        Effect.stops(_("telling people of its alerts; incidents are recorded and shown.")),
        Effect.goes_on(_("requests that run: only new ones go elsewhere.")),
        Effect.undo(_("at its end by itself, with a probe first; it can be ended or extended.")),
    ]
    if mode != "active":
        text = _("nothing about traffic while the fleet is %(mode)s: no plan is pushed.")
        items.insert(0, Effect.changes(text % {"mode": mode}))
    return Effects(tuple(items))


def of_override(frozen: dict[Of, Frozen]) -> Effects:
    """What overriding lets one person do."""
    said = {each.text for each in frozen.values()}
    return Effects(
        (
            *(Effect.goes_on(text) for text in sorted(said)),
            Effect.changes(
                _("you alone may change what is frozen here, for as long as you say below.")
            ),
            Effect.goes_on(_("the loop stays frozen: its own plans wait until the end.")),
            Effect.undo(_("it ends by itself; the audit keeps it, and all that you change.")),
        )
    )


def budget(changes_s: tuple[float, ...], limit: int, kept: int) -> dict[str, Any]:
    """How many plans the loop may push within the hour, of those the last ones for failures."""
    used = len(changes_s)
    return {
        "used": used,
        "limit": limit,
        "left": max(limit - kept - used, 0),
        "kept": min(kept, max(limit - used, 0)),
    }
