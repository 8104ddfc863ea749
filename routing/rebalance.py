"""Rebalances as rows: opened, moved step by step, ended. The only writer of both their tables.

What happens next is decided in `rebalance_steps` and done by `rebalance_driver`, which call what is
here in the transaction of each step. Each change of a step, each start and each end writes one
audit row and is announced after the commit.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction

from routing import announce, audit
from routing.models import Decision, Fleet, Hold, Rebalance, RoleMove

ACTIVE = ("open", "aborting")
MOVED = ("done", "restored")
"""Steps in which a move is over."""
_WORDS = 500


@dataclass(frozen=True)
class PlannedMove:
    """`routers` by URL: those that list the instance, each with how it does."""

    instance: str
    url: str
    from_role: str
    to_role: str
    unit: str = ""
    routers: dict[str, dict[str, Any]] = field(default_factory=dict)


class NotOpen(Exception):
    """A rebalance that cannot be cancelled: it has ended or is being given up already."""


def open_for(
    *,
    decision: Decision,
    cluster: str,
    from_n_prefill: int,
    from_n_decode: int,
    to_n_prefill: int,
    to_n_decode: int,
    deadline_s: float,
    drain_timeout_s: float,
    now: datetime.datetime,
) -> Rebalance:
    """A new rebalance of the cluster, in the caller's transaction.

    The one that is still under way, where there is one: its driver sees by itself that a newer plan
    wants other roles, gives it up and then opens the next.
    """
    active = Rebalance.objects.filter(fleet_id=decision.fleet_id, cluster=cluster, state__in=ACTIVE)
    found = active.first()
    if found is not None:
        return found
    hold = _asked_by(decision.fleet_id, cluster, (to_n_prefill, to_n_decode), now)
    try:
        with transaction.atomic():
            opened = Rebalance.objects.create(
                fleet_id=decision.fleet_id,
                cluster=cluster,
                decision=decision,
                hold=hold,
                from_n_prefill=from_n_prefill,
                from_n_decode=from_n_decode,
                to_n_prefill=to_n_prefill,
                to_n_decode=to_n_decode,
                requested_by=audit.SYSTEM if hold is None else hold.owner,
                drain_timeout_s=drain_timeout_s,
                created_at=now,
                deadline_at=now + datetime.timedelta(seconds=deadline_s),
                updated_at=now,
            )
    except IntegrityError:
        return active.get()
    _audit(opened, "rebalance.start", before=_counts(opened, "from"), after=_counts(opened, "to"))
    _announce(opened, now)
    return opened


def _asked_by(fleet: str, cluster: str, to: tuple[int, int], now: datetime.datetime) -> Hold | None:
    """The person's hold of roles that these roles are of."""
    holds = Hold.objects.filter(
        fleet_id=fleet, cluster=cluster, released_at=None, expires_at__gt=now
    )
    return holds.filter(n_prefill=to[0], n_decode=to[1]).order_by("-id").first()


def newest(fleet: Fleet) -> dict[str, Rebalance]:
    """The newest rebalance of each cluster that ever had one."""
    rows = Rebalance.objects.filter(fleet=fleet).order_by("cluster", "-id").distinct("cluster")
    return {row.cluster: row for row in rows}


def cancel(
    rebalance: Rebalance, *, actor: str, via: str, reason: str, now: datetime.datetime
) -> Rebalance:
    """Give up a rebalance for a person; what has moved stays. Raises NotOpen."""
    with transaction.atomic():
        locked = Rebalance.objects.select_for_update(no_key=True).get(pk=rebalance.pk)
        if locked.state != "open":
            stands = "is being given up" if locked.state == "aborting" else f"is {locked.state}"
            raise NotOpen(f"this rebalance {stands} already")
        why = f"cancelled by {actor}: {reason}" if reason else f"cancelled by {actor}"
        _give_up(locked, "cancelled", why, now)
        audit.record(
            actor=actor,
            via=via,
            verb="rebalance.cancel",
            fleet=locked.fleet_id,
            target=_target(locked),
            before={"state": "open"},
            after={"state": "aborting"},
            reason=reason,
        )
        _announce(locked, now)
    return locked


def stands(rebalance: Rebalance) -> bool:
    """Is it still as this transaction locked it? Raises where the connection was lost since."""
    return Rebalance.objects.filter(pk=rebalance.pk, state=rebalance.state).exists()


def active_moves(rebalance: Rebalance) -> list[RoleMove]:
    """The moves under way: at most one instance, or one group, is out of service."""
    begun = rebalance.moves.exclude(step__in=("planned", *MOVED))
    return list(begun.order_by("seq"))


def begin(
    rebalance: Rebalance,
    units: Sequence[Sequence[PlannedMove]],
    now: datetime.datetime,
    *,
    preflight: dict[str, Any],
) -> None:
    """Write down what is to move, instead of what was planned before, and begin the first unit."""
    rebalance.moves.filter(step="planned").delete()
    first_seq = rebalance.moves.count() + 1
    moves = RoleMove.objects.bulk_create(
        RoleMove(
            rebalance=rebalance,
            seq=seq,
            instance=move.instance,
            url=move.url,
            from_role=move.from_role,
            to_role=move.to_role,
            unit=move.unit,
            routers=move.routers,
        )
        for seq, move in enumerate((move for unit in units for move in unit), start=first_seq)
    )
    first = moves[: len(units[0])]
    for move in first:
        move.started_at = now
        move.save(update_fields=["started_at"])
    rebalance.preflight = preflight
    rebalance.save(update_fields=["preflight"])
    go(rebalance, [(move, "cordon") for move in first], now)


