"""`manage.py plan` on the case study and its relatives; its figures are in test_paper.py."""

from __future__ import annotations

import dataclasses
import json

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from routing.core.model.optimize import Freedom, optimise
from routing.core.model.planner import plan_scenario
from routing.core.scenario.document import parse_scenario
from routing.core.scenario.tables import ScenarioError
from tests.core.cases import demo_document, demo_model, demo_scenario


def test_headroom_is_what_is_carried_over_demand() -> None:
    answer = plan_scenario(demo_scenario())
    assert answer["headroom"] == pytest.approx(answer["lambda_max_rps"] / 3.0)


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


def test_one_pd_cluster_shares_out_to_two_prfaas_clusters() -> None:
    """The case study's instances cut 3 to 1: its plan, shares .75 and .25."""
    document = demo_document()
    document["clusters"][0]["instances"] = 3
    document["clusters"].append({**document["clusters"][0], "name": "small", "instances": 1})
    document["links"].append({**document["links"][0], "from": "small"})
    answer = plan_scenario(parse_scenario(document))
    assert answer["lambda_max_rps"] == pytest.approx(3.158, rel=0.01)
    assert answer["clusters"]["pd"]["remote"] == pytest.approx(
        {"prfaas": 0.75, "small": 0.25}, abs=1e-3
    )
    assert set(answer["binding"]) == {
        *("local_prefill:pd", "remote_prefill:prfaas", "remote_prefill:small"),
    }


def test_what_profiles_did_not_measure_is_told() -> None:
    """The H20 was measured from 10,224 tokens on: P(L <= 10,224) = .260 is extrapolated."""
    told = plan_scenario(demo_scenario())["clusters"]["pd"]["extrapolated"]
    assert told == pytest.approx({"local": 0.260, "prfaas": 0.0}, abs=1e-3)


def drained(*names: str) -> dict[str, object]:
    document = demo_document()
    document["clusters"].append({**document["clusters"][1], "name": "pd2"})
    traffic = document.pop("workload")
    document["workloads"] = [{**traffic, "cluster": name} for name in ("pd", "pd2")]
    for cluster in document["clusters"]:
        cluster["drained"] = cluster["name"] in names
    return document


def test_a_drained_cluster_is_left_out_and_told() -> None:
    answer = plan_scenario(parse_scenario(drained("pd2")))
    assert answer["left_out"] == {"pd2": 3.0}
    assert set(answer["clusters"]) == {"pd"}


def test_nothing_to_plan_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="every PD cluster is drained"):
        plan_scenario(parse_scenario(drained("pd", "pd2")))


def test_a_pinned_cluster_says_at_what() -> None:
    document = demo_document()
    document["clusters"][1]["pinned"] = True
    with pytest.raises(ScenarioError, match="which roles are pinned"):
        plan_scenario(parse_scenario(document))
    document["clusters"][1]["start"] = {"n_prefill": 6}
    pinned = plan_scenario(parse_scenario(document))["clusters"]["pd"]
    assert (pinned["n_prefill"], pinned["n_decode"]) == (6, 2)


def test_the_plan_of_a_wanted_headroom_sends_less() -> None:
    most = plan_scenario(demo_scenario())["clusters"]["pd"]
    answer = plan_scenario(demo_scenario(), headroom_target=0.95)
    assert answer["headroom"] == pytest.approx(0.95, rel=1e-3)
    assert answer["clusters"]["pd"]["remote_fraction"] < 0.8 * most["remote_fraction"]


def test_a_link_billed_by_its_95th_percentile_is_not_planned_beyond() -> None:
    free = plan_scenario(demo_scenario())["links"]["prfaas->pd"]["egress_gbps"]
    capped = plan_scenario(demo_scenario(p95_cap_gbps=8.0))["links"]["prfaas->pd"]["egress_gbps"]
    assert free > 10.0
    assert capped <= 8.0


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
