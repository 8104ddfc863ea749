"""What a request takes on either side: layer by layer, prefix first, unknown stays unknown."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core.placement.estimate import Estimate, estimate
from routing.core.placement.explain import UNPRICED, Costs, Moment, Path, Request, explain
from routing.core.placement.rule import Side
from routing.core.types import ClusterPlan
from tests.core.test_placement import abundant, plan

COSTS = Costs(
    kv_bytes=lambda tokens: 10.0 * tokens,
    prefill_s={
        "pd": lambda tokens, cached: tokens / 100,
        "prfaas": lambda tokens, cached: tokens / 300,
    },
    paths={"prfaas->pd": Path(bytes_per_s=10_000.0, rtt_s=0.5), "pd->prfaas": Path(5000.0)},
)


def take(
    side: Side,
    under: ClusterPlan | None,
    held: tuple[int, int] = (0, 0),
    *,
    costs: Costs = COSTS,
    **moment: Any,
) -> Estimate | None:
    request = Request(1000, {"local": held[0], "remote": held[1]})
    then = Moment(**moment)
    found = explain(request, under, cluster="pd", moment=then, costs=costs)
    return estimate(found, request, under, side, cluster="pd", moment=then, costs=costs)


def ttft_s(side: Side, under: ClusterPlan | None, held: tuple[int, int] = (0, 0)) -> float:
    found = take(side, under, held)
    assert found is not None
    assert found.ttft_s is not None
    return found.ttft_s


@pytest.mark.parametrize("t", [0, 999, 1000, 5000])
def test_either_side_whatever_the_rule_says(t: int) -> None:
    assert ttft_s("local", plan(t)) == pytest.approx(10.0)
    assert ttft_s("remote", plan(t)) == pytest.approx(1000 / 300), "prefill covers the 1.5 s"


def test_the_slower_of_prefill_and_transfer_counts() -> None:
    # 900 of 1,000 tokens held there: 100 to compute, and all 1,000 to bring over.
    assert ttft_s("remote", plan(0), (0, 900)) == pytest.approx(0.5 + 1.0)
    assert ttft_s("remote", plan(0), (900, 900)) == pytest.approx(0.5 + 0.1), "only what pd lacks"


def test_a_prefix_that_moves_comes_first() -> None:
    found = take("local", abundant(500), (100, 700))
    assert found is not None
    assert found.prefix is not None
    assert (found.compute_tokens, found.prefix.tokens, found.kv) == (300, 600, None)
    assert found.ttft_s == pytest.approx(0.5 + 0.6 + 3.0)
    found = take("remote", abundant(100), (700, 100))
    assert found is not None
    assert found.ttft_s == pytest.approx(6000 / 5000 + max(300 / 300, 0.5 + 0.3))


def test_under_always_local_nothing_is_asked_of_the_link() -> None:
    under = plan(None, mode="always_local", cache_mode="abundant", moves={"prfaas->pd": 0})
    assert ttft_s("local", under, (100, 700)) == pytest.approx(9.0)


def test_a_band_or_a_limit_hides_no_side() -> None:
    full = plan(500, band=(100, 2000), max_remote_in_flight=0)
    found = take("remote", full, waits_s={"local": 1.0, "remote": 2.0})
    assert found is not None
    assert found.ttft_s == pytest.approx(1000 / 300)


CANNOT: list[tuple[str, Side, ClusterPlan | None, dict[str, Any]]] = [
    ("no plan", "remote", None, {}),
    ("no remote", "remote", plan(0, remote={}), {}),
    ("no remote answers", "remote", plan(0), {"admissible": []}),
    ("local does not answer", "local", plan(5000), {"local_up": False}),
]


@pytest.mark.parametrize(("case", "side", "under", "moment"), CANNOT, ids=[c[0] for c in CANNOT])
def test_a_side_that_cannot_have_it(
    case: str, side: Side, under: ClusterPlan | None, moment: dict[str, Any]
) -> None:
    assert take(side, under, **moment) is None
    other: Side = "local" if side == "remote" else "remote"
    assert take(other, under, **moment) is not None


def test_what_is_not_known_is_not_estimated() -> None:
    for side in ("local", "remote"):
        found = take(side, plan(0), costs=UNPRICED)
        assert found is not None
        assert (found.compute_s, found.ttft_s) == (None, None)
    no_link = Costs(kv_bytes=COSTS.kv_bytes, prefill_s=COSTS.prefill_s)
    found = take("remote", plan(0), costs=no_link)
    assert found is not None
    assert found.compute_s == pytest.approx(1000 / 300)
    assert found.ttft_s is None
