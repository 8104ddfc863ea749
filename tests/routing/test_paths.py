"""Transfers over a link as gates and engines count them, and over which link they are counted."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from routing import paths
from routing.core.links.breaker import HOLD_S
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import LinkObservation
from telemetry import store, wire
from telemetry.store import Reading
from tests.routing.cases import SCENARIO

NOW_S = 1_800_000_000.0
LINK = "prfaas->pd"
MB = 1e6


def gate(at_s: float, remote: float, failed: float | None = None, epoch_s: float = 1.0) -> Reading:
    signals = wire.RouterSignals(
        requests_total={"local|short": 5.0 + remote, "remote|long": remote},
        errors_total=None if failed is None else {"remote": failed, "local": 50.0},
    )
    sample = wire.RouterSample(
        id="f1/pd/gw", kind="gate", at_s=NOW_S + at_s, epoch_s=epoch_s, signals=signals
    )
    return store.from_sample(sample, received_s=NOW_S + at_s)


def engine(
    at_s: float, n: float, *, each_s: float = 0.5, each_mb: float = 700.0, failed: float = 0.0
) -> Reading:
    signals = wire.InstanceSignals(
        kv_transfer_seconds=wire.Histogram([1.0], [n, 0.0], n * each_s),
        kv_transfer_bytes_total=n * each_mb * MB,
        kv_transfer_failures_total=failed,
    )
    sample = wire.InstanceSample(
        id="f1/prfaas/p0", role="prefill", engine="e", at_s=NOW_S + at_s, signals=signals
    )
    return store.from_sample(sample, received_s=NOW_S + at_s)


def counters_of_link(**signals: Any) -> Reading:
    sample = wire.LinkSample(
        id=LINK, at_s=NOW_S - 1.0, measured_layer="nic", signals=wire.LinkSignals(**signals)
    )
    return store.from_sample(sample, received_s=NOW_S - 1.0)


def scenario(*more: tuple[str, str]) -> Scenario:
    """prfaas -> pd, and what else is named: links between clusters, made where they are missing."""
    document = copy.deepcopy(SCENARIO)
    for source, target in more:
        document["links"].append({**document["links"][0], "from": source, "to": target})
        for name, like in ((source, 0), (target, 1)):
            if name not in [cluster["name"] for cluster in document["clusters"]]:
                document["clusters"].append({**document["clusters"][like], "name": name})
                if like == 1:
                    document["workloads"] = [
                        {**document["workload"], "cluster": cluster} for cluster in ("pd", name)
                    ]
    if "workloads" in document:
        del document["workload"]
    return parse_scenario(document)


def observed(
    *,
    gates: list[Reading] | None = None,
    engines: list[Reading] | None = None,
    link: Reading | None = None,
    of: Scenario | None = None,
) -> LinkObservation:
    return paths.observed(
        "f1",
        of or scenario(),
        {} if link is None else {LINK: link},
        gates={"f1/pd/gw": gates} if gates else {},
        instances={"f1/prfaas/p0": engines} if engines else {},
        at_s=NOW_S,
    )[LINK]


def test_gates_count_what_they_sent_remote_and_what_of_it_failed() -> None:
    found = observed(gates=[gate(-12, 100, 1), gate(-2, 120, 6)])
    assert (found.transfers, found.transfers_failed_ratio) == (20.0, 0.25)
    assert (found.transfer_s, found.transfer_bytes) == (None, None)


@pytest.mark.parametrize(
    ("what", "readings", "transfers", "ratio"),
    [
        ("no gate", [], None, None),
        ("one reading is no interval", [gate(-2, 120, 6)], None, None),
        ("none sent", [gate(-12, 100, 1), gate(-2, 100, 1)], 0.0, None),
        ("no error yet", [gate(-12, 100), gate(-2, 110)], 10.0, 0.0),
        ("the first error", [gate(-12, 100), gate(-2, 110, 5)], 10.0, 0.5),
        ("errors of earlier requests", [gate(-12, 100, 0), gate(-2, 102, 8)], 8.0, 1.0),
        ("long ago", [gate(-90, 100, 0), gate(-80, 200, 90)], None, None),
        (
            "a gate that restarted",
            [gate(-12, 100, 9), gate(-2, 4, 2, epoch_s=NOW_S - 9)],
            4.0,
            0.5,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_counts_of_gates(
    what: str, readings: list[Reading], transfers: float | None, ratio: float | None
) -> None:
    found = observed(gates=readings)
    assert (found.transfers, found.transfers_failed_ratio) == (transfers, ratio)


def test_the_newest_transfers_speak_where_there_are_many() -> None:
    """All was well for twenty seconds; of the last twenty-five requests most failed."""
    readings = [gate(-22, 0, 0), gate(-12, 500, 0), gate(-7, 1000, 0), gate(-2, 1025, 20)]
    found = observed(gates=readings)
    assert (found.transfers, found.transfers_failed_ratio) == (25.0, 0.8)


def test_sending_engines_time_their_transfers() -> None:
    found = observed(engines=[engine(-20, 10), engine(-10, 14), engine(-1, 18, failed=2.0)])
    assert (found.transfer_s, found.transfer_bytes) == (0.5, 700 * MB)
    assert (found.transfers, found.transfers_failed_ratio) == (10.0, 0.2)


def test_who_saw_more_failures_is_heard() -> None:
    found = observed(
        gates=[gate(-12, 100, 0), gate(-2, 110, 5)], engines=[engine(-10, 10), engine(-1, 30)]
    )
    assert (found.transfers, found.transfers_failed_ratio) == (10.0, 0.5)
    assert found.transfer_s == 0.5


def test_what_may_have_crossed_another_link_is_counted_for_none() -> None:
    """Two PrfaaS clusters send to pd, so gates do not tell; one sends to two, so engines do not."""
    gates, engines = [gate(-12, 100, 1), gate(-2, 120, 6)], [engine(-10, 10), engine(-1, 30)]
    into = observed(gates=gates, engines=engines, of=scenario(("north", "pd")))
    assert (into.transfers, into.transfer_s) == (20.0, 0.5)
    assert into.transfers_failed_ratio == 0.0, "of the engines"
    out_of = observed(gates=gates, engines=engines, of=scenario(("prfaas", "south")))
    assert (out_of.transfers_failed_ratio, out_of.transfer_s) == (0.25, None)
    both = observed(gates=gates, engines=engines, of=scenario(("north", "pd"), ("prfaas", "south")))
    assert (both.transfers, both.transfer_s) == (None, None)


def test_the_way_back_does_not_share_in_it() -> None:
    """pd -> prfaas carries moved prefixes; what failed on the way there did not fail on it."""
    found = paths.observed(
        "f1",
        scenario(("pd", "prfaas")),
        {},
        gates={"f1/pd/gw": [gate(-12, 100, 1), gate(-2, 120, 6)]},
        instances={},
        at_s=NOW_S,
    )
    assert found[LINK].transfers == 20.0
    assert found["pd->prfaas"].transfers is None


def test_counters_of_the_link_are_taken_over() -> None:
    found = observed(link=counters_of_link(tx_gbps=5.5, connections=12.0, retransmit_ratio=0.01))
    assert (found.tx_gbps, found.connections, found.retransmit_ratio) == (5.5, 12.0, 0.01)
    assert found.age_s == 1.0


def test_a_probe_is_not_judged_by_what_opened_the_breaker() -> None:
    assert HOLD_S > paths.TRANSFERS_S + 10.0, "an interval between readings is up to 10 s long"
