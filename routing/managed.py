"""Routers as rows: what each should list, was last told, shows. The only writer of ManagedRouter.

Each cycle (`managed_work`) every router that scenarios name is read, and how it stands is written
down (`managed_steps`); so a change that nobody here made shows within one cycle, whatever message
was lost. Nothing is changed but where an operation asks for it: one that a person began, or the
router's policy `override`.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, cast

from django.db import transaction
from django.db.models import Q, QuerySet

from routing import announce, audit, delivery, fleets
from routing import managed_steps as steps
from routing.adapters.surface import Actual, Capabilities
from routing.core.scenario.document import Cluster
from routing.managed_sites import Read
from routing.models import Fleet, ManagedRouter, RoleMove
from telemetry import store

ON_DRIFT = ("show", "override")
OPEN = ("asked", "sent", "accepted")
"""Of an operation under way. Else: applied, failed, expired, cancelled, superseded."""
DEADLINE = datetime.timedelta(seconds=120)
MOST_OVERRIDES, OVERRIDES_WITHIN_S = 3, 600.0
"""The policy puts a list back so often; then somebody else means it, and a person has to choose."""
STALE_AFTER = datetime.timedelta(seconds=15)
SET_BACK = datetime.timedelta(seconds=60)
"""What is known of this far in the future was noted before the clock was set back."""
WORDS = 500
_OVER = ("done", "restored")
"""Steps of moves of roles that have ended."""
_IN_HAND = Q(rebalance__state__in=("open", "aborting")) & ~Q(step__in=("planned", *_OVER))


class NotNow(Exception):
    """An operation that cannot be begun or ended as a router stands."""


def note(fleet: Fleet, read: Read) -> ManagedRouter:
    """Write down one reading, and what it says of the router."""
    with transaction.atomic():
        row = _locked(fleet, read)
        before = _stands(row)
        if _is_older(row, read.at):
            return row  # a later reading was quicker, or somebody decided meanwhile
        if read.actual is None or read.can is None:
            _unread(row, read)
        else:
            _noted(row, read, read.actual, read.can)
        if _stands(row) != before:
            row.version += 1
            _announce(row, read.at)
        row.save()
    return row


def _is_older(row: ManagedRouter, at: datetime.datetime) -> bool:
    known = [row.observed_at, row.desired_at]
    if row.operation is not None and row.operation["ended_at_s"] is not None:
        known.append(datetime.datetime.fromtimestamp(row.operation["ended_at_s"], datetime.UTC))
    return any(moment is not None and at < moment <= at + SET_BACK for moment in known)


def _locked(fleet: Fleet, read: Read) -> ManagedRouter:
    site = read.site
    defaults = {"name": site.name, "kind": site.kind, "state": "unread", "since": read.at}
    row, _ = ManagedRouter.objects.select_for_update(no_key=True, of=("self",)).get_or_create(
        fleet=fleet, cluster=site.cluster.name, url=site.url, defaults=defaults
    )
    row.name, row.kind = site.name, site.kind
    return row


def _unread(row: ManagedRouter, read: Read) -> None:
    if row.away_since is None:
        row.away_since = read.at
    _stand(row, "unreachable", (read.error,), read.at)


def _noted(row: ManagedRouter, read: Read, actual: Actual, can: Capabilities) -> None:
    seen = steps.listed(actual)
    facts_before = (row.observed or {}).get("facts", {})
    if row.desired is None:
        _taken(row, seen, read.at, "first sight: what it lists is taken as desired")
    elif read.site.cluster.follows_planner and steps.wanted(seen) != row.desired:
        _taken(row, seen, read.at, "its planner decides which workers there are")
    moving, ended = _moving(row, read.at), _ended_moves(row)
    if ended:
        row.desired = steps.after_moves(row.desired, ended)
        row.desired_by, row.desired_at = audit.SYSTEM, read.at
        row.last_applied, row.applied_at = row.desired, read.at
    pending = _threshold(read, actual, can)
    if read.decided is not None:
        waits = f"{read.decided.what}: waits until these are started and ended"
        pending = f"{pending}; {waits}" if pending else waits
    rendered = read.plan and read.plan.rendered
    row.observed = {
        "workers": seen,
        "threshold": actual.threshold and dataclasses.asdict(actual.threshold),
        "facts": {name: _plain(value) for name, value in actual.facts.items()},
        "findings": list(actual.findings),
        "rendered": rendered and dataclasses.asdict(rendered),
        "decided": read.decided and dataclasses.asdict(read.decided),
    }
    row.capabilities = dataclasses.asdict(can)
    row.make_version = (actual.version or "")[:100]
    judged = steps.judge(
        steps.differences(row.desired or {}, seen, moving=moving),
        can=can,
        facts=row.observed["facts"],
        was_away=row.away_since is not None,
        facts_before=facts_before,
        before=steps.Judged("sync", (), cast(Any, row.cause), row.other_writer, row.n_drifted),
        moving=bool(moving),
        operating=operates(row),
        pending=pending,
    )
    if judged.state == "drifted" and row.n_drifted == 0:
        _audit(row, "router.drift", after={"findings": list(judged.findings)})
    row.cause, row.other_writer, row.n_drifted = judged.cause, judged.other_writer, judged.n_drifted
    row.observed_at, row.away_since = read.at, None
    _stand(row, judged.state, (*judged.findings, *actual.findings), read.at)
    _by_policy(row, read.at, moving)


def _taken(row: ManagedRouter, seen: steps.List, now: datetime.datetime, reason: str) -> None:
    """What a router lists is taken as meant."""
    before = None if row.desired is None else {"desired": row.desired}
    row.desired, row.desired_by, row.desired_at = steps.wanted(seen), audit.SYSTEM, now
    _ended_moves(row)  # those before now are in what it lists
    _audit(row, "router.adopt", before=before, after={"desired": row.desired}, reason=reason)


def _moving(row: ManagedRouter, since: datetime.datetime | None = None) -> set[str]:
    """URLs of instances that a rebalance has in its hands, or had at `since` or later."""
    in_hand = _IN_HAND if since is None else _IN_HAND | Q(finished_at__gte=since)
    found = _of_cluster(row).filter(in_hand)
    return {url.rstrip("/") for url in found.values_list("url", flat=True)}


def in_hand() -> QuerySet[RoleMove]:
    """Moves of instances that a rebalance has in its hands."""
    return RoleMove.objects.filter(_IN_HAND)


def _ended_moves(row: ManagedRouter) -> dict[str, str]:
    """The roles in which moves left instances since it was last asked."""
    ended = {}
    for move in _of_cluster(row).filter(id__gt=row.last_move).order_by("id"):
        if move.step not in _OVER:
            if move.rebalance.finished_at is None:
                break  # moves follow each other: what comes later is counted later
            continue
        row.last_move = move.pk
        ended[move.url.rstrip("/")] = move.to_role if move.step == "done" else move.from_role
    return ended


def _of_cluster(row: ManagedRouter) -> QuerySet[RoleMove]:
    return RoleMove.objects.filter(
        rebalance__fleet_id=row.fleet_id, rebalance__cluster=row.cluster
    ).select_related("rebalance")


def _threshold(read: Read, actual: Actual, can: Capabilities) -> str:
    """What the plan's t waits for at a router that takes it only from others; empty: nothing.

    What the router runs by was read back, and is how far the plan's delivery got with it.
    """
    newest, shown = read.site.decision, read.plan
    if newest is None or shown is None:
        return ""
    words = "" if actual.threshold is None else actual.threshold.words
    delivery.record_read_back(
        newest, router=read.site.path, runs=shown.runs, shows=words, how=can.threshold, now=read.at
    )
    if shown.runs:
        return ""
    if shown.rendered is None:
        return f"it cannot run plan {newest.epoch}.{newest.version}: {shown.why}"
    waits = {
        "roll": "its decode workers are rolled",
        "restart": "it is restarted",
        "patch": "the change is applied to its object",
    }[can.threshold]
    return f"plan {newest.epoch}.{newest.version} ({shown.wanted}) waits until {waits}"


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)[:WORDS]


def _by_policy(row: ManagedRouter, now: datetime.datetime, moving: Collection[str]) -> None:
    """Begin to undo drift where the router's policy says so; never over and over."""
    if row.on_drift != "override" or row.state != "drifted" or operates(row) or moving:
        return
    if not row.capabilities or row.capabilities["roles"] == "none":
        return
    lately = [at_s for at_s in row.overridden_s if at_s > now.timestamp() - OVERRIDES_WITHIN_S]
    if len(lately) >= MOST_OVERRIDES:
        row.findings = [
            *row.findings,
            f"put back {len(lately)} times in {OVERRIDES_WITHIN_S / 60:.0f} minutes and changed "
            "again each time: it is left as it is until a person adopts or overrides",
        ]
        return
    row.overridden_s = [*lately, now.timestamp()]
    _begin(row, actor=audit.SYSTEM, via="scheduler", reason="the router's policy", key="", now=now)


