"""From a decision to proof that routers run it. The only writer of Delivery and RouterState.

A delivery is `sent` when its decision is announced, `accepted` when the router has it but does not
run it yet, `applied` when the router says it runs it, `failed` when it refused, `superseded` when a
newer plan overtook it, `cancelled` when an operator stopped waiting for that router. Routers always
get the newest plan only, and a router that joins later gets its row with its first ack.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from functools import partial
from typing import Any

from django.db import transaction

from routing import announce, audit, commands, fleets
from routing.models import Decision, Delivery, Fleet, RouterState
from telemetry import store, wire

ROUTER_STATES = ("running", "accepted", "refused", "no_plan")
SILENT_AFTER_S = 15.0
"""A router acks every 5 s: three missed in a row."""
EXPECTED_WITHIN = datetime.timedelta(seconds=60)
LATE_AFTER_S = 10.0
OPEN = ("sent", "accepted")
"""States of a router that is still waited for."""
_NOT_APPLIED = (*OPEN, "failed", "superseded", "cancelled")


class AckError(ValueError):
    """An ack that cannot be meant: which field, what stood there, why not."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.value, self.message = field, value, message


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


def newest_document(fleet: Fleet) -> dict[str, Any] | None:
    """What the fleet's routers should run now; None before the first plan of the epoch."""
    decision = fleets.newest_adopted(fleet)
    return None if decision is None else document(decision)


def open_deliveries(decision: Decision, now: datetime.datetime) -> None:
    """Expect the decision of every router heard of lately; older ones are overtaken."""
    Delivery.objects.filter(decision__fleet_id=decision.fleet_id, state__in=OPEN).update(
        state="superseded", updated_at=now
    )
    routers = RouterState.objects.filter(
        fleet_id=decision.fleet_id, last_seen_at__gte=now - EXPECTED_WITHIN
    ).values_list("router", flat=True)
    Delivery.objects.bulk_create(
        Delivery(decision=decision, router=router, state="sent", sent_at=now, updated_at=now)
        for router in routers
    )


def record_ack(
    *,
    fleet: Fleet,
    router: str,
    running: tuple[int, int] | None,
    state: str,
    error: str | None,
    transport: str,
    now: datetime.datetime,
) -> None:
    """What a router says it runs: its ack and its heartbeat. Raises AckError.

    `running` is (epoch, version), or None when it never had a plan.
    """
    cluster = _router_cluster(fleet, router)
    if state not in ROUTER_STATES:
        raise AckError("state", state, f"must be one of {', '.join(ROUTER_STATES)}")
    epoch, version = running or (None, None)
    message = (error or "").replace("\0", "")[:500]
    with transaction.atomic():
        RouterState.objects.update_or_create(
            router=router,
            defaults={
                "fleet": fleet,
                "cluster": cluster,
                "epoch_running": epoch,
                "version_running": version,
                "state": state,
                "error": message,
                "transport": transport,
                "last_seen_at": now,
            },
        )
        newest = fleets.newest_adopted(fleet)
        if newest is not None:
            Delivery.objects.get_or_create(
                decision=newest,
                router=router,
                defaults={"state": "sent", "sent_at": now, "updated_at": now},
            )
        if running is not None:
            ran = Decision.objects.filter(fleet=fleet, epoch=epoch, version=version).first()
            if ran is not None:
                _move(ran, router, "applied", _NOT_APPLIED, now)
        if newest is None or running == (newest.epoch, newest.version):
            return
        if state == "refused":
            _move(newest, router, "failed", OPEN, now, error=message)
        elif state == "accepted":
            _move(newest, router, "accepted", ("sent",), now)


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
        if row.state not in OPEN:
            raise commands.Refused("router", router, f"is not waited for: it is {row.state}")
        before = row.state
        _move(decision, router, "cancelled", OPEN, now, error=f"{actor}: {reason}"[:500])
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


def forget_routers(silent_since: datetime.datetime) -> int:
    """Routers not heard of since then are gone: they no longer count among a cluster's gates.

    Their unfinished deliveries go too; those that were applied stay as history.
    """
    gone = RouterState.objects.filter(last_seen_at__lt=silent_since)
    names = list(gone.values_list("router", flat=True))
    Delivery.objects.filter(router__in=names).exclude(state="applied").delete()
    gone.delete()
    return len(names)


