"""Carries rebalances out: one pass is one look, at most one side effect, one transaction.

A pass holds the lock of the rebalance's row, so two workers never act on one at once, and a worker
that is killed loses it with its connection. The next pass, whoever's, looks at routers and engines
again and finds by itself how far things are. No pass sleeps: what has to be waited for is written
down. What a pass does to the outside: `rebalance_effects`.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence

from django.db import transaction

from routing import delivery, fleets, rebalance, rebalance_effects, rebalance_looks
from routing.adapters import engines
from routing.adapters.engines import Busy
from routing.adapters.surface import CannotDo, Refused, SurfaceError, Unheeded
from routing.core.scenario.document import Cluster
from routing.models import Decision, Delivery, Rebalance, RoleMove, RouterState
from routing.rebalance_looks import Look, Routers, engine_looks
from routing.rebalance_plan import Done, plan, refused, shown, unable
from routing.rebalance_room import room
from routing.rebalance_steps import (
    HELD,
    Abort,
    Act,
    Around,
    Canary,
    Go,
    Wait,
    next_act,
    overdue,
    proven,
)
from routing.windows import in_force

RESTORE_LIMIT = datetime.timedelta(minutes=10)
"""How long past the deadline an instance that cannot be reached is tried again."""
_MAX_PASSES = 60
"""In one run; a move needs about fifteen with two routers. What is left waits for the next run."""

log = logging.getLogger(__name__)


def drive(clock: Callable[[], datetime.datetime]) -> None:
    """Take every rebalance under way as far as it goes now. One that fails stops no other."""
    under_way = Rebalance.objects.filter(state__in=rebalance.ACTIVE).order_by("id")
    for pk in list(under_way.values_list("pk", flat=True)):
        try:
            run(pk, clock)
        except Exception:
            log.exception("rebalance %d failed in this pass and is tried again", pk)


def run(pk: int, clock: Callable[[], datetime.datetime]) -> None:
    """Passes of one rebalance until it waits for something."""
    for _ in range(_MAX_PASSES):
        if not one_pass(pk, clock()):
            return


def one_pass(pk: int, now: datetime.datetime) -> bool:
    """One step of one rebalance; False when it waits, has ended, or somebody else has it."""
    with transaction.atomic():
        row = (
            Rebalance.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
            .select_related("fleet", "decision")
            .filter(pk=pk, state__in=rebalance.ACTIVE)
            .first()
        )
        if row is None:
            return False
        cluster = fleets.scenario_of(row.fleet).cluster(row.cluster)
        given_up = _reason_to_give_up(row, cluster, now) if row.state == "open" else None
        moves = rebalance.active_moves(row)
        if given_up is not None:
            if given_up.ends_as == "expired" and cluster is not None and moves:
                given_up = _at_deadline(row, cluster, moves, given_up, now)
            rebalance.abort(row, given_up.ends_as, given_up.reason, now)
            return True
        if cluster is None or not cluster.routers:
            _finish(row, moves, now)
            return False
        hopeless = now > row.deadline_at + RESTORE_LIMIT
        if row.state == "aborting" and (not moves or hopeless):
            left = _put_back(row, cluster, moves, now) if moves else ""
            _finish(row, moves, now, left=left)
            return False
        try:
            return _step(row, cluster, moves, now)
        except SurfaceError as exc:
            rebalance.wait(row, str(exc), now)
            return False


def _reason_to_give_up(
    row: Rebalance, cluster: Cluster | None, now: datetime.datetime
) -> Abort | None:
    wrong = refused(row, cluster)
    if wrong is not None:
        return wrong
    newer = _superseding(row)
    if newer is not None:
        roles = newer.plan["clusters"][row.cluster]
        return Abort(
            "cancelled",
            f"plan {newer.epoch}.{newer.version} wants {roles['n_prefill']} prefill and "
            f"{roles['n_decode']} decode",
        )
    if now >= row.deadline_at:
        return Abort("expired", f"the deadline has passed. {row.waiting_for}".strip())
    return None


def _at_deadline(
    row: Rebalance,
    cluster: Cluster,
    moves: Sequence[RoleMove],
    expired: Abort,
    now: datetime.datetime,
) -> Abort:
    """A role that is proven stays: its moves go on to `uncordon`. Were they the last, all is done.

    To switch back would take the instance away for longer, because of a gate that is late.
    """
    if moves[0].step == "verify":
        routers = rebalance_looks.read(row.fleet, cluster, lambda: now)
        looks, silent = _looks(routers, moves)
        around = _around(row, routers, now)
        seen = [] if routers.unanswered else list(zip(moves, looks, strict=not silent))
        if seen and all(proven(move, look, around) for move, look in seen):
            rebalance.go(row, [(move, "uncordon") for move in moves], now)
    if moves[0].step != "uncordon" or row.moves.filter(step="planned").exists():
        return expired
    return Abort("done", f"{_runs(row)}; {expired.reason}")


def _superseding(row: Rebalance) -> Decision | None:
    """A plan in force that is newer than this rebalance and wants other roles."""
    newest = fleets.newest_adopted(row.fleet)
    since = row.created_at if row.decision is None else row.decision.created_at
    if newest is None or newest.pk == row.decision_id or newest.created_at <= since:
        return None
    roles = newest.plan["clusters"].get(row.cluster)
    wanted = (row.to_n_prefill, row.to_n_decode)
    return None if roles is None or (roles["n_prefill"], roles["n_decode"]) == wanted else newest


def _finish(
    row: Rebalance, moves: Sequence[RoleMove], now: datetime.datetime, *, left: str = ""
) -> None:
    """End what was given up, and open what a newer plan wants instead."""
    if moves:
        ids = ", ".join(move.instance for move in moves)
        waited = left or row.waiting_for
        reason = f"{ids} could not be restored: {waited} Before: {row.reason}"
        rebalance.end(row, "failed", reason, now)
        return
    rebalance.end(row, row.ends_as, row.reason, now)
    newer = _superseding(row)
    if newer is None:
        return
    roles = newer.plan["clusters"][row.cluster]
    moved = [m.to_role for m in row.moves.filter(step="done")]
    shift = moved.count("prefill") - moved.count("decode")
    n_prefill, n_decode = row.from_n_prefill + shift, row.from_n_decode - shift
    if (n_prefill, n_decode) == (roles["n_prefill"], roles["n_decode"]):
        return
    rebalance.open_for(
        decision=newer,
        cluster=row.cluster,
        from_n_prefill=n_prefill,
        from_n_decode=n_decode,
        to_n_prefill=roles["n_prefill"],
        to_n_decode=roles["n_decode"],
        deadline_s=(row.deadline_at - row.created_at).total_seconds(),
        drain_timeout_s=row.drain_timeout_s,
        now=now,
    )


def _put_back(
    row: Rebalance, cluster: Cluster, moves: Sequence[RoleMove], now: datetime.datetime
) -> str:
    """The last that is tried: a router that was made to drop an instance lists it again. What
    could not be done, in words."""
    routers = rebalance_looks.read(row.fleet, cluster, lambda: now)
    urls = {move.instance: move.url for move in moves}
    said, _ = engine_looks(cluster, urls, urls)
    undone = [routers.unanswered] if routers.unanswered else []
    for move in moves:
        engine = said.get(move.instance)
        role = (engine and engine.role) or move.from_role
        for url, listed in routers.of(move).items():
            if listed is None:
                try:
                    rebalance_effects.list_as(routers, url, move, role)
                except SurfaceError as exc:
                    undone.append(str(exc))
    return "; ".join(undone) + "." if undone else ""


def _step(
    row: Rebalance, cluster: Cluster, moves: Sequence[RoleMove], now: datetime.datetime
) -> bool:
    """Look, decide, act. Raises SurfaceError."""
    routers = rebalance_looks.read(row.fleet, cluster, lambda: now)
    if not moves:
        return _plan(row, routers, now)
    goes_on = False
    try:
        goes_on = _advance(row, routers, moves, now)
    finally:
        # Whatever is waited for, and for however long: the instance takes no work meanwhile.
        if not goes_on and moves[0].step in HELD:
            for move in moves:
                rebalance_effects.hold(routers, move)
    return goes_on


def _advance(
    row: Rebalance, routers: Routers, moves: Sequence[RoleMove], now: datetime.datetime
) -> bool:
    """Raises SurfaceError for a router that was not read; a restore goes on at the others first."""
    restores = moves[0].step == "restore"
    if routers.unanswered is not None and not restores:
        raise SurfaceError(routers.unanswered)
    looks, silent = _looks(routers, moves)
    if silent:
        raise SurfaceError("; ".join(silent.values()))
    for move, look in zip(moves, looks, strict=True):
        rebalance.saw(row, move, shown(routers, look.at), now)
        if not look.at and not restores:
            raise SurfaceError(f"No router lists {move.instance}.")
    acts = next_act(moves, looks, _around(row, routers, now))
    if routers.unanswered is not None and isinstance(acts[0][1], Go):
        raise SurfaceError(routers.unanswered)
    return _perform(row, routers, acts, looks, now)


def _looks(routers: Routers, moves: Sequence[RoleMove]) -> tuple[list[Look], dict[str, str]]:
    """Of each move its instance; of engines that do not answer why, and then no looks at all."""
    urls = {move.instance: move.url for move in moves}
    said, silent = engine_looks(routers.cluster, urls, urls)
    if silent:
        return [], silent
    return [Look(m.instance, m.url, routers.of(m), said[m.instance]) for m in moves], {}


def _around(row: Rebalance, routers: Routers, now: datetime.datetime) -> Around:
    return Around(
        now=now,
        drain_timeout_s=row.drain_timeout_s,
        serving=routers.serving(),
        gates_behind=tuple(_gates_behind(row, now)),
        has_labels=routers.cluster.role_switch == "label",
    )


def _plan(row: Rebalance, routers: Routers, now: datetime.datetime) -> bool:
    cannot = unable(routers)
    if cannot is not None:
        rebalance.abort(row, cannot.ends_as, cannot.reason, now)
        return True
    if routers.unanswered is not None:
        raise SurfaceError(routers.unanswered)
    listed = {id for ids in routers.listings().values() for id in ids}
    said, silent = engine_looks(routers.cluster, routers.urls, sorted(listed))
    planned = plan(row, routers, said, silent)
    if isinstance(planned, Wait):
        rebalance.wait(row, planned.sentence, now)
        return False
    if isinstance(planned, Abort):
        rebalance.abort(row, planned.ends_as, planned.reason, now)
        return True
    if isinstance(planned, Done):
        rebalance.end(row, "done", f"{_runs(row)}{planned.but}", now)
        return False
    frozen = in_force.stops_moves(row.fleet_id, row.created_at, now)
    if frozen is not None:
        reason = f"{row.cluster} is {frozen.text}; what moved before it stays"
        rebalance.abort(row, "cancelled", reason, now)
        return True
    unfit = _unfit(routers, planned.units[0])
    if unfit is not None:
        rebalance.abort(row, "failed", unfit, now)
        return True
    found = room(planned, routers, fleets.scenario_of(row.fleet))
    if found.wait is not None:
        rebalance.wait(row, found.wait, now)
        return False
    facts = {"at_s": now.timestamp(), **found.facts}
    rebalance.begin(row, planned.units, now, preflight=facts)
    return True


def _unfit(routers: Routers, unit: Sequence[rebalance.PlannedMove]) -> str | None:
    """Why an engine of the unit cannot take another role, if so. Raises SurfaceError."""
    for move in unit:
        ability = engines.ability(
            move.url,
            routers.cluster.role_switch,
            token_file=routers.cluster.engine_token_file,
        )
        if not ability.can:
            return f"{move.instance} ({move.url}): {ability.why}"
    return None


def _perform(
    row: Rebalance,
    routers: Routers,
    acts: Sequence[tuple[RoleMove, Act]],
    looks: Sequence[Look],
    now: datetime.datetime,
) -> bool:
    """What `next_act` says. Raises SurfaceError."""
    move, act = acts[0]
    waits = [(m, a) for m, a in acts if isinstance(a, Wait)]
    steps = [(m, a.step) for m, a in acts if isinstance(a, Go)]
    if isinstance(act, Abort):
        rebalance.abort(row, act.ends_as, act.reason, now, keeps_proven=False)
        return True
    if any(step == "drain" for _, step in steps):
        moves = rebalance.active_moves(row)
        rebalance.go(row, [(m, "drain") for m in moves], now)
        return True
    if waits:
        # What keeps the others from going on is said, before what only needs a second look.
        _, said = min(waits, key=lambda each: each[1].idle)
        seen = [(m, wait.requests, wait.idle) for m, wait in waits]
        rebalance.wait(row, said.sentence, now, seen=seen)
        if move.step == "restore":
            # Only what can be emptied is kept out of work for it: a restore that cannot go on
            # lets drains lapse.
            for each, _ in waits:
                rebalance_effects.hold(routers, each)
        return False
    if steps:
        for (each, step), look in zip(steps, looks, strict=True):
            if step == "switch":
                rebalance.prove(each, "idle", _idle(each, look, now))
        rebalance.go(row, steps, now)
        return True
    if isinstance(act, Canary):
        return _canary(row, routers, act.router, now)
    return _try(row, move, now, lambda: rebalance_effects.perform(routers, move, act))


def _idle(move: RoleMove, look: Look, now: datetime.datetime) -> dict[str, object]:
    """The evidence that nothing was on the instance when it was switched."""
    since = move.idle_since or now
    at = {url: listed and listed.requests for url, listed in look.at.items()}
    return {
        "since_s": since.timestamp(),
        "at_s": now.timestamp(),
        "engine_requests": look.engine.requests,
        "router_requests": at,
    }


def _canary(row: Rebalance, routers: Routers, router: str, now: datetime.datetime) -> bool:
    """One request; kept is what it met, and after `FAILS` in a row the old role is restored."""
    if not _may_act(row):
        return True
    moves = rebalance.active_moves(row)
    met = rebalance_effects.canary(routers, router, row, moves, now)
    for move in moves:
        rebalance.prove(move, "canary", met.facts(move))
    if met.error and met.n_failed >= rebalance_effects.FAILS:
        reason = f"no canary got through {routers.named(router)}: {met.error}"
        rebalance.abort(row, "failed", reason, now, keeps_proven=False)
        return True
    if met.error:
        raise SurfaceError(met.error)
    return True


def _try(
    row: Rebalance, move: RoleMove, now: datetime.datetime, effect: Callable[[], object]
) -> bool:
    """The side effect. Raises SurfaceError where it may yet succeed."""
    if not _may_act(row):
        return True
    restores = move.step == "restore"
    late = overdue(move, now, row.drain_timeout_s)
    try:
        effect()
    except (Busy, Unheeded) as exc:
        if restores or not late:
            raise
        rebalance.abort(row, "failed", str(exc), now, keeps_proven=False)
    except (Refused, CannotDo) as exc:
        if restores:
            raise
        rebalance.abort(row, "failed", str(exc), now, keeps_proven=False)
    return True


def _may_act(row: Rebalance) -> bool:
    """Asked right before an effect: the lock is still ours (a connection that was lost raises) and
    no newer plan wants other roles, which the next pass then sees. Looking may have taken long."""
    return rebalance.stands(row) and (row.state != "open" or _superseding(row) is None)


def _gates_behind(row: Rebalance, now: datetime.datetime) -> list[str]:
    """Gates of the cluster, heard of lately, that run an older plan than this rebalance's.

    But for those a person stopped waiting for, be it for this plan or for one since.
    """
    if row.decision is None:
        return []
    wanted = (row.decision.epoch, row.decision.version)
    heard = RouterState.objects.filter(
        fleet_id=row.fleet_id,
        cluster=row.cluster,
        last_seen_at__gte=now - datetime.timedelta(seconds=delivery.SILENT_AFTER_S),
    ).exclude(
        router__in=Delivery.objects.filter(
            decision__fleet_id=row.fleet_id, decision_id__gte=row.decision_id, state="cancelled"
        ).values("router")
    )
    return [
        f"{gate.router} runs {gate.epoch_running}.{gate.version_running} of {wanted[0]}.{wanted[1]}"
        if gate.epoch_running is not None
        else f"{gate.router} runs no plan"
        for gate in heard.order_by("router")
        if gate.epoch_running is None or (gate.epoch_running, gate.version_running) < wanted
    ]


def _runs(row: Rebalance) -> str:
    return f"{row.cluster} runs {row.to_n_prefill} prefill and {row.to_n_decode} decode"