def label_roles(fleet: Fleet, now: datetime.datetime) -> dict[str, tuple[int, int]]:
    """(prefill, decode) instances of clusters whose roles are only what routers say of them.

    A cluster whose routers were not read lately, or disagree on an instance, is left out.
    """
    found = {}
    for cluster in fleets.scenario_of(fleet).clusters:
        if cluster.kind != "pd" or cluster.role_switch != "label":
            continue
        rows = ManagedRouter.objects.filter(fleet=fleet, cluster=cluster.name)
        said = {
            (url, entry["role"])
            for row in rows
            if row.observed and row.away_since is None and _is_fresh(row, now)
            for url, entry in row.observed["workers"].items()
        }
        roles = [role for _, role in said]
        if said and len({url for url, _ in said}) == len(said):
            found[cluster.name] = (roles.count("prefill"), roles.count("decode"))
    return found


def _is_fresh(row: ManagedRouter, now: datetime.datetime) -> bool:
    return row.observed_at is not None and now - row.observed_at <= STALE_AFTER


# What people do


def adopt(
    row: ManagedRouter, *, actor: str, via: str, reason: str, key: str, now: datetime.datetime
) -> None:
    """What the router lists is desired from now on. `row` is locked. Raises NotNow."""
    if row.observed is None:
        raise NotNow("it was never read")
    if _moving(row):
        raise NotNow("a rebalance moves one of its instances")
    before = {"desired": row.desired}
    end_operation(row, "superseded", "what is there was adopted instead", now)
    row.desired = steps.wanted(row.observed["workers"])
    row.desired_by, row.desired_at = actor, now
    row.n_drifted, row.cause, row.other_writer = 0, "", ""
    state = "unreachable" if row.away_since else "sync"
    _stand(row, state, tuple(row.findings) if row.away_since else (), now)
    after = {"desired": row.desired, "key": key}
    _audit(row, "router.adopt", actor, via, before=before, after=after, reason=reason)
    save(row, now)


