"""Moves of roles as the pages show them: how far each instance is, and what roles there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import (
    BooleanField,
    Count,
    ExpressionWrapper,
    F,
    OuterRef,
    Q,
    QuerySet,
    Window,
)
from django.db.models.functions import JSONObject
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from console import figures, plans
from console.context import BAD, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from routing import rebalance
from routing.core.scenario.document import Scenario
from routing.models import Decision, Fleet, Rebalance, RoleMove
from telemetry import store

RECENT = 5
MOST_SHOWN = 12
ACTIVE = Q(state__in=rebalance.ACTIVE)
STEPS = (
    ("cordon", _lazy("Cordon"), _lazy("no new requests go to it")),
    ("drain", _lazy("Drain"), _lazy("it finishes what it has")),
    ("switch", _lazy("Switch"), _lazy("it changes its role")),
    ("verify", _lazy("Prove"), _lazy("one router opens it, and a request is served")),
    ("uncordon", _lazy("Open"), _lazy("every router lists it in its new role")),
)
"""Of a move, in order: step, its name on the track, what happens in it."""
_ORDER = [step for step, _, _ in STEPS]
_WORDS = {step: words for step, _, words in STEPS}
_MOVE_MARKS = {
    "planned": Mark(*OFF, _lazy("waits its turn")),
    "restore": Mark(*WARN, _lazy("gets its old role back")),
    "restored": Mark(*OFF, _lazy("has its old role back")),
    "done": Mark(*GOOD, _lazy("moved")),
}
_STATE_MARKS = {
    "open": Mark("info", "wait", _lazy("moving")),
    "aborting": Mark(*WARN, _lazy("being given up")),
    "done": Mark(*GOOD, _lazy("done")),
    "expired": Mark(*WARN, _lazy("deadline passed")),
    "failed": Mark(*BAD, _lazy("failed")),
    "cancelled": Mark(*OFF, _lazy("cancelled")),
}


def under_way(fleet: Fleet) -> list[dict[str, Any]]:
    """What moves now, a row a cluster."""
    found = Rebalance.objects.filter(fleet=fleet, state__in=rebalance.ACTIVE)
    return [_row(row) for row in _with_moves(found).order_by("cluster")]


def lately(fleet: Fleet, cluster: str = "") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What moves now, a row a cluster, and what moved lately, newest first (of one cluster)."""
    every = Rebalance.objects.filter(fleet=fleet)
    if cluster:
        every = every.filter(cluster=cluster)
    newest = every.exclude(ACTIVE).order_by("-id")[:RECENT]
    rows = [
        _row(row)
        for row in _with_moves(every.filter(ACTIVE | Q(pk__in=newest.values("pk")))).order_by("-id")
    ]
    moving = [row for row in rows if row["rebalance"].state in rebalance.ACTIVE]
    moving.sort(key=lambda row: row["rebalance"].cluster)
    return moving, [row for row in rows if row["rebalance"].state not in rebalance.ACTIVE]


def of_decision(decision: Decision) -> tuple[list[dict[str, Any]], int]:
    """What a decision moved, a row a cluster, and how many there are; of many the first MOST_SHOWN,
    those under way before the others."""
    found = Rebalance.objects.filter(decision=decision).annotate(
        n_all=Window(Count("pk")), is_over=ExpressionWrapper(~ACTIVE, BooleanField())
    )
    rows = list(
        _with_moves(found).select_related(None).order_by("is_over", "cluster", "id")[:MOST_SHOWN]
    )
    return [_row(row) for row in rows], rows[0].n_all if rows else 0


def active(fleet: Fleet, cluster: str) -> Rebalance | None:
    """The move of the cluster's roles that is under way, if one is."""
    found = Rebalance.objects.filter(fleet=fleet, cluster=cluster, state__in=rebalance.ACTIVE)
    return found.first()


def one(row: Rebalance) -> dict[str, Any]:
    """One move, whether it has ended or not."""
    return _row(_with_moves(Rebalance.objects.filter(pk=row.pk)).get())


