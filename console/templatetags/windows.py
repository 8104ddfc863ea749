"""`{% windows_banner fleet.name %}`: what is frozen and what is worked on, where it matters."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django import template
from django.template import Context
from django.utils import timezone

from console import window_words
from routing.windows import in_force
from routing.windows.models import Maintenance

MOST_SHOWN = 3

register = template.Library()


@register.inclusion_tag("partials/_windows.html", takes_context=True)
def windows_banner(
    context: Context, fleet: str, cluster: str = "", link: str = ""
) -> dict[str, Any]:
    """Of the fleet of the frame, which has read all of it; with a cluster or a link only the
    maintenance that touches it."""
    now, frame = timezone.now(), context["frame"]
    rules = in_force.rules_of(
        (name, document, datetime.fromtimestamp(at_s, UTC))
        for name, document, at_s in json.loads(frame["windows"])
    )
    frozen = in_force.frozen_by(rules, now)
    rows = [row for row in _maintained(frame["maintained"]) if _touches(row, cluster, link)]
    by_end = {(each.name, each.until): each for each in frozen.values()}
    return {
        "fleet_name": fleet,
        "frozen": list(by_end.values()),
        "worked": [window_words.maintenance_row(row, now) for row in rows[:MOST_SHOWN]],
        "n_more": max(len(rows) - MOST_SHOWN, 0),
    }


def _maintained(told: str) -> list[Maintenance]:
    fields = Maintenance._meta.concrete_fields
    return [
        Maintenance(**{field.attname: field.to_python(row[field.column]) for field in fields})
        for row in json.loads(told)
    ]


def _touches(row: Maintenance, cluster: str, link: str) -> bool:
    if link:
        return in_force.touches(row, link)
    if cluster:
        return row.cluster == cluster or cluster in row.link.split("->")
    return True
