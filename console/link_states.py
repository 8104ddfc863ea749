"""Links as the loop judges them: label, signs, what follows, the breaker, and what happened lately.

Labels are those of the newest tick, the same that `GET …/links` gives; figures are the newest
reading's (`sources.links`). What happened is read out of the ticks of the last minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from console import figures, sources
from console.context import BAD, GOOD, OFF, WARN, Mark, loop_stale_s
from routing import fleets
from routing.core.links import breaker
from routing.core.links.state import ASKS, FORBIDS, IN_MAINTENANCE
from routing.core.scenario.document import Scenario
from routing.core.types import LinkMemory
from routing.models import Action, Fleet, Tick
from telemetry import store

HISTORY: Final = timedelta(minutes=15)
MOST_LOOKS: Final = 20_000
"""Links times ticks that are searched for what happened: a large fleet's past is shorter."""
MOST_EVENTS: Final = 12
MOST_ROWS: Final = 30
_MARKS: Final = {
    "clear": Mark(*GOOD, _("clear")),
    "near_limit": Mark(*WARN, _("near limit")),
    "congested": Mark(*BAD, _("congested")),
    "flow_limited": Mark(*WARN, _("flow-limited")),
    "burst": Mark(*WARN, _("burst")),
    "down": Mark(*BAD, _("down")),
    "unknown": Mark(*WARN, _("unknown")),
}
"""By label; `static/console/links.js` holds the same for live values."""
_BREAKER_MARKS: Final = {
    "closed": Mark(*GOOD, _("closed")),
    "open": Mark(*BAD, _("open")),
    "half_open": Mark(*WARN, _("half open")),
}


@dataclass(frozen=True)
class Event:
    """Something that happened to a link; a changed label has its mark. `seq` is the tick's."""

    at: datetime
    link: str
    text: str
    seq: int | None = None
    mark: Mark | None = None


@dataclass(frozen=True)
class History:
    """`begun`: when each link's label became what it is, of those that changed after `since`."""

    since: datetime | None
    begun: dict[str, datetime]
    events: tuple[Event, ...]


NOTHING: Final = History(None, {}, ())
"""Where nobody looked back."""


def mark(label: str) -> Mark:
    """A label with its tone and icon; one of another release as it is, as a warning."""
    return _MARKS.get(label, Mark(*WARN, label.replace("_", " ")))


def panel(
    fleet: Fleet,
    scenario: Scenario,
    tick: Tick | None,
    now: datetime,
    *,
    readings: Iterable[store.Reading],
    looks_back: bool,
) -> dict[str, Any]:
    """All that the Links panel shows: `rows` in the scenario's order and what happened.

    Of more than MOST_ROWS links it shows so many, those in trouble first, and what happened only if
    it `looks_back`; `n_rows` are all. `judged_at` is the newest tick's time, None before the first;
    `old` says that the loop has been silent since.
    """
    is_large = len(scenario.links) > MOST_ROWS
    is_past_left = is_large and not looks_back
    past = NOTHING if is_past_left else history(fleet, len(scenario.links), now)
    rows = judged(scenario, tick, past, now, readings)
    if is_large:
        rows = sorted(rows, key=lambda row: row["label"] == "clear" and row["breaker"] == "closed")
    return {
        "rows": rows[:MOST_ROWS],
        "n_rows": len(rows),
        "events": past.events[:MOST_EVENTS],
        "n_more": max(0, len(past.events) - MOST_EVENTS),
        "since": past.since,
        "is_past_left": is_past_left,
        "judged_at": tick.at if tick else None,
        "old": is_old(tick, now),
    }


def judged(
    scenario: Scenario,
    tick: Tick | None,
    past: History,
    now: datetime,
    readings: Iterable[store.Reading] | None = None,
) -> list[dict[str, Any]]:
    """Each link's newest reading with what the newest `tick` found, in the scenario's order."""
    memory = fleets.memory_after(tick).links
    old = tick if is_old(tick, now) else None
    return [
        _row(row, memory.get(row["id"]), past, old) | {"memory": memory.get(row["id"])}
        for row in sources.links(scenario, now, readings)
    ]


def is_old(tick: Tick | None, now: datetime) -> bool:
    """Has the loop been silent since this tick, its newest?"""
    if tick is None:
        return False
    return (now - tick.at).total_seconds() > loop_stale_s(settings.ENV["CONSOLE_TICK_S"])


