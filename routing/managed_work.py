"""One cycle over all routers: read, note, and carry on what was asked of each.

A router is changed only where an operation asks for it. Each step is read back before the next and
every pass finds by itself what is left to do, so a worker may die anywhere and another takes it up.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from typing import Any

from django.db import transaction

from routing import managed, planner_handshake
from routing import managed_steps as steps
from routing.adapters.surface import CannotDo, Refused, Surface, SurfaceError
from routing.core.scenario.tables import ScenarioError
from routing.managed_sites import Read, Site, read_one, readings, sites
from routing.models import Fleet, ManagedRouter

CLAIMED = datetime.timedelta(seconds=30)
"""For one step of one worker; who dies in it is replaced after that."""
WORKS_FOR = datetime.timedelta(seconds=10)
"""Of one cycle, on what was asked of routers: then all are read again. A step may end later."""
_MAX_STEPS = 40

log = logging.getLogger(__name__)


def reconcile(clock: Callable[[], datetime.datetime]) -> None:
    """One cycle over every fleet. A router that fails or is slow stops no other."""
    asked: list[tuple[Fleet, Site, dict[str, Any]]] = []
    for fleet in Fleet.objects.order_by("name"):
        try:
            asked += _noted(fleet, clock)
        except ScenarioError as exc:
            log.warning("routers of %s are not known: %s", fleet.pk, exc)
        except Exception:
            log.exception("routers of %s failed in this cycle and are read again", fleet.pk)
    # What was tried and failed comes last, or it takes the time of what was not tried yet.
    asked.sort(key=lambda each: (bool(each[2]["error"]), each[2]["asked_at_s"]))
    until = clock() + WORKS_FOR
    for fleet, site, _ in asked:
        if clock() >= until:
            return
        try:
            work(fleet, site, clock, until)
        except Exception:
            log.exception("router %s failed in this cycle and is tried again", site.path)


def _noted(
    fleet: Fleet, clock: Callable[[], datetime.datetime]
) -> list[tuple[Fleet, Site, dict[str, Any]]]:
    """Read and note every router of the fleet; those with an operation under way, and which."""
    found, asked = sites(fleet), []
    managed.forget(fleet, {(site.cluster.name, site.url) for site in found})
    for read in readings(found, clock):
        try:
            row = managed.note(fleet, planner_handshake.followed(fleet, read))
        except Exception as exc:
            log.exception("router %s failed in this cycle and is tried again", read.site.path)
            # It is not seen: what its row says of before must not stand for now.
            words = f"{read.site.url}: what it shows cannot be kept ({type(exc).__name__})"
            managed.note(fleet, Read(read.site, read.at, error=words[: managed.WORDS]))
        else:
            if row.operation is not None and managed.operates(row):
                asked.append((fleet, read.site, row.operation))
    return asked


def work(
    fleet: Fleet,
    site: Site,
    clock: Callable[[], datetime.datetime],
    until: datetime.datetime,
) -> None:
    """Take the operation of one router, if one is open, as far as it goes by then."""
    for _ in range(_MAX_STEPS):
        if not _one_step(fleet, site, clock) or clock() >= until:
            return


def _one_step(fleet: Fleet, site: Site, clock: Callable[[], datetime.datetime]) -> bool:
    """One step and its read-back; False when nothing is left to do in this cycle.

    No lock is held while the router is spoken to: a claim keeps other workers off.
    """
    claimed = _claim(fleet, site, clock())
    if claimed is None or site.surface is None:
        return False
    row_id, asked_at_s, step = claimed
    error, final = "", False
    if step is not None:
        try:
            _perform(site.surface, step)
        except (Refused, CannotDo) as exc:
            error, final = str(exc), True
        except SurfaceError as exc:
            error = str(exc)
    read = read_one(site, clock)
    managed.note(fleet, read)
    with transaction.atomic():
        row = managed.lock(fleet.pk, row_id)
        if row is None or not managed.operates(row) or row.operation is None:
            return False
        if row.operation["asked_at_s"] != asked_at_s:
            return False  # another operation has taken its place
        now = clock()
        operation = {**row.operation, "claimed_until_s": None, "error": error[: managed.WORDS]}
        if step is not None and not error:
            operation |= {"state": "accepted", "done": [*operation["done"], step.words]}
            row.last_applied, row.applied_at = row.desired, now
        row.operation = operation
        if final:
            managed.end_operation(row, "failed", error, now)
        elif read.actual is not None:
            left = managed.planned(row, site.cluster, steps.listed(read.actual))
            if isinstance(left, str):
                managed.end_operation(row, "failed", left, now)
            elif not left:
                row.last_applied, row.applied_at = row.desired, now
                managed.end_operation(row, "applied", "read back", now)
        managed.save(row, now)
        return not error and managed.operates(row)


def _claim(
    fleet: Fleet, site: Site, now: datetime.datetime
) -> tuple[int, float, steps.Step | None] | None:
    """The router's row, its operation and what to do next, kept from others for a while."""
    with transaction.atomic():
        rows = ManagedRouter.objects.select_for_update(no_key=True, skip_locked=True, of=("self",))
        row = (
            rows.select_related("fleet")
            .filter(fleet=fleet, cluster=site.cluster.name, url=site.url, operation__isnull=False)
            .first()
        )
        if row is None or not managed.operates(row) or row.operation is None:
            return None
        operation = row.operation
        if now.timestamp() >= operation["deadline_at_s"]:
            why = f"the deadline has passed. {operation['error']}".strip()
            managed.end_operation(row, "expired", why, now)
            managed.save(row, now)
            return None
        claimed_s = operation["claimed_until_s"]
        if row.away_since is not None or (claimed_s and claimed_s > now.timestamp()):
            return None
        planned = managed.planned(row, site.cluster, (row.observed or {}).get("workers", {}))
        if isinstance(planned, str):
            managed.end_operation(row, "failed", planned, now)
            managed.save(row, now)
            return None
        until_s = (now + CLAIMED).timestamp()
        state = operation["state"] if operation["state"] == "accepted" else "sent"
        row.operation = {**operation, "state": state, "claimed_until_s": until_s}
        row.save(update_fields=["operation"])
        return row.pk, operation["asked_at_s"], planned[0] if planned else None


def _perform(surface: Surface, step: steps.Step) -> None:
    if step.role is None:
        surface.cordon(step.url)
    else:
        surface.list_as(step.url, step.role)
