"""A fleet with limits, and what people ask of it."""

from __future__ import annotations

import datetime
from typing import Any

from django.utils import timezone

from routing import commands
from routing.approvals import limits_rows, proposals
from routing.approvals.asking import Proposed
from routing.approvals.models import ApprovalLimits, Proposal
from routing.models import Fleet, Hold, Policy
from tests.routing.cases import NOW, after

ANA: dict[str, Any] = {"actor": "ana", "via": "test", "reason": "because"}
BOB: dict[str, Any] = {"actor": "bob", "via": "test", "reason": "looks right"}
HOLD_S = 3600.0
LONG: dict[str, Any] = {"hold_s": 1800.0}
"""Limits beyond which `hold()` goes, and `hold(for_s=1800)` does not."""


def limit(limits: dict[str, Any], *, fleet: str = "f1", **options: Any) -> ApprovalLimits:
    known = limits_rows.of(fleet).version
    options = {"if_version": known, "actor": "root", "via": "test", "reason": ""} | options
    return limits_rows.put(fleet=fleet, limits=limits, now=NOW, **options)


def hold(
    *,
    for_s: float = HOLD_S,
    now: datetime.datetime = NOW,
    who: dict[str, Any] = ANA,
    **changes: Any,
) -> Hold:
    facts: dict[str, Any] = {
        "fleet": "f1",
        "cluster": "pd",
        "mode": "threshold",
        "threshold_tokens": 8000,
        "owner": who["actor"],
        "expires_at": now + datetime.timedelta(seconds=for_s),
    }
    return commands.place_hold(**{**facts, **who, "now": now, **changes})


def set_policy(who: dict[str, Any] = ANA, **changes: Any) -> Policy:
    version = Policy.objects.get(fleet="f1").version
    return commands.set_policy(fleet="f1", changes=changes, if_version=version, now=NOW, **who)


def proposed(ask: Any, *args: Any, **kwargs: Any) -> Proposal:
    """The proposal that became of a command."""
    try:
        ask(*args, **kwargs)
    except Proposed as asked:
        return asked.kept()
    raise AssertionError("it was done, and not proposed")


def waiting(fleet: Fleet) -> Proposal:
    """A change of two numbers that waits; the fleet has no limits afterwards."""
    limits = limit({"changes": ["policy"]}, fleet=fleet.pk)
    row = proposed(
        commands.set_policy,
        fleet=fleet.pk,
        changes={"knobs": {"t_dwell_s": 60.0, "band_ratio": 0.1}},
        if_version=Policy.objects.get(fleet=fleet).version,
        now=timezone.now(),
        **ANA,
    )
    limits.delete()
    return row


def approve(row: Proposal, *, at_s: float = 60.0, **who: Any) -> Proposal:
    return proposals.approve(proposal_id=row.pk, now=after(at_s), **{**BOB, **who})
