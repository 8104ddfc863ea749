"""From a decision to proof that routers run it. The only writer of Delivery and RouterState.

A plan is issued only once it reads as a gate reads it (`refusal`). A delivery is `sent` when its
decision is announced, `accepted` when the router has it but does not run it yet, `applied` when the
router says it runs it, `failed` when it refused or runs another plan again, `pending_restart` when
the router takes it only by a restart or by somebody else's hand and shows that it has not,
`superseded` when a newer plan overtook it, `expired` when it was not applied by its deadline,
`cancelled` when an operator stopped waiting for that router. Whatever it was, it is `applied` once
the router shows that it runs it. Routers always get the newest plan only, and one that joins later
gets its row with its first ack.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import Case, Count, Exists, OuterRef, QuerySet, When, Window
from django.db.models.functions import RowNumber

from routing import acks, announce, audit, commands, fleets
from routing.acks import AckError, Claim, Move
from routing.gate.plan import PlanError, parse_plan
from routing.managed_steps import LATE_THRESHOLD
from routing.models import Decision, Delivery, Fleet, ManagedRouter, RouterState

SILENT_AFTER_S = 15.0
"""A router acks every 5 s: three missed in a row."""
EXPECTED_WITHIN = datetime.timedelta(seconds=60)
LATE_AFTER_S = 10.0
OPEN = acks.OPEN
DEADLINE = datetime.timedelta(seconds=120)
"""For a router that takes plans by itself; one that must be restarted waits for its people."""
REFUSED = "refused"
"""The kind of a decision that was not issued, because no gate could run it."""
_TIMED = ("sent", "accepted")
CANCELLABLE = (*OPEN, "expired")


def document(decision: Decision) -> dict[str, Any]:
    """The plan as routers read it (docs/contracts.md, Plan)."""
    return {
        "fleet": decision.fleet_id,
        "epoch": decision.epoch,
        "version": decision.version,
        "issued_at_s": decision.created_at.timestamp(),
        "reason": decision.reason,
        "clusters": {
            name: _cluster_document(cluster) for name, cluster in decision.plan["clusters"].items()
        },
    }


def _cluster_document(cluster: dict[str, Any]) -> dict[str, Any]:
    threshold = cluster["threshold_tokens"]
    return {
        "mode": cluster["mode"],
        "threshold_tokens": threshold,
        "band": cluster["band"] or (None if threshold is None else [threshold, threshold]),
        "cache_mode": cluster["cache_mode"],
        "moves": cluster.get("moves", {}),
        "remote": cluster["remote"],
        "max_remote_in_flight": cluster["max_remote_in_flight"],
        "n_prefill": cluster["n_prefill"],
        "n_decode": cluster["n_decode"],
        "transport": cluster.get("transport", {}),
    }


def refusal(decision: Decision) -> str:
    """Why a gate would refuse this plan, by the gate's own reading of it; empty if none would."""
    raw = msgspec.json.encode(document(decision))
    for cluster in decision.plan["clusters"]:
        try:
            parse_plan(raw, fleet=decision.fleet_id, cluster=cluster)
        except PlanError as exc:
            return f"{cluster}: {exc}"
    return ""


def newest_document(fleet: Fleet) -> dict[str, Any] | None:
    """What the fleet's routers should run now; None before the first plan of the epoch."""
    decision = fleets.newest_adopted(fleet)
    return None if decision is None else document(decision)


def open_deliveries(decision: Decision, now: datetime.datetime) -> None:
    """Expect the decision of every router heard of lately; older ones are overtaken, and say so."""
    # Locked in one order, as acks lock theirs: an update alone takes rows as it finds them.
    late = Delivery.objects.filter(decision__fleet_id=decision.fleet_id, state__in=CANCELLABLE)
    locked = list(late.select_for_update().order_by("pk").values_list("pk", flat=True))
    said = f"overtaken by {decision.epoch}.{decision.version} before it was applied"
    Delivery.objects.filter(pk__in=locked).update(state="superseded", error=said, updated_at=now)
    routers = RouterState.objects.filter(
        fleet_id=decision.fleet_id, last_seen_at__gte=now - EXPECTED_WITHIN
    ).values_list("router", flat=True)
    # Routers that take t only by a restart are told nothing: what they show is read back.
    others = ManagedRouter.objects.filter(
        fleet_id=decision.fleet_id, capabilities__threshold__in=LATE_THRESHOLD
    )
    expected = [(router, "sent") for router in routers]
    expected += [(str(row), "pending_restart") for row in others]
    Delivery.objects.bulk_create(
        Delivery(decision=decision, router=router, state=state, sent_at=now, updated_at=now)
        for router, state in expected
    )


