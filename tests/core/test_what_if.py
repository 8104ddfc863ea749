"""The planner's questions against theory, brute force and the core's own plan."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing.core.model import fleetmodel
from routing.core.model.lengths import BucketLengths, LogNormalLengths
from routing.core.model.planner import plan_scenario
from routing.core.model.profiles import PrefillProfile
from routing.core.model.throughput import Setting, predict
from routing.core.scenario.document import parse_scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.types import ClusterPlan, LengthHistogram
from routing.core.what_if import answer as planner
from routing.core.what_if.changes import changed, lognormal_like, names_of
from routing.core.what_if.cheapest import cheapest
from routing.core.what_if.sensitivity import scaled
from routing.core.what_if.waiting import Pool, erlang_c, first_tokens, squared

ROOT = Path(__file__).resolve().parents[2]
PAPER = tomllib.loads((ROOT / "routing/lab/prfaas_1t.toml").read_text())


def document(**workload: Any) -> dict[str, Any]:
    found = copy.deepcopy(PAPER)
    found["workload"].update(workload)
    return found


def two_clusters() -> dict[str, Any]:
    """Two PD clusters of one PrfaaS cluster, the second with shorter prompts and less of them."""
    found = document()
    found["workload"] = [
        {**PAPER["workload"], "cluster": "pd", "rate_rps": 1.5},
        {
            **PAPER["workload"],
            "cluster": "pd2",
            "rate_rps": 1.0,
            "lengths": {**PAPER["workload"]["lengths"], "mu": 9.0},
        },
    ]
    found["clusters"].append({**PAPER["clusters"][1], "name": "pd2", "instances": 4})
    found["clusters"][1]["instances"] = 6
    found["links"].append({**PAPER["links"][0], "to": "pd2"})
    return found


def ask(scenario: dict[str, Any], **options: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"cluster": None, "running": {}, "least_headroom": 1.2, "most": {}}
    return planner.what_if(parse_scenario(scenario), **facts | options)


# Waiting


@pytest.mark.parametrize(
    ("servers", "busy", "share"),
    [
        (1.0, 0.3, 0.3),
        (1.0, 0.9, 0.9),
        # C(2, a) = a^2 / (2 + a), C(3, a) = (a^3/6) 3/(3-a) / (1 + a + a^2/2 + (a^3/6) 3/(3-a))
        (2.0, 1.0, 1.0 / 3.0),
        (3.0, 2.0, 4.0 / 9.0),
        (5.0, 0.0, 0.0),
    ],
)
def test_erlang_c_is_that_of_the_formula(servers: float, busy: float, share: float) -> None:
    assert float(erlang_c(servers, busy)) == pytest.approx(share, abs=1e-12)


def test_one_server_waits_as_pollaczek_and_khinchin_say() -> None:
    """M/M/1 rho/(mu - lambda), M/D/1 half of it, and nothing bounded from full on."""
    exponential = Pool("p", servers=1.0, work=0.5, mean_s=2.0, square_s2=8.0)
    fixed = Pool("p", servers=1.0, work=0.5, mean_s=2.0, square_s2=4.0)
    assert exponential.wait_s([0.0, 1.0, 1.6]).tolist() == pytest.approx([0.0, 2.0, 8.0])
    assert fixed.wait_s([0.0, 1.0, 1.6]).tolist() == pytest.approx([0.0, 1.0, 4.0])
    assert math.isinf(float(fixed.wait_s(2.0)))
    assert math.isinf(float(fixed.wait_s(2.5)))


@pytest.mark.parametrize(
    "profile",
    [
        PrefillProfile.through([1024, 8192, 131072], [0.44, 0.72, 7.4]),
        PrefillProfile.fitted(0.05, 2e-5, 3e-10),
    ],
    ids=["straight pieces", "a bend"],
)
def test_the_square_of_a_curve_is_its_square(profile: PrefillProfile) -> None:
    tokens = np.geomspace(1.0, 1e6, 997)
    square = squared(profile.curve).value(tokens)
    np.testing.assert_allclose(square, profile.curve.value(tokens) ** 2, rtol=5e-3)


def test_an_empty_fleet_answers_in_the_time_of_its_prefills() -> None:
    """The paper's mean TTFT of 2.20 s is of its t; here by drawing lengths."""
    scenario = parse_scenario(PAPER)
    model = fleetmodel.of_scenario(scenario, "exact")
    [site] = model.sites
    settings = {"pd": Setting(19_400.0, 3, 5)}
    first = first_tokens(model, settings)["pd"]
    rng = np.random.default_rng(1)
    drawn = rng.lognormal(9.9, 1.0, 400_000)
    drawn = drawn[(drawn >= 128) & (drawn <= 131_072)]
    local_s = site.profile.prefill.prefill_s(drawn)
    remote_s = site.remotes[0].profile.prefill_s(drawn)
    assert first.service_s == pytest.approx(
        np.where(drawn <= 19_400, local_s, remote_s).mean(), rel=0.01
    )
    assert first.service_s == pytest.approx(2.20, rel=0.01)
    pools = {pool.name: pool for _, pool in first.waits}
    short, far = local_s[drawn <= 19_400], remote_s[drawn > 19_400]
    assert pools["local_prefill:pd"].mean_s == pytest.approx(short.mean(), rel=0.01)
    assert pools["local_prefill:pd"].square_s2 == pytest.approx((short**2).mean(), rel=0.01)
    assert pools["remote_prefill:prfaas"].square_s2 == pytest.approx((far**2).mean(), rel=0.01)


