"""Links, pools and KV: stretches of time by hand."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core.scenario.document import Link, Slo
from routing.twin.meters import MONTH_S
from routing.twin.report import Recorder, Report

PATH = "prfaas->pd"
GBIT = 1e9 / 8.0


def link(source: str = "prfaas", target: str = "pd", **facts: Any) -> Link:
    return Link(source, target, 10.0, None, facts)


def recorder(*links: Link, **more: Any) -> Recorder:
    slo = Slo(tokens_per_s=40.0, ttft_s=10.0)
    return Recorder(slo, sites=("pd",), reasons=("Short",), links=links, **more)


def carried(found: Recorder, *stretches: tuple[float, float], path: str = PATH) -> None:
    """(seconds, Gbps) one after another, of 10 Gbps."""
    at_s = 0.0
    for length_s, gbps in stretches:
        n_bytes, capacity = gbps * length_s * GBIT, 10.0 * length_s * GBIT
        found.link(path, at_s, at_s + length_s, n_bytes, capacity)
        at_s += length_s


def test_a_links_mean_peak_and_use() -> None:
    """2 s at 4 Gbps and 0.5 s at 10 in 10 s: the highest second holds half a second of each."""
    found = recorder(link())
    carried(found, (2.0, 4.0), (0.5, 10.0), (7.5, 0.0))
    report = found.report(10.0).links[PATH]
    assert report["bytes"] == 13 * GBIT
    assert report["mean_gbps"] == pytest.approx(1.3)
    assert report["peak_gbps"] == pytest.approx(5.0)
    assert report["utilisation"] == pytest.approx(0.13)
    assert (report["cost"], report["cost_per_month"]) == (None, None)


@pytest.mark.parametrize(
    ("stretches", "peak"),
    [
        pytest.param([(10.0, 3.0)], 3.0, id="one long stretch"),
        pytest.param([(0.7, 0.0), (0.6, 10.0), (8.7, 1.0)], 3.7, id="across a border"),
        pytest.param([(9.5, 0.0), (0.5, 8.0)], 4.0, id="the last window"),
        pytest.param([(0.001, 9.0)] * 1000 + [(9.0, 0.0)], 9.0, id="many short ones"),
    ],
)
def test_a_peak_is_over_a_whole_second(stretches: list[tuple[float, float]], peak: float) -> None:
    found = recorder(link())
    carried(found, *stretches)
    assert found.report(10.0).links[PATH]["peak_gbps"] == pytest.approx(peak)


def test_the_peak_says_over_how_long_it_is() -> None:
    found = recorder(link())
    carried(found, (0.5, 9.0), (0.5, 1.0))
    assert found.report(1.0).links[PATH]["peak_window_s"] == 1.0
    found.link(PATH, 1.0, 6.0, 1e9, 1e10)
    assert found.report(6.0).links[PATH]["peak_window_s"] == 5.0


def test_warm_up_is_cut_off() -> None:
    found = recorder(link(), warmup_s=5.0, pools={"pd/decode": {"gpus_per_instance": 8}})
    carried(found, (10.0, 4.0), (5.0, 1.0))
    found.pool("pd/decode", 0.0, 10.0, 2, 4.0)
    found.pool("pd/decode", 10.0, 15.0, 4, 20.0)
    report = found.report(15.0)
    assert report.links[PATH]["mean_gbps"] == pytest.approx(2.5)
    assert report.links[PATH]["utilisation"] == pytest.approx(0.25)
    # 2 instances for 5 s and 4 for 5 s; busy 2 of the first 10 s and all of the other 20.
    pool = report.pools["pd/decode"]
    assert pool["instance_hours"] == pytest.approx(30.0 / 3600.0)
    assert pool["utilisation"] == pytest.approx(22.0 / 30.0)
    assert report.gpu_hours == pytest.approx(240.0 / 3600.0)


def test_a_link_costs_its_95th_percentile() -> None:
    """Of 40 samples of five minutes two are dropped: three at 8 Gbps are billed, two are not."""
    for n_high, billed in ((2, 2.0), (3, 8.0)):
        found = recorder(link(cost_per_gbps_month=300.0))
        carried(found, (n_high * 300.0, 8.0), ((40 - n_high) * 300.0, 2.0))
        report = found.report(12_000.0)
        row = report.links[PATH]
        assert row["billed_gbps"] == pytest.approx(billed)
        assert row["cost_per_month"] == pytest.approx(300.0 * billed)
        assert row["cost"] == pytest.approx(300.0 * billed * 12_000.0 / MONTH_S)
        assert report.costs["links"] == row["cost"]


def test_a_link_billed_by_the_greater_direction() -> None:
    found = recorder(link(cost_per_gbps_month=1.0, p95_counts="max"), link("pd", "prfaas"))
    carried(found, (600.0, 1.0))
    carried(found, (600.0, 6.0), path="pd->prfaas")
    report = found.report(600.0)
    assert report.links[PATH]["billed_gbps"] == pytest.approx(6.0)
    assert report.links["pd->prfaas"]["cost"] is None
    # One price is missing: the sum is not that of the others.
    assert report.costs == {"gpu": None, "links": None, "total": None}


def test_a_run_too_short_for_a_sample_is_one() -> None:
    found = recorder(link(cost_per_gbps_month=1.0))
    carried(found, (100.0, 4.0))
    assert found.report(100.0).links[PATH]["billed_gbps"] == pytest.approx(4.0)


def priced(**facts: Any) -> Report:
    pools = {
        "pd/prefill": {"gpus_per_instance": 8, "cost_per_hour": 20.0},
        "pd/decode": {"gpus_per_instance": 8, **facts},
    }
    found = recorder(link(cost_per_gbps_month=720.0), pools=pools)
    carried(found, (3600.0, 2.0))
    found.pool("pd/prefill", 0.0, 3600.0, 3, 0.0)
    found.pool("pd/decode", 0.0, 3600.0, 5, 0.0)
    return found.report(3600.0)


def test_gpu_hours_and_costs() -> None:
    report = priced(cost_per_hour=10.0)
    assert report.gpu_hours == 64.0
    # 3 instances at 20 and 5 at 10; an hour of 720 hours of 2 Gbps at 720 is 2.
    assert report.costs == {
        "gpu": 110.0,
        "links": pytest.approx(2.0),
        "total": pytest.approx(112.0),
    }
    report = priced()
    assert (report.gpu_hours, report.costs["gpu"], report.costs["total"]) == (64.0, None, None)


def test_kv_holds_until_the_next_is_told() -> None:
    found = recorder(warmup_s=10.0)
    found.kv("pd/decode", 0.0, 900.0, 1000.0)
    found.kv("pd/decode", 5.0, 200.0, 1000.0)
    found.kv("pd/decode", 20.0, 600.0, 1000.0)
    assert found.report(40.0).kv["pd/decode"] == {
        "mean_tokens": pytest.approx(1400.0 / 3.0),
        "peak_tokens": 600.0,
        "capacity_tokens": 1000.0,
        "mean_ratio": pytest.approx(1.4 / 3.0),
    }
    # A report changes nothing.
    assert found.report(40.0).kv == found.report(40.0).kv


def test_kv_without_a_limit_has_no_ratio() -> None:
    found = recorder()
    found.kv("pd/decode", 0.0, 500.0, None)
    row = found.report(10.0).kv["pd/decode"]
    assert (row["mean_tokens"], row["capacity_tokens"], row["mean_ratio"]) == (500.0, None, None)
    with pytest.raises(ValueError, match="was told after"):
        found.kv("pd/decode", -1.0, 500.0, None)


def test_a_gap_between_stretches_is_an_error() -> None:
    """Bytes of a gap would be missing, not zero."""
    found = recorder(link(), pools={"pd/prefill": {}})
    carried(found, (1.0, 1.0))
    with pytest.raises(ValueError, match=f"{PATH}: from 2.0 s does not follow the last one"):
        found.link(PATH, 2.0, 3.0, 0.0, 1.0)
    with pytest.raises(ValueError, match=f"{PATH}: -1.0 of 1.0 bytes"):
        found.link(PATH, 1.0, 3.0, -1.0, 1.0)
    with pytest.raises(ValueError, match=r"pd/prefill: from 2\.0 until 1\.0 s is no"):
        found.pool("pd/prefill", 2.0, 1.0, 3, 0.0)