def go(rebalance: Rebalance, steps: Sequence[tuple[RoleMove, str]], now: datetime.datetime) -> None:
    """The next step of each move of a unit."""
    for move, step in steps:
        _set_step(rebalance, move, step, now)
    _update(rebalance, now, waiting_for="")
    _announce(rebalance, now)


def wait(
    rebalance: Rebalance,
    sentence: str,
    now: datetime.datetime,
    *,
    seen: Sequence[tuple[RoleMove, int | None, bool]] = (),
) -> None:
    """What is waited for, said once while it lasts. `seen`: of a move how much is on its instance
    (None: not counted now), and whether that proves it idle."""
    said = rebalance.waiting_for
    rebalance.waiting_for = sentence[:_WORDS]
    changed = said != rebalance.waiting_for
    for move, requests, idle in seen:
        idle_since = (move.idle_since or now) if idle else None
        requests = move.requests if requests is None else requests
        if (requests, idle_since) != (move.requests, move.idle_since):
            move.requests, move.idle_since, changed = requests, idle_since, True
            move.save(update_fields=["requests", "idle_since"])
    if changed:
        _update(rebalance, now, waiting_for=rebalance.waiting_for)
        _announce(rebalance, now)


def saw(
    rebalance: Rebalance, move: RoleMove, at: Mapping[str, dict[str, Any]], now: datetime.datetime
) -> None:
    """How each router, by URL, shows the instance now. One that lists it since then is kept too."""
    routers = move.routers | {url: move.routers.get(url, {}) | row for url, row in at.items()}
    if routers != move.routers:
        move.routers = routers
        move.save(update_fields=["routers"])
        _announce(rebalance, now)


def prove(move: RoleMove, what: str, found: dict[str, Any]) -> None:
    """Keep the evidence of one step: that the instance was `idle`, or what the `canary` met."""
    move.evidence = {**move.evidence, what: found}
    move.save(update_fields=["evidence"])


def abort(
    rebalance: Rebalance,
    ends_as: str,
    reason: str,
    now: datetime.datetime,
    *,
    keeps_proven: bool = True,
) -> None:
    """Give up by the machine's own judgement; what moves now is restored before it ends.

    But for moves in `uncordon`, which finish where `keeps_proven`: they serve already.
    """
    for move in active_moves(rebalance):
        if not (keeps_proven and move.step == "uncordon"):
            move.error = reason[:_WORDS]
            move.save(update_fields=["error"])
    _give_up(rebalance, ends_as, reason, now, keeps_proven=keeps_proven)
    _audit(
        rebalance,
        "rebalance.abort",
        before={"state": "open"},
        after={"state": "aborting", "ends_as": ends_as},
        reason=rebalance.reason,
    )
    _announce(rebalance, now)


def end(rebalance: Rebalance, state: str, reason: str, now: datetime.datetime) -> None:
    """The last word on a rebalance: `done`, `expired`, `failed` or `cancelled`, and why."""
    before = {"state": rebalance.state}
    _update(rebalance, now, state=state, reason=reason[:_WORDS], waiting_for="", finished_at=now)
    _audit(
        rebalance, "rebalance.end", before=before, after={"state": state}, reason=rebalance.reason
    )
    _announce(rebalance, now)


def _give_up(
    rebalance: Rebalance,
    ends_as: str,
    reason: str,
    now: datetime.datetime,
    *,
    keeps_proven: bool = True,
) -> None:
    _update(
        rebalance, now, state="aborting", ends_as=ends_as, reason=reason[:_WORDS], waiting_for=""
    )
    for move in active_moves(rebalance):
        if not (keeps_proven and move.step == "uncordon"):
            _set_step(rebalance, move, "restore", now)


def _set_step(rebalance: Rebalance, move: RoleMove, step: str, now: datetime.datetime) -> None:
    before = {"instance": move.instance, "step": move.step}
    move.step, move.step_since, move.idle_since = step, now, None
    if step in MOVED:
        move.finished_at = now
    move.save(update_fields=["step", "step_since", "idle_since", "finished_at"])
    _audit(rebalance, "rebalance.step", before=before, after={**before, "step": step})


def _update(rebalance: Rebalance, now: datetime.datetime, **values: Any) -> None:
    for name, value in values.items():
        setattr(rebalance, name, value)
    rebalance.updated_at = now
    rebalance.save(update_fields=[*values, "updated_at"])


def _audit(rebalance: Rebalance, verb: str, *, before: Any, after: Any, reason: str = "") -> None:
    audit.record(
        actor=audit.SYSTEM,
        via="scheduler",
        verb=verb,
        fleet=rebalance.fleet_id,
        target=_target(rebalance),
        before=before,
        after=after,
        reason=reason,
    )


def _target(rebalance: Rebalance) -> str:
    return f"rebalance {rebalance.pk} of {rebalance.cluster}"


def _counts(rebalance: Rebalance, side: str) -> dict[str, int]:
    return {role: getattr(rebalance, f"{side}_{role}") for role in ("n_prefill", "n_decode")}


def _announce(rebalance: Rebalance, now: datetime.datetime) -> None:
    message = {
        "type": "rebalance",
        "fleet": rebalance.fleet_id,
        "id": rebalance.pk,
        "cluster": rebalance.cluster,
        "state": rebalance.state,
        "waiting_for": rebalance.waiting_for,
        "at_s": now.timestamp(),
        "moves": [
            {
                "instance": move.instance,
                "from_role": move.from_role,
                "to_role": move.to_role,
                "unit": move.unit,
                "step": move.step,
                "requests": move.requests,
                "error": move.error or None,
            }
            for move in rebalance.moves.order_by("seq")
        ],
    }
    transaction.on_commit(partial(announce.publish, message))
