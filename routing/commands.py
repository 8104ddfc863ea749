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

from routing import announce, audit, knobs, rebalance
from routing.core.scenario.document import parse_scenario
from routing.core.scenario.tables import ScenarioError
from routing.models import Decision, Fleet, Hold, Policy, Rebalance
from telemetry import tokens
from telemetry.models import ApiToken

MODES = ("active", "advisory", "paused")
PLAN_MODES = ("always_local", "always_remote", "threshold")
MAX_HOLD = datetime.timedelta(days=7)
MAX_ROLL_BACK_REASON = 400
"""Characters: the hold's reason also names the plan."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class Refused(ValueError):
    """A change that cannot be meant: which field, what stood there, why not."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.value, self.message = field, value, message


class Stale(Refused):
    """Somebody changed the policy first; `current` is its version now."""

    def __init__(self, if_version: int, current: int) -> None:
        super().__init__(
            "version", if_version, f"the policy is at version {current} now; read it again"
        )
        self.current = current


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
        parsed = parse_scenario(scenario)
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
        policy = _policy(fleet)
        if policy.version != if_version:
            raise Stale(if_version, policy.version)
        wanted = policy.knobs | changes.get("knobs", {})
        try:
            wanted = knobs.checked({k: v for k, v in wanted.items() if v is not None})
        except knobs.KnobError as exc:
            raise Refused(f"knobs.{exc.name}", exc.value, exc.message) from None
        before = {"mode": policy.mode, "knobs": policy.knobs}
        after = {"mode": changes.get("mode", policy.mode), "knobs": wanted}
        if before == after:
            return policy
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
) -> Hold:
    """Pin the plan of one PD cluster (every one when empty); the next tick adopts it."""
    _text("owner", owner, 150)
    _text("reason", reason, 500)
    with transaction.atomic():
        policy = _policy(fleet)
        check_hold(
            policy,
            cluster=cluster,
            mode=mode,
            threshold_tokens=threshold_tokens,
            expires_at=expires_at,
            now=now,
        )
        hold = Hold.objects.create(
            fleet=policy.fleet,
            cluster=cluster,
            mode=mode,
            threshold_tokens=threshold_tokens,
            owner=owner,
            reason=reason,
            created_at=now,
            expires_at=expires_at,
        )
        _audit_hold(hold, "hold.place", actor, via, reason, after=_hold_values(hold))
        _announce_policy(policy, now)
    return hold


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
    if not now < expires_at <= now + MAX_HOLD:
        raise Refused("expires_at", str(expires_at), "must be in the next 7 days")
    _pd_cluster(policy.fleet, cluster)
    _threshold(mode, threshold_tokens, knobs.effective(policy.knobs))
    for other in open_holds(policy.fleet, now):
        if not cluster or other.cluster in ("", cluster):
            raise Refused(
                "cluster",
                cluster,
                f"{other.owner} already holds {other.cluster or 'the fleet'} until "
                f"{other.expires_at:%F %H:%M} UTC; release that first",
            )