def test_a_shared_prefill_cluster_queues_what_all_send() -> None:
    scenario = parse_scenario(two_clusters())
    model = fleetmodel.of_scenario(scenario, "exact")
    settings = {"pd": Setting(20_000.0, 2, 4), "pd2": Setting(8_000.0, 1, 3)}
    busy = {s.name: s.utilisation_ratio for s in predict(model, settings).stages}
    for site in model.sites:
        pools = {pool.name: pool for _, pool in first_tokens(model, settings)[site.name].waits}
        for name, pool in pools.items():
            assert pool.work / pool.servers == pytest.approx(busy[name]), name


# The answer


def test_the_optimum_is_the_plan_and_every_cell_of_the_map_the_models() -> None:
    found = ask(document())
    scenario = parse_scenario(PAPER)
    assert found["optimum"] == plan_scenario(scenario)
    heat, best = found["heat"], found["optimum"]["clusters"]["pd"]
    assert best["threshold_tokens"] in heat["t_tokens"]
    assert heat["n_prefill"] == [1, 2, 3, 4, 5, 6, 7]
    model = fleetmodel.of_scenario(scenario, "exact")
    for i, n_prefill in enumerate(heat["n_prefill"]):
        for j, t in enumerate(heat["t_tokens"]):
            alone = predict(model, {"pd": Setting(float(t), n_prefill, 8 - n_prefill)})
            assert heat["lambda_rps"][i][j] == pytest.approx(alone.lambda_max_rps)
    most = max(max(row) for row in heat["lambda_rps"])
    assert most == pytest.approx(found["optimum"]["lambda_max_rps"])
    i = heat["n_prefill"].index(best["n_prefill"])
    j = heat["t_tokens"].index(best["threshold_tokens"])
    assert heat["lambda_rps"][i][j] == most


def test_of_two_clusters_the_map_is_of_the_one_asked_for_beside_the_others_best() -> None:
    found = ask(two_clusters(), cluster="pd2")
    assert (found["cluster"], found["clusters"]) == ("pd2", ["pd", "pd2"])
    assert found["heat"]["n_prefill"] == [1, 2, 3]
    plans = found["optimum"]["clusters"]
    model = fleetmodel.of_scenario(parse_scenario(two_clusters()), "exact")
    t = found["heat"]["t_tokens"][10]
    settings = {
        "pd": Setting(
            float(plans["pd"]["threshold_tokens"]),
            plans["pd"]["n_prefill"],
            plans["pd"]["n_decode"],
        ),
        "pd2": Setting(float(t), 2, 2),
    }
    full = {s.name: s.utilisation_ratio or 0.0 for s in predict(model, settings).stages}
    uses = ("local_prefill:pd2", "decode:pd2", "remote_prefill:prfaas", "link:prfaas->pd2")
    want = 1.0 / max(full.get(name, 0.0) for name in uses)
    assert found["heat"]["lambda_rps"][1][10] == pytest.approx(want * 1.0)
    with pytest.raises(ScenarioError, match="cluster = 'pd3': must be a PD cluster in service"):
        ask(two_clusters(), cluster="pd3")


