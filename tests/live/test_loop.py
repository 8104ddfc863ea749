"""The loop against the live lab, at full length: run by hand with `pytest -m slow tests/live`.

Each proof starts its own demo, prints what it measured, and judges it by the scenario's true
parameters, which the loop never sees. The figures of one run are kept in docs/proof.md.
"""

from __future__ import annotations

import json
import time
import urllib.error
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from routing.core.model import fleetmodel
from routing.core.model.optimize import Freedom, optimise
from routing.core.model.throughput import Setting, predict
from routing.core.scenario.document import parse_scenario
from tests.live.harness import Demo, free_port, say

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

LINK = "prfaas->pd"
FIXED = {"mode": "active", "roles": "fixed", "cache_mode": "scarce"}
"""Only t moves in these proofs."""


class Truth:
    """Capacities from the generator's own parameters, at the demo's fixed roles 3/5."""

    def __init__(self, document: dict[str, Any], *, gbps: float | None = None) -> None:
        if gbps is not None:
            document["links"][0]["gbps"] = gbps
        self.model = fleetmodel.of_scenario(parse_scenario(document), "exact")

    def capacity_rps(self, threshold: float) -> float:
        return predict(self.model, {"pd": Setting(threshold, 3, 5)}).lambda_max_rps

    def remote_fraction(self, threshold: float) -> float:
        return predict(self.model, {"pd": Setting(threshold, 3, 5)}).remote_fraction

    def best(self) -> tuple[float, float]:
        """(t, capacity) of the optimum."""
        free = {"pd": Freedom.of_threshold(512, 131_072, n_prefill=3, n_decode=5)}
        found = optimise(self.model, free)
        return found.settings["pd"].threshold, found.prediction.lambda_max_rps


def threshold(plan: dict[str, Any]) -> int:
    return int(plan["clusters"]["pd"]["threshold_tokens"])


def counters(demo: Demo) -> tuple[int, int, int, int]:
    """(remote, all) requests at the gates, (bytes on the link, KV bytes shipped) by the lab."""
    truth = demo.lab("admin", "/truth?records=0")
    remote = truth["sides"]["remote"]["requests"]
    link = demo.lab("admin", "/links")[LINK]["tx_bytes_total"]
    everything = remote + truth["sides"]["local"]["requests"]
    return remote, everything, link, truth["kv_shipped_bytes_total"]


def test_from_4000_tokens_the_loop_finds_the_optimum_and_rests(state: Path) -> None:
    with Demo(state, free_port(), rate_rps=2.5, threshold_tokens=4000, **FIXED) as demo:
        truth = Truth(demo.scenario())
        time.sleep(600)
        plan = demo.get("/plan")
        before = counters(demo)
        time.sleep(300)
        after = counters(demo)
        at_end = demo.get("/plan")
        decisions = demo.all("/decisions")
        failed = demo.lab("load", "/summary")["failed"]

    t, (best_t, best_rps) = threshold(plan), truth.best()
    share = (after[0] - before[0]) / (after[1] - before[1])
    changes = [d for d in decisions if d["kind"] == "adopted"][1:]
    say(
        "loop",
        threshold_tokens=t,
        best_threshold_tokens=best_t,
        capacity_of_optimum=truth.capacity_rps(t) / best_rps,
        remote_share=share,
        p_of_t=truth.remote_fraction(t),
        link_bytes=after[2],
        kv_shipped_bytes=after[3],
        changes=[(d["created_at"], d["reason"], d["changes"]) for d in changes],
        end_threshold_tokens=threshold(at_end),
        failed=failed,
    )
    assert truth.capacity_rps(t) >= 0.96 * best_rps
    assert truth.capacity_rps(threshold(at_end)) >= 0.96 * best_rps
    assert share == pytest.approx(truth.remote_fraction(t), abs=0.03)
    assert after[2] == pytest.approx(after[3], rel=0.03)
    assert len(changes) <= 8
    assert all(d["delivery"]["state"] in ("applied", "superseded") for d in decisions)
    assert all(d["delivery"]["n_applied"] == 2 for d in decisions)
    assert failed == 0


