"""Proposals as rows: opened once, ended once. The one writer of Proposal."""

from __future__ import annotations

import datetime
import hashlib
import json
from typing import Any, Final

from django.db import IntegrityError, transaction

from routing import announce, audit
from routing.approvals import gate, limits
from routing.approvals.limits import Beyond, Reach
from routing.approvals.models import Proposal
from routing.models import Fleet

ENDED: Final = ("done", "failed", "rejected", "withdrawn", "expired")
STATES: Final = ("open", *ENDED)


def open_one(
    *,
    asked: gate.Asked,
    command: str,
    arguments: dict[str, Any],
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Proposal:
    """Keep what was asked for until somebody decides. The same, asked by the same while it is open,
    is the proposal that there is."""
    kept = {name: _kept(value) for name, value in arguments.items()}
    digest = _digest(command, arguments, actor, now)
    known = Proposal.objects.filter(digest=digest, state="open", expires_at__gt=now).first()
    if known is not None:
        return known
    try:
        with transaction.atomic():
            return _opened(asked, command, kept, digest, actor, via, reason, now)
    except IntegrityError:
        return Proposal.objects.get(digest=digest, state="open")


def _opened(
    asked: gate.Asked,
    command: str,
    arguments: dict[str, Any],
    digest: str,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Proposal:
    for spent in Proposal.objects.select_for_update().filter(digest=digest, state="open"):
        if spent.expires_at <= now:
            end(spent, "expired", by=audit.SYSTEM, via="scheduler", reason="", now=now)
    row = Proposal.objects.create(
        fleet=asked.fleet,
        command=command,
        arguments=arguments,
        changes=gate.as_rows(asked.changes),
        reach={"kinds": sorted(asked.reach.kinds), "figures": dict(asked.reach.figures)},
        beyond=[{"limit": b.limit, "value": b.value, "most": b.most} for b in asked.beyond],
        seen=asked.seen,
        digest=digest,
        asked_by=actor,
        via=via,
        reason=reason[:500],
        asked_at=now,
        expires_at=_ends(asked, arguments, now),
    )
    audit.record(
        actor=actor,
        via=via,
        verb="proposal.open",
        fleet=row.fleet,
        target=target(row),
        after={"command": command, "needs": limits.words(asked.beyond)},
        reason=row.reason,
    )
    transaction.on_commit(_announce)
    return row


def end(
    row: Proposal,
    state: str,
    *,
    by: str,
    via: str,
    reason: str,
    now: datetime.datetime,
    text: str = "",
    result: Any = None,
    broke_glass: bool = False,
) -> None:
    """End one that is locked and open, in the caller's transaction, with its audit row."""
    row.state, row.ended_by, row.ended_reason, row.ended_at = state, by, reason[:500], now
    row.text, row.result, row.broke_glass = text[:500], result, broke_glass
    row.save()
    audit.record(
        actor=by,
        via=via,
        verb=f"proposal.{'break_glass' if broke_glass else state}",
        fleet=row.fleet,
        target=target(row),
        before={"state": "open", "asked_by": row.asked_by},
        after={"state": state, **({"result": result} if result else {}), **_text(row)},
        reason=row.ended_reason,
    )
    transaction.on_commit(_announce)


def reach_of(row: Proposal) -> Reach:
    return Reach(frozenset(row.reach["kinds"]), row.reach["figures"])


def beyond_of(row: Proposal) -> list[Beyond]:
    return [Beyond(**each) for each in row.beyond]


def of_job(name: str, version: int) -> gate.Approval | None:
    """The approval of this version of a job, which holds whenever it is due; None without one."""
    row = Proposal.objects.filter(
        command="jobs.put", state="done", result={"job": name, "version": version}
    ).first()
    return None if row is None else gate.Approval(row.pk, row.ended_by, said=None)


def target(row: Proposal) -> str:
    """What the audit calls a proposal."""
    return f"proposal {row.pk}"


def _announce() -> None:
    """On the pages of every fleet: each counts what waits in all fleets of its reader."""
    names = Fleet.objects.order_by("name").values_list("name", flat=True)
    messages = [{"type": "proposal", "fleet": name} for name in names]
    if messages:
        announce.publish_all(messages)


def _text(row: Proposal) -> dict[str, str]:
    return {"text": row.text} if row.text else {}


def _kept(value: Any) -> Any:
    """An argument as JSON; what is a row of its own is kept by its key."""
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return getattr(value, "pk", value)


def _digest(command: str, arguments: dict[str, Any], actor: str, now: datetime.datetime) -> str:
    """The same for a form that is sent twice: a moment counts as minutes from now."""
    plain = {
        name: round((value - now).total_seconds() / 60)
        if isinstance(value, datetime.datetime)
        else _kept(value)
        for name, value in arguments.items()
    }
    text = json.dumps([command, actor, plain], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _ends(
    asked: gate.Asked, arguments: dict[str, Any], now: datetime.datetime
) -> datetime.datetime:
    """After the shortest time that its fleets say, and before what it asks for would be over."""
    spans = [gate.limits_of(fleet).expires_s for fleet in asked.seen] or [limits.EXPIRES_S]
    ends = now + datetime.timedelta(seconds=min(spans))
    over = arguments.get("expires_at") or arguments.get("ends_at")
    return min(ends, datetime.datetime.fromisoformat(over)) if over else ends
