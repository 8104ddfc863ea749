"""schemathesis over the whole schema against a running console, as whoever there is.

Its checks: no answer is a fault of ours, each is what the schema promises, what the schema forbids
is refused, what it allows is not, nothing is answered without its keys. And ours: no role leaks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_django

from console.management.commands.openapi import generated
from routing import rights
from telemetry import tokens
from telemetry.models import ApiToken
from tests import servers
from tests.browser import scene
from tests.console.page_case import busy_fleet
from tests.servers import ROOT, Server
from tests.telemetry.rows import clear_landing

pytestmark = pytest.mark.usefixtures("landing_zone")

SEED = "20261130"
ROLES: dict[str, list[str]] = {
    "viewer": ["read"],
    "operator": ["operate"],
    "approver": ["approve"],
    "admin": ["admin"],
    "agent": ["ingest"],
    "router": ["router"],
}
NOT_FUZZED = r"/events$"
"""Streams do not end (`test_rest_streams`)."""
CONFIG = """
[parameters]
{parameters}

[checks.positive_data_acceptance]
# No schema says that a fleet has no such cluster, or what state a change needs.
expected-statuses = ["2xx", "304", "400", "401", "403", "404", "409", "412", "422", "428", "502"]
[checks.missing_required_header]
expected-statuses = ["401", "403", "404", "406", "412", "415", "422", "428"]
[checks.negative_data_rejection]
# Preconditions are looked at before bodies are.
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "412", "415", "422", "428"]
"""


@pytest.fixture(scope="module")
def unhurried(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A console that lets one token ask as often as it likes."""
    yield from servers.shared(
        django_db_blocker,
        tmp_path_factory.mktemp("web"),
        CONSOLE_API_READS="1000000",
        CONSOLE_API_CHANGES="1000000",
    )


@pytest.fixture
def place(transactional_db: None, tmp_path: Path) -> Iterator[Path]:
    """A folder with the schema and the ids of a fleet in which everything happens."""
    clear_landing()
    made = scene.build(busy_fleet())
    ids = {k: v for k, v in made.arguments.items() if "." not in k and k != "token_id"}
    lines = [f"{name} = {str(value)!r}" if isinstance(value, str) else f"{name} = {value}"
             for name, value in ids.items()]  # fmt: skip
    (tmp_path / "schemathesis.toml").write_text(CONFIG.format(parameters="\n".join(lines)))
    (tmp_path / "openapi.json").write_text(generated())
    yield tmp_path
    clear_landing()


def run(server: Server, place: Path, role: str, *more: str, timeout_s: float) -> None:
    """schemathesis as `role`; its words are the failure's."""
    scopes = ROLES[role]
    token, secret = tokens.issue(role, scopes, "", "tests")
    # One that no test case thinks of: some of them revoke tokens.
    ApiToken.objects.filter(pk=token.pk).update(id=987_654_321_987)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run"),
        *("openapi.json", "--url", f"http://{server.host}", "--seed", SEED, "--checks", "all"),
        *("--header", f"Authorization: Bearer {secret}", "--exclude-path-regex", NOT_FUZZED),
        *("--continue-on-failure", "--no-shrink", "--warnings", "off", "--request-timeout", "60"),
        *more,
    ]
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SCHEMATHESIS_HOOKS": "tests.console.rest_hooks",
        "REST_SCOPES": ",".join(sorted(rights.granted(scopes))),
    }
    done = subprocess.run(
        command, cwd=place, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    print(done.stdout[-4000:])
    assert "Traceback" not in server.log.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* generated", done.stdout), done.stdout


@pytest.mark.timeout(240)
@pytest.mark.parametrize("role", ["admin", "viewer"])
def test_a_little_of_everything(unhurried: Server, place: Path, role: str) -> None:
    more = ("--phases", "fuzzing", "--max-examples", "1")
    run(unhurried, place, role, *more, timeout_s=200.0)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("role", ROLES)
def test_everything(unhurried: Server, place: Path, role: str) -> None:
    """Minutes a role: examples, edges of each value, and what hypothesis thinks of."""
    more = ("--phases", "examples,coverage,fuzzing", "--max-examples", "10")
    run(unhurried, place, role, *more, timeout_s=5000.0)
