"""Two PD clusters that share one PrfaaS cluster, steered by one joint plan.

Run by hand: `pytest tests/live/test_two_clusters.py -m slow -s`, some 16 minutes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness import Demo, free_port, say
from tests.live.truth import FleetTruth

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SETTLE_S = 600
MEASURE_S = 300
PD = ("pd-a", "pd-b")
START_T = 4000


def counts(demo: Demo) -> dict[str, tuple[int, int]]:
    """(remote, all) requests of each PD cluster, as the lab counted them."""
    clusters = demo.lab("admin", "/truth?records=0")["clusters"]
    found = {}
    for name in PD:
        n = {side: clusters[name]["sides"][side]["requests"] for side in ("local", "remote")}
        found[name] = (n["remote"], n["remote"] + n["local"])
    return found


def watch(demo: Demo, seconds: float) -> list[dict[str, Any]]:
    """The plan's clusters every 5 s."""
    until_s, seen = time.monotonic() + seconds, []
    while time.monotonic() < until_s:
        seen.append(demo.get("/plan")["clusters"])
        time.sleep(5.0)
    return seen


def in_force(decisions: list[dict[str, Any]], cluster: str) -> Iterator[tuple[Any, int]]:
    """(decision, the cluster's threshold under it): a decision tells only what it changed."""
    threshold = START_T
    for decision in decisions:
        change = (decision["changes"] or {}).get(cluster, {}).get("threshold_tokens")
        threshold = change[1] if change else threshold
        yield decision, threshold


def test_a_joint_plan_is_applied_on_both_and_shares_are_as_planned(state: Path) -> None:
    with Demo(state, free_port(), n_pd=2, threshold_tokens=START_T) as demo:
        truth = FleetTruth(demo.scenario())
        time.sleep(SETTLE_S)
        before = counts(demo)
        plans = watch(demo, MEASURE_S)
        after = counts(demo)
        plan, roles = demo.get("/plan")["clusters"], demo.roles()
        decisions = [d for d in demo.all("/decisions") if d["kind"] == "adopted"]
        moves = [m for r in demo.all("/rebalances") for m in r["moves"]]
        failed = demo.failed()
        records = {name: demo.requests(f"requests{name.removeprefix('pd')}.jsonl") for name in PD}

    shares = {
        name: (after[name][0] - before[name][0]) / (after[name][1] - before[name][1]) for name in PD
    }
    # A request is counted when it arrives, under the plan of that moment.
    planned = {
        name: statistics.fmean(
            truth.remote_fraction(name, p[name]["threshold_tokens"]) for p in plans
        )
        for name in PD
    }
    thresholds = {
        name: {f"{d['epoch']}.{d['version']}": t for d, t in in_force(decisions, name)}
        for name in PD
    }
    # The same of the very prompts that were sent, each under the plan it met: what is left
    # between the two is how well a gate estimates the length of a text.
    drawn = {
        name: {
            "long": statistics.fmean(
                r["prompt_tokens"] > thresholds[name][r["plan"]] for r in records[name] if r["plan"]
            ),
            "remote": statistics.fmean(r["side"] == "remote" for r in records[name] if r["plan"]),
        }
        for name in PD
    }
    say(
        "two clusters",
        best={n: truth.best["clusters"][n] for n in PD},
        plan=plan,
        capacity_of_optimum=truth.capacity_ratio(plan),
        shares=shares,
        planned=planned,
        drawn=drawn,
        requests={n: after[n][1] - before[n][1] for n in PD},
        changes=[(d["created_at"], d["reason"], d["changes"]) for d in decisions[1:]],
        deliveries=[(d["version"], d["delivery"]) for d in decisions],
        role_moves=[(m["instance"], m["to_role"], m["step"]) for m in moves],
        engines=roles,
        failed=failed,
    )
    assert decisions[-1]["delivery"]["state"] == "applied"
    assert all(d["delivery"]["state"] in ("applied", "superseded") for d in decisions)
    for name in PD:
        assert drawn[name]["remote"] == pytest.approx(drawn[name]["long"], abs=0.02)
        assert roles[name] == {
            "prefill": plan[name]["n_prefill"],
            "decode": plan[name]["n_decode"],
        }
        # Prompts are drawn: 2 standard deviations of that many of them where it is more than 0.03.
        n, p = after[name][1] - before[name][1], planned[name]
        assert shares[name] == pytest.approx(p, abs=max(0.03, 2 * math.sqrt(p * (1 - p) / n)))
    assert truth.capacity_ratio(plan) >= 0.96
    assert failed == 0
