"""Search and commands: what the palette lists, as JSON for it and as a page without scripts.

Pages, fleets, clusters, links, instances, gates and routers, decisions by version or reason, and
for operators what they could do. Three queries whatever the size of the fleets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from console import context
from console.core_words import reason_words
from console.roles import Role, readable_across, role_of
from routing import rights
from routing.core.reasons import REASONS
from routing.models import Decision, Policy
from routing.rights import Rights

MOST_ROWS: Final = 20
MOST_OF_A_KIND: Final = 6
MOST_WORDS: Final = 6
_LONGEST_QUERY: Final = 100
_VERSION = re.compile(r"v?(\d{1,9})")
_LIKE = re.compile(r"[%_\\]")
_ICONS: Final = {
    **{kind: kind for kind in ("action", "fleet", "cluster", "link", "instance")},
    **{"gate": "routers", "router": "routers", "decision": "decisions", "page": "down"},
}
_NEAR: Final = 8
"""So many of each kind of thing are read; what is not the shown fleet's comes last."""


@dataclass(frozen=True)
class Row:
    """One thing to go to. `label` is what is matched, with `detail` and `also`."""

    kind: str
    label: str
    detail: str
    url: str
    also: str = ""
    icon: str = ""


@readable_across
def search(request: HttpRequest) -> HttpResponse:
    """What matches every word of `q`: at most 20 rows, the best first."""
    query = request.GET.get("q", "")[:_LONGEST_QUERY].strip()
    rows = found(query, request.GET.get("fleet") or request.session.get("fleet"), request.user)
    if "application/json" in request.headers.get("Accept", ""):
        return JsonResponse({"query": query, "rows": [_jsonable(row) for row in rows]})
    shown = [{"row": row, "kind_word": kind_word(row.kind)} for row in rows]
    trail = [
        {"label": _("Overview"), "url": reverse("overview")},
        {"label": _("Search"), "url": ""},
    ]
    return render(request, "search.html", {"query": query, "rows": shown, "trail": trail})


def _jsonable(row: Row) -> dict[str, str]:
    return {
        "kind": row.kind,
        "kind_word": kind_word(row.kind),
        "icon": row.icon or _ICONS[row.kind],
        "label": row.label,
        "detail": row.detail,
        "url": row.url,
    }


def kind_word(kind: str) -> str:
    """A kind of row as people call it."""
    return {
        "page": _("page"),
        "action": _("action"),
        "fleet": _("fleet"),
        "cluster": _("cluster"),
        "link": _("link"),
        "instance": _("instance"),
        "gate": _("gate"),
        "router": _("router"),
        "decision": _("decision"),
    }[kind]


def found(query: str, fleet: str | None, user: Any) -> list[Row]:
    """The rows for `query`, seen from `fleet`: what this person may see and do."""
    words = query.casefold().split()[:MOST_WORDS]
    may = rights.of(user)
    policies = may.within("read", Policy.objects.order_by("fleet_id"), by="fleet_id")
    modes = dict(policies.values_list("fleet_id", "mode"))
    if fleet not in modes:
        fleet = next(iter(modes), None)
    pages = _pages(fleet, role_of(user, fleet or ""))
    changed = {name: mode for name, mode in modes.items() if may.may("operate", name)}
    actions = _actions(fleet, changed, words)
    if not words:
        return [*pages[: MOST_ROWS - len(actions)], *actions]
    fleets = [_fleet(name, mode) for name, mode in modes.items()]
    things = [*_things(words, fleet, list(modes)), *_decisions(words, fleet, may)]
    return ranked([*pages, *actions, *fleets, *things], words, fleet)