def roll_back(
    *,
    decision_id: int,
    owner: str,
    expires_at: datetime.datetime,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> list[Hold]:
    """Hold each PD cluster at the mode and t of an earlier plan: all of them, or none.

    Roles are not moved back; the next tick adopts the holds under a new version.
    """
    _text("reason", reason, MAX_ROLL_BACK_REASON)
    decision = Decision.objects.filter(pk=decision_id).first()
    if decision is None:
        raise Refused("decision", decision_id, "no such decision")
    if decision.version is None:
        raise Refused("decision", decision_id, "was advice, never pushed: no gate ran this plan")
    with transaction.atomic():
        return [
            place_hold(
                fleet=decision.fleet_id,
                cluster=cluster,
                mode=plan["mode"],
                threshold_tokens=plan["threshold_tokens"],
                owner=owner,
                expires_at=expires_at,
                actor=actor,
                via=via,
                reason=f"Roll back to plan {decision.epoch}.{decision.version}: {reason}",
                now=now,
            )
            for cluster, plan in decision.plan["clusters"].items()
        ]


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
        _audit_hold(hold, "hold.release", actor, via, reason, before=_hold_values(hold))
        _announce_policy(hold.fleet.policy, now)
    return hold


def expire_holds(*, fleet: Fleet, now: datetime.datetime) -> list[Hold]:
    """Close what has run out, each exactly once however many workers notice it."""
    ended = []
    for hold in Hold.objects.filter(fleet=fleet, released_at=None, expires_at__lte=now):
        with transaction.atomic():
            if not _close_hold(hold, by=audit.SYSTEM, now=now):
                continue
            _audit_hold(
                hold,
                "hold.expire",
                audit.SYSTEM,
                "scheduler",
                "the hold has run out",
                before=_hold_values(hold),
            )
            _announce_policy(fleet.policy, now)
        ended.append(hold)
    return ended


def open_holds(fleet: Fleet, now: datetime.datetime) -> list[Hold]:
    """Holds in force at `now`, oldest first."""
    return list(
        Hold.objects.filter(fleet=fleet, released_at=None, expires_at__gt=now).order_by("id")
    )


def cancel_rebalance(
    *,
    fleet: str,
    rebalance_id: int,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Rebalance:
    """Give up a move of roles: the instance under way gets its old role back, the others stay."""
    if len(reason) > 500:
        raise Refused("reason", reason, "must have at most 500 characters")
    found = Rebalance.objects.filter(fleet_id=fleet, pk=rebalance_id).first()
    if found is None:
        raise Refused("rebalance", rebalance_id, "no such rebalance")
    try:
        return rebalance.cancel(found, actor=actor, via=via, reason=reason, now=now)
    except rebalance.NotOpen as exc:
        raise Refused("rebalance", rebalance_id, str(exc)) from None


def raise_epoch(*, fleet: str, actor: str, via: str, reason: str, now: datetime.datetime) -> Fleet:
    """Start a new plan epoch, so that routers accept this console's plans again.

    For a console restored from a backup: its versions restart below what routers already run. The
    next tick of an active fleet issues the plan in force again under the new epoch.
    """
    _text("reason", reason, 500)
    with transaction.atomic():
        # The fleet's row before its policy's, as everywhere: else two commands could deadlock.
        found = Fleet.objects.select_for_update(no_key=True).filter(pk=fleet).first()
        if found is None:
            raise Refused("fleet", fleet, "no such fleet")
        policy = _policy(fleet)
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


def issue_token(
    *,
    name: str,
    scopes: list[str],
    fleet: str,
    expires_at: datetime.datetime | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> tuple[ApiToken, str]:
    """A new token and its secret, which is shown this once. Empty fleet: every fleet."""
    _text("name", name, 120)
    if not scopes:
        raise Refused("scopes", scopes, f"needs at least one of {', '.join(tokens.SCOPES)}")
    for scope in scopes:
        _one_of("scopes", scope, tokens.SCOPES)
    if fleet and not Fleet.objects.filter(pk=fleet).exists():
        raise Refused("fleet", fleet, "no such fleet")
    if expires_at is not None and expires_at <= now:
        raise Refused("expires_at", str(expires_at), "must be in the future")
    with transaction.atomic():
        token, secret = tokens.issue(
            name=name, scopes=scopes, fleet=fleet, created_by=actor, expires_at=expires_at
        )
        audit.record(
            actor=actor,
            via=via,
            verb="token.issue",
            fleet=fleet,
            target=f"{name} ({token.prefix})",
            after={"scopes": token.scopes, "expires_at": expires_at and expires_at.isoformat()},
            reason=reason,
        )
    return token, secret


def revoke_token(
    *, token_id: int, actor: str, via: str, reason: str, now: datetime.datetime
) -> ApiToken:
    """End a token at once (open sockets and ingest notice within 10 s)."""
    with transaction.atomic():
        token = ApiToken.objects.filter(pk=token_id).first()
        if token is None:
            raise Refused("token", token_id, "no such token")
        if not tokens.revoke(token, now):
            raise Refused("token", token_id, "this token is already revoked")
        audit.record(
            actor=actor,
            via=via,
            verb="token.revoke",
            fleet=token.fleet,
            target=f"{token.name} ({token.prefix})",
            before={"scopes": token.scopes},
            reason=reason,
        )
    return token


def _policy(fleet: str) -> Policy:
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
        "holds": [_hold_values(hold) for hold in open_holds(policy.fleet, now)],
        "at_s": now.timestamp(),
    }
    transaction.on_commit(partial(announce.publish, message))


def _hold_values(hold: Hold) -> dict[str, Any]:
    return {
        "cluster": hold.cluster,
        "mode": hold.mode,
        "threshold_tokens": hold.threshold_tokens,
        "owner": hold.owner,
        "reason": hold.reason,
        "expires_at_s": hold.expires_at.timestamp(),
    }


def _audit_hold(
    hold: Hold, verb: str, actor: str, via: str, reason: str, **values: dict[str, Any]
) -> None:
    target = f"hold {hold.pk} on {hold.cluster or 'every cluster'}"
    audit.record(
        actor=actor,
        via=via,
        verb=verb,
        fleet=hold.fleet_id,
        target=target,
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


def _text(field: str, value: str, limit: int) -> None:
    if not value.strip():
        raise Refused(field, value, "must not be empty")
    if len(value) > limit:
        raise Refused(field, value, f"must have at most {limit} characters")