def test_without_a_link_there_is_no_map_and_everything_is_local() -> None:
    alone = document()
    alone["links"] = []
    found = ask(alone)
    assert found["heat"] is None
    assert found["optimum"]["clusters"]["pd"]["threshold_tokens"] is None
    assert found["sweep"]["slo_rps"] is not None


def test_the_plan_in_force_is_compared_and_its_roles_best_t_offered() -> None:
    runs = {"pd": ClusterPlan("threshold", 4000, 4, 4, {"prfaas": 1.0})}
    found = ask(document(), running=runs)
    now = found["running"]
    model = fleetmodel.of_scenario(parse_scenario(PAPER), "exact")
    assert now["headroom"] == predict(model, {"pd": Setting(4000.0, 4, 4)}).headroom
    assert now["headroom"] < now["best_headroom"] < found["optimum"]["headroom"]
    alone = predict(model, {"pd": Setting(float(now["best_t_tokens"]["pd"]), 4, 4)})
    assert alone.headroom == pytest.approx(now["best_headroom"])
    assert 4000 in found["heat"]["t_tokens"]


def test_a_plan_of_another_size_is_not_compared_and_says_why() -> None:
    found = ask(document(), running={"pd": ClusterPlan("threshold", 4000, 4, 5)})
    assert found["running"]["why_not"] == "the plan in force has 9 instances in pd, here are 8"
    assert found["running"]["headroom"] is None
    assert ask(document())["running"]["why_not"] == "no plan runs in pd yet"


def test_headroom_moves_one_number_at_a_time() -> None:
    found = ask(document())
    base = found["optimum"]["headroom"]
    rows = {(r["kind"], r["place"]): r for r in found["sensitivity"]["rows"]}
    assert rows["rate", "pd"]["kept"] == pytest.approx(
        [base / (1 + c) for c in (-0.2, -0.1, 0.1, 0.2)]
    )
    assert rows["link", "prfaas->pd"]["kept"] == pytest.approx([base] * 4), "far from its limit"
    fewer, _, _, more = rows["remote_instances", "prfaas"]["kept"]
    assert fewer == pytest.approx(0.8 * base, rel=1e-4)
    assert more == pytest.approx(base, rel=1e-4), "local prefill binds as well"
    assert [value is None for value in rows["rate", "pd"]["followed"]] == [False, True, True, False]
    assert rows["decode_instances", "pd"]["followed"] == [None] * 4
    for row in rows.values():
        for kept, followed in zip(row["kept"], row["followed"], strict=True):
            assert followed is None or followed >= kept * (1 - 1e-9), row
    worst = [min(row["kept"]) for row in found["sensitivity"]["rows"]]
    assert worst == sorted(worst)


@pytest.mark.parametrize(
    "lengths",
    [
        LogNormalLengths(9.9, 1.0, 128.0, 131_072.0),
        BucketLengths(np.array([1.0, 100.0, 9_000.0]), np.array([0.25, 0.75])),
    ],
    ids=["log-normal", "counted"],
)
def test_scaled_lengths_are_those_lengths_times_a_factor(lengths: Any) -> None:
    longer = scaled(lengths, 1.2)
    x = np.array([90.0, 400.0, 8_000.0, 50_000.0])
    np.testing.assert_allclose(longer.cdf(1.2 * x), lengths.cdf(x), rtol=1e-12)
    assert longer.at(math.inf)[1] == pytest.approx(1.2 * lengths.at(math.inf)[1])


