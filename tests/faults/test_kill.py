"""`kill -9` of every process in turn, under load: what must go on goes on, what was said holds."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.site import Probes, Site, gate_of, wait_until
from tests.live.harness import Demo, free_port, say

KILLED = ("web", "worker", "beat", "valkey", "postgres", "gw-1", "ag-pd")
pytestmark = pytest.mark.fault


@contextlib.contextmanager
def site_under_load(state: Path) -> Iterator[tuple[Site, Probes]]:
    with Demo(state, free_port(), rate_rps=2.5) as demo:
        site = Site(demo)
        wait_until(lambda: len(site.runs()) == 2, "both agents report")
        gates = {name: demo.url(name) for name in ("gw-1", "gw-2")}
        with Probes(gates) as probes:
            yield site, probes


def says(site: Site, why: str) -> bool:
    """Is the console not ready, and is that among its reasons?"""
    status, reasons = site.readyz()
    assert status != 200 or not reasons
    return status == 503 and any(why in reason for reason in reasons)


def misses(site: Site, who: str) -> bool:
    """Is `who` among what the console says is missing?"""
    return any(who in finding["what"] for finding in site.demo.get("/snapshot")["missing"])


def check(site: Site, probes: Probes) -> None:
    """What must hold whatever was killed."""
    killed = Counter(kill.name for kill in site.kills)

    def was_down(gate: str, sent_s: float, ended_s: float) -> bool:
        downs = [k for k in site.kills if k.name == gate]
        return any(sent_s <= k.until_s and ended_s >= k.at_s for k in downs)

    most = {f"agent-{c}": 1 + killed[f"ag-{c}"] for c in ("pd", "prfaas")}

    def whole() -> bool:
        runs = site.runs()
        return runs.keys() == most.keys() and all(
            len(runs[a]) <= most[a] and time.time() - runs[a][-1][1] < 5.0 for a in most
        )

    wait_until(
        whole,
        "every reading that was taken is a committed row",
    )
    wait_until(lambda: site.readyz() == (200, []), "the console is ready")
    records = site.demo.requests()
    failed = [r for r in records if not r["completed"]]
    say(
        "kills",
        recovery=[(k.name, round(k.back_s, 1), round(k.loop_s, 1)) for k in site.kills],
        probes=Counter(p.gate for p in probes.results),
        probes_failed=Counter(p.gate for p in probes.results if p.error),
        recorded=Counter(gate_of(r, 2) for r in records),
        recorded_failed=Counter(gate_of(r, 2) for r in failed),
        runs=site.runs(),
    )
    assert site.doubles() == (0, 0)
    assert len([p for p in probes.results if p.gate == "gw-2"]) > 5
    assert not [p for p in probes.results if p.error and not was_down(p.gate, p.sent_s, p.ended_s)]
    assert not [
        r for r in failed if not was_down(gate_of(r, 2), r["at_s"], r["at_s"] + r["total_s"])
    ]


@pytest.mark.timeout(240)
def test_each_process_is_killed_once_and_nothing_that_was_promised_is_lost(state: Path) -> None:
    with site_under_load(state) as (site, probes):
        for name in KILLED:
            if name in ("valkey", "postgres"):
                missing = {"valkey": "the broker", "postgres": "the database"}[name]
                with site.held_down(name):
                    why = f"{missing} does not answer"
                    wait_until(partial(says, site, why), f"the console says that {why}")
            else:
                site.kill(name)
        check(site, probes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_is_killed_and_each_is_missed(state: Path) -> None:
    """The same at leisure, and with each process away long enough to be missed by name."""
    with site_under_load(state) as (site, probes):
        time.sleep(60)
        for name in KILLED:
            site.kill(name)
            time.sleep(20)
        for name in ("worker", "beat"):
            with site.held_down(name):
                why = "the last tick was"
                wait_until(partial(says, site, why), f"the loop is missed without {name}")
            time.sleep(10)
        for name, who in (("gw-1", "gw-1"), ("ag-prfaas", "agent-prfaas")):
            with site.held_down(name):
                wait_until(partial(misses, site, who), f"the console says that {who} is missing")
                assert not misses(site, "gw-2")
                assert not misses(site, "agent-pd")
            time.sleep(10)
            wait_until(lambda: not misses(site, ""), "nothing is missing any more")
        with site.held_down("web"):
            assert site.readyz()[0] == 0
        time.sleep(30)
        check(site, probes)
        for name in ("lab", "load"):
            site.kill(name)