def _with_moves(found: QuerySet[Rebalance]) -> QuerySet[Any]:
    """With their decisions, but for the plans, and, in `told_moves`, their moves, in the same
    statement."""
    fields = {field.attname: F(field.attname) for field in RoleMove._meta.concrete_fields}
    moves = RoleMove.objects.filter(rebalance=OuterRef("pk")).order_by("seq")
    told = ArraySubquery(moves.values_list(JSONObject(**fields)))
    decided = found.select_related("decision").defer("decision__plan", "decision__previous")
    return decided.annotate(told_moves=told)


def _moves_of(row: Any) -> list[RoleMove]:
    fields = RoleMove._meta.concrete_fields
    return [
        RoleMove(**{field.attname: field.to_python(told[field.attname]) for field in fields})
        for told in row.told_moves
    ]


def _row(row: Rebalance) -> dict[str, Any]:
    moves = _moves_of(row)
    n_wanted = abs(row.to_n_prefill - row.from_n_prefill)
    took_s = None
    if row.finished_at is not None:
        took_s = (row.finished_at - row.created_at).total_seconds()
    return {
        "rebalance": row,
        "from_roles": f"{row.from_n_prefill}/{row.from_n_decode}",
        "to_roles": f"{row.to_n_prefill}/{row.to_n_decode}",
        "mark": _STATE_MARKS.get(row.state, Mark(*WARN, row.state)),
        "ends_as": _STATE_MARKS[row.ends_as].text if row.ends_as in _STATE_MARKS else "",
        "n_done": sum(move.step == "done" for move in moves),
        "n_moves": max(n_wanted, len(moves)),
        "moves": [_move(move) for move in moves],
        "before": _short(row, row.preflight.get("blast_radius", "")),
        "warnings": [_short(row, warning) for warning in row.preflight.get("warnings", ())],
        "reason": _short(row, row.reason),
        "waiting_for": _short(row, row.waiting_for) or _waiting(moves),
        "took_s": took_s,
    }


def _short(row: Rebalance, sentence: str) -> str:
    """A sentence of the driver's for the middle of one of ours: no full stop, no fleet in names."""
    return sentence.replace(f"{row.fleet_id}/", "").rstrip(".")


def _waiting(moves: list[RoleMove]) -> str:
    """What happens where nothing in particular is waited for."""
    for move in moves:
        if move.step in _WORDS:
            return f"{_name(move)}: {_WORDS[move.step]}"
    return _("the next look at the cluster's instances")


def _move(move: RoleMove) -> dict[str, Any]:
    reached = len(_ORDER) if move.step == "done" else -1
    if move.step in _ORDER:
        reached = _ORDER.index(move.step)
    draining = move.step in ("cordon", "drain") and move.requests is not None
    return {
        "move": move,
        "name": _name(move),
        "track": []
        if move.step in ("restore", "restored")
        else [
            {"name": name, "state": _track_state(i, reached)}
            for i, (_, name, _) in enumerate(STEPS)
        ],
        "mark": move_mark(move),
        "requests": move.requests if draining else None,
        "since": None if move.step in ("planned", *rebalance.MOVED) else move.step_since,
        "routers": sorted(_at_router(seen) for seen in move.routers.values()),
        "proof": [text for text in (_idle(move), _canary(move)) if text],
    }


def move_mark(move: RoleMove) -> Mark:
    """The step it is in, in words."""
    return _MOVE_MARKS.get(move.step, Mark("info", "wait", _WORDS.get(move.step, move.step)))


def _at_router(seen: dict[str, Any]) -> tuple[str, str]:
    """A router's name, and how it shows the instance."""
    if seen["status"] == "out":
        return seen["name"], _("taken out")
    words = f"{seen['role'] or _('no role')}, {seen['status']}"
    if seen["requests"]:
        words += _(", %(requests)s on it") % {"requests": figures.exact(seen["requests"])}
    return seen["name"], words


