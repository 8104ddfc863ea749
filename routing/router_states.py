"""Routers that take plans: what each acked, what its metrics say, what is wrong with it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from routing import fleets
from routing.delivery import LATE_AFTER_S, SILENT_AFTER_S
from routing.models import Decision, Fleet, RouterState
from telemetry import store, wire

WITNESS_S: Final = 3600.0
"""A scrape that is older says nothing of what a router runs now."""


def routers(fleet: Fleet, now: datetime.datetime) -> list[dict[str, Any]]:
    """Every router of the fleet: what it acked, what its scraped metrics say, what is wrong.

    The scrape is a second witness: an ack is a claim, the metric is what the process counts by.
    """
    return told(fleet, fleets.newest_adopted(fleet), now)


def told(
    fleet: Fleet,
    newest: Decision | None,
    now: datetime.datetime,
    *,
    cluster: str = "",
    readings: Sequence[store.Reading] | None = None,
) -> list[dict[str, Any]]:
    """The same; `newest` is the plan in force. Of one `cluster` if given; `readings` are the newest
    of its routers where they were read already."""
    now_s = now.timestamp()
    rows = RouterState.objects.filter(fleet=fleet).order_by("router")
    prefix = f"{fleet.pk}/"
    if cluster:
        rows, prefix = rows.filter(cluster=cluster), f"{prefix}{cluster}/"
    if readings is None:
        readings = store.latest("router", prefix=prefix, now_s=now_s, within_s=WITNESS_S)
    scraped = {r.path: r for r in readings if now_s - r.at_s < WITNESS_S}
    found = []
    for row in rows:
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
                "override": row.override,
                "release": row.release,
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
                "override": None,
                "release": "",
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
    if row.override is not None:
        found.append(
            f"{row.router} is overridden on the gate itself by {row.override['by']}: "
            f"{row.override['reason']}"
        )
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