def test_the_sweep_marks_its_knee_and_the_slo() -> None:
    swept = ask(document())["sweep"]
    assert swept["most_rps"] == pytest.approx(
        plan_scenario(parse_scenario(PAPER))["lambda_max_rps"]
    )
    ttft = swept["ttft_s"]
    assert ttft == sorted(ttft)
    assert ttft[0] == pytest.approx(swept["service_s"])
    assert 0.5 * swept["most_rps"] < swept["knee_rps"] < swept["slo_rps"] < swept["most_rps"]
    within = np.interp(swept["slo_rps"], swept["load_rps"], ttft)
    assert within == pytest.approx(10.0, rel=0.05)
    power = np.array(swept["load_rps"]) / np.array(ttft)
    assert swept["knee_rps"] == pytest.approx(swept["load_rps"][int(power.argmax())], rel=0.02)
    names = {stage["name"] for stage in swept["stages"]}
    assert names == {"local_prefill:pd", "decode:pd", "remote_prefill:prfaas", "link:prfaas->pd"}
    assert next(s for s in swept["stages"] if s["name"].startswith("link"))["wait_s"] is None


def test_a_load_beyond_what_is_carried_has_no_wait_and_an_slo_below_service_no_load() -> None:
    scenario = document(rate_rps=9.0)
    scenario["fleet"]["slo"]["ttft_s"] = 1.0
    swept = ask(scenario)["sweep"]
    assert swept["ttft_now_s"] is None
    assert swept["slo_rps"] is None


def test_what_was_not_cut_off_of_the_lengths_is_drawn() -> None:
    drawn = ask(document())["lengths"]
    assert sum(drawn["share"]) == pytest.approx(0.999, abs=1e-6)
    assert drawn["mean_tokens"] == pytest.approx(27_486, rel=1e-3)
    one = document(lengths={"kind": "empirical", "buckets": [[5000, 0], [5001, 1]]})
    assert sum(ask(one)["lengths"]["share"]) == pytest.approx(1.0, abs=0.01)


# The cheapest fleet


def with_counts(pd: int, prfaas: int, **workload: Any) -> dict[str, Any]:
    found = document(**workload)
    found["clusters"][1].pop("start", None)
    found["clusters"][1]["instances"] = pd
    if prfaas:
        found["clusters"][0]["instances"] = prfaas
    else:
        found["clusters"][0]["drained"] = True
    return found


@functools.cache
def alone(pd: int, prfaas: int) -> tuple[float, float]:
    """Headroom and mean TTFT of one fleet under its best plan."""
    scenario = parse_scenario(with_counts(pd, prfaas))
    plan = plan_scenario(scenario)["clusters"]["pd"]
    t = plan["threshold_tokens"]
    settings = {
        "pd": Setting(math.inf if t is None else float(t), plan["n_prefill"], plan["n_decode"])
    }
    model = fleetmodel.of_scenario(scenario, "exact")
    first = first_tokens(model, settings)["pd"]
    return predict(model, settings).headroom or 0.0, float(first.mean_s(1.0))


@pytest.mark.parametrize("prices", [(None, None), (10.0, 1.0), (1.0, 10.0)])
def test_nothing_within_the_bounds_is_cheaper(prices: tuple[float | None, float | None]) -> None:
    """Against every fleet there is, each looked at on its own."""
    most = {"pd": 9, "prfaas": 6}
    scenario = document()
    for name, price in zip(("h200", "h20"), prices, strict=True):
        if price is not None:
            scenario["profiles"][name]["cost_per_hour"] = price
    found = cheapest(parse_scenario(scenario), headroom=1.2, most=most)
    h200, h20 = (1.0 if price is None else price for price in prices)
    costs = []
    for pd, prfaas in itertools.product(range(2, 10), range(7)):
        headroom, ttft_s = alone(pd, prfaas)
        if headroom >= 1.2 and ttft_s <= 10.0:
            costs.append(pd * h20 + prfaas * h200)
    assert found["found"]["cost"] == pytest.approx(min(costs))
    assert found["found"]["will_do"]
    assert found["basis"] == ("instances" if prices == (None, None) else "cost_per_hour")
    assert found["proven"]