def ranked(rows: Iterable[Row], words: list[str], fleet: str | None) -> list[Row]:
    """Rows that hold every word, the best first: whole names, then beginnings, then the rest."""
    scored = []
    for place, row in enumerate(rows):
        score = _score(row, words)
        if score is not None:
            elsewhere = fleet is not None and f"/fleets/{fleet}/" not in row.url
            scored.append((score, elsewhere, place, row))
    shown: list[Row] = []
    counts: dict[str, int] = {}
    for *_order, row in sorted(scored, key=lambda one: one[:3]):
        counts[row.kind] = counts.get(row.kind, 0) + 1
        if counts[row.kind] <= MOST_OF_A_KIND:
            shown.append(row)
    return shown[:MOST_ROWS]


def _score(row: Row, words: list[str]) -> int | None:
    """0 for the best match; None where a word is missing."""
    label = row.label.casefold()
    everything = f"{label} {row.detail.casefold()} {row.also.casefold()}"
    if any(word not in everything for word in words):
        return None
    whole = " ".join(words)
    if label == whole:
        return 0
    if label.startswith(whole):
        return 1
    parts = re.split(r"[\s/>→-]+", label)
    if all(any(part.startswith(word) for part in parts) for word in words):
        return 2
    return 3 if all(word in label for word in words) else 4


def _pages(fleet: str | None, role: Role) -> list[Row]:
    ours = f"/fleets/{fleet}/"
    return [
        Row(
            *("page", page["label"], fleet or "" if ours in page["url"] else "", page["url"]),
            icon=page["icon"],
        )
        for page in context.nav(fleet, None, role, counts={})
    ] + [
        Row(
            "page", _("API documentation"), "", reverse("api-docs"), "rest openapi", icon="terminal"
        ),
        Row("page", _("Style guide"), "", reverse("styleguide"), "design tokens", icon="theme"),
    ]


def _actions(fleet: str | None, modes: dict[str, str], words: list[str]) -> list[Row]:
    """What an operator could do, each a link to the page that asks before it is done."""
    rows = []
    for name, mode in modes.items():
        if name != fleet and not words:
            continue
        address = reverse("mode", args=[name])
        labels = {
            "paused": _("Pause fleet %(fleet)s"),
            "advisory": _("Only advise in fleet %(fleet)s"),
            "active": _("Activate fleet %(fleet)s"),
        }
        rows += [
            Row(
                *("action", label % {"fleet": name}, _("it is %(mode)s now") % {"mode": mode}),
                f"{address}?to={wanted}",
                also="stop kill switch" if wanted == "paused" else "mode",
            )
            for wanted, label in labels.items()
            if wanted != mode
        ]
        detail = _("fleet %(fleet)s") % {"fleet": name}
        rows += [
            Row("action", label, detail, reverse(page, args=[name]), also)
            for page, label, also in (
                ("hold", _("Hold the plan"), "pin freeze threshold"),
                ("holds", _("Extend or release a hold"), "unhold resume"),
                ("rebalance-new", _("Move roles"), "rebalance prefill decode instances"),
                ("policy", _("Edit the policy"), "knobs limits bounds"),
                ("new-job", _("Plan a job"), "schedule cron calendar"),
            )
        ]
    return rows


def _fleet(name: str, mode: str) -> Row:
    return Row("fleet", name, mode.upper(), reverse("fleet-overview", args=[name]))


