"""What is so now, as a document would declare it, and its text. Reads only."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from routing.alerts.models import AlertRule, Receiver
from routing.approvals.models import ApprovalLimits
from routing.costs.models import PriceTable
from routing.declared.document import KINDS, VERSION, shown
from routing.declared.text import Format, plain, write
from routing.jobs.models import Job
from routing.models import Policy
from routing.windows.models import Window


@dataclass(frozen=True)
class State:
    """Objects by kind and name, and the version of those that have one."""

    tables: dict[str, dict[str, dict[str, Any]]]
    versions: dict[tuple[str, str], int]

    @property
    def document(self) -> dict[str, Any]:
        return {"version": VERSION, **self.tables}

    @property
    def digest(self) -> str:
        """The same for the same state, whatever the format."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def text(self, format_: Format) -> bytes:
        return write(self.document, format_)


def read_state() -> State:
    """Everything that is kept by name: no clocks, no versions and no keys are in it. What earlier
    releases left of a fleet that went has a version, and no place."""
    tables: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
    versions = {}
    for policy in Policy.objects.select_related("fleet"):
        name = policy.fleet_id
        tables["fleets"][name] = plain(policy.fleet.scenario)
        tables["policies"][name] = {"mode": policy.mode} | (
            {"knobs": plain(policy.knobs)} if policy.knobs else {}
        )
        versions["policies", name] = policy.version
    for receiver in Receiver.objects.all():
        tables["receivers"][receiver.name] = {
            "kind": receiver.kind,
            "target": receiver.target,
        } | ({"secret_file": receiver.secret_file} if receiver.secret_file else {})
        versions["receivers", receiver.name] = receiver.version
    for kind, rows in (("jobs", Job.objects.all()), ("alert_rules", AlertRule.objects.all())):
        for row in rows:
            tables[kind][row.name] = shown(row.document, enabled=row.enabled)
            versions[kind, row.name] = row.version
    fleets = tables["fleets"]
    for price_table in PriceTable.objects.all():
        versions["prices", price_table.name] = price_table.version
        if price_table.name in fleets:
            tables["prices"][price_table.name] = plain(price_table.document)
    for limits in ApprovalLimits.objects.all():
        versions["approval_limits", limits.name] = limits.version
        if limits.name in fleets:
            tables["approval_limits"][limits.name] = plain(limits.limits)
    for window in Window.objects.all():
        versions["windows", window.name] = window.version
        if window.fleet == "" or window.fleet in fleets:
            tables["windows"][window.name] = shown(window.document, enabled=window.enabled)
    return State(tables, versions)
