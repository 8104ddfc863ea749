"""The timeline as a table for other programs: the same entries, one row each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from django.http import StreamingHttpResponse

from console import csv_cells, json_rows, timeline, verdicts
from console.plans import in_a_line
from console.spells import Spell
from routing.models import Decision

HEADER: Final = (
    *("at", "until", "kind", "version", "reason", "who", "changed", "message", "gain_ratio"),
    *("next_action_at", "decision", "tick"),
)


def stream(entries: Iterable[Decision | Spell], how: str, name: str) -> StreamingHttpResponse:
    """All entries as a download, `how` being csv or json."""
    made = rows(entries)
    if how == "json":
        return json_rows.stream(made, name)
    return csv_cells.stream(([row[key] for key in HEADER] for row in made), HEADER, name)


def rows(entries: Iterable[Decision | Spell]) -> Iterator[dict[str, Any]]:
    """Each entry with the fields of `HEADER`; what an entry has not is None."""
    for entry in entries:
        yield dict.fromkeys(HEADER) | (
            _of_spell(entry) if isinstance(entry, Spell) else _of_decision(entry)
        )


def _of_spell(spell: Spell) -> dict[str, Any]:
    at_s = spell.next_action_at_s
    return {
        "at": spell.since,
        "until": spell.last_at,
        "kind": "held",
        "reason": spell.reason,
        "who": timeline.who(spell.reason, spell.message),
        "message": spell.message,
        "next_action_at": None if at_s is None else datetime.fromtimestamp(at_s, UTC),
        "tick": spell.seq,
    }


def _of_decision(row: Decision) -> dict[str, Any]:
    is_back = timeline.back_to(row.reason, row.message) is not None
    pushed = "reverted" if is_back else "pushed"
    return {
        "at": row.created_at,
        "kind": row.kind if row.version is None else pushed,
        "version": None if row.version is None else f"{row.epoch}.{row.version}",
        "reason": row.reason,
        "who": timeline.who(row.reason, row.message),
        "changed": in_a_line(timeline.parts(row)),
        "message": row.message,
        "gain_ratio": verdicts.gain_ratio(row.headroom_before, row.headroom_after),
        "decision": row.pk,
    }
