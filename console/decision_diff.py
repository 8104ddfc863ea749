"""Any two plans side by side, field by field, and who made each of those between, and why."""

from __future__ import annotations

import re
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from console import decisions, plans, timeline
from console.opened import opened
from console.roles import readable
from routing import fleets
from routing.models import Decision, Fleet

MOST_BETWEEN: Final = 50
_VERSION: Final = re.compile(r"v?(?:(\d{1,9})\.)?(\d{1,9})")


@readable
def diff(request: HttpRequest, fleet: str) -> HttpResponse:
    """The two plans that `a` and `b` name. Changes nothing."""
    found, _scenario = opened(request, fleet)
    asked = {side: request.GET.get(side, "").strip() for side in ("a", "b")}
    both = {side: version_of(found, text) for side, text in asked.items()}
    a, b = both["a"], both["b"]
    context: dict[str, Any] = {
        "fleet": found,
        "asked": asked,
        "a": a,
        "b": b,
        "unknown": [text for side, text in asked.items() if text and both[side] is None],
    }
    if a is not None and b is not None:
        context |= _diff_context(found, a, b)
    return render(request, "decisions_diff.html", context)


def _diff_context(fleet: Fleet, a: Decision, b: Decision) -> dict[str, Any]:
    changes = plans.by_cluster(plans.plan_changes(a.plan, b.plan))
    older, newer = sorted((a, b), key=lambda row: (row.epoch, row.version))
    between = (
        timeline.listed(fleet)
        .filter(version__isnull=False, created_at__gt=older.created_at)
        .filter(created_at__lte=newer.created_at)
    )
    steps = list(between[: MOST_BETWEEN + 1])
    return {
        "changes": [one for one in changes if one.changed],
        "same": [one for one in changes if not one.changed],
        "n_changed": sum(len(one.changed) for one in changes),
        "is_back": older is b and a.pk != b.pk,
        "steps": decisions.rows(steps[:MOST_BETWEEN]),
        "is_cut": len(steps) > MOST_BETWEEN,
        "running": fleets.newest_adopted(fleet),
    }


def version_of(fleet: Fleet, text: str) -> Decision | None:
    """The pushed plan that `41`, `v41` or `2.41` (epoch and version) names; None if none does."""
    asked = _VERSION.fullmatch(text)
    if asked is None:
        return None
    epoch = int(asked[1]) if asked[1] else fleet.epoch
    return timeline.listed(fleet).filter(epoch=epoch, version=int(asked[2])).first()