@pytest.mark.parametrize("mode", ["advisory", "paused"])
def test_advisory_and_paused_push_nothing(state: Path, mode: str) -> None:
    # Token ids count at arrival; without a plan all is local, overloaded and slow to complete.
    options = {"threshold_tokens": 4000, "prompt": "ids"}
    with Demo(state, free_port(), mode=mode, **options) as demo:
        time.sleep(200)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            demo.get("/plan")
        routers, ticks = demo.get("/routers")["results"], demo.all("/ticks")
        kinds = Counter(d["kind"] for d in demo.all("/decisions"))
        sides = demo.lab("load", "/summary")["reasons"]
    say(mode, decisions=kinds, ticks=len(ticks), gates=[r["state"] for r in routers], sides=sides)
    assert {(r["state"], r["version_running"]) for r in routers} == {("no_plan", None)}
    assert set(sides) == {"NoPlan"}
    assert kinds["adopted"] == 0
    assert bool(kinds["advised"]) is (mode == "advisory")
    assert len(ticks) > 80


def test_a_narrow_link_raises_the_threshold_and_a_wide_one_lowers_it(state: Path) -> None:
    with Demo(state, free_port(), rate_rps=1.8, threshold_tokens=19_800, **FIXED) as demo:
        document = demo.scenario()
        narrow_t, _ = Truth(document, gbps=5.8).best()
        time.sleep(300)
        wide_before = threshold(demo.get("/plan"))
        demo.manage("lab", "link", LINK, "5.8")
        narrowed_at = time.time()
        time.sleep(480)
        at_narrow = counters(demo)
        time.sleep(240)
        narrow_share = share_between(at_narrow, counters(demo))
        narrow = threshold(demo.get("/plan"))
        waiting = demo.get("/snapshot")["pools"]
        demo.manage("lab", "link", LINK, "100")
        widened_at = time.time()
        time.sleep(480)
        wide_after = threshold(demo.get("/plan"))
        ticks = demo.all("/ticks")
        changes = [d for d in demo.all("/decisions") if d["kind"] == "adopted"][1:]
        failed = demo.lab("load", "/summary")["failed"]
        series = demo.get(
            f"/series?names=link:{LINK}:tx_gbps,link:{LINK}:capacity_gbps,loop:threshold_tokens:pd"
            f"&since={narrowed_at - 60}&until={widened_at + 480}&points=1000"
        )

    say(
        "congestion",
        before=wide_before,
        narrow=narrow,
        best_narrow=narrow_t,
        narrow_share=narrow_share,
        waiting=waiting,
        after=wide_after,
        changes=[(d["created_at"], d["reason"], d["changes"]) for d in changes],
        failed=failed,
    )
    Path("/tmp/congestion-series.json").write_text(json.dumps({"series": series, "n": len(ticks)}))
    assert ticks_to_rise(series, narrowed_at) <= 2
    assert 27_000 <= narrow <= 31_000
    assert narrow_share == pytest.approx(1 / 3, abs=0.05)
    assert wide_after < 24_000
    assert failed == 0


def ticks_to_rise(series: dict[str, Any], narrowed_at: float) -> float:
    """Ticks from the first bin whose tx is congestion (90 % of capacity) to the first higher t."""
    tx, capacity, t = (
        series["series"][name]
        for name in (
            f"link:{LINK}:tx_gbps",
            f"link:{LINK}:capacity_gbps",
            "loop:threshold_tokens:pd",
        )
    )
    rows = [row for row in zip(series["t"], tx, capacity, t, strict=True) if None not in row]
    after = [row for row in rows if row[0] >= narrowed_at]
    seen_at = next(at for at, sent, most, _ in after if sent >= 0.9 * most)
    risen_at = next(at for at, _, _, now in after if now > after[0][3])
    return (risen_at - seen_at) / 2.0


def share_between(before: tuple[int, ...], after: tuple[int, ...]) -> float:
    return (after[0] - before[0]) / (after[1] - before[1])