def _row(
    read: dict[str, Any], memory: LinkMemory | None, past: History, old: Tick | None
) -> dict[str, Any]:
    """A link's reading with what the loop found. `old` is the newest tick of a silent loop.

    A reading that is missing, or says that the link is down, is newer than any label.
    """
    is_read = read["mark"].tone == GOOD[0]
    if memory is None:
        state = Mark(*OFF, _("not judged yet")) if is_read else read["mark"]
        return {**read, "state": state, "label": "", "breaker": ""}
    found = mark(memory.label)
    state = found if old is None else Mark(*WARN, _at(found.text, old.at))
    since = _since(memory, past.begun.get(read["id"]))
    return {
        **read,
        "state": state if is_read else read["mark"],
        "shows_label": is_read and old is None,
        "label": memory.label,
        "words": found.text,
        "signs": memory.signs,
        "since": since,
        "longer_than": past.since if since is None else None,
        "asks": ASKS[memory.label],
        "forbids": FORBIDS[memory.label],
        "breaker": memory.breaker,
        "breaker_mark": _BREAKER_MARKS[memory.breaker],
        "breaker_since": _moment(memory.breaker_at_s) if memory.breaker != "closed" else None,
        "probed_at": probed_at(memory),
    }


def _at(words: str, at: datetime) -> str:
    return gettext("%(words)s at %(at)s") % {"words": words, "at": figures.clock(at)}


def _since(memory: LinkMemory, begun: datetime | None) -> datetime | None:
    """Since when the label stands: the loop remembers troubles, the ticks the rest."""
    if memory.label == "down" and memory.trouble != "down":
        return _moment(memory.breaker_at_s)
    if memory.label == memory.trouble:
        return _moment(memory.since_s)
    if memory.label == "flow_limited":
        return _moment(memory.flow_since_s) or begun
    return begun


def probed_at(memory: LinkMemory) -> datetime | None:
    """When an open breaker turns half open by itself; None of one that people hold open."""
    if memory.breaker != "open" or memory.breaker_at_s is None or memory.signs == IN_MAINTENANCE:
        return None
    return _moment(memory.breaker_at_s + breaker.hold_s(memory.n_openings, breaker.HOLD_S))


def _moment(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)


def history(fleet: Fleet, n_links: int, now: datetime, only: str = "") -> History:
    """What changed on the fleet's links lately, or on one of them `only`, newest first.

    An event that goes on, tick after tick, is one: only its numbers differ.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            r"""
            SELECT at, seq, link, label, label IS DISTINCT FROM label_before, signs,
                CASE WHEN shape IS DISTINCT FROM shape_before THEN events END, label_before IS NULL
            FROM (
                SELECT at, seq, link, label, signs, events, shape,
                    lag(label) OVER run AS label_before, lag(shape) OVER run AS shape_before
                FROM (
                    SELECT tick.at, tick.seq, judged.key AS link,
                        coalesce(judged.value ->> 'label', %(unknown)s) AS label,
                        judged.value ->> 'signs' AS signs,
                        (SELECT string_agg(event, '; ')
                         FROM jsonb_array_elements_text(judged.value -> 'events') event) AS events,
                        regexp_replace(judged.value ->> 'events', '[0-9.]+', '#', 'g') AS shape
                    FROM (
                        SELECT at, seq, CASE WHEN %(only)s = ''
                            THEN verdict #> '{memory,links}'
                            ELSE jsonb_build_object(
                                %(only)s::text, verdict #> ARRAY['memory', 'links', %(only)s]
                            ) END AS links
                        FROM routing_tick
                        WHERE fleet_id = %(fleet)s AND at >= %(since)s
                        ORDER BY seq DESC LIMIT %(n_ticks)s
                    ) tick CROSS JOIN LATERAL jsonb_each(tick.links) judged
                    WHERE jsonb_typeof(tick.links) = 'object'
                        AND jsonb_typeof(judged.value) = 'object'
                ) look
                WINDOW run AS (PARTITION BY link ORDER BY seq)
            ) seen
            WHERE label_before IS NULL OR label <> label_before
                OR (events IS NOT NULL AND shape IS DISTINCT FROM shape_before)
            ORDER BY seq DESC
            """,
            {
                "fleet": fleet.pk,
                "only": only,
                "since": now - HISTORY,
                "n_ticks": max(2, MOST_LOOKS // max(n_links, 1)),
                # A memory is stored without what is at its default.
                "unknown": LinkMemory().label,
            },
        )
        looks = cursor.fetchall()
    firsts = [at for at, *_, is_first in looks if is_first]
    if not firsts:
        return NOTHING
    begun: dict[str, datetime] = {}
    events = []
    for at, seq, link, label, changed, signs, happened, is_first in looks:
        if is_first:
            continue
        if changed:
            begun.setdefault(link, at)
        said = "; ".join(text for text in (signs if changed else "", happened) if text)
        events.append(Event(at, link, said, seq, mark(label) if changed else None))
    events += _resets(fleet, min(firsts))
    events.sort(key=lambda event: event.at, reverse=True)
    return History(min(firsts), begun, tuple(events))


def _resets(fleet: Fleet, since: datetime) -> list[Event]:
    """Breakers that people closed."""
    rows = Action.objects.filter(fleet=fleet.pk, verb="breaker.reset", at__gt=since)
    words = _("%(actor)s reset its breaker: %(reason)s")
    return [
        Event(row.at, row.target, words % {"actor": row.actor, "reason": row.reason})
        for row in rows
    ]
