"""Moves of roles as the pages show them: how far each instance is, and what roles there are."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from console import plans, sources
from console.context import BAD, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from routing import rebalance
from routing.core.scenario.document import Scenario
from routing.models import Decision, Fleet, Rebalance, RoleMove
from telemetry import store

RECENT = 5
STEPS = (
    ("cordon", "Cordon", "no new requests go to it"),
    ("drain", "Drain", "it finishes what it has"),
    ("switch", "Switch", "it changes its role"),
    ("verify", "Read back", "its role is read back"),
    ("uncordon", "Open", "it takes requests again"),
)
"""Of a move, in order: step, its name on the track, what happens in it."""
_ORDER = [step for step, _, _ in STEPS]
_WORDS = {step: words for step, _, words in STEPS}
_MOVE_MARKS = {
    "planned": Mark(*OFF, "waits its turn"),
    "restore": Mark(*WARN, "gets its old role back"),
    "restored": Mark(*OFF, "has its old role back"),
    "done": Mark(*GOOD, "moved"),
}
_STATE_MARKS = {
    "open": Mark("info", "wait", "moving"),
    "aborting": Mark(*WARN, "being given up"),
    "done": Mark(*GOOD, "done"),
    "expired": Mark(*WARN, "deadline passed"),
    "failed": Mark(*BAD, "failed"),
    "cancelled": Mark(*OFF, "cancelled"),
}


def under_way(fleet: Fleet) -> list[dict[str, Any]]:
    """What moves now, a row a cluster."""
    found = Rebalance.objects.filter(fleet=fleet, state__in=rebalance.ACTIVE)
    return [_row(row) for row in _with_moves(found).order_by("cluster")]


def of_decision(decision: Decision) -> list[dict[str, Any]]:
    """What a decision moved, a row a cluster."""
    found = Rebalance.objects.filter(decision=decision)
    return [_row(row) for row in _with_moves(found).order_by("cluster", "id")]


def ended(fleet: Fleet) -> list[dict[str, Any]]:
    """What moved lately, newest first."""
    found = Rebalance.objects.filter(fleet=fleet).exclude(state__in=rebalance.ACTIVE)
    return [_row(row) for row in _with_moves(found).order_by("-id")[:RECENT]]


def _with_moves(found: Any) -> Any:
    return found.select_related("decision").prefetch_related("moves")


def _row(row: Rebalance) -> dict[str, Any]:
    moves = sorted(row.moves.all(), key=lambda move: move.seq)
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
    return "the next look at the cluster's instances"


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
        "mark": _MOVE_MARKS.get(move.step, Mark("info", "wait", _WORDS.get(move.step, move.step))),
        "requests": move.requests if draining else None,
        "since": None if move.step in ("planned", *rebalance.MOVED) else move.step_since,
    }


def _track_state(i: int, reached: int) -> str:
    return "done" if i < reached else "current" if i == reached else "next"


def _name(move: RoleMove) -> str:
    return move.instance.split("/", 1)[1]


def roles(
    fleet: Fleet,
    scenario: Scenario,
    running: Decision | None,
    moving: list[dict[str, Any]],
    now: datetime,
) -> list[dict[str, Any]]:
    """Per PD cluster: the roles the plan asks for, those engines report, and whether they agree.

    `moving` is what `under_way` says.
    """
    readings = sources.newest("instance", f"{fleet.pk}/", now)
    asked = running.plan["clusters"] if running else {}
    marks = {row["rebalance"].cluster: row["mark"] for row in moving}
    rows = []
    for cluster in scenario.clusters:
        if cluster.kind != "pd":
            continue
        mine = [reading for reading in readings if reading.path.split("/")[1] == cluster.name]
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
                "mark": marks.get(cluster.name) or _roles_mark(planned, reported, n_unread),
                "fixed": not cluster.control_urls,
            }
        )
    return rows


def _fresh(reading: store.Reading, now: datetime) -> bool:
    return reading.state == "ok" and now.timestamp() - reading.received_s <= STALE_AFTER_S


def _roles_mark(planned: str, reported: str, n_unread: int) -> Mark:
    if not planned:
        return Mark(*OFF, "no plan yet")
    if not reported:
        return Mark(*WARN, "no engine is read")
    if reported == planned:
        return Mark(*GOOD, "applied")
    if n_unread:
        return Mark(*WARN, f"unknown: {n_unread} not read")
    return Mark(*WARN, "not as planned")