def begin_override(
    row: ManagedRouter, *, actor: str, via: str, reason: str, key: str, now: datetime.datetime
) -> None:
    """Have the router list again what is desired. `row` is locked. Raises NotNow.

    Whatever it was doing before is superseded. What is refused now is said now.
    """
    if row.observed is None or row.away_since is not None or row.capabilities is None:
        raise NotNow("it does not answer now")
    if row.capabilities["roles"] in ("none", "patch"):
        why = row.capabilities["why"] or "its list is changed by an object that others apply"
        raise NotNow(f"it cannot be changed from here: {why}")
    moving = _moving(row)
    if moving:
        raise NotNow(f"a rebalance moves {', '.join(sorted(moving))}")
    planned = preview(row)
    if isinstance(planned, str):
        raise NotNow(planned)
    if not planned:
        raise NotNow("it lists what is desired")
    end_operation(row, "superseded", f"{actor} began another", now)
    _begin(row, actor=actor, via=via, reason=reason, key=key, now=now)
    save(row, now)


def preview(row: ManagedRouter, around: steps.Around | None = None) -> tuple[steps.Step, ...] | str:
    """What an override would do now, or why it must not; who looks at many routers read before
    what is around them."""
    cluster = fleets.scenario_of(row.fleet).cluster(row.cluster)
    if cluster is None:
        return f"the scenario has no cluster {row.cluster} any more"
    observed = (row.observed or {}).get("workers", {})
    return planned(row, cluster, observed, around)


def planned(
    row: ManagedRouter, cluster: Cluster, seen: steps.List, around: steps.Around | None = None
) -> tuple[steps.Step, ...] | str:
    return steps.override(
        row.desired or {},
        seen,
        moving=around.moving.get(row.cluster, set()) if around else _moving(row),
        limits=steps.Limits(
            cluster.min_prefill,
            cluster.min_decode,
            cluster.instances,
            frozenset(instances(row, cluster)),
        ),
        engines=engine_roles(row, cluster, around),
    )


def instances(row: ManagedRouter, cluster: Cluster) -> dict[str, str]:
    """Names of the cluster's instances by URL: as the scenario names them, else as a router of our
    own dialect does, whose keys are ids."""
    if cluster.engines:
        return {url: name for name, url in cluster.engines.items()}
    place = f"{row.fleet_id}/{row.cluster}/"
    seen = (row.observed or {}).get("workers", {})
    keys = {url: entry.get("key") or "" for url, entry in seen.items()}
    return {url: key.removeprefix(place) for url, key in keys.items() if key.startswith(place)}


def roles_told(place: str, at_s: float) -> dict[str, str]:
    """By path the role that each engine below `place` reported of itself by then."""
    return {
        reading.path: reading.role
        for reading in store.latest("instance", prefix=place, now_s=at_s, within_s=60.0)
        if reading.state == "ok" and reading.role in ("prefill", "decode")
    }


def engine_roles(
    row: ManagedRouter, cluster: Cluster, around: steps.Around | None = None
) -> dict[str, str]:
    """The role each engine reported of itself when the router was last read, by URL. None where
    roles are labels of routers."""
    named = instances(row, cluster)
    if not named or cluster.role_switch != "engine" or row.observed_at is None:
        return {}
    place = f"{row.fleet_id}/{row.cluster}/"
    roles = around.told if around else roles_told(place, row.observed_at.timestamp())
    return {url: role for url, name in named.items() if (role := roles.get(place + name))}