def test_a_fleet_that_cannot_be_says_what_the_largest_does() -> None:
    found = cheapest(parse_scenario(document(rate_rps=50.0)), headroom=1.2, most={})
    assert found["found"] is None
    assert found["largest"]["counts"] == {"prfaas": 8, "pd": 16}
    assert found["largest"]["headroom"] < 1.0


def test_an_slo_of_the_first_token_buys_more_instances() -> None:
    loose = cheapest(parse_scenario(document()), headroom=1.0, most={})
    tight = document()
    tight["fleet"]["slo"]["ttft_s"] = 2.6
    strict = cheapest(parse_scenario(tight), headroom=1.0, most={})
    assert strict["found"]["cost"] > loose["found"]["cost"]
    assert strict["found"]["ttft_s"] <= 2.6


def test_with_more_clusters_no_instance_can_be_taken_from_what_is_found() -> None:
    scenario = parse_scenario(two_clusters())
    found = cheapest(scenario, headroom=1.2, most={})
    assert (found["proven"], found["others"]) == (False, [])
    assert found["found"]["will_do"]
    assert found["found"]["cost"] <= 14.0
    for name, n in found["found"]["counts"].items():
        fewer = two_clusters()
        for cluster in fewer["clusters"]:
            cluster.pop("start", None)
            cluster["instances"] = found["found"]["counts"][cluster["name"]] - (
                cluster["name"] == name
            )
        if n > 2:
            now = cheapest(parse_scenario(fewer), headroom=1.2, most={})["now"]
            assert not now["will_do"], name


def test_a_pinned_cluster_keeps_its_size() -> None:
    scenario = document()
    scenario["clusters"][1]["pinned"] = True
    found = cheapest(parse_scenario(scenario), headroom=1.2, most={})
    assert found["fixed"] == ["pd"]
    assert set(found["found"]["counts"]) == {"prfaas"}


def test_the_same_money_buys_what_it_costs() -> None:
    """The paper's 'equal cost': one H200 instance is two H20, so 4 + 8 buy 16."""
    scenario = document()
    scenario["profiles"]["h200"]["cost_per_hour"] = 4.0
    scenario["profiles"]["h20"]["cost_per_hour"] = 2.0
    same = ask(scenario)["same_cost"]
    assert (same["basis"], same["instances"], same["profile"]) == ("cost_per_hour", 16, "h20")
    assert same["n_prefill"] + same["n_decode"] == 16
    without = ask(document())["same_cost"]
    assert (without["basis"], without["instances"]) == ("instances", 12)
    assert (
        without["lambda_max_rps"]
        == plan_scenario(parse_scenario(PAPER))["baselines"]["homogeneous"]["lambda_max_rps"]
    )


# Changed numbers


COUNTED = LengthHistogram(edges=(1e3, 1e4), counts=(1.0, 2.0, 3.0), n_effective=6, n_seen=900)


@pytest.mark.parametrize(
    ("numbers", "same_as"),
    [
        ({}, {}),
        ({"pd.rate_rps": 4}, {"workload": {"rate_rps": 4}}),
        ({"pd.output_tokens": 300}, {"workload": {"output_tokens": 300}}),
        (
            {"pd.mu": 9.0},
            {"workload": {"lengths": {**PAPER["workload"]["lengths"], "mu": 9.0}}},
        ),
        (
            {"pd.lengths": "recorded"},
            {
                "workload": {
                    "lengths": {"kind": "empirical", "buckets": [[1e3, 1], [1e4, 2], [1.1e4, 3]]}
                }
            },
        ),
        ({"pd.lengths": "scenario"}, {}),
        ({"prfaas->pd.gbps": 5}, {"links": {"gbps": 5}}),
        ({"slo.ttft_s": 3}, {"slo": {"ttft_s": 3}}),
        ({"slo.tokens_per_s": 20.0}, {"slo": {"tokens_per_s": 20.0}}),
    ],
)
def test_a_changed_number_is_the_scenario_with_that_number(
    numbers: dict[str, Any], same_as: dict[str, dict[str, Any]]
) -> None:
    want = document(**same_as.get("workload", {}))
    want["links"][0].update(same_as.get("links", {}))
    want["fleet"]["slo"].update(same_as.get("slo", {}))
    got = changed(PAPER, numbers, {"pd": COUNTED})
    assert got.slo == parse_scenario(want).slo
    assert plan_scenario(got) == plan_scenario(parse_scenario(want))
    assert PAPER["workload"]["rate_rps"] == 2.5, "the document itself is left alone"


