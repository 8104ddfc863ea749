"""A real gate process and a real web process: a plan is pushed, run and proven."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from console.embedded import die_with_parent
from routing import commands, delivery, fleets, router_states
from routing.models import Decision, Fleet, RouterState
from tests.routing.issuing import WHO, issue, run_tick, token, wait_for
from tests.servers import ROOT, Server


@pytest.fixture
def gate(web: Server, fleet: Fleet, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    config = tmp_path / "gate.toml"
    config.write_text(
        f'router = "{fleet.pk}/pd/gw-1"\nport = 0\nack_interval_s = 0.2\n'
        f'console_url = "http://{web.host}"\ntoken = "{token()}"\n'
        '[upstreams.local]\nurl = "http://127.0.0.1:9"\n'
        '[upstreams.remote.prfaas]\nurl = "http://127.0.0.1:9"\n'
    )
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            (sys.executable, "-m", "routing.gate", "--config", str(config)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["ready"]
    yield process
    process.kill()
    process.communicate()


def state(fleet: Fleet) -> str:
    decision = fleets.newest_adopted(fleet)
    assert decision is not None
    return str(delivery.summaries([decision])[decision.pk]["state"])


def test_a_decision_is_applied_by_the_gate_that_runs_it(
    gate: subprocess.Popen[str], fleet: Fleet
) -> None:
    router = RouterState.objects.filter(fleet=fleet)
    wait_for(lambda: router.filter(state="no_plan", transport="socket").exists())
    issue(fleet, 5_000)
    issue(fleet, 6_000)
    wait_for(lambda: state(fleet) == "applied")
    newest = Decision.objects.filter(fleet=fleet).order_by("-version")[0]
    assert router.get().version_running == newest.version


def test_after_a_restore_from_backup_a_raised_epoch_takes_the_gate_over(
    gate: subprocess.Popen[str], fleet: Fleet
) -> None:
    issue(fleet, 5_000)
    issue(fleet, 6_000)
    wait_for(lambda: state(fleet) == "applied")
    fleets.newest_adopted(fleet).delete()  # the backup was older than the newest plan
    [row] = router_states.routers(fleet, timezone.now())
    assert any("restored from a backup" in finding for finding in row["findings"])
    commands.raise_epoch(fleet=fleet.pk, now=timezone.now(), **WHO)
    fleet.refresh_from_db()
    run_tick(fleet, timezone.now() + timedelta(seconds=60))
    wait_for(lambda: state(fleet) == "applied")
    assert RouterState.objects.get(fleet=fleet).epoch_running == 2


def test_a_gate_that_hangs_is_no_longer_waited_for_and_comes_back_to_the_newest(
    gate: subprocess.Popen[str], fleet: Fleet
) -> None:
    """S-57."""
    issue(fleet, 5_000)
    wait_for(lambda: state(fleet) == "applied")
    gate.send_signal(signal.SIGSTOP)
    issue(fleet, 6_000)
    missed = fleets.newest_adopted(fleet)
    assert missed is not None
    assert state(fleet) == "sent"
    delivery.cancel(
        missed, router=f"{fleet.pk}/pd/gw-1", actor="ada", via="test", reason="hangs",
        now=timezone.now(),
    )  # fmt: skip
    assert state(fleet) == "cancelled"
    issue(fleet, 7_000)
    gate.send_signal(signal.SIGCONT)
    wait_for(lambda: state(fleet) == "applied")
    newest = fleets.newest_adopted(fleet)
    assert newest is not None
    assert RouterState.objects.get(fleet=fleet).version_running == newest.version