_THINGS: Final = """
(SELECT 'cluster' AS kind, f.name AS fleet, c->>'name' AS name, c->>'kind' AS role
   FROM routing_fleet f, jsonb_array_elements(f.scenario->'clusters') c
  WHERE f.name = ANY(%(among)s)
    AND f.name || ' cluster ' || (c->>'name') ILIKE ALL(%(words)s)
  ORDER BY f.name <> %(fleet)s, length(c->>'name'), 3 LIMIT %(most)s)
UNION ALL
(SELECT 'link', f.name, (l->>'from') || '->' || (l->>'to'), ''
   FROM routing_fleet f, jsonb_array_elements(f.scenario->'links') l
  WHERE f.name = ANY(%(among)s)
    AND f.name || ' link ' || (l->>'from') || '->' || (l->>'to') ILIKE ALL(%(words)s)
  ORDER BY f.name <> %(fleet)s, length(l->>'from') + length(l->>'to'), 3 LIMIT %(most)s)
UNION ALL
(SELECT 'instance', split_part(path, '/', 1), path, role
   FROM telemetry_source
  WHERE kind = 'instance' AND split_part(path, '/', 1) = ANY(%(among)s)
    AND 'instance ' || path || ' ' || role ILIKE ALL(%(words)s)
  ORDER BY split_part(path, '/', 1) <> %(fleet)s, length(path), path LIMIT %(most)s)
UNION ALL
(SELECT 'gate', fleet_id, router, ''
   FROM routing_routerstate
  WHERE fleet_id = ANY(%(among)s) AND 'gate ' || router ILIKE ALL(%(words)s)
  ORDER BY fleet_id <> %(fleet)s, length(router), router LIMIT %(most)s)
UNION ALL
(SELECT 'router', fleet_id, fleet_id || '/' || cluster || '/' || name, kind
   FROM routing_managedrouter
  WHERE fleet_id = ANY(%(among)s)
    AND 'router ' || fleet_id || '/' || cluster || '/' || name || ' ' || kind ILIKE ALL(%(words)s)
  ORDER BY fleet_id <> %(fleet)s, length(name), name LIMIT %(most)s)
"""


def _things(words: list[str], fleet: str | None, among: list[str]) -> list[Row]:
    patterns = ["%" + _LIKE.sub(r"\\\g<0>", word) + "%" for word in words]
    with connection.cursor() as cursor:
        asked = {"words": patterns, "fleet": fleet or "", "among": among, "most": _NEAR}
        cursor.execute(_THINGS, asked)
        return [_thing(*row) for row in cursor.fetchall()]


def _thing(kind: str, fleet: str, name: str, role: str) -> Row:
    inside = name.removeprefix(f"{fleet}/")
    label = inside.replace("->", " → ") if kind == "link" else inside
    detail = _("%(role)s, fleet %(fleet)s") if role else _("fleet %(fleet)s")
    also = f"{kind} {name}"
    return Row(kind, label, detail % {"role": role, "fleet": fleet}, _url(kind, fleet, name), also)


def _url(kind: str, fleet: str, name: str) -> str:
    """The page of a thing."""
    page = "router" if kind == "gate" else kind
    query = urlencode({"id": name.removeprefix(f"{fleet}/")})
    return f"{reverse(page, args=[fleet])}?{query}"


def _decisions(words: list[str], fleet: str | None, may: Rights) -> list[Row]:
    """Decisions of the shown fleet whose version or reason is named; a version can be reverted."""
    versions = [int(m[1]) for word in words if (m := _VERSION.fullmatch(word))]
    rest = [word for word in words if not _VERSION.fullmatch(word)]
    asked = [word for word in rest if word not in ("decision", "revert", "plan", "roll", "back")]
    reasons = [name for name in REASONS if asked and _is_asked_for(name, asked)]
    rows = Decision.objects.filter(fleet_id=fleet or "")
    if versions:
        rows = rows.filter(version__in=versions)
    elif reasons:
        rows = rows.filter(reason__in=reasons)
    else:
        return []
    made = []
    values = ("pk", "version", "reason", "message")
    for pk, version, reason, message in rows.order_by("-created_at").values_list(*values)[:_NEAR]:
        tag = _("advised") if version is None else f"v{version}"
        args = [fleet, pk]
        also = f"decision plan {version or ''} {reason}"
        label = f"{tag} {reason_words(reason)}"
        made.append(Row("decision", label, message, reverse("decision", args=args), also))
        if version is not None and may.may("operate", fleet or ""):
            label = _("Revert v%(version)s") % {"version": version}
            made.append(
                Row(
                    "action",
                    label,
                    reason_words(reason),
                    reverse("roll-back", args=args),
                    f"{also} roll back",
                )
            )
    return made


def _is_asked_for(reason: str, words: list[str]) -> bool:
    """Whether every word stands in a reason, as it is named or as it is read."""
    known = f"{reason} {reason_words(reason)}".casefold()
    return all(word in known for word in words)
