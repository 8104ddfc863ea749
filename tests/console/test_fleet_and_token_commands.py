"""`manage.py fleet` and `manage.py token`: one object on stdout, one line on stderr."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from routing.models import Action, Fleet, Policy
from telemetry import tokens
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

SCENARIO = """
[fleet]
name = "lab"
slo = { tokens_per_s = 40.0, ttft_s = 10.0 }
[model]
bytes_per_token = 17280
state_bytes = 182347366
[profiles.h20]
prefill = [[10224, 1.829], [27486, 4.265], [62410, 9.73]]
decode = { batch = 20, step_s = 0.025 }
[[clusters]]
name = "prfaas"
kind = "prefill"
profile = "h20"
instances = 4
[[clusters]]
name = "pd"
kind = "pd"
profile = "h20"
instances = 8
start = { n_prefill = 3, threshold_tokens = 4000 }
[[links]]
from = "prfaas"
to = "pd"
gbps = 100.0
[workload]
rate_rps = 3.0
output_tokens = 1024
lengths = { kind = "lognormal", mu = 9.90, sigma = 1.00, min = 128, max = 131072 }
"""


def run(*words: str) -> Any:
    out = io.StringIO()
    call_command(*words, "--json", stdout=out)
    return json.loads(out.getvalue())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lab.toml"
    path.write_text(SCENARIO)
    return path


def test_a_fleet_is_applied_once_however_often_it_is_asked(file: Path) -> None:
    first = run("fleet", "apply", str(file), "--mode", "active")
    assert first == {"fleet": "lab", "mode": "active", "epoch": 1, "plan": None}
    assert run("fleet", "apply", str(file)) == first
    assert Action.objects.count() == 1
    assert Action.objects.get().via == "command"


def test_applying_a_changed_file_updates_the_fleet(file: Path) -> None:
    run("fleet", "apply", str(file))
    file.write_text(SCENARIO.replace("rate_rps = 3.0", "rate_rps = 4.0"))
    run("fleet", "apply", str(file))
    assert Fleet.objects.get().scenario["workload"]["rate_rps"] == 4.0
    assert Policy.objects.get().mode == "advisory"
    assert [a.verb for a in Action.objects.order_by("id")] == ["fleet.create", "fleet.update"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[fleet", ("lab.toml", "is not TOML")),
        (SCENARIO.replace("gbps = 100.0", "gbps = 100.0\nspeed = 3"), ("lab.toml", "speed")),
        (SCENARIO.replace('name = "lab"', 'name = "a lab"'), ("lab.toml", "'a lab'")),
        (SCENARIO.replace("instances = 8", "instances = -8"), ("lab.toml", "-8")),
    ],
)
def test_a_file_that_cannot_be_meant_ends_with_2_and_one_line(
    file: Path, text: str, words: tuple[str, ...]
) -> None:
    file.write_text(text)
    with pytest.raises(CommandError) as refused:
        run("fleet", "apply", str(file))
    assert refused.value.returncode == 2
    assert len(str(refused.value).splitlines()) == 1
    assert all(word in str(refused.value) for word in words)
    assert not Fleet.objects.exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"nothing\.toml"):
        run("fleet", "apply", str(tmp_path / "nothing.toml"))


def test_fleets_are_listed() -> None:
    assert run("fleet", "list") == {"fleets": []}
    make_fleet()
    assert [f["fleet"] for f in run("fleet", "list")["fleets"]] == ["f1"]


def test_a_token_is_issued_and_revoked() -> None:
    make_fleet()
    issued = run("token", "issue", "gate", "--scope", "router", "--fleet", "f1")
    now = timezone.now()
    assert tokens.verify(issued["secret"], "router", "f1", now) is not None
    assert tokens.verify(issued["secret"], "router", "f2", now) is None
    run("token", "revoke", issued["prefix"], "--reason", "lost")
    assert tokens.find(issued["secret"], timezone.now()) is None
    assert [a.verb for a in Action.objects.order_by("id")[1:]] == ["token.issue", "token.revoke"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("issue", "gate", "--scope", "router", "--fleet", "nobody"), "fleet='nobody'"),
        (("issue", " ", "--scope", "router"), "name=' '"),
        (("revoke", "nothing"), "prefix='nothing'"),
    ],
)
def test_a_token_that_cannot_be_meant_ends_with_2_and_one_line(
    words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(CommandError) as refused:
        run("token", *words)
    assert refused.value.returncode == 2
    assert says in str(refused.value)


def test_without_json_only_the_secret_is_printed() -> None:
    out = io.StringIO()
    call_command("token", "issue", "agent", "--scope", "ingest", stdout=out)
    assert tokens.find(out.getvalue().strip(), timezone.now()) is not None


@pytest.mark.parametrize("command", [["fleet", "list"], ["token", "issue", "x", "--scope", "read"]])
def test_without_a_console_a_command_says_in_one_line_how_to_start_one(
    tmp_path: Path, command: list[str]
) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    done = subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=Path(__file__).resolve().parents[2],
        env=kept | {"CONSOLE_STATE_DIR": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "manage.py up" in done.stderr