def test_sizes_change_and_a_start_that_no_longer_fits_is_no_hindrance() -> None:
    got = changed(PAPER, {"pd.instances": 3, "prfaas.instances": 2}, {})
    assert [c.instances for c in got.clusters] == [2, 3]
    assert plan_scenario(got)["clusters"]["pd"]["n_prefill"] in (1, 2)


def test_each_of_two_clusters_has_its_own_numbers() -> None:
    got = changed(two_clusters(), {"pd2.rate_rps": 2, "prfaas->pd2.gbps": 7, "pd2.sigma": 0.5}, {})
    assert [w.rate_rps for w in got.workloads] == [1.5, 2.0]
    assert [link.gbps for link in got.links] == [100.0, 7.0]
    assert [w.lengths.sigma for w in got.workloads] == [1.0, 0.5]  # type: ignore[attr-defined]


def test_counted_lengths_start_a_log_normal_of_the_same_mean_and_spread() -> None:
    exact = LogNormalLengths(9.0, 0.5, 1.0, 1e9)
    edges = np.geomspace(100.0, 1e6, 400)
    counted = BucketLengths(edges, np.diff(exact.cdf(edges)))
    assert lognormal_like(counted) == pytest.approx((9.0, 0.5), rel=0.01)
    assert lognormal_like(exact) == (9.0, 0.5)


REFUSED = [
    ("no such number", {"pd.speed": 3}, "pd.speed", 3, "is no number of this fleet"),
    ("no such place", {"pd9.rate_rps": 3}, "pd9.rate_rps", 3, "pd.rate_rps"),
    ("a text", {"pd.rate_rps": "lots"}, "pd.rate_rps", "lots", "must be a number"),
    ("not a number", {"pd.rate_rps": math.nan}, "pd.rate_rps", None, "must be a number"),
    ("zero", {"pd.rate_rps": 0}, "pd.rate_rps", 0, "must be in 0.001"),
    ("too large", {"pd.instances": 5000}, "pd.instances", 5000, "must be in 1..4096"),
    ("half an instance", {"pd.instances": 3.5}, "pd.instances", 3.5, "must be a whole number"),
    ("too few for roles", {"pd.instances": 1}, "pd.instances", 1, "at least 2"),
    ("no prompt left", {"pd.mu": 3, "pd.sigma": 0.1}, "pd.mu", 3, "no prompt between"),
    ("too wide", {"pd.sigma": 9}, "pd.sigma", 9, "must be in 0.01..4"),
    ("faster than decode", {"slo.tokens_per_s": 50}, "slo.tokens_per_s", 50, "decodes 40 tokens/s"),
    ("no such lengths", {"pd.lengths": "guess"}, "pd.lengths", "guess", "must be scenario"),
    ("both", {"pd.lengths": "recorded", "pd.mu": 9}, "pd.mu", 9, "stands beside lengths"),
    ("nothing counted", {"pd.lengths": "recorded"}, "pd.lengths", "recorded", "no lengths"),
]


@pytest.mark.parametrize(
    ("case", "numbers", "field", "value", "says"), REFUSED, ids=[c[0] for c in REFUSED]
)
def test_what_cannot_be_meant_names_field_and_value(
    case: str, numbers: dict[str, Any], field: str, value: Any, says: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        changed(PAPER, numbers, {"pd": None})
    assert refused.value.field == field
    assert says in refused.value.message
    if value is not None:
        assert refused.value.value == value


def test_names_are_those_that_are_known() -> None:
    names = names_of(parse_scenario(two_clusters()))
    assert "pd2.lengths" in names
    assert "prfaas->pd2.gbps" in names
    assert len(set(names)) == len(names)