def record_ack(*, fleet: Fleet, now: datetime.datetime, **claim: Any) -> None:
    """One ack alone, `claim` being the fields of Claim. Raises AckError."""
    [refused] = record_acks(fleet, [Claim(**claim)], now=now)
    if refused is not None:
        raise refused


def record_acks(
    fleet: Fleet, claims: Sequence[Claim], *, now: datetime.datetime
) -> list[AckError | None]:
    """What routers say they run, acks and heartbeats, in one transaction whatever their number.

    For each claim why it cannot be meant, or None. Of several of one router the last is its state.
    """
    clusters, refused = acks.checked(fleet, claims)
    said = [claim for claim, error in zip(claims, refused, strict=True) if error is None]
    if not said:
        return refused
    last = {claim.router: claim for claim in said}
    with transaction.atomic():
        RouterState.objects.bulk_create(
            [
                RouterState(
                    router=router,
                    fleet=fleet,
                    cluster=clusters[router],
                    epoch_running=claim.running and claim.running[0],
                    version_running=claim.running and claim.running[1],
                    state=claim.state,
                    error=claim.message,
                    transport=claim.transport,
                    override=claim.override_values,
                    last_seen_at=now,
                )
                for router, claim in sorted(last.items())  # in one order, or two processes deadlock
            ],
            update_conflicts=True,
            unique_fields=["router"],
            update_fields=[
                *("fleet", "cluster", "epoch_running", "version_running"),
                *("state", "error", "transport", "override", "last_seen_at"),
            ],
        )
        _forget_releases(last)
        newest = fleets.newest_adopted(fleet)
        moves = acks.moves(fleet, newest, said)
        expected = [] if newest is None else [(newest, router) for router in sorted(last)]
        _apply(moves, _deliveries(expected, moves, now), now)
    return refused


def _deliveries(
    expected: list[tuple[Decision, str]], moves: list[Move], now: datetime.datetime
) -> dict[tuple[int, str], Delivery]:
    """The rows of `expected`, made where they are missing, and of `moves` where there are any."""
    wanted = {(decision.pk, router) for decision, router in expected} | {m.key for m in moves}
    found = _rows(wanted)
    missing = [one for one in expected if (one[0].pk, one[1]) not in found]
    if missing:
        Delivery.objects.bulk_create(
            [
                Delivery(
                    decision=decision, router=router, state="sent", sent_at=now, updated_at=now
                )
                for decision, router in missing
            ],
            ignore_conflicts=True,  # another process heard of it at the same time
        )
        found |= _rows({(decision.pk, router) for decision, router in missing})
    return found


def _rows(keys: set[tuple[int, str]]) -> dict[tuple[int, str], Delivery]:
    rows = Delivery.objects.filter(
        decision__in={key[0] for key in keys}, router__in={key[1] for key in keys}
    )
    return {key: row for row in rows if (key := (row.decision_id, row.router)) in keys}


def _apply(
    moves: list[Move], rows: dict[tuple[int, str], Delivery], now: datetime.datetime
) -> None:
    """Compare and swap, and announce what moved. A heartbeat moves nothing and locks nothing."""
    due = {rows[m.key].pk for m in moves if m.key in rows and rows[m.key].state in m.sources}
    if not due:
        return
    locked = Delivery.objects.select_for_update().filter(pk__in=due).order_by("pk")
    current = {(row.decision_id, row.router): row for row in locked}
    changed: dict[tuple[str, str], set[int]] = defaultdict(set)
    messages = []
    for move in moves:
        row = current.get(move.key)
        if row is None or row.state not in move.sources:
            continue
        changed[row.state, row.error].discard(row.pk)
        row.state, row.error = move.state, move.error
        changed[row.state, row.error].add(row.pk)
        messages.append(_message_of(move.decision, move.router, move.state, move.error, now))
    for (state, error), pks in changed.items():
        values: dict[str, Any] = {"state": state, "error": error, "updated_at": now}
        if state == "applied":
            values["applied_at"] = now
        Delivery.objects.filter(pk__in=pks).update(**values)
    transaction.on_commit(partial(announce.publish_all, messages))


