"""Jobs for tests. `tests.routing.cases.NOW` is Sunday, 2026-11-29, 12:00 UTC: 13:00 in Paris."""

from __future__ import annotations

from typing import Any

from routing.jobs import jobs
from routing.jobs.models import Job
from tests.routing.cases import NOW

BY: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "because"}
MORNING: dict[str, Any] = {
    "name": "big-morning",
    "fleet": "f1",
    "do": {"kind": "at_least_prefill", "cluster": "pd", "n_prefill": 5, "for_s": 36_000},
    "when": {"zone": "Europe/Paris", "at": "08:00", "days": ["mon", "tue", "wed", "thu", "fri"]},
    "reason": "long prompts of the morning",
}
ADVISE: dict[str, Any] = MORNING | {
    "name": "advise",
    "do": {"kind": "mode", "mode": "advisory"},
    "when": {"zone": "Europe/Paris", "at": "13:30", "days": ["sun"]},
}


def put(document: dict[str, Any], **options: Any) -> Job:
    options = {"if_version": None, "now": NOW} | BY | options
    return jobs.put(document=document, **options)
