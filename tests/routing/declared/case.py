"""A site with one of each kind that a document declares."""

from __future__ import annotations

from typing import Any

from django.db import connection

from routing import commands
from routing.alerts import receivers, rules
from routing.approvals import limits_rows
from routing.costs import prices
from routing.declared.apply import Applied, apply, dry_run
from routing.jobs import jobs
from routing.models import Fleet, Policy
from routing.windows import windows
from tests.routing.cases import NOW, make_fleet
from tests.routing.costs.case import PRICES
from tests.routing.jobs.case import MORNING

BY: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "because"}
RULE: dict[str, Any] = {
    "name": "waiting",
    "signal": "instance.requests_waiting",
    "is": "above",
    "threshold": 50,
    "for_s": 120,
    "fleet": "f1",
    "receivers": ["ops"],
    "summary": "Ünïcode — no: on, 08:00",
}


CHRISTMAS: dict[str, Any] = {
    "name": "christmas",
    "fleet": "f1",
    "kind": "freeze",
    "of": ["roles", "plans"],
    "when": {"zone": "Europe/Paris", "from": "2026-12-24 18:00", "to": "2026-12-27 08:00"},
    "reason": "nobody looks — Ünïcode",
}
NIGHTS: dict[str, Any] = {
    "name": "nights",
    "kind": "freeze",
    "when": {"zone": "UTC", "days": ["mon", "tue"], "from": "22:00", "to": "06:00"},
    "reason": "only one person on call",
}
"""Of every fleet. Neither is in force at `NOW`."""


def site(limits: dict[str, Any] | None = None) -> Fleet:
    """Fleets f1 and f2, knobs, a receiver, a job and a rule that is off, prices, `limits` of f1, a
    planned freeze and a recurring one that is off."""
    fleet = make_fleet("f1")
    make_fleet("f2", mode="advisory")
    policy = Policy.objects.get(fleet="f1")
    commands.set_policy(
        fleet="f1",
        changes={"knobs": {"t_dwell_s": 30, "objective": "min_remote"}},
        if_version=policy.version,
        now=NOW,
        **BY,
    )
    receivers.put(
        name="ops",
        kind="email",
        target="ops@example.org",
        if_version=None,
        now=NOW,
        **BY,
    )
    jobs.put(document=MORNING, if_version=None, now=NOW, **BY)
    rules.put(document=RULE, enabled=False, if_version=None, now=NOW, **BY)
    prices.put(fleet="f1", document=PRICES, if_version=None, now=NOW, **BY)
    # They ask nobody for a second person, so that a fleet with them may be deleted alone.
    limits_rows.put(
        fleet="f1", limits=limits or {"expires_s": 3600}, if_version=None, now=NOW, **BY
    )
    windows.put(document=CHRISTMAS, if_version=None, now=NOW, **BY)
    windows.put(document=NIGHTS, enabled=False, if_version=None, now=NOW, **BY)
    return fleet


def wipe() -> None:
    """Everything that a document declares, gone as if it had never been."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM routing_policy; DELETE FROM routing_fleet; DELETE FROM jobs_job;"
            " DELETE FROM alerts_alertrule; DELETE FROM alerts_receiver;"
            " DELETE FROM costs_pricetable; DELETE FROM approvals_approvallimits;"
            " DELETE FROM windows_window"
        )


def applied(document: dict[str, Any], **options: Any) -> Applied:
    return apply(document=document, now=NOW, **options, **BY)


def tried(document: dict[str, Any], **options: Any) -> Applied:
    return dry_run(document=document, actor="ada", via="test", now=NOW, **options)
