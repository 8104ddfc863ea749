"""The case study's published and derived numbers come out of the model."""

from __future__ import annotations

import dataclasses
import json

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from routing.core.optimize import Freedom, optimise
from routing.core.planner import plan_scenario
from routing.core.scenario import parse_scenario
from tests.core.cases import demo_document, demo_model, demo_scenario

# method, t, lambda_max, remote share, homogeneous, naive
CASE_STUDY = [
    ("paper", 19_400, 3.248, 0.496, 2.110, 2.450),
    ("exact", 19_800, 3.158, 0.487, 2.042, 2.362),
]
# link Gbps, t, N_p, N_d, lambda_max
NARROW_LINKS = [(10, 25_500, 4, 4, 3.03), (8, 28_900, 4, 4, 2.62), (5, 42_000, 5, 3, 2.24)]


@pytest.mark.parametrize(("method", "t", "rate", "share", "homogeneous", "naive"), CASE_STUDY)
def test_the_case_study(method, t, rate, share, homogeneous, naive) -> None:
    answer = plan_scenario(demo_scenario(), method)
    pd = answer["clusters"]["pd"]
    assert pd["threshold_tokens"] == pytest.approx(t, rel=0.02)
    assert (pd["n_prefill"], pd["n_decode"]) == (3, 5)
    assert answer["lambda_max_rps"] == pytest.approx(rate, rel=0.01)
    assert answer["headroom"] == pytest.approx(answer["lambda_max_rps"] / 3.0)
    assert pd["remote_fraction"] == pytest.approx(share, abs=0.005)
    baselines = answer["baselines"]
    assert baselines["homogeneous"]["lambda_max_rps"] == pytest.approx(homogeneous, rel=0.01)
    assert (baselines["homogeneous"]["n_prefill"], baselines["homogeneous"]["n_decode"]) == (9, 3)
    assert baselines["naive"]["lambda_max_rps"] == pytest.approx(naive, rel=0.01)
    assert (baselines["naive"]["n_prefill"], baselines["naive"]["n_decode"]) == (0, 8)


def test_stage_rates_are_the_papers() -> None:
    pd = plan_scenario(demo_scenario(), "paper")["clusters"]["pd"]
    assert pd["theta_remote_rps"] == pytest.approx(1.61, rel=0.01)
    assert pd["theta_prefill_rps"] == pytest.approx(1.64, rel=0.01)
    assert pd["theta_decode_rps"] == pytest.approx(3.91, rel=0.01)


@pytest.mark.parametrize(("gbps", "t", "n_prefill", "n_decode", "rate"), NARROW_LINKS)
def test_a_narrow_link_moves_t_up_and_prefill_home(gbps, t, n_prefill, n_decode, rate) -> None:
    answer = plan_scenario(demo_scenario(gbps=float(gbps)))
    pd = answer["clusters"]["pd"]
    assert pd["threshold_tokens"] == pytest.approx(t, rel=0.02)
    assert (pd["n_prefill"], pd["n_decode"]) == (n_prefill, n_decode)
    assert answer["lambda_max_rps"] == pytest.approx(rate, rel=0.01)


def test_fixed_roles_on_a_congested_link() -> None:
    """The optimum of the congestion case: 5.8 Gbps, roles kept at 3/5."""
    freedom = {"pd": Freedom.of_threshold(512, 131_072, n_prefill=3, n_decode=5)}
    best = optimise(demo_model(gbps=5.8), freedom)
    assert best.settings["pd"].threshold == pytest.approx(29_400, rel=0.01)
    assert best.prediction.remote_fraction == pytest.approx(1 / 3, abs=0.02)


def test_links_are_told_at_lambda_max() -> None:
    answer = plan_scenario(demo_scenario(gbps=8.0))
    link = answer["links"]["prfaas->pd"]
    assert link["egress_gbps"] == pytest.approx(8.0, rel=0.01)
    assert link["utilisation"] == pytest.approx(1.0, rel=0.01)


