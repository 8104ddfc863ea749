"""The complete life of a fleet by the command line, beside a running console: declared, observed,
planned, approved by a second person, pushed, verified, held, reverted, scheduled, reported."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from django.utils import timezone

from console.cli.__main__ import main
from routing import token_commands
from routing.jobs import runs
from routing.models import Fleet
from tests import servers
from tests.routing.cases import scenario
from tests.routing.costs.case import days
from tests.routing.issuing import next_push_at, run_tick

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Person:
    """Somebody at a shell, with a token in a file of their own."""

    web: servers.Server
    file: Path

    def does(self, *words: str, code: int = 0, stdin: str = "", shell: bool = False) -> Any:
        """The JSON of a command that ends with `code`, or what it says on stderr. With `shell` as a
        process of its own; they take a second each."""
        run = self.run if shell else self.call
        ended, out, said = run(words, stdin)
        assert ended == code, (words, ended, out, said)
        return json.loads(out) if out else said

    def call(self, words: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        out, said, given = (
            io.StringIO(),
            io.StringIO(),
            io.TextIOWrapper(io.BytesIO(stdin.encode())),
        )
        kept, sys.stdin = sys.stdin, given
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
                return main([*self.known, *words]), out.getvalue(), said.getvalue()
        finally:
            sys.stdin = kept

    def run(self, words: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "console.cli", *self.known, *words],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "HOME": str(self.file.parent)},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        return done.returncode, done.stdout, done.stderr

    @property
    def known(self) -> list[str]:
        return [f"--url=http://{self.web.host}", f"--token-file={self.file}", "--json"]


@pytest.fixture
def people(web: servers.Server, tmp_path: Path) -> Any:
    def person(owner: str, *scopes: str, fleet: str = "") -> Person:
        _, secret = token_commands.issue_token(
            name=owner,
            scopes=list(scopes),
            fleet=fleet,
            expires_at=None,
            owner=owner,
            actor=owner,
            via="command",
            reason="",
            now=timezone.now(),
        )
        file = tmp_path / f"{owner}-{len(scopes)}"
        file.write_text(secret)
        file.chmod(0o600)
        return Person(web, file)

    yield person
    servers.settle()


def as_gate(gate: Person, fleet: str) -> None:
    """A gate that polls: it asks for the plan, and says that it runs it."""
    plan = gate.does("plan", fleet)
    gate.does(
        "call", "fleets_plan_retrieve", f"fleet={fleet}", f"x_router={fleet}/pd/gw-1",
        f"x_version_running={plan['epoch']}.{plan['version']}", "x_state=running",
    )  # fmt: skip


def test_the_complete_life_of_a_fleet(people: Any, tmp_path: Path) -> None:
    name = f"life-{uuid.uuid4().hex[:6]}"
    ada, bob = people("ada", "admin"), people("bob", "approve")

    # Declared: what would change is said first, and again nothing changes.
    file = tmp_path / "site.toml"
    declared = {"fleets": {name: scenario(name)}, "policies": {name: {"mode": "advisory"}}}
    file.write_text(tomli_w.dumps(declared))
    assert ada.does("apply", str(file), "--dry-run")["changes"][0]["action"] == "create"
    assert ada.does("fleet", name, code=5)
    ada.does("apply", str(file), "--reason", "new hardware", shell=True)
    assert ada.does("apply", str(file), "--prune", "--dry-run")["n_same"] == 2
    fleet = Fleet.objects.get(pk=name)
    gate = people("gate", "router", "read", fleet=name)

    # Observed and planned.
    run_tick(fleet, timezone.now())
    assert ada.does("fleet", name)["mode"] == "advisory"
    assert "message" in ada.does("why", name)
    assert ada.does("snapshot", name)
    best = ada.does("propose", name, "--set", "prfaas->pd.gbps=10")["optimum"]
    assert best["clusters"]["pd"]["n_prefill"] >= 3

    # Pushed, once a second person has approved of it.
    ada.does("call", "fleets_approval_limits_update", f"fleet={name}", "--body", "-",
             stdin='{"limits": {"changes": ["activate"]}}')  # fmt: skip
    proposal = ada.does("push", name, "--reason", "go", code=3, shell=True)["id"]
    assert ada.does("policy", "show", name)["mode"] == "advisory"
    assert [row["id"] for row in bob.does("approvals", "list", "--fleet", name)] == [proposal]
    assert ada.does("approvals", "approve", str(proposal), code=2)
    assert bob.does("approvals", "approve", str(proposal), shell=True)["state"] == "done"
    assert bob.does("policy", "set", name, "--mode", "paused", code=4)
    run_tick(fleet, next_push_at(fleet))

    # Verified: nobody runs it, then its gate does.
    assert ada.does("verify", name, code=7)["n_applied"] == 0
    as_gate(gate, name)
    first = ada.does("decisions", name)[0]

    # Held, verified again, released.
    hold = ada.does("holds", "place", name, "--mode", "threshold", "--threshold", "30000",
                    "--for", "1h", "--reason", "a test")["id"]  # fmt: skip
    run_tick(fleet, next_push_at(fleet))
    assert ada.does("plan", name)["clusters"]["pd"]["threshold_tokens"] == 30_000
    assert ada.does("verify", name, code=7)["n_routers"] == 1
    as_gate(gate, name)
    assert ada.does("verify", name, "--wait", "10", shell=True)["n_applied"] == 1
    assert ada.does("routers", name)[0]["router"] == f"{name}/pd/gw-1"
    ada.does("holds", "extend", name, str(hold), "--for", "2h", "--reason", "longer")
    assert [row["id"] for row in ada.does("holds", "list", name)] == [hold]
    ada.does("holds", "release", name, str(hold), "--reason", "done")
    assert ada.does("holds", "release", name, str(hold), code=2)

    # Reverted to what was before.
    ada.does("revert", name, str(first["id"]), "--for", "1h", "--reason", "as before")
    run_tick(fleet, next_push_at(fleet))
    back = ada.does("plan", name)["clusters"]["pd"]["threshold_tokens"]
    assert (
        back
        == ada.does("why", name, str(first["id"]))["plan"]["clusters"]["pd"]["threshold_tokens"]
    )

    # Scheduled, and done now as well.
    job = {"do": {"kind": "mode", "mode": "advisory"}, "reason": "quiet nights",
           "when": {"zone": "Europe/Paris", "at": "22:00", "days": ["sat"]}}  # fmt: skip
    ada.does("jobs", "put", name, f"quiet-{name}", "-", stdin=json.dumps(job))
    assert ada.does("jobs", "list", name)[0]["next_due_at"]
    ada.does("jobs", "run", name, f"quiet-{name}", "--reason", "tonight already")
    runs.work(timezone.now)
    assert ada.does("jobs", "runs", name)[0]["state"] == "done"
    assert ada.does("policy", "show", name)["mode"] == "advisory"

    # Alerts are silenced, a key is issued and ended, and all of it is written down.
    silence = ada.does("silences", "begin", "--fleet", name, "--for", "30m", "--reason", "work")
    ada.does("silences", "end", str(silence["id"]), "--reason", "over")
    assert ada.does("incidents", "list", "--fleet", name) == []
    token = ada.does("tokens", "issue", "agent", "--scope", "ingest", "--fleet", name)
    ada.does("tokens", "revoke", str(token["id"]))
    verbs = [row["verb"] for row in ada.does("audit", "--fleet", name, "--limit", "100")]
    assert {"fleet.create", "proposal.open", "policy.change", "hold.place", "hold.release",
            "job.create", "job.run", "silence.begin", "token.revoke"} <= set(verbs)  # fmt: skip

    # Reported, exported.
    yesterday = timezone.now().date() - timedelta(days=1)  # of a month's first day nothing is yet
    days(name, yesterday, 1)
    month = yesterday.strftime("%Y-%m")
    assert ada.does("report", name, month, "--again", "so far")["report"]
    csv = tmp_path / "month.csv"
    assert ada.does("report", name, month, "--file", str(csv))["bytes"] == csv.stat().st_size > 0
    assert ada.does("report", name, "2001-01", code=5)
    assert ada.does("export")["jobs"][f"quiet-{name}"]["fleet"] == name