def record_read_back(
    decision: Decision,
    *,
    router: str,
    runs: bool | None,
    shows: str,
    how: str,
    now: datetime.datetime,
) -> None:
    """What a router that is not told plans shows of the plan in force: it `runs` it, or does not.

    None: it does not show, which proves nothing. `how` is what it takes (`Capabilities.threshold`).
    """
    with transaction.atomic():
        waits = {"state": "pending_restart", "sent_at": now, "updated_at": now}
        Delivery.objects.get_or_create(decision=decision, router=router, defaults=waits)
        if runs:
            _move(decision, router, "applied", acks.NOT_APPLIED, now)
            return
        shown = shows or "it does not show what it runs by"
        if runs is False:
            _move(decision, router, "failed", ("applied",), now, error=f"not any more: {shown}")
        error = f"it takes a {how}: {shown}"[:500]
        _move(decision, router, "pending_restart", ("sent", "accepted"), now, error=error)


def expire(clock: Callable[[], datetime.datetime]) -> int:
    """Give up waiting for routers that did not apply a plan by its deadline; how many."""
    now = clock()
    # A person on the gate keeps the plan from being applied, and its gate says so each time.
    overridden = RouterState.objects.filter(
        override__isnull=False, last_seen_at__gte=now - EXPECTED_WITHIN
    )
    late = Delivery.objects.filter(state__in=_TIMED, sent_at__lte=now - DEADLINE).exclude(
        router__in=overridden.values("router")
    )
    error = f"not applied within {DEADLINE.total_seconds():.0f} s"
    moved = 0
    for row in late.select_related("decision"):
        moved += _move(row.decision, row.router, "expired", _TIMED, now, error=error)
    return moved


def applied_everywhere(fleet: Fleet) -> QuerySet[Decision]:
    """Plans that every router expected to run them was seen to run, newest first."""
    sent = Delivery.objects.filter(decision=OuterRef("pk"))
    return (
        Decision.objects.filter(Exists(sent), fleet=fleet, version__isnull=False)
        .exclude(Exists(sent.exclude(state="applied")))
        .order_by("-epoch", "-version")
    )


