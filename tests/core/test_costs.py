"""What a fleet used in a day, and what a month of it costs: numbers checked by hand."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from routing.core.costs import money, usage
from routing.core.costs.money import HourPrice, LinkPrice, Prices
from routing.core.costs.report import PARTS, Billed, Part, lines
from routing.core.costs.usage import N_SLOTS, Minute, Roles, fold
from routing.core.costs.worth import figures_of, spread_out
from routing.core.links import billing
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import LengthHistogram
from tests.core.cases import demo_document

DAY_S = 1_790_812_800.0
"""2026-10-01 00:00 UTC."""
EUR = Prices(
    currency="EUR",
    decimals=2,
    hours=(
        HourPrice(Decimal("2.50")),
        HourPrice(Decimal("4"), gpu="h200"),
        HourPrice(Decimal("9"), per="instance_hour", cluster="pd"),
    ),
    links=(LinkPrice(gb=Decimal("0.02")), LinkPrice("prfaas->pd", gbps_month=Decimal(100))),
)


def minutes(n: int, first: int = 0, **roles: Roles) -> list[Minute]:
    return [Minute(DAY_S + 60.0 * (first + i), roles) for i in range(n)]


def scenario(**facts: Any) -> Scenario:
    document = demo_document()
    for profile in document["profiles"].values():
        profile.update(facts)
    return parse_scenario(document)


def part(found: dict[str, Any], first: int = 0, last: int = N_SLOTS) -> Part:
    return Part("2026-10-01", ((found, first, last),))


def test_each_minute_with_a_tick_counts_its_instances_and_one_without_is_a_gap() -> None:
    found = fold(
        [*minutes(10, pd=Roles(3, 5)), *minutes(5, first=20, pd=Roles(4, 4, silent=1))], DAY_S
    )
    assert found["minutes"][:2] == [15, 0]
    pd = found["clusters"]["pd"]
    assert (pd["prefill"][0], pd["decode"][0], pd["silent"][0]) == (50, 70, 5)
    assert pd["minutes"][0] == 15


def test_a_cluster_of_which_nothing_was_read_has_a_gap_of_its_own() -> None:
    found = fold(minutes(10, pd=Roles(3, 5), prfaas=Roles(0, 0)), DAY_S)
    assert found["minutes"][0] == 10
    assert found["clusters"]["prfaas"]["minutes"][0] == 0


def test_minutes_of_other_days_are_not_counted() -> None:
    found = fold([*minutes(3, first=-3, pd=Roles(1, 1)), *minutes(2, first=1440)], DAY_S)
    assert sum(found["minutes"]) == 0


def test_demand_is_the_mean_of_the_minutes_that_know_it() -> None:
    rates = [2.0, None, 4.0]
    found = fold([Minute(DAY_S + 60 * i, {}, {"pd": rate}) for i, rate in enumerate(rates)], DAY_S)
    assert (found["traffic"]["pd"]["rps"][0], found["traffic"]["pd"]["n"][0]) == (3.0, 2)
    assert found["traffic"]["pd"]["rps"][1] is None


def test_a_mix_keeps_its_shares_on_other_buckets() -> None:
    lengths = LengthHistogram((1000.0, 10_000.0), (10.0, 60.0, 30.0), 100.0, 100.0)
    mix = usage.mix_of(lengths)
    assert sum(mix) == pytest.approx(1.0)
    assert len(mix) == len(usage.MIX_EDGES) + 1
    again = usage.lengths_of(mix)
    assert sum(again.counts) == pytest.approx(1000.0)


def test_hours_and_money_of_a_pool_by_hand() -> None:
    """90 minutes of 4 x H200 with 8 GPUs each: 6 instance-hours, 48 GPU-hours at 4 EUR."""
    day = fold(minutes(90, prfaas=Roles(4, 0), pd=Roles(3, 5)), DAY_S)
    found = lines(scenario(gpu="h200", gpus_per_instance=8), [part(day)], {}, EUR)
    remote, prefill, decode = found["pools"]
    assert (remote["role"], remote["instance_hours"], remote["gpu_hours"]) == ("prefill", 6.0, 48.0)
    assert (remote["price"], remote["money"]) == ("4", "192.00")
    # The cluster's own price is by instance-hour: 1.5 h x 3 x 9 EUR.
    assert (prefill["per"], prefill["money"], decode["money"]) == (
        *("instance_hour", "40.50", "67.50"),
    )
    assert found["totals"]["money_hours"] == "300.00"
    assert found["coverage"] == {"hours": 24.0, "measured_hours": 1.5, "ratio": 0.0625}
    assert remote["missing_hours"] == 22.5


def test_what_was_not_measured_is_none_and_not_zero() -> None:
    day = fold(minutes(30, pd=Roles(3, 5)), DAY_S)
    found = lines(scenario(gpus_per_instance=8), [part(day), part({})], {}, EUR)
    remote = found["pools"][0]
    assert (remote["cluster"], remote["instance_hours"], remote["money"]) == ("prfaas", None, None)
    assert found["days"][1]["instance_hours"] == dict.fromkeys(PARTS)
    assert found["days"][1]["gpu_hours"] is None
    assert found["links"][0]["bytes"] is None


def test_without_the_number_of_gpus_there_are_instance_hours_and_no_price_by_gpu() -> None:
    day = fold(minutes(60, prfaas=Roles(4, 0)), DAY_S)
    [remote, *_] = lines(scenario(), [part(day)], {}, EUR)["pools"]
    assert (remote["instance_hours"], remote["gpu_hours"], remote["money"]) == (4.0, None, None)


def test_without_prices_there_are_quantities_only() -> None:
    day = fold(minutes(60, prfaas=Roles(4, 0)), DAY_S)
    found = lines(scenario(gpus_per_instance=8), [part(day)], {}, None)
    assert found["totals"]["gpu_hours"] == 32.0
    assert found["totals"]["money"] is None
    assert all(row["money"] is None for row in (*found["pools"], *found["links"]))


def test_s45_a_link_pays_for_its_433rd_sample_and_for_what_is_above_its_commitment() -> None:
    """30 days: 432 samples of 40 Gbps are free, the 433rd is billed; 10 Gbps are committed."""
    day = fold(minutes(60, pd=Roles(3, 5)), DAY_S)
    day["links"] = {"prfaas->pd": {"minutes": [30] * N_SLOTS, "bytes": [5 * 10**9] * N_SLOTS}}
    prices = Prices(
        "EUR",
        2,
        links=(
            LinkPrice(
                "prfaas->pd",
                gb=Decimal("0.02"),
                gbps_month=Decimal(100),
                burst_gbps_month=Decimal(150),
                committed_gbps=Decimal(10),
            ),
        ),
    )
    for n_high, rate, paid in ((432, 10.0, "1000.00"), (433, 40.0, "5500.00")):
        bill = billing.bill([40.0] * n_high + [10.0] * (8640 - n_high), cap_gbps=20.0)
        [row] = lines(scenario(), [part(day)], {"prfaas->pd": Billed(bill, "out", 20.0)}, prices)[
            "links"
        ]
        assert (row["p95"]["billed_gbps"], row["money_p95"]) == (rate, paid)
        assert (row["bytes"], row["money_gb"]) == (240 * 10**9, "4.80")
        assert row["money"] == f"{Decimal(paid) + Decimal('4.80')}"
        assert row["p95"]["burst_left_s"] == (432 - n_high if n_high < 432 else 0) * 300.0


def test_lines_are_rounded_half_to_even_and_sums_are_of_rounded_lines() -> None:
    cents = Prices("EUR", 2, (HourPrice(Decimal("0.005"), per="instance_hour"),))
    price = cents.of_hours("pd", "")
    paid = [money.of_hours(cents, price, instance_hours=Decimal(n), gpus=None) for n in (1, 3, 5)]
    assert paid == [Decimal("0.00"), Decimal("0.02"), Decimal("0.02")]
    assert money.total([*paid, None]) == money.Total(Decimal("0.04"), 1)
    assert money.total([None]) == money.Total(None, 1)
    yen = Prices("JPY", 0, (HourPrice(Decimal("2.5")),))
    assert money.of_hours(yen, yen.hours[0], instance_hours=Decimal(1), gpus=Decimal(1)) == Decimal(
        2
    )


def test_the_price_that_names_most_counts() -> None:
    assert EUR.of_hours("pd", "h20").price == Decimal(9)  # type: ignore[union-attr]
    assert EUR.of_hours("prfaas", "h200").price == Decimal(4)  # type: ignore[union-attr]
    assert EUR.of_hours("other", "a100").price == Decimal("2.50")  # type: ignore[union-attr]
    assert EUR.of_link("prfaas->pd").gb is None  # type: ignore[union-attr]
    assert Prices("EUR", 2).of_hours("pd", "h20") is None


def test_hours_that_are_replayed_lie_evenly_over_the_month() -> None:
    assert spread_out(range(3), 5) == [0, 1, 2]
    assert spread_out(range(100), 4) == [12, 37, 62, 87]


def test_egress_has_money_only_where_each_link_has_a_price() -> None:
    report = {
        "goodput_rps": 2.0,
        "good_fraction": 0.9,
        "ttft_s": {"p90": 3.0},
        "links": {"a->b": {"mean_gbps": 8.0}, "b->a": {"mean_gbps": 0.0}},
    }
    found = figures_of(report, {"a->b": 0.02})
    assert (found["egress_gb_per_h"], found["egress_money_per_h"]) == (3600.0, None)
    assert figures_of(report, {"a->b": 0.02, "b->a": 1.0})["egress_money_per_h"] == 72.0


def test_what_left_the_scenario_stays_in_the_sums() -> None:
    day = fold(minutes(60, gone=Roles(0, 2)), DAY_S)
    day["links"] = {"gone->pd": {"minutes": [30] * N_SLOTS, "bytes": [10**9] * N_SLOTS}}
    found = lines(scenario(), [part(day)], {}, EUR)
    assert [(r["cluster"], r["role"], r["instance_hours"]) for r in found["pools"][-1:]] == [
        ("gone", "decode", 2.0)
    ]
    assert (found["links"][-1]["id"], found["links"][-1]["money"]) == ("gone->pd", "0.96")
    assert found["totals"]["bytes"] == 48 * 10**9
