"""Cache mode, moves, band and remote limit: what every plan carries, and when it changes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from routing.core.decide import decide
from routing.core.model.kvcache import KvWindow
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import ClusterPlan, HeldPlan, Memory, Observation, Params, Verdict
from tests.core.cases import LINK, demo_document, link, pd, plan, seen

BACK = "pd->prfaas"
SPARE = Memory(spare_since_s={"pd": 900.0})
"""The link has had room for long enough at now = 1000."""


def scenario(*, back: bool = False, gbps: float = 100.0) -> Scenario:
    document = demo_document()
    document["links"][0]["gbps"] = gbps
    if back:
        document["links"].append({"from": "pd", "to": "prfaas", "gbps": 100.0, "rtt_ms": 5.0})
    return parse_scenario(document)


def says(
    observation: Observation | None = None,
    *,
    running: dict[str, Any] | None = None,
    memory: Memory = SPARE,
    described: Scenario | None = None,
    threshold: int = 19_500,
    **params: Any,
) -> Verdict:
    return decide(
        observation or seen(pd=pd(movable_ratio=0.2)),
        plan(threshold, **(running or {})),
        memory,
        Params(**{"mode": "active", "band_ratio": 0.0} | params),
        described or scenario(),
    )


def cluster(verdict: Verdict) -> ClusterPlan:
    return verdict.plan.clusters["pd"]


ABUNDANT = {"cache_mode": "abundant", "moves": {LINK: 820}}


def test_caches_are_judged_together_once_the_link_has_room_and_there_is_something_to_move() -> None:
    verdict = says()
    assert (verdict.action, verdict.reason) == ("adopt", "CacheAbundant")
    assert cluster(verdict).cache_mode == "abundant"
    assert cluster(verdict).threshold_tokens == 19_500
    assert "20%" in verdict.message


@pytest.mark.parametrize(
    ("why", "given"),
    [
        ("the link has had room for a moment only", {"memory": Memory()}),
        ("nobody knows what could be moved", {"observation": seen()}),
        ("there is nothing to move", {"observation": seen(pd=pd(movable_ratio=0.001))}),
        (
            "it was scarce a minute ago",
            {"memory": dataclasses.replace(SPARE, scarce_at_s={"pd": 940.0})},
        ),
        (
            "the link is half full",
            {"observation": seen(pd=pd(movable_ratio=0.2), link=link(tx_gbps=50.0))},
        ),
        ("people say so", {"cache_mode": "scarce"}),
        ("the link is too slow for any move to pay", {"described": scenario(gbps=5.0)}),
    ],
)
def test_caches_stay_apart_while(why: str, given: dict[str, Any]) -> None:
    if "described" in given:
        busy = link(capacity_gbps=5.0, tx_gbps=1.0)
        given["observation"] = seen(pd=pd(movable_ratio=0.2), link=busy)
    assert cluster(says(**given)).cache_mode == "scarce"


@pytest.mark.parametrize(
    ("why", "reading"),
    [
        ("the link fills up", link(tx_gbps=75.0)),
        ("the link is congested", link(tx_gbps=95.0)),
    ],
)
def test_moving_ends_in_the_same_tick_when(why: str, reading: Any) -> None:
    verdict = says(seen(pd=pd(movable_ratio=0.2), link=reading), running=ABUNDANT)
    assert (verdict.action, cluster(verdict).cache_mode) == ("adopt", "scarce")
    assert cluster(verdict).moves == {}
    assert verdict.memory.scarce_at_s == {"pd": 1000.0}


def test_between_the_limits_and_unread_nothing_flips() -> None:
    for reading in (link(tx_gbps=50.0), link(state="failed", tx_gbps=None)):
        for running in ({}, ABUNDANT):
            verdict = says(seen(pd=pd(movable_ratio=0.2), link=reading), running=running)
            assert cluster(verdict).cache_mode == running.get("cache_mode", "scarce")


def test_a_link_that_swings_around_its_limit_flips_the_mode_at_most_once_per_dwell() -> None:
    running, memory = plan(19_500), SPARE
    modes = []
    for tick in range(100):
        tx_gbps = 75.0 if tick % 20 == 19 else 10.0
        observation = seen(1000.0 + 6 * tick, pd=pd(movable_ratio=0.2), link=link(tx_gbps=tx_gbps))
        verdict = decide(
            observation, running, memory, Params(mode="active", band_ratio=0.0), scenario()
        )
        running, memory = verdict.plan, verdict.memory
        modes.append(running.clusters["pd"].cache_mode)
    begun = sum(b == "abundant" != a for a, b in itertools.pairwise(modes))
    assert begun <= 600 / 300
    assert "abundant" in modes


def test_moves_are_where_half_the_recomputation_pays_for_the_transfer() -> None:
    """At 30 of 100 Gbps: 5 ms + (182 MB + D x 17,280 B) / 3.75 GB/s = D x 1.41e-4 s / 2."""
    verdict = says(described=scenario(back=True))
    slope_s = (4.265 - 1.829) / (27_486 - 10_224)
    exact = (0.005 + 182_347_366 / 3.75e9) / (slope_s / 2 - 17_280 / 3.75e9)
    assert exact <= cluster(verdict).moves[LINK] <= exact * 1.1
    # Towards the faster machines recomputing is cheaper, so more must be at stake.
    assert cluster(verdict).moves[BACK] > cluster(verdict).moves[LINK]


def test_windows_count_until_they_are_full() -> None:
    """200 kB more a token up to 1,024: no prefix that short pays, beyond it each token does."""
    document = demo_document()
    document["links"][0]["gbps"] = 60.0
    plain = parse_scenario(document)
    windowed = dataclasses.replace(
        plain, model=dataclasses.replace(plain.model, windows=(KvWindow(1024, 200_000.0),))
    )

    def least(described: Scenario) -> int:
        return cluster(says(described=described)).moves[LINK]

    slope_s, rate = (4.265 - 1.829) / (27_486 - 10_224) / 2, 0.3 * 60e9 / 8
    exact = (0.005 + (182_347_366 + 1024 * 200_000) / rate) / (slope_s - 17_280 / rate)
    assert exact <= least(windowed) <= exact * 1.1
    assert least(plain) < least(windowed)


def test_a_narrower_link_asks_for_longer_prefixes_and_a_trembling_one_for_no_new_plan() -> None:
    def at(gbps: float) -> Verdict:
        observation = seen(pd=pd(movable_ratio=0.2), link=link(capacity_gbps=gbps, tx_gbps=2.0))
        return says(observation, running=ABUNDANT)

    assert cluster(at(30.0)).moves[LINK] > 2 * 820
    assert at(98.0).action == "hold"
    assert cluster(at(98.0)).moves == {LINK: 820}


def test_a_policy_without_hysteresis_is_obeyed_at_once_but_not_while_paused() -> None:
    verdict = says(memory=Memory(), observation=seen(), cache_mode="abundant")
    assert (verdict.reason, cluster(verdict).cache_mode) == ("CacheAbundant", "abundant")
    params = Params(mode="paused", cache_mode="abundant", band_ratio=0.2)
    paused = decide(seen(), plan(19_500), SPARE, params, scenario())
    assert (paused.reason, cluster(paused).cache_mode) == ("Paused", "scarce")


def test_band_and_limit_come_from_the_policy_and_move_with_t() -> None:
    verdict = says(seen(), band_ratio=0.25, max_remote_in_flight=12, memory=Memory())
    assert (verdict.action, verdict.reason) == ("adopt", "PolicyChanged")
    assert "band none -> 15,600..24,375" in verdict.message
    assert cluster(verdict).band == (15_600, 24_375)
    assert cluster(verdict).max_remote_in_flight == 12
    again = decide(
        dataclasses.replace(seen(), now_s=1100.0),
        verdict.plan,
        verdict.memory,
        Params(mode="active", band_ratio=0.25, max_remote_in_flight=12),
        scenario(),
    )
    assert again.action == "hold"
    tuned = says(seen(), threshold=4000, band_ratio=0.25, memory=Memory(gain_since_s=900.0))
    after = cluster(tuned)
    assert tuned.reason == "PrefillImbalance"
    assert after.threshold_tokens == 6000
    assert after.band == (4800, 7500)


def test_a_hold_is_exact() -> None:
    hold = HeldPlan("pd", "threshold", 9000, "ada", "incident 7", 2000.0)
    verdict = says(seen(), band_ratio=0.25, holds=(hold,))
    assert (verdict.reason, cluster(verdict).threshold_tokens) == ("Held", 9000)
    assert cluster(verdict).band is None
    banded = says(seen(), threshold=9000, running={"band": (8000, 10_000)}, holds=(hold,))
    assert (banded.action, cluster(banded).band) == ("adopt", None)