def cancel_operation(
    row: ManagedRouter, *, actor: str, via: str, reason: str, now: datetime.datetime
) -> None:
    """Stop what is under way; what was done stays. `row` is locked. Raises NotNow."""
    if not operates(row):
        raise NotNow("nothing is under way")
    end_operation(row, "cancelled", f"{actor}: {reason}", now, actor=actor, via=via)
    save(row, now)


def set_on_drift(
    row: ManagedRouter, on_drift: str, *, actor: str, via: str, reason: str, now: datetime.datetime
) -> None:
    """What is done about drift here. `row` is locked."""
    before, row.on_drift = {"on_drift": row.on_drift}, on_drift
    row.overridden_s = []
    after = {"on_drift": on_drift}
    _audit(row, "router.policy", actor, via, before=before, after=after, reason=reason)
    save(row, now)


def lock(fleet: str, router_id: int) -> ManagedRouter | None:
    """The row, locked until the caller's transaction ends."""
    rows = ManagedRouter.objects.select_for_update(no_key=True, of=("self",))
    return rows.select_related("fleet").filter(fleet_id=fleet, pk=router_id).first()


def _begin(
    row: ManagedRouter, *, actor: str, via: str, reason: str, key: str, now: datetime.datetime
) -> None:
    planned = preview(row)
    row.operation = {
        "verb": "override",
        "state": "asked",
        "by": actor,
        "reason": reason,
        "key": key,
        "asked_at_s": now.timestamp(),
        "deadline_at_s": (now + DEADLINE).timestamp(),
        "ended_at_s": None,
        "claimed_until_s": None,
        "error": "",
        "done": [],
    }
    asks = planned if isinstance(planned, str) else [step.words for step in planned]
    after = {"asks": asks, "key": key}
    _audit(row, "router.override", actor, via, after=after, reason=reason)


def end_operation(
    row: ManagedRouter,
    state: str,
    why: str,
    now: datetime.datetime,
    *,
    actor: str = audit.SYSTEM,
    via: str = "scheduler",
) -> None:
    if not operates(row) or row.operation is None:
        return
    before = {"state": row.operation["state"]}
    row.operation = {
        **row.operation,
        "state": state,
        "error": "" if state == "applied" else why[:WORDS],
        "ended_at_s": now.timestamp(),
        "claimed_until_s": None,
    }
    if row.state == "applying":
        _stand(row, "sync" if state == "applied" else "drifted", row.findings, now)
        row.findings = [] if state == "applied" else row.findings
    after = {"state": state, "done": row.operation["done"]}
    verb = "router.override.end"
    _audit(row, verb, actor, via, before=before, after=after, reason=why[:WORDS])


def operates(row: ManagedRouter) -> bool:
    return row.operation is not None and row.operation["state"] in OPEN


def forget(fleet: Fleet, known: set[tuple[str, str]]) -> None:
    """Routers that the scenario names no more."""
    for row in ManagedRouter.objects.filter(fleet=fleet):
        if (row.cluster, row.url) not in known:
            with transaction.atomic():
                before = {"desired": row.desired, "operation": row.operation}
                _audit(row, "router.forget", before=before)
                delivery.forget_waits([str(row)])
                row.delete()


def _stand(row: ManagedRouter, state: str, findings: Iterable[str], now: datetime.datetime) -> None:
    if row.state != state:
        row.since = now
    row.state, row.findings = state, list(dict.fromkeys(findings))


def _stands(row: ManagedRouter) -> tuple[object, ...]:
    """What a person decides on; requests come and go and are no part of it."""
    workers = (row.observed or {}).get("workers", {})
    lists = {url: (entry["role"], entry["status"]) for url, entry in workers.items()}
    return row.state, row.findings, row.desired, lists, row.operation, row.on_drift


def save(row: ManagedRouter, now: datetime.datetime) -> None:
    row.version += 1
    row.save()
    _announce(row, now)


def _audit(
    row: ManagedRouter,
    verb: str,
    actor: str = audit.SYSTEM,
    via: str = "scheduler",
    *,
    before: Any = None,
    after: Any = None,
    reason: str = "",
) -> None:
    audit.record(
        actor=actor,
        via=via,
        verb=verb,
        fleet=row.fleet_id,
        target=str(row)[:300],
        before=before,
        after=after,
        reason=reason,
    )


def _announce(row: ManagedRouter, now: datetime.datetime) -> None:
    message = {
        "type": "router",
        "fleet": row.fleet_id,
        "id": row.pk,
        "router": str(row),
        "state": row.state,
        "findings": row.findings,
        "at_s": now.timestamp(),
    }
    transaction.on_commit(partial(announce.publish, message))
