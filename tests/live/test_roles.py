"""Thresholds and roles found together on the live lab, from a start with both far from right.

Run by hand: `pytest tests/live/test_roles.py -m slow -s`, some 27 minutes.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness import Demo, free_port, say
from tests.live.truth import FleetTruth

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

SETTLE_S = 900
QUIET_S = 300
FOLLOW_S = 600
NEW_MU = 9.2
GOOD = 0.96


def plan_of(demo: Demo) -> dict[str, Any]:
    return demo.get("/plan")["clusters"]


def facts(plan: dict[str, Any]) -> dict[str, Any]:
    pd = plan["pd"]
    return {name: pd[name] for name in ("threshold_tokens", "n_prefill", "n_decode", "cache_mode")}


def moved_roles(demo: Demo) -> list[dict[str, Any]]:
    """Every instance whose role was ever to change, with the step it is in."""
    return [move for rebalance in demo.all("/rebalances") for move in rebalance["moves"]]


def watch(demo: Demo, truth: FleetTruth, seconds: float) -> list[tuple[float, float, Any]]:
    """(seconds since now, capacity ratio, plan) whenever the plan is another."""
    began_s, seen = time.monotonic(), []
    while (elapsed_s := time.monotonic() - began_s) < seconds:
        plan = plan_of(demo)
        if not seen or seen[-1][2] != facts(plan):
            seen.append((round(elapsed_s, 1), truth.capacity_ratio(plan), facts(plan)))
            print(f"\n{seen[-1]}", flush=True)
        time.sleep(min(5.0, max(0.1, seconds - elapsed_s)))
    return seen


def test_roles_and_threshold_find_the_optimum_and_follow_the_mix(state: Path) -> None:
    options = {"rate_rps": 2.5, "threshold_tokens": 4000, "n_prefill": 6}
    with Demo(state, free_port(), **options) as demo:
        truth = FleetTruth(demo.scenario())
        path = watch(demo, truth, SETTLE_S)
        settled, roles = plan_of(demo), demo.roles()
        changes, moves = demo.changes(), moved_roles(demo)
        quiet_since_s = time.time() - QUIET_S
        late = [
            d
            for d in changes
            if datetime.fromisoformat(d["created_at"]).timestamp() > quiet_since_s
        ]
        failed = demo.failed()
        say(
            "roles",
            best=truth.best["clusters"]["pd"],
            settled=facts(settled),
            capacity_of_optimum=truth.capacity_ratio(settled),
            path=path,
            changes=[(d["created_at"], d["reason"], d["changes"]) for d in changes],
            role_moves=[(m["instance"], m["to_role"], m["step"], m["finished_at"]) for m in moves],
            engines=roles,
            failed=failed,
        )

        demo.manage("lab", "mix", str(NEW_MU), "1.0")
        stepped = FleetTruth(demo.scenario(), mu=NEW_MU)
        followed = watch(demo, stepped, FOLLOW_S)
        at_end, roles_at_end, failed_at_end = plan_of(demo), demo.roles(), demo.failed()
        say(
            "roles after the step",
            best=stepped.best["clusters"]["pd"],
            before=stepped.capacity_ratio(settled),
            at_end=facts(at_end),
            capacity_of_optimum=stepped.capacity_ratio(at_end),
            path=followed,
            role_moves=len(moved_roles(demo)),
            engines=roles_at_end,
            failed=failed_at_end,
        )
    assert truth.capacity_ratio(settled) >= GOOD
    assert len(changes) <= 12
    assert 0 < len(moves) <= 4
    assert all(move["step"] == "done" for move in moves)
    assert not late
    assert roles["pd"] == {
        "prefill": settled["pd"]["n_prefill"],
        "decode": settled["pd"]["n_decode"],
    }
    assert failed == 0
    assert stepped.capacity_ratio(at_end) >= GOOD
    assert failed_at_end == 0
