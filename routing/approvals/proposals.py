"""What people decide about proposals: each is carried out, or ended otherwise, exactly once.

A proposal's row is locked before anything else is, and stays so until the command has been run in
the same transaction: two who approve at once, or one who withdraws meanwhile, meet the same row.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.db import transaction

from routing import audit, commands, link_breakers, role_commands, router_commands
from routing.approvals import asking, gate, limits_rows, people, rows
from routing.approvals.models import Proposal
from routing.declared import apply as declared
from routing.declared.apply import Applied
from routing.declared.document import NotMeant
from routing.jobs import jobs
from routing.jobs.models import Job
from routing.models import Fleet, Hold, Policy
from routing.refits import proposals as refits
from routing.refits.models import ProfileProposal
from routing.refusals import Outdated, Refused
from routing.windows import maintenance
from routing.windows.models import Maintenance
from routing.windows.refusing import FrozenNow

COMMANDS: Final[Mapping[str, Callable[..., Any]]] = {
    asking.name_of(command): command
    for command in (
        commands.create_fleet,
        commands.set_policy,
        commands.place_hold,
        commands.extend_hold,
        commands.raise_epoch,
        role_commands.move_roles,
        router_commands.adopt,
        router_commands.override,
        router_commands.set_on_drift,
        router_commands.adopt_gate,
        router_commands.roll_back,
        link_breakers.reset,
        jobs.put,
        limits_rows.put,
        maintenance.plan,
        maintenance.extend,
        declared.apply,
        refits.apply,
    )
}
"""What may be proposed, by the name in `Proposal.command`."""
_BY_ADMINS: Final = ("commands.raise_epoch", "limits_rows.put", "apply.apply")
_ROWS: Final[Mapping[str, tuple[str, Any]]] = {
    "link_breakers.reset": ("fleet", Fleet),
    "proposals.apply": ("proposal", ProfileProposal),
}
"""Arguments that are rows, kept by their key."""
_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "expires_at": datetime.datetime.fromisoformat,
    "starts_at": datetime.datetime.fromisoformat,
    "ends_at": datetime.datetime.fromisoformat,
    "to": tuple,
    "expected": tuple,
}

log = logging.getLogger(__name__)


def approve(
    *, proposal_id: int, actor: str, via: str, reason: str, now: datetime.datetime
) -> Proposal:
    """Carry it out now, as its second person. What cannot be done any more fails, and says why.

    Raises Refused where it has ended, or one person would be both.
    """
    with transaction.atomic():
        row = _locked(proposal_id)
        if _said_so(row, actor, "done", "failed"):
            return row
        _must_be_open(row, now)
        if people.same(actor, row.asked_by):
            raise Refused(
                "proposal",
                proposal_id,
                f"was asked for by {row.asked_by}: somebody else must approve it",
            )
        _carry_out(row, actor=actor, via=via, reason=reason, now=now, broke_glass=False)
    return row


def break_glass(
    *,
    proposal_id: int,
    confirm: str,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Proposal:
    """Carry it out alone, in an emergency. `confirm` is the fleet's name, typed. Raises Refused."""
    commands.text("reason", reason, 500)
    with transaction.atomic():
        row = _locked(proposal_id)
        if _said_so(row, actor, "done", "failed"):
            return row
        _must_be_open(row, now)
        wanted = confirmation(row)
        if confirm != wanted:
            raise Refused("confirm", confirm, f"must be {wanted}, typed by hand")
        _carry_out(row, actor=actor, via=via, reason=reason, now=now, broke_glass=True)
    return row


def reject(
    *, proposal_id: int, actor: str, via: str, reason: str, now: datetime.datetime
) -> Proposal:
    """Say no, and why. Raises Refused."""
    commands.text("reason", reason, 500)
    with transaction.atomic():
        row = _locked(proposal_id)
        if _said_so(row, actor, "rejected"):
            return row
        _must_be_open(row, now)
        if people.same(actor, row.asked_by):
            raise Refused("proposal", proposal_id, "is your own: withdraw it instead")
        rows.end(row, "rejected", by=actor, via=via, reason=reason, now=now)
    return row


