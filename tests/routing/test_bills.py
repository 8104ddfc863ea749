"""The month's bill of each link, from samples as they are stored."""

from __future__ import annotations

import pytest

from routing import bills
from routing.core.links import billing
from telemetry import wire
from tests.console.api_case import conforms, machine, send
from tests.routing.cases import NOW_S, feed, link, make_fleet

pytestmark = pytest.mark.django_db

DUE = int((NOW_S - billing.cycle_at(NOW_S).begins_s) // billing.SAMPLE_S)


def samples(*tx_gbps: float, rx_gbps: float = 1.0) -> list[wire.LinkSample]:
    """Two readings in each of the last five-minute samples, one a little above, one below."""
    found = []
    for i, rate in enumerate(reversed(tx_gbps)):
        for age_s, more in ((60.0, 1.0), (200.0, -1.0)):
            at_s = -(i * billing.SAMPLE_S + age_s)
            found.append(link(at_s=at_s, tx_gbps=rate + more, rx_gbps=rx_gbps))
    return found


def priced(**facts: object) -> list[dict[str, object]]:
    fleet = make_fleet()
    fleet.scenario["links"][0].update(facts)
    fleet.save()
    return bills.bills(fleet, now_s=NOW_S)


def test_a_sample_is_a_mean_of_five_minutes_and_what_is_not_stored_is_missing() -> None:
    feed(samples(10.0, 40.0, 20.0))
    [row] = priced(p95_cap_gbps=15.0, cost_per_gbps_month=100.0)
    assert (row["billed_gbps"], row["cost"]) == (40.0, 4000.0)
    assert (row["n_measured"], row["n_missing"]) == (3, DUE - 3)
    assert (row["month"], row["over_cap"]) == ("2026-11", 2)
    assert row["burst_left_s"] == ((8640 - DUE + 3) // 20 - 2) * 300.0


def test_without_cap_and_price_there_is_a_rate_only() -> None:
    feed(samples(10.0))
    [row] = priced()
    assert (row["billed_gbps"], row["cost"], row["burst_left_s"]) == (10.0, None, None)


def test_the_greater_direction_counts_where_the_link_says_so() -> None:
    feed(samples(10.0, rx_gbps=30.0))
    assert priced(p95_counts="max")[0]["billed_gbps"] == 30.0


def test_over_rest() -> None:
    make_fleet()
    body = conforms(send(machine("read"), "get", "/fleets/f1/bills"), "/fleets/{fleet}/bills")
    [row] = body["results"]
    assert (row["id"], row["billed_gbps"], row["n_measured"]) == ("prfaas->pd", None, 0)