def _move(
    decision: Decision,
    router: str,
    state: str,
    source_states: tuple[str, ...],
    now: datetime.datetime,
    error: str = "",
) -> None:
    """Compare and swap one delivery; announce it if this call was the one that moved it."""
    values: dict[str, Any] = {"state": state, "error": error, "updated_at": now}
    if state == "applied":
        values["applied_at"] = now
    waiting = Delivery.objects.filter(decision=decision, router=router, state__in=source_states)
    if not waiting.update(**values):
        return
    message = {
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
    transaction.on_commit(partial(announce.publish, message))


def _router_cluster(fleet: Fleet, router: str) -> str:
    parts = router.split("/")
    if len(parts) != 3 or not all(parts) or len(router) > 300 or not router.isprintable():
        raise AckError("router", router, "must be FLEET/CLUSTER/NAME")
    if parts[0] != fleet.pk:
        raise AckError("router", router, f"is not of fleet {fleet.pk}")
    known = [c.name for c in fleets.scenario_of(fleet).clusters if c.kind == "pd"]
    if parts[1] not in known:
        raise AckError("router", router, f"names no PD cluster; there are {', '.join(known)}")
    return parts[1]


def summaries(decisions: Iterable[Decision]) -> dict[int, dict[str, Any]]:
    """By decision id: `{state, n_applied, n_routers, routers: [...]}`.

    `applied` means that every router expected to run it said so. `advised` was never pushed;
    `unclaimed` was pushed while no router was known.
    """
    known = {decision.pk: decision for decision in decisions}
    rows: dict[int, list[Delivery]] = {pk: [] for pk in known}
    for row in Delivery.objects.filter(decision__in=known).order_by("router"):
        rows[row.decision_id].append(row)
    return {pk: _summary(decision, rows[pk]) for pk, decision in known.items()}


def _summary(decision: Decision, rows: list[Delivery]) -> dict[str, Any]:
    states = {row.state for row in rows}
    if decision.version is None:
        state = "advised"
    elif not rows:
        state = "unclaimed"
    elif states == {"applied"}:
        state = "applied"
    else:
        order = ("failed", "superseded", "sent", "accepted", "cancelled")
        state = next(s for s in order if s in states)
    return {
        "state": state,
        "n_applied": sum(row.state == "applied" for row in rows),
        "n_routers": len(rows),
        "routers": [
            {
                "router": row.router,
                "state": row.state,
                "error": row.error or None,
                "sent_at": row.sent_at,
                "applied_at": row.applied_at,
            }
            for row in rows
        ],
    }


def routers(fleet: Fleet, now: datetime.datetime) -> list[dict[str, Any]]:
    """Every router of the fleet: what it acked, what its scraped metrics say, what is wrong.

    The scrape is a second witness: an ack is a claim, the metric is what the process counts by.
    """
    now_s = now.timestamp()
    scraped = {r.path: r for r in store.latest("router", prefix=f"{fleet.pk}/", now_s=now_s)}
    newest = fleets.newest_adopted(fleet)
    found = []
    for row in RouterState.objects.filter(fleet=fleet).order_by("router"):
        witness = scraped.pop(row.router, None)
        found.append(
            {
                "router": row.router,
                "cluster": row.cluster,
                "state": row.state,
                "error": row.error or None,
                "epoch_running": row.epoch_running,
                "version_running": row.version_running,
                "transport": row.transport,
                "last_seen_at": row.last_seen_at,
                "age_s": (now - row.last_seen_at).total_seconds(),
                "scraped": None if witness is None else _witness(witness, now_s),
                "findings": _findings(row, witness, newest, now),
            }
        )
    for path, witness in scraped.items():
        if witness.engine != wire.GATE_KIND:
            continue  # of another make: it takes no plan
        found.append(
            {
                "router": path,
                "cluster": path.split("/")[1],
                "state": "never_acked",
                "error": None,
                "epoch_running": None,
                "version_running": None,
                "transport": None,
                "last_seen_at": None,
                "age_s": None,
                "scraped": _witness(witness, now_s),
                "findings": [
                    f"{path} reports telemetry but never asked this console for a plan: "
                    "check its console address and token"
                ],
            }
        )
    return found


def _witness(reading: store.Reading, now_s: float) -> dict[str, Any]:
    return {
        "epoch": reading.plan_epoch,
        "version": reading.plan_version,
        "state": reading.state,
        "age_s": max(now_s - reading.received_s, 0.0),
    }


def _findings(
    row: RouterState,
    witness: store.Reading | None,
    newest: Decision | None,
    now: datetime.datetime,
) -> list[str]:
    """Sentences about one router that does not do what it should."""
    found = []
    age_s = (now - row.last_seen_at).total_seconds()
    if age_s > SILENT_AFTER_S:
        found.append(f"{row.router} has not been heard of for {age_s:.0f} s; it runs its last plan")
    if row.state == "refused":
        found.append(f"{row.router} refused the plan: {row.error or 'it gave no reason'}")
    running = _pair(row.epoch_running, row.version_running)
    newest_pair = None if newest is None else _pair(newest.epoch, newest.version)
    if running and (newest_pair is None or running > newest_pair):
        known = "none" if newest_pair is None else f"{newest_pair[0]}.{newest_pair[1]}"
        found.append(
            f"{row.router} runs plan {running[0]}.{running[1]}, the newest here is {known}: it "
            "belongs to another console, or this one was restored from a backup (raise the epoch)"
        )
    elif newest is not None and running != newest_pair:
        late_s = (now - newest.created_at).total_seconds()
        if late_s > LATE_AFTER_S and row.state != "refused":
            runs = "no plan" if running is None else f"plan {running[0]}.{running[1]}"
            found.append(
                f"{row.router} runs {runs}; {newest.epoch}.{newest.version} was issued "
                f"{late_s:.0f} s ago"
            )
    if witness is not None and witness.state == "ok" and age_s <= SILENT_AFTER_S:
        counted = _pair(witness.plan_epoch, witness.plan_version)
        settled = newest is None or (now - newest.created_at).total_seconds() > LATE_AFTER_S
        fresh = now.timestamp() - witness.received_s <= SILENT_AFTER_S
        if fresh and settled and counted != running:
            found.append(f"{row.router} acks one plan and its metrics show another")
    return found


def _pair(epoch: int | None, version: int | None) -> tuple[int, int] | None:
    return None if epoch is None or version is None else (epoch, version)
