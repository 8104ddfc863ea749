"""Links as the loop judges them: label, signs, what follows, the breaker, and what happened lately.

Labels are those of the newest tick, the same that `GET …/links` gives; figures are the newest
reading's (`sources.links`). What happened is read out of the ticks of the last minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection

from console import figures, sources
from console.context import BAD, GOOD, OFF, WARN, Mark, loop_stale_s
from routing import fleets
from routing.core.links import breaker
from routing.core.links.state import ASKS, FORBIDS
from routing.core.scenario.document import Scenario
from routing.core.types import LinkMemory
from routing.models import Action, Fleet, Tick

HISTORY: Final = timedelta(minutes=15)
MOST_LOOKS: Final = 20_000
"""Links times ticks that are searched for what happened: a large fleet's past is shorter."""
MOST_EVENTS: Final = 12
_MARKS: Final = {
    "clear": Mark(*GOOD, "clear"),
    "near_limit": Mark(*WARN, "near limit"),
    "congested": Mark(*BAD, "congested"),
    "flow_limited": Mark(*WARN, "flow-limited"),
    "burst": Mark(*WARN, "burst"),
    "down": Mark(*BAD, "down"),
    "unknown": Mark(*WARN, "unknown"),
}
"""By label; `static/console/links.js` holds the same for live values."""
_BREAKER_MARKS: Final = {
    "closed": Mark(*GOOD, "closed"),
    "open": Mark(*BAD, "open"),
    "half_open": Mark(*WARN, "half open"),
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


def mark(label: str) -> Mark:
    """A label with its tone and icon; one of another release as it is, as a warning."""
    return _MARKS.get(label, Mark(*WARN, label.replace("_", " ")))


def panel(fleet: Fleet, scenario: Scenario, now: datetime) -> dict[str, Any]:
    """All that the Links panel shows: `rows` in the scenario's order and what happened.

    `judged_at` is the newest tick's time, None before the first; `old` says that the loop has been
    silent since.
    """
    tick = fleets.newest_tick(fleet)
    judged = fleets.memory_after(tick).links
    past = _history(fleet, len(scenario.links), now)
    old = tick is not None and _is_old(tick, now)
    rows = [
        _row(row, judged.get(row["id"]), past, tick if old else None)
        for row in sources.links(scenario, now)
    ]
    return {
        "rows": rows,
        "events": past.events[:MOST_EVENTS],
        "n_more": max(0, len(past.events) - MOST_EVENTS),
        "since": past.since,
        "judged_at": tick.at if tick else None,
        "old": old,
    }


def _is_old(tick: Tick, now: datetime) -> bool:
    return (now - tick.at).total_seconds() > loop_stale_s(settings.ENV["CONSOLE_TICK_S"])


def _row(
    read: dict[str, Any], memory: LinkMemory | None, past: History, old: Tick | None
) -> dict[str, Any]:
    """A link's reading with what the loop found. `old` is the newest tick of a silent loop.

    A reading that is missing, or says that the link is down, is newer than any label.
    """
    is_read = read["mark"].tone == GOOD[0]
    if memory is None:
        state = Mark(*OFF, "not judged yet") if is_read else read["mark"]
        return {**read, "state": state, "label": "", "breaker": ""}
    found = mark(memory.label)
    state = found if old is None else Mark(*WARN, f"{found.text} at {figures.clock(old.at)}")
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
    """When an open breaker turns half open by itself."""
    if memory.breaker != "open" or memory.breaker_at_s is None:
        return None
    return _moment(memory.breaker_at_s + breaker.hold_s(memory.n_openings, breaker.HOLD_S))


def _moment(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)


def _history(fleet: Fleet, n_links: int, now: datetime) -> History:
    """What changed on the fleet's links lately, newest first.

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
                        SELECT at, seq, verdict #> '{memory,links}' AS links
                        FROM routing_tick
                        WHERE fleet_id = %(fleet)s AND at >= %(since)s
                            AND jsonb_typeof(verdict #> '{memory,links}') = 'object'
                        ORDER BY seq DESC LIMIT %(n_ticks)s
                    ) tick CROSS JOIN LATERAL jsonb_each(tick.links) judged
                ) look
                WINDOW run AS (PARTITION BY link ORDER BY seq)
            ) seen
            WHERE label_before IS NULL OR label <> label_before
                OR (events IS NOT NULL AND shape IS DISTINCT FROM shape_before)
            ORDER BY seq DESC
            """,
            {
                "fleet": fleet.pk,
                "since": now - HISTORY,
                "n_ticks": max(2, MOST_LOOKS // max(n_links, 1)),
                # A memory is stored without what is at its default.
                "unknown": LinkMemory().label,
            },
        )
        looks = cursor.fetchall()
    firsts = [at for at, *_, is_first in looks if is_first]
    if not firsts:
        return History(None, {}, ())
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
    return [
        Event(row.at, row.target, f"{row.actor} reset its breaker: {row.reason}") for row in rows
    ]