def withdraw(
    *, proposal_id: int, actor: str, via: str, reason: str, now: datetime.datetime
) -> Proposal:
    """Take back what one asked for. Raises Refused."""
    with transaction.atomic():
        row = _locked(proposal_id)
        if _said_so(row, actor, "withdrawn"):
            return row
        _must_be_open(row, now)
        if not people.same(actor, row.asked_by):
            raise Refused("proposal", proposal_id, f"was asked for by {row.asked_by}: reject it")
        rows.end(row, "withdrawn", by=actor, via=via, reason=reason, now=now)
    return row


def expire(now: datetime.datetime) -> int:
    """End what nobody decided about in time; how many."""
    n = 0
    spent = Proposal.objects.filter(state="open", expires_at__lte=now).order_by("pk")
    for pk in list(spent.values_list("pk", flat=True)):
        with transaction.atomic():
            row = Proposal.objects.select_for_update(skip_locked=True).filter(pk=pk).first()
            if row is not None and row.state == "open":
                rows.end(row, "expired", by=audit.SYSTEM, via="scheduler", reason="", now=now)
                n += 1
    return n


def confirmation(row: Proposal) -> str:
    """What somebody types to do it alone."""
    return row.fleet or f"proposal {row.pk}"


def _locked(proposal_id: int) -> Proposal:
    row = Proposal.objects.select_for_update().filter(pk=proposal_id).first()
    if row is None:
        raise Refused("proposal", proposal_id, "no such proposal")
    return row


def _said_so(row: Proposal, actor: str, *states: str) -> bool:
    """Whether the same person has decided the same already: a click that came twice."""
    return row.state in states and row.ended_by == actor


def _must_be_open(row: Proposal, now: datetime.datetime) -> None:
    if row.state != "open":
        by = f" by {row.ended_by}" if row.ended_by != audit.SYSTEM else ""
        raise Outdated("proposal", row.pk, f"is {row.state} already{by}")
    if row.expires_at <= now:
        raise Outdated("proposal", row.pk, f"ran out at {row.expires_at:%F %T} UTC")


def _carry_out(
    row: Proposal,
    *,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
    broke_glass: bool,
) -> None:
    done: dict[str, Any] = {"by": actor, "via": via, "reason": reason, "now": now}
    done["broke_glass"] = broke_glass
    try:
        with transaction.atomic():
            _still_may(row, now)
            result = _run(row, actor, now)
    except FrozenNow:
        raise  # it can still be done when the freeze is over
    except Refused as refused:
        if isinstance(refused, NotMeant) and refused.is_only_frozen:
            raise
        rows.end(row, "failed", text=str(refused), **done)
        return
    rows.end(row, "done", result=_result(result), **done)


def _still_may(row: Proposal, now: datetime.datetime) -> None:
    scope = "admin" if row.command in _BY_ADMINS else "operate"
    if not people.still_may(row.asked_by, row.via, scope, row.fleet, now):
        raise Refused("asked_by", row.asked_by, "may not do this any more")


def _run(row: Proposal, approved_by: str, now: datetime.datetime) -> Any:
    """The command as it was asked for, by who asked for it."""
    command = COMMANDS.get(row.command)
    if command is None:  # of another release
        raise Refused("command", row.command, "cannot be carried out by this release")
    approval = gate.Approval(
        proposal=row.pk,
        approved_by=approved_by,
        said=gate.Said(row.changes, rows.reach_of(row), row.seen),
    )
    with gate.approved(approval):
        return command(
            **_arguments(row), actor=row.asked_by, via=row.via, reason=row.reason, now=now
        )


def _arguments(row: Proposal) -> dict[str, Any]:
    found = {
        name: _READ[name](value) if name in _READ and value is not None else value
        for name, value in row.arguments.items()
    }
    if row.command in _ROWS:
        name, model = _ROWS[row.command]
        found[name] = model.objects.filter(pk=found[name]).first()
        if found[name] is None:
            raise Outdated(name, row.arguments[name], "is not there any more")
    return found


def _result(done: Any) -> dict[str, Any]:
    """What came of it, by the key of what was made. Pure."""
    match done:
        case Hold():
            return {"hold": done.pk}
        case [Hold(), *_]:
            return {"holds": [hold.pk for hold in done]}
        case role_commands.Asked():
            return {"hold": done.hold.pk}
        case router_commands.Done():
            return {"router": done.router.pk}
        case Policy():
            return {"policy_version": done.version}
        case Maintenance():
            return {"maintenance": done.pk}
        case Applied():
            return {"n_changes": len(done.changes)}
        case Job():
            return {"job": done.pk, "version": done.version}
    return {}
