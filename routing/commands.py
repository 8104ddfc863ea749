"""Everything people and automation can change, one function each.

Views, REST and `manage.py` parse, call one of these, format. Each validates, writes in one
transaction together with exactly one audit Action, and announces after the commit. `now` is an
aware datetime; `via` says which door was used (`ui`, `rest`, `command`, `scheduler`).
"""

from __future__ import annotations

import datetime
import re
from functools import partial
from typing import Any

from django.db import transaction

from routing import announce, audit, knobs, router_settings
from routing.approvals.asking import proposable
from routing.core.scenario.document import parse_scenario
from routing.core.scenario.tables import ScenarioError
from routing.models import Fleet, Hold, Policy
from routing.refusals import Outdated as Outdated
from routing.refusals import Refused, Stale
from routing.windows import refusing

MODES = ("active", "advisory", "paused")
PLAN_MODES = ("always_local", "always_remote", "threshold")
MAX_HOLD = datetime.timedelta(days=7)
MAX_ROLL_BACK_REASON = 400
"""Characters: the hold's reason also names the plan."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@proposable
def create_fleet(
    *,
    scenario: dict[str, Any],
    mode: str | None = None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Fleet:
    """Make the fleet the scenario names, or bring it up to date. Nothing new: nothing written.

    A new fleet is `advisory` unless `mode` says otherwise; an existing one keeps its mode.
    """
    try:
        parsed = router_settings.checked(parse_scenario(scenario))
    except ScenarioError as exc:
        raise Refused(exc.field, exc.value, exc.message) from None
    name = parsed.fleet
    if not _NAME.fullmatch(name):
        raise Refused("fleet.name", name, "may hold letters, digits, - and _ only")
    _one_of("mode", mode or "advisory", MODES)
    with transaction.atomic():
        fleet, created = Fleet.objects.select_for_update(no_key=True).get_or_create(
            name=name, defaults={"scenario": scenario}
        )
        policy, _ = Policy.objects.select_for_update().get_or_create(
            fleet=fleet, defaults={"mode": mode or "advisory", "updated_by": actor}
        )
        before = None if created else {"scenario": fleet.scenario, "mode": policy.mode}
        after = {"scenario": scenario, "mode": mode or policy.mode}
        if before == after:
            return fleet
        if not created:
            refusing.allowed(name, "people", actor=actor, now=now)
        if fleet.scenario != scenario:
            fleet.scenario = scenario
            fleet.save(update_fields=["scenario"])
        if policy.mode != after["mode"]:
            _save_policy(policy, actor=actor, mode=after["mode"])
        audit.record(
            actor=actor,
            via=via,
            verb="fleet.create" if created else "fleet.update",
            fleet=name,
            target=name,
            before=before,
            after=after,
            reason=reason,
        )
        _announce_policy(policy, now)
    return fleet


@proposable
def set_policy(
    *,
    fleet: str,
    changes: dict[str, Any],
    if_version: int,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Policy:
    """Change `mode` and single `knobs` (a knob set to None returns to its default).

    Raises Stale when the policy is no longer at `if_version`: nobody overwrites what they have not
    seen.
    """
    unknown = changes.keys() - {"mode", "knobs"}
    if unknown:
        raise Refused(min(unknown), changes[min(unknown)], "only mode and knobs can change")
    if "mode" in changes:
        _one_of("mode", changes["mode"], MODES)
    with transaction.atomic():
        policy = locked_policy(fleet)
        if policy.version != if_version:
            raise Stale(if_version, policy.version, of="policy")
        wanted = policy.knobs | changes.get("knobs", {})
        try:
            wanted = knobs.checked({k: v for k, v in wanted.items() if v is not None})
        except knobs.KnobError as exc:
            raise Refused(f"knobs.{exc.name}", exc.value, exc.message) from None
        before = {"mode": policy.mode, "knobs": policy.knobs}
        after = {"mode": changes.get("mode", policy.mode), "knobs": wanted}
        if before == after:
            return policy
        refusing.allowed_policy(fleet, before, after, actor=actor, now=now)
        _save_policy(policy, actor=actor, **after)
        audit.record(
            actor=actor,
            via=via,
            verb="policy.change",
            fleet=fleet,
            target=fleet,
            before=before,
            after=after,
            reason=reason,
        )
        _announce_policy(policy, now)
    return policy


@proposable
def place_hold(
    *,
    fleet: str,
    mode: str,
    threshold_tokens: int | None,
    owner: str,
    expires_at: datetime.datetime,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
    cluster: str = "",
    goes_back: bool = False,
) -> Hold:
    """Pin the plan of one PD cluster (every one when empty); the next tick adopts it.

    One that `goes_back` takes a change back: no freeze forbids it.
    """
    text("owner", owner, 150)
    text("reason", reason, 500)
    with transaction.atomic():
        policy = locked_policy(fleet)
        if not goes_back:
            refusing.allowed(fleet, "people", actor=actor, now=now)
        check_hold(
            policy,
            cluster=cluster,
            mode=mode,
            threshold_tokens=threshold_tokens,
            expires_at=expires_at,
            now=now,
        )
        hold = Hold(
            fleet=policy.fleet,
            cluster=cluster,
            mode=mode,
            threshold_tokens=threshold_tokens,
            owner=owner,
            reason=reason,
            created_at=now,
            expires_at=expires_at,
        )
        write_hold(hold, policy, now)
        _audit_hold(
            hold,
            "hold.place",
            actor,
            via,
            reason,
            after=hold_values(hold),
            measured=lasts(now, expires_at),
        )
    return hold


def write_hold(hold: Hold, policy: Policy, now: datetime.datetime) -> None:
    """Store and announce a hold that was checked, under the policy's lock; its audit is the
    caller's."""
    hold.save()
    _announce_policy(policy, now)


