"""One decision to many gates: real plan clients and a real gate against a real web process.

How long it takes with 500 of them is measured by `tests.bench.plan_push`; here is what must hold.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from console.embedded import die_with_parent
from routing import commands, delivery, fleets, router_states
from routing.models import Action, Decision, Fleet, RouterState
from tests import servers
from tests.live.many_clients import Clients
from tests.routing.cases import make_fleet
from tests.routing.issuing import WHO, issue, run_tick, token

N_CLIENTS, N_BEHIND = 30, 6
_PATIENCE_S = 25.0


@pytest.fixture
def fleet(transactional_db: None) -> Iterator[Fleet]:
    """Under a name of its own: the web process outlives a test."""
    yield make_fleet(f"f-{uuid.uuid4().hex[:8]}")
    servers.settle()


@pytest.fixture
def clients(web: servers.Server, fleet: Fleet, tmp_path: Path) -> Iterator[Clients]:
    token_file = tmp_path / "token"
    token_file.write_text(token())
    many = Clients(
        url=f"http://{web.host}",
        fleet=fleet.pk,
        n=N_CLIENTS,
        behind=N_BEHIND,
        token_file=token_file,
        log=tmp_path / "clients.log",
        ack_interval_s=0.5,
    )
    with many:
        yield many


class Gate:
    """A real gate process of the fleet. `plan` is what its plan file holds when it starts."""

    def __init__(self, web: servers.Server, fleet: Fleet, folder: Path, plan: Any = None) -> None:
        self.name = f"{fleet.pk}/pd/gw-1"
        config = folder / "gate.toml"
        config.write_text(
            f'router = "{self.name}"\nport = 0\nack_interval_s = 0.2\n'
            f'console_url = "http://{web.host}"\ntoken = "{token()}"\nplan_file = "gate.plan"\n'
            '[upstreams.local]\nurl = "http://127.0.0.1:9"\n'
            '[upstreams.remote.prfaas]\nurl = "http://127.0.0.1:9"\n'
        )
        if plan is not None:
            (folder / "gate.plan").write_text(json.dumps(plan))
        with (folder / "gate.log").open("w") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "routing.gate", "--config", str(config)),
                cwd=servers.ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        assert self._process.stdout is not None
        self._url = json.loads(self._process.stdout.readline())["url"]

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/healthz", timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
            return document

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def gate(web: servers.Server, fleet: Fleet, tmp_path: Path) -> Iterator[Gate]:
    running = Gate(web, fleet, tmp_path)
    yield running
    running.kill()


def states(fleet: Fleet, decision: Decision | None = None) -> dict[str, str]:
    """By router, how far the plan in force (or `decision`) got."""
    decision = decision or fleets.newest_adopted(fleet)
    assert decision is not None
    rows = delivery.summaries([decision])[decision.pk]["routers"]
    return {row["router"]: row["state"] for row in rows}


def in_force(fleet: Fleet) -> Decision:
    decision = fleets.newest_adopted(fleet)
    assert decision is not None
    return decision


def eventually(true: Callable[[], bool], seen: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s, seen()
        time.sleep(0.05)


def all_applied(fleet: Fleet, names: set[str]) -> None:
    """Waits until exactly these routers are expected and run the plan in force."""
    want = dict.fromkeys(names, "applied")
    eventually(lambda: states(fleet) == want, lambda: states(fleet))


def silent(fleet: Fleet) -> set[str]:
    """Routers of which is said that they are not heard of."""
    rows = router_states.routers(fleet, timezone.now())
    return {r["router"] for r in rows if any("not been heard of" in f for f in r["findings"])}


def test_the_dead_are_shown_hold_nobody_up_and_come_back_to_the_newest(
    fleet: Fleet, gate: Gate, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-57, with some in a black hole and some refused."""
    monkeypatch.setattr(router_states, "SILENT_AFTER_S", 2.0)
    everybody, dead = {*clients.names, gate.name}, set(clients.behind)
    joined = RouterState.objects.filter(fleet=fleet)
    eventually(lambda: joined.count() == len(everybody), joined.count)
    issue(fleet, 5_000)
    all_applied(fleet, everybody)
    assert silent(fleet) == set()

    clients.tell("shut")
    issue(fleet, 6_000)
    missed = in_force(fleet)
    shown = {name: "sent" if name in dead else "applied" for name in everybody}
    eventually(lambda: states(fleet) == shown, lambda: states(fleet))
    eventually(lambda: silent(fleet) == dead, lambda: silent(fleet))
    given_up = min(dead)
    delivery.cancel(
        missed, router=given_up, actor="ada", via="test", reason="its rack is off",
        now=timezone.now(),
    )  # fmt: skip
    assert states(fleet) == shown | {given_up: "cancelled"}
    assert Action.objects.filter(verb="delivery.cancel").count() == 1

    issue(fleet, 7_000)
    eventually(lambda: states(fleet) == shown, lambda: states(fleet))
    overtaken = dict.fromkeys(dead, "superseded") | {given_up: "cancelled"}
    assert states(fleet, missed) == dict.fromkeys(everybody - dead, "applied") | overtaken

    clients.tell("open")
    all_applied(fleet, everybody)
    assert silent(fleet) == set()
    ran = clients.tell("report")["ran_s"]
    assert set(ran[str(in_force(fleet).version)]) == set(clients.names)
    # One in the black hole had 6,000 on its way to it; who was refused asked again: for the newest.
    refused = {name for i, name in enumerate(clients.behind) if i % 2}
    assert refused.isdisjoint(ran[str(missed.version)])


def test_a_gate_that_refuses_stays_on_what_is_good_and_that_is_told(
    web: servers.Server, fleet: Fleet, tmp_path: Path
) -> None:
    """S-26: it was sent, it was taken, and it is not what runs."""
    issue(fleet, 5_000)
    newer = delivery.document(in_force(fleet))
    newer["version"] += 40
    newer["clusters"]["pd"] |= {"threshold_tokens": 9_000, "band": None}
    gate = Gate(web, fleet, tmp_path, plan=newer)
    try:
        refused = {gate.name: "failed"}
        eventually(lambda: states(fleet) == refused, lambda: states(fleet))
        summary = delivery.summaries([in_force(fleet)])[in_force(fleet).pk]
        assert (summary["state"], summary["n_applied"]) == ("failed", 0)
        assert "older than" in summary["routers"][0]["error"]
        assert gate.health()["plan"]["threshold_tokens"] == 9_000
        [router] = router_states.routers(fleet, timezone.now())
        assert any("refused the plan" in finding for finding in router["findings"])
        assert any("raise the epoch" in finding for finding in router["findings"])

        commands.raise_epoch(fleet=fleet.pk, now=timezone.now(), **WHO)
        fleet.refresh_from_db()
        run_tick(fleet, timezone.now())
        all_applied(fleet, {gate.name})
        assert gate.health()["plan"] | {"band": None} == {
            "epoch": 2,
            "version": 1,
            "mode": "threshold",
            "threshold_tokens": 5_000,
            "band": None,
            "cache_mode": "scarce",
            "origin": "console",
        }
    finally:
        gate.kill()