def test_without_a_link_everything_is_local() -> None:
    answer = plan_scenario(dataclasses.replace(demo_scenario(), links=()))
    pd = answer["clusters"]["pd"]
    assert (pd["mode"], pd["threshold_tokens"]) == ("always_local", None)
    assert pd["remote_fraction"] == 0.0
    assert "naive" not in answer["baselines"]


def test_two_pd_clusters_share_a_prfaas_cluster_fairly() -> None:
    """Both halves of one fleet carry together what the whole carries, at the same t."""
    document = demo_document()
    document["clusters"][0]["instances"] = 8
    document["clusters"].append({**document["clusters"][1], "name": "pd2"})
    document["links"].append({**document["links"][0], "to": "pd2"})
    traffic = document.pop("workload")
    document["workloads"] = [{**traffic, "cluster": "pd"}, {**traffic, "cluster": "pd2"}]
    answer = plan_scenario(parse_scenario(document))
    assert answer["lambda_max_rps"] == pytest.approx(2 * 3.158, rel=0.01)
    for name in ("pd", "pd2"):
        assert answer["clusters"][name]["threshold_tokens"] == pytest.approx(19_800, rel=0.02)


def test_the_command_prints_one_json_object(capsys, tmp_path) -> None:
    call_command("plan", str(write_toml(tmp_path)), "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["clusters"]["pd"]["n_prefill"] == 3
    assert set(answer) >= {
        *("headroom", "lambda_max_rps", "bottleneck", "clusters", "links", "baselines"),
    }


def test_the_command_without_json_says_t_and_capacity(capsys, tmp_path) -> None:
    call_command("plan", str(write_toml(tmp_path)))
    out = capsys.readouterr().out
    assert "19,813 tokens" in out
    assert "3.159 requests/s" in out


BAD_FILES = [
    ("a misspelt key", ("rate_rps", "rate_rpz"), "workload.rate_rpz = 3.0: is not a known key"),
    ("a negative link", ("gbps = 100.0", "gbps = -1"), "links[0].gbps = -1: must be above 0"),
    ("broken TOML", ("[model]", "[model"), "is not TOML"),
]


@pytest.mark.parametrize(("case", "change", "says"), BAD_FILES, ids=lambda v: str(v)[:20])
def test_bad_input_is_one_line_and_exit_2(case, change, says, tmp_path) -> None:
    path = write_toml(tmp_path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(CommandError) as refused:
        call_command("plan", str(path))
    assert refused.value.returncode == 2
    assert says in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_one_line_and_exit_2(tmp_path) -> None:
    with pytest.raises(CommandError, match="No such file") as refused:
        call_command("plan", str(tmp_path / "none.toml"))
    assert refused.value.returncode == 2


def write_toml(folder):
    path = folder / "scenario.toml"
    path.write_text(
        """
[fleet]
name = "prfaas-1t"
slo = { tokens_per_s = 40.0, ttft_s = 10.0 }
[model]
bytes_per_token = 17280
state_bytes = 182347366
[profiles.h200]
prefill = [[1024, 0.44], [8192, 0.72], [27486, 1.63265], [45046, 2.48447], [62410, 3.51],
  [131072, 7.40]]
decode = { batch = 20, step_s = 0.025 }
[profiles.h20]
prefill = [[10224, 1.829], [27486, 4.265], [62410, 9.73]]
decode = { batch = 20, step_s = 0.025 }
[[clusters]]
name = "prfaas"
kind = "prefill"
profile = "h200"
instances = 4
[[clusters]]
name = "pd"
kind = "pd"
profile = "h20"
instances = 8
[[links]]
from = "prfaas"
to = "pd"
gbps = 100.0
[workload]
rate_rps = 3.0
output_tokens = 1024
lengths = { kind = "lognormal", mu = 9.90, sigma = 1.00, min = 128, max = 131072 }
"""
    )
    return path
