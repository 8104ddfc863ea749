"""Carries rebalances out: one pass is one look, at most one side effect, one transaction.

A pass holds the lock of the rebalance's row, so two workers never act on one at once, and a worker
that is killed loses it with its connection. The next pass, whoever's, looks at stacks and engines
again and finds by itself how far things are. No pass sleeps: what has to be waited for is written
down.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from typing import Any

from django.db import transaction

from routing import delivery, fleets, rebalance, workers
from routing.core.scenario.document import Cluster
from routing.models import Decision, Delivery, Rebalance, RoleMove, RouterState
from routing.rebalance_steps import (
    DRAIN,
    HELD,
    Abort,
    Act,
    Done,
    Go,
    Look,
    Put,
    Switch,
    Wait,
    advance,
    overdue,
    plan,
    preflight,
    proven,
    restore,
)

RESTORE_LIMIT = datetime.timedelta(minutes=10)
"""How long past the deadline an instance that cannot be reached is tried again."""
_MAX_PASSES = 40
"""In one run; a move needs about ten with one stack. What is left waits for the next run."""

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
        move = rebalance.active_move(row)
        if given_up is not None:
            if given_up.ends_as == "expired" and move is not None:
                given_up = _at_deadline(row, cluster, move, given_up, now)
            rebalance.abort(row, given_up.ends_as, given_up.reason, now)
            return True
        reachable = cluster is not None and cluster.control_urls
        hopeless = not reachable or now > row.deadline_at + RESTORE_LIMIT
        if row.state == "aborting" and (move is None or hopeless):
            _finish(row, move, now)
            return False
        try:
            return _step(row, cluster, move, now)
        except workers.WorkersError as exc:
            rebalance.wait(row, move, str(exc), now)
            return False


def _reason_to_give_up(
    row: Rebalance, cluster: Cluster | None, now: datetime.datetime
) -> Abort | None:
    refused = preflight(row, cluster)
    if refused is not None:
        return refused
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
    row: Rebalance, cluster: Cluster, move: RoleMove, expired: Abort, now: datetime.datetime
) -> Abort:
    """A role that is proven stays: its move goes on to `uncordon`. Was it the last, all is done.

    To switch back would take the instance away for longer, because of a gate that is late.
    """
    if move.step == "verify":
        listed, _ = _listed(cluster, move)
        try:
            look = Look(listed, workers.load(move.url))
        except workers.WorkersError:
            return expired
        if len(listed) == len(cluster.control_urls) and proven(move, look):
            rebalance.go(row, move, "uncordon", now)
    if move.step != "uncordon" or row.moves.filter(step="planned").exists():
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


def _finish(row: Rebalance, move: RoleMove | None, now: datetime.datetime) -> None:
    """End what was given up, and open what a newer plan wants instead."""
    if move is not None:
        reason = f"{move.instance} could not be restored: {row.waiting_for} Before: {row.reason}"
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


def _step(row: Rebalance, cluster: Cluster, move: RoleMove | None, now: datetime.datetime) -> bool:
    """Look, decide, act. Raises WorkersError."""
    if move is None:
        return _plan(row, cluster, now)
    listed, unanswered = _listed(cluster, move)
    goes_on = False
    try:
        if unanswered is not None:
            raise unanswered
        goes_on = _advance(row, cluster, move, listed, now)
    finally:
        # Whatever is waited for, and for however long: the instance takes no work meanwhile.
        if not goes_on and move.step in HELD:
            _renew(move, listed)
    return goes_on


def _advance(
    row: Rebalance,
    cluster: Cluster,
    move: RoleMove,
    listed: dict[str, workers.Worker],
    now: datetime.datetime,
) -> bool:
    if len(listed) < len(cluster.control_urls):
        rebalance.wait(row, move, f"Not every stack lists {move.instance}.", now)
        return False
    look = Look(listed, workers.load(move.url))
    if move.step == "restore":
        act = restore(move, look)
    else:
        behind = _gates_behind(row, now) if move.step == "verify" else []
        timeout_s = row.drain_timeout_s
        act = advance(move, look, now=now, drain_timeout_s=timeout_s, gates_behind=behind)
    return _perform(row, move, act, now)


def _plan(row: Rebalance, cluster: Cluster, now: datetime.datetime) -> bool:
    own = f"{row.fleet_id}/{row.cluster}/"
    listings = {
        url: {id: w for id, w in workers.listing(url).items() if id.startswith(own)}
        for url in cluster.control_urls
    }
    first = listings[cluster.control_urls[0]]
    loads: dict[str, workers.Load] = {}
    silent: dict[str, str] = {}
    for id, worker in first.items():
        try:
            loads[id] = workers.load(worker.url)
        except workers.WorkersError as exc:
            silent[id] = str(exc)
    planned = plan(row, cluster, listings, loads, silent)
    if isinstance(planned, Wait):
        rebalance.wait(row, None, planned.sentence, now)
        return False
    if isinstance(planned, Abort):
        rebalance.abort(row, planned.ends_as, planned.reason, now)
        return True
    if isinstance(planned, Done):
        rebalance.end(row, "done", f"{_runs(row)}{planned.but}", now)
        return False
    rebalance.begin(row, planned, now)
    return True


def _perform(row: Rebalance, move: RoleMove, act: Act, now: datetime.datetime) -> bool:
    match act:
        case Go(step):
            rebalance.go(row, move, step, now)
            return True
        case Abort(ends_as, reason):
            rebalance.abort(row, ends_as, reason, now)
            return True
        case Wait(sentence, requests, idle):
            rebalance.wait(row, move, sentence, now, requests=requests, idle=idle)
            return False
        case Put(control_url, change):
            return _try(row, move, now, lambda: _change(control_url, move, change))
        case Switch(role):
            return _try(row, move, now, lambda: workers.switch(move.url, role))


def _try(
    row: Rebalance, move: RoleMove, now: datetime.datetime, effect: Callable[[], object]
) -> bool:
    """The side effect. Raises WorkersError where it may yet succeed."""
    late = overdue(move, now, row.drain_timeout_s)
    try:
        effect()
    except workers.Refusal as exc:
        busy = exc.status == 409 and not late
        final = move.step == "cordon" or (move.step == "switch" and not busy)
        if not final:
            raise
        rebalance.abort(row, "failed", str(exc), now)
    except workers.Unheeded as exc:
        if not (late and move.step in ("cordon", "drain", "switch")):
            raise
        rebalance.abort(row, "failed", str(exc), now)
    return True


def _change(control_url: str, move: RoleMove, change: dict[str, Any]) -> None:
    """A change that the stack then lists. Raises WorkersError.

    A stack that only says yes would otherwise be asked again at once, and for ever.
    """
    workers.put(control_url, move.instance, change)
    worker = workers.listing(control_url).get(move.instance)
    for field in ("status", "worker_type"):
        shown = getattr(worker, field, None)
        if shown is not None and shown != change.get(field, shown):
            raise workers.Unheeded(
                f"{control_url}/workers",
                f"lists {move.instance} with {field} {shown}, though it answered {change[field]}",
            )


def _renew(move: RoleMove, listed: dict[str, workers.Worker]) -> None:
    """Drain on. What is not renewed lapses, which a later look sees and says."""
    for url, worker in listed.items():
        if worker.status == "draining":
            try:
                workers.put(url, move.instance, DRAIN)
            except workers.WorkersError as exc:
                log.warning("a drain was not renewed: %s", exc)


def _listed(
    cluster: Cluster, move: RoleMove
) -> tuple[dict[str, workers.Worker], workers.WorkersError | None]:
    """The instance by the stacks that list it, and why one did not answer, if so."""
    listed, unanswered = {}, None
    for url in cluster.control_urls:
        try:
            worker = workers.listing(url).get(move.instance)
        except workers.WorkersError as exc:
            unanswered = exc
            continue
        if worker is not None:
            listed[url] = worker
    return listed, unanswered


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