def cancel(
    decision: Decision,
    *,
    router: str,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> None:
    """Stop waiting for one router. Raises commands.Refused where nothing is waited for.

    Nothing is taken back: a router that returns is sent the newest plan, as ever.
    """
    if not reason.strip():
        raise commands.Refused("reason", reason, "must not be empty")
    with transaction.atomic():
        row = Delivery.objects.select_for_update().filter(decision=decision, router=router).first()
        if row is None:
            raise commands.Refused("router", router, "was never sent this plan")
        if row.state not in CANCELLABLE:
            raise commands.Refused("router", router, f"is not waited for: it is {row.state}")
        before = row.state
        _move(decision, router, "cancelled", CANCELLABLE, now, error=f"{actor}: {reason}"[:500])
        audit.record(
            actor=actor,
            via=via,
            verb="delivery.cancel",
            fleet=decision.fleet_id,
            target=f"plan {decision.epoch}.{decision.version} to {router}"[:300],
            before={"state": before},
            after={"state": "cancelled"},
            reason=reason,
        )


def release_override(state: RouterState, *, actor: str, via: str, reason: str) -> None:
    """Have a gate end what a person set on it, by its id: at its next contact, and only that one.

    In the caller's transaction.
    """
    state.release = state.override["id"]
    state.save(update_fields=["release"])
    audit.record(
        actor=actor,
        via=via,
        verb="gate.release",
        fleet=state.fleet_id,
        target=state.router,
        before={"override": state.override},
        reason=reason,
    )


def to_release(router: str) -> str:
    """The override that this router is to end, empty if none."""
    found = RouterState.objects.filter(router=router).values_list("release", flat=True).first()
    return found or ""


def _forget_releases(claims: Mapping[str, Claim]) -> None:
    """Of overrides that ended, or that another has followed."""
    asked = RouterState.objects.filter(router__in=list(claims)).exclude(release="")
    over = [
        row.router
        for row in asked
        if (told := claims[row.router].override) is None or told.id != row.release
    ]
    if over:
        RouterState.objects.filter(router__in=over).update(release="")


def forget_routers(silent_since: datetime.datetime) -> int:
    """Routers not heard of since then are gone: they no longer count among a cluster's gates.

    Their unfinished deliveries go too; those that were applied stay as history.
    """
    gone = RouterState.objects.filter(last_seen_at__lt=silent_since)
    names = list(gone.values_list("router", flat=True))
    forget_waits(names)
    gone.delete()
    return len(names)


def forget_waits(routers: Sequence[str]) -> None:
    """Deliveries to routers that are gone, but for those that were applied: nothing waits for them,
    and a plan is not less known for them."""
    Delivery.objects.filter(router__in=routers).exclude(state="applied").delete()


def _move(
    decision: Decision,
    router: str,
    state: str,
    source_states: tuple[str, ...],
    now: datetime.datetime,
    error: str = "",
) -> bool:
    """Compare and swap one delivery; whether this call moved it, and then it is announced."""
    values: dict[str, Any] = {"state": state, "error": error, "updated_at": now}
    if state == "applied":
        values["applied_at"] = now
    waiting = Delivery.objects.filter(decision=decision, router=router, state__in=source_states)
    if not waiting.update(**values):
        return False
    message = _message_of(decision, router, state, error, now)
    transaction.on_commit(partial(announce.publish, message))
    return True


def _message_of(
    decision: Decision, router: str, state: str, error: str, now: datetime.datetime
) -> dict[str, Any]:
    return {
        "type": "delivery",
        "fleet": decision.fleet_id,
        "decision_id": decision.pk,
        "epoch": decision.epoch,
        "version": decision.version,
        "router": router,
        "state": state,
        "error": error or None,
        "at_s": now.timestamp(),
    }


def counts(decisions: Iterable[Decision]) -> dict[int, dict[str, Any]]:
    """By decision id: `{state, n_applied, n_routers}`, counted where the rows are.

    `applied` means that every router expected to run it said so. `advised` was never pushed;
    `unclaimed` was pushed while no router was known.
    """
    known = {decision.pk: decision for decision in decisions}
    found: dict[int, Counter[str]] = {pk: Counter() for pk in known}
    rows = Delivery.objects.filter(decision__in=known).values_list("decision_id", "state")
    for pk, state, n in rows.annotate(n=Count("pk")).order_by():
        found[pk][state] = n
    return {pk: _counted(decision, found[pk]) for pk, decision in known.items()}


def summaries(
    decisions: Iterable[Decision], *, most_routers: int | None = None
) -> dict[int, dict[str, Any]]:
    """The same with `routers: [...]`, by name; with `most_routers` the first so many of each
    decision, beginning with those that do not run it."""
    known = {decision.pk: decision for decision in decisions}
    rows = Delivery.objects.filter(decision__in=known).order_by("router")
    if most_routers is not None:
        late_first = (Case(When(state="applied", then=1), default=0), "router")
        place = Window(RowNumber(), partition_by="decision_id", order_by=late_first)
        rows = rows.annotate(place=place).filter(place__lte=most_routers).order_by("place")
    found: dict[int, list[Delivery]] = {pk: [] for pk in known}
    for row in rows:
        found[row.decision_id].append(row)
    if most_routers is not None:
        counted = counts(known.values())
    else:
        states = {pk: Counter(row.state for row in rows) for pk, rows in found.items()}
        counted = {pk: _counted(decision, states[pk]) for pk, decision in known.items()}
    return {pk: {**counted[pk], "routers": [_row(row) for row in found[pk]]} for pk in known}


def _counted(decision: Decision, states: Counter[str]) -> dict[str, Any]:
    return {
        "state": _state(decision, states.keys()),
        "n_applied": states["applied"],
        "n_routers": states.total(),
    }


def _row(row: Delivery) -> dict[str, Any]:
    return {
        "router": row.router,
        "state": row.state,
        "error": row.error or None,
        "sent_at": row.sent_at,
        "applied_at": row.applied_at,
        "deadline_at": _deadline(row),
    }


def _state(decision: Decision, states: Collection[str]) -> str:
    """That of the router that is furthest from running it."""
    if decision.version is None:
        return "refused" if decision.kind == REFUSED else "advised"
    if not states:
        return "unclaimed"
    order = (
        *("failed", "superseded", "expired", "sent", "accepted"),
        *("pending_restart", "cancelled", "applied"),
    )
    return next(state for state in order if state in states)


def _deadline(row: Delivery) -> datetime.datetime | None:
    return row.sent_at + DEADLINE if row.sent_at and row.state in _TIMED else None