def _idle(move: RoleMove) -> str:
    """What showed that nothing was on it when it was switched."""
    found = move.evidence.get("idle")
    if found is None:
        return ""
    counts = [n for n in found["router_requests"].values() if n is not None]
    words = _("Idle: the engine counted %(n)s requests from %(since)s to %(until)s") % {
        "n": found["engine_requests"],
        "since": figures.clock(found["since_s"]),
        "until": figures.clock(found["at_s"]),
    }
    if not counts:
        return words
    also = ngettext("; so did %(n)s router", "; so did %(n)s routers", len(counts))
    return words + also % {"n": len(counts)}


def _canary(move: RoleMove) -> str:
    """What a request through the router that opened it first met."""
    found = move.evidence.get("canary")
    if found is None:
        proven = move.step in ("uncordon", "done") and move.routers
        return _("Canary: none, no router says where it serves") if proven else ""
    at = _("through %(value)s at %(at_s)s") % {
        "value": found["router"].partition(" ")[0],
        "at_s": figures.clock(found["at_s"]),
    }
    if found["error"]:
        return _("Canary: failed %(at)s, %(n_failed)s in a row: %(error)s") % {
            "at": at,
            "n_failed": found["n_failed"],
            "error": found["error"],
        }
    parts = {
        True: _("this instance had a part in it"),
        False: _("this instance had no part in it that shows"),
        None: _("its engine does not tell whether it had a part"),
    }
    n = found["n_served"]
    served = ngettext(
        "Canary: %(n)s request served %(at)s", "Canary: %(n)s requests served %(at)s", n
    )
    return f"{served % {'n': n, 'at': at}}; {parts[found['seen']]}"


def _track_state(i: int, reached: int) -> str:
    return "done" if i < reached else "current" if i == reached else "next"


def _name(move: RoleMove) -> str:
    return move.instance.split("/", 1)[1]


def roles(
    scenario: Scenario,
    running: Decision | None,
    moving: list[dict[str, Any]],
    now: datetime,
    readings: Iterable[store.Reading],
) -> list[dict[str, Any]]:
    """Per PD cluster: the roles the plan asks for, those engines report, and whether they agree.

    `moving` is what `under_way` says, `readings` are the newest of the fleet's instances.
    """
    asked = running.plan["clusters"] if running else {}
    marks = {row["rebalance"].cluster: row["mark"] for row in moving}
    by_cluster: dict[str, list[store.Reading]] = {}
    for reading in readings:
        by_cluster.setdefault(reading.path.split("/", 2)[1], []).append(reading)
    rows = []
    for cluster in scenario.clusters:
        if cluster.kind != "pd":
            continue
        mine = by_cluster.get(cluster.name, [])
        fresh = [reading for reading in mine if _fresh(reading, now)]
        seen = Counter(reading.role for reading in fresh)
        reported = f"{seen['prefill']}/{seen['decode']}" if fresh else ""
        plan = asked.get(cluster.name)
        planned = plans.roles(plan) if plan else ""
        n_unread = len(mine) - len(fresh)
        rows.append(
            {
                "cluster": cluster.name,
                "planned": planned,
                "reported": reported,
                "n_unread": n_unread,
                "mark": marks.get(cluster.name) or roles_mark(planned, reported, n_unread),
                "fixed": not cluster.routers,
            }
        )
    return rows


def _fresh(reading: store.Reading, now: datetime) -> bool:
    return reading.state == "ok" and now.timestamp() - reading.received_s <= STALE_AFTER_S


def roles_mark(planned: str, reported: str, n_unread: int) -> Mark:
    """Whether engines report the roles that the plan asks for; empty where nobody says."""
    if not planned:
        return Mark(*OFF, _("no plan yet"))
    if not reported:
        return Mark(*WARN, _("no engine is read"))
    if reported == planned:
        return Mark(*GOOD, _("applied"))
    if n_unread:
        return Mark(*WARN, _("unknown: %(n_unread)s not read") % {"n_unread": n_unread})
    return Mark(*WARN, _("not as planned"))
