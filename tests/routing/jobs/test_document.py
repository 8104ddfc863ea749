"""A job as people write it: what is refused names its field."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core.scenario.tables import ScenarioError
from routing.jobs.document import read_job
from tests.routing.jobs.case import MORNING

BAD = [
    ({"name": "Big Morning"}, "name"),
    ({"reason": ""}, "reason"),
    ({"reason": "two\nlines"}, "reason"),
    ({"grace_s": -1}, "grace_s"),
    ({"grace_s": 8 * 86400}, "grace_s"),
    ({"dry_run": "yes"}, "dry_run"),
    ({"cron": "0 8 * * 1-5"}, "cron"),
    ({"do": {"kind": "reboot"}}, "do.kind"),
    ({"do": {"kind": "roles", "cluster": "pd", "n_prefill": 5, "for_s": 60}}, "do.n_decode"),
    ({"do": MORNING["do"] | {"n_prefill": 0}}, "do.n_prefill"),
    ({"do": MORNING["do"] | {"for_s": 0}}, "do.for_s"),
    ({"do": MORNING["do"] | {"n_decode": 3}}, "do.n_decode"),
    ({"do": {"kind": "plan", "mode": "threshold", "for_s": 60}}, "do.threshold_tokens"),
    (
        {"do": {"kind": "plan", "mode": "always_local", "threshold_tokens": 1, "for_s": 60}},
        "do.threshold_tokens",
    ),
    ({"do": {"kind": "mode", "mode": "asleep"}}, "do.mode"),
    ({"when": MORNING["when"] | {"zone": "Paris"}}, "when.zone"),
    ({"when": MORNING["when"] | {"zone": "../etc/passwd"}}, "when.zone"),
    ({"when": MORNING["when"] | {"at": "8:00"}}, "when.at"),
    ({"when": MORNING["when"] | {"at": "24:00"}}, "when.at"),
    ({"when": MORNING["when"] | {"days": []}}, "when.days"),
    ({"when": MORNING["when"] | {"days": ["monday"]}}, "when.days"),
    ({"when": MORNING["when"] | {"on": "2026-12-01"}}, "when.on"),
    ({"when": {"zone": "UTC", "at": "08:00", "on": "tomorrow"}}, "when.on"),
    ({"when": {"zone": "UTC", "at": "08:00"}}, "when.on"),
]


@pytest.mark.parametrize(("change", "field"), BAD, ids=str)
def test_what_is_wrong_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ScenarioError) as wrong:
        read_job(MORNING | change)
    assert wrong.value.field == field


@pytest.mark.parametrize("missing", ["name", "fleet", "do", "when", "reason"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(ScenarioError) as wrong:
        read_job({key: value for key, value in MORNING.items() if key != missing})
    assert wrong.value.field == missing


def test_what_is_not_said_is_as_documented() -> None:
    job = read_job(MORNING)
    assert (job.grace_s, job.dry_run, job.do.n_decode) == (600.0, False, None)
    assert (job.when.zone.key, job.when.days, job.when.on) == (
        *("Europe/Paris", frozenset(range(5)), None),
    )
