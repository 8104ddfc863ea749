"""Commands that read a scenario read the files it names; what is stored names none."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from routing import commands, fleets
from routing.models import Fleet
from tests.routing.cases import NOW, scenario

TOML = """
[fleet]
name = "filed"
slo = { tokens_per_s = 40.0, ttft_s = 10.0 }
[model]
config = "model/config.json"
[profiles.h20]
gpu = "H20"
prefill = { file = "prefill.csv" }
decode = { batch = 20, step_s = 0.025 }
[[clusters]]
name = "pd"
kind = "pd"
profile = "h20"
instances = 8
[workload]
rate_rps = 1.0
output_tokens = 1024
lengths = { kind = "empirical", file = "lengths.txt" }
"""
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "prefill.csv").write_text("gpu,isl,ttft_ms\nH20,1000,500\nH20,9000,4500\n")
    (tmp_path / "lengths.txt").write_text("4000\n8000\n")
    path = tmp_path / "scenario.toml"
    path.write_text(TOML)
    return path


def test_plan_reads_the_files_beside_the_scenario(file: Path) -> None:
    out = io.StringIO()
    call_command("plan", str(file), "--json", stdout=out)
    # 0.5 ms a token, 6,000 tokens in the mean: 3 s of prefill, 1.28 s of decode a request.
    answer = json.loads(out.getvalue())
    assert answer["clusters"]["pd"]["n_prefill"] == 5
    assert answer["lambda_max_rps"] == pytest.approx(5 / 3.0, rel=1e-3)


def test_a_file_that_is_missing_is_one_line_and_exit_2(file: Path) -> None:
    (file.parent / "prefill.csv").unlink()
    with pytest.raises(CommandError) as refused:
        call_command("plan", str(file))
    assert refused.value.returncode == 2
    assert str(refused.value) == (
        f"{file}: profiles.h20.prefill.file = 'prefill.csv': "
        "cannot be read: No such file or directory"
    )


@pytest.mark.django_db
def test_a_fleet_is_stored_as_what_its_files_said(file: Path) -> None:
    call_command("fleet", "apply", str(file), stdout=io.StringIO())
    stored = Fleet.objects.get(pk="filed").scenario
    assert stored["model"] == {"bytes_per_token": 2048, "state_bytes": 0}
    assert stored["profiles"]["h20"]["prefill"] == {
        "points": [[1000.0, 0.5], [9000.0, 4.5]],
        "source": "prefill.csv: gpu=H20",
    }
    assert stored["workload"]["lengths"]["buckets"] == [[3999, 0], [4000, 1], [7999, 0], [8000, 1]]
    # They are read when it is applied, and not again.
    for name in ("prefill.csv", "lengths.txt", "model/config.json"):
        (file.parent / name).unlink()
    assert fleets.scenario_of(Fleet.objects.get(pk="filed")).fleet == "filed"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("place", "field"),
    [
        (("model", "config"), "model.config"),
        (("profiles", "h20", "prefill"), "profiles.h20.prefill.file"),
        (("workload", "lengths"), "workload.lengths.file"),
    ],
    ids=lambda v: str(v),
)
def test_nobody_reads_our_files_over_the_network(place, field, file: Path) -> None:
    document = scenario("remote")
    at = document
    for key in place[:-1]:
        at = at[key]
    inline = {"file": str(file), "kind": "empirical"} if "lengths" in place else {"file": str(file)}
    at[place[-1]] = str(file) if place[-1] == "config" else inline
    if place[-1] == "config":
        document["model"] = {"config": str(file)}
    with pytest.raises(commands.Refused) as refused:
        commands.create_fleet(scenario=document, actor="x", via="rest", reason="", now=NOW)
    assert refused.value.field == field