def check_hold(
    policy: Policy,
    *,
    cluster: str,
    mode: str,
    threshold_tokens: int | None,
    expires_at: datetime.datetime,
    now: datetime.datetime,
) -> None:
    """Raises Refused for a hold that could not be placed now; a page asks before it offers one."""
    _one_of("mode", mode, PLAN_MODES)
    check_expiry(expires_at, now)
    _pd_cluster(policy.fleet, cluster)
    _threshold(mode, threshold_tokens, knobs.effective(policy.knobs))
    for other in open_holds(policy.fleet, now):
        # A hold of roles leaves t to the loop, and so to whoever holds t.
        if other.mode and (not cluster or other.cluster in ("", cluster)):
            raise Refused(
                "cluster",
                cluster,
                f"{other.owner} already holds {other.cluster or 'the fleet'} until "
                f"{other.expires_at:%F %H:%M} UTC; release that first",
            )


def check_expiry(expires_at: datetime.datetime, now: datetime.datetime) -> None:
    """Raises Refused for a hold that would be over at once, or stand for too long."""
    if not now < expires_at <= now + MAX_HOLD:
        raise Refused("expires_at", str(expires_at), "must be in the next 7 days")


@proposable
def extend_hold(
    *,
    hold_id: int,
    expires_at: datetime.datetime,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Hold:
    """Let a hold end at another moment than it would; it keeps its owner and its reason."""
    text("reason", reason, 500)
    check_expiry(expires_at, now)
    with transaction.atomic():
        hold = Hold.objects.select_related("fleet").filter(pk=hold_id).first()
        if hold is None:
            raise Refused("hold", hold_id, "no such hold")
        policy = locked_policy(hold.fleet_id)
        hold.refresh_from_db()
        if hold.released_at is not None or hold.expires_at <= now:
            raise Refused("hold", hold_id, "this hold has already ended")
        before = hold_values(hold)
        hold.expires_at = expires_at
        hold.save(update_fields=["expires_at"])
        _audit_hold(
            hold,
            "hold.extend",
            actor,
            via,
            reason,
            before=before,
            after=hold_values(hold),
            measured=lasts(hold.created_at, expires_at),
        )
        _announce_policy(policy, now)
    return hold


def release_hold(
    *, hold_id: int, actor: str, via: str, reason: str, now: datetime.datetime
) -> Hold:
    """End a hold before its time; the next tick is automatic again."""
    with transaction.atomic():
        hold = Hold.objects.select_related("fleet__policy").filter(pk=hold_id).first()
        if hold is None:
            raise Refused("hold", hold_id, "no such hold")
        if not _close_hold(hold, by=actor, now=now):
            raise Refused("hold", hold_id, "this hold has already ended")
        _audit_hold(hold, "hold.release", actor, via, reason, before=hold_values(hold))
        _announce_policy(hold.fleet.policy, now)
    return hold


def expire_holds(*, fleet: Fleet, now: datetime.datetime) -> list[Hold]:
    """Close what has run out, each exactly once however many workers notice it."""
    spent = Hold.objects.filter(fleet=fleet, released_at=None, expires_at__lte=now)
    return [
        hold for hold in spent if end_hold(hold, "hold.expire", "the hold has run out", now=now)
    ]


def end_hold(hold: Hold, verb: str, reason: str, *, now: datetime.datetime) -> bool:
    """End a hold by the machine's own word; False when somebody else ended it first."""
    with transaction.atomic():
        if not _close_hold(hold, by=audit.SYSTEM, now=now):
            return False
        before = hold_values(hold)
        _audit_hold(hold, verb, audit.SYSTEM, "scheduler", reason[:500], before=before)
        _announce_policy(hold.fleet.policy, now)
    return True


def open_holds(fleet: Fleet, now: datetime.datetime) -> list[Hold]:
    """Holds in force at `now`, oldest first."""
    return list(
        Hold.objects.filter(fleet=fleet, released_at=None, expires_at__gt=now).order_by("id")
    )


@proposable
def raise_epoch(*, fleet: str, actor: str, via: str, reason: str, now: datetime.datetime) -> Fleet:
    """Start a new plan epoch, so that routers accept this console's plans again.

    For a console restored from a backup: its versions restart below what routers already run. The
    next tick of an active fleet issues the plan in force again under the new epoch.
    """
    text("reason", reason, 500)
    with transaction.atomic():
        # The fleet's row before its policy's, as everywhere: else two commands could deadlock.
        found = Fleet.objects.select_for_update(no_key=True).filter(pk=fleet).first()
        if found is None:
            raise Refused("fleet", fleet, "no such fleet")
        policy = locked_policy(fleet)
        refusing.allowed(fleet, "people", actor=actor, now=now)
        found.epoch += 1
        found.save(update_fields=["epoch"])
        audit.record(
            actor=actor,
            via=via,
            verb="epoch.raise",
            fleet=fleet,
            target=fleet,
            before={"epoch": found.epoch - 1},
            after={"epoch": found.epoch},
            reason=reason,
        )
        _announce_policy(policy, now)
    return found


def locked_policy(fleet: str) -> Policy:
    """The fleet's policy, locked: changes of one fleet happen one after the other."""
    found = Policy.objects.select_for_update().select_related("fleet").filter(fleet_id=fleet)
    policy = found.first()
    if policy is None:
        raise Refused("fleet", fleet, "no such fleet")
    return policy


def _save_policy(policy: Policy, *, actor: str, **values: Any) -> None:
    for name, value in values.items():
        setattr(policy, name, value)
    policy.version += 1
    policy.updated_by = actor
    policy.save(update_fields=[*values, "version", "updated_by", "updated_at"])


def _close_hold(hold: Hold, *, by: str, now: datetime.datetime) -> bool:
    """Compare and swap: False when somebody else ended it first."""
    ended = Hold.objects.filter(pk=hold.pk, released_at=None).update(
        released_at=now, released_by=by
    )
    hold.released_at, hold.released_by = now, by
    return ended == 1


def _announce_policy(policy: Policy, now: datetime.datetime) -> None:
    message = {
        "type": "policy",
        "fleet": policy.fleet_id,
        "mode": policy.mode,
        "version": policy.version,
        "holds": [hold_values(hold) for hold in open_holds(policy.fleet, now)],
        "at_s": now.timestamp(),
    }
    transaction.on_commit(partial(announce.publish, message))


def hold_values(hold: Hold) -> dict[str, Any]:
    """A hold as messages and the audit tell it."""
    roles = {"n_prefill": hold.n_prefill, "n_decode": hold.n_decode}
    return {
        "cluster": hold.cluster,
        "mode": hold.mode,
        "threshold_tokens": hold.threshold_tokens,
        "owner": hold.owner,
        "reason": hold.reason,
        "expires_at_s": hold.expires_at.timestamp(),
        **({} if hold.n_prefill is None else roles),
    }


def lasts(begins_at: datetime.datetime, ends_at: datetime.datetime) -> dict[str, float]:
    """How long a hold stands as a whole, for the limits of approvals."""
    return {"hold_s": (ends_at - begins_at).total_seconds()}


def hold_target(hold: Hold) -> str:
    """What the audit calls a hold."""
    return f"hold {hold.pk} on {hold.cluster or 'every cluster'}"


def _audit_hold(hold: Hold, verb: str, actor: str, via: str, reason: str, **values: Any) -> None:
    audit.record(
        actor=actor,
        via=via,
        verb=verb,
        fleet=hold.fleet_id,
        target=hold_target(hold),
        reason=reason,
        **values,
    )


def _pd_cluster(fleet: Fleet, cluster: str) -> None:
    known = [c.name for c in parse_scenario(fleet.scenario).clusters if c.kind == "pd"]
    if cluster and cluster not in known:
        raise Refused("cluster", cluster, f"must be one of {', '.join(known)}, or empty for all")


def _threshold(mode: str, threshold_tokens: int | None, limits: dict[str, Any]) -> None:
    if mode != "threshold":
        if threshold_tokens is not None:
            raise Refused("threshold_tokens", threshold_tokens, f"must be absent with mode {mode}")
        return
    low, high = limits["t_min_tokens"], limits["t_max_tokens"]
    if threshold_tokens is None or isinstance(threshold_tokens, bool):
        raise Refused("threshold_tokens", threshold_tokens, "is required with mode threshold")
    if not low <= threshold_tokens <= high:
        raise Refused("threshold_tokens", threshold_tokens, f"must be in {low}..{high}")


def _one_of(field: str, value: Any, words: tuple[str, ...]) -> None:
    if value not in words:
        raise Refused(field, value, f"must be one of {', '.join(words)}")


def text(field: str, value: str, limit: int) -> None:
    """Raises Refused where nothing is said, or too much, or what nobody sees."""
    if not value.strip():
        raise Refused(field, value, "must not be empty")
    audit.seen(field, value)
    if len(value) > limit:
        raise Refused(field, value, f"must have at most {limit} characters")
