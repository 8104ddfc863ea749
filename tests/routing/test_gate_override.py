"""An override set on a real gate process by its own command, seen and ended by a real console."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from console.embedded import die_with_parent
from routing import router_commands
from routing.models import Fleet, RouterState
from tests.routing.issuing import issue, token, wait_for
from tests.servers import ROOT, Server


@pytest.fixture
def config(web: Server, fleet: Fleet, tmp_path: Path) -> Path:
    path = tmp_path / "gate.toml"
    path.write_text(
        f'router = "{fleet.pk}/pd/gw-1"\nport = 0\nack_interval_s = 0.2\nplan_file = "plan.json"\n'
        f'console_url = "http://{web.host}"\ntoken = "{token()}"\n'
        '[upstreams.local]\nurl = "http://127.0.0.1:9"\n'
        '[upstreams.remote.prfaas]\nurl = "http://127.0.0.1:9"\n'
    )
    return path


@pytest.fixture
def gate(config: Path) -> Iterator[None]:
    process = subprocess.Popen(
        (sys.executable, "-m", "routing.gate", "--config", str(config)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=die_with_parent(signal.SIGKILL),
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["ready"]
    yield
    process.kill()
    process.communicate()


def override(config: Path, *words: str) -> Any:
    command = (sys.executable, "-m", "routing.gate", "override", str(config), *words)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_console_sees_it_and_ends_it_only_when_a_person_says_so(
    gate: None, config: Path, fleet: Fleet
) -> None:
    router = RouterState.objects.filter(fleet=fleet)
    issue(fleet, 5_000)
    wait_for(lambda: router.filter(state="running").exists())
    put = override(
        config, "--threshold", "123", "--for", "1h", "--reason", "link at half", "--by", "ada"
    )
    wait_for(lambda: router.filter(state="overridden").exists())
    assert router.get().override == put
    issue(fleet, 6_000)
    wait_for(lambda: router.get().version_running == 2)
    assert router.get().state == "overridden", "a newer plan waits under it"
    assert override(config, "status") == put
    router_commands.release_gate(
        router=f"{fleet.pk}/pd/gw-1", actor="bob", via="test", reason="done", now=timezone.now()
    )
    wait_for(lambda: router.filter(state="running", override__isnull=True).exists())
    assert override(config, "status") is None
