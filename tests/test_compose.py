"""docker-compose.yml: six roles from one image and one set of settings, accepted by a parser."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from console import env

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docker-compose.yml"
SECRETS = {"POSTGRES_PASSWORD": "x", "CONSOLE_SECRET_KEY": "y"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())["services"]


def test_every_role_is_there(services: dict[str, Any]) -> None:
    assert services.keys() >= {"web", "worker", "twin", "beat", "postgres", "valkey"}


def test_our_roles_share_image_and_settings(services: dict[str, Any]) -> None:
    ours = [services[name] for name in ("prepare", "web", "worker", "twin", "beat")]
    assert all(s["image"] == ours[0]["image"] for s in ours)
    assert all(s["environment"] == ours[0]["environment"] for s in ours)
    assert ours[0]["environment"].keys() <= {s.name for s in env.SETTINGS}


def test_every_dependency_names_a_service_and_a_known_condition(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for target, how in service.get("depends_on", {}).items():
            assert target in services, f"{name} waits for {target}"
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[target]


@pytest.mark.parametrize("command", [["docker", "compose"], ["docker-compose"]], ids=" ".join)
def test_compose_itself_accepts_the_file(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    probe = subprocess.run([*command, "version"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{' '.join(command)} is not available")
    done = subprocess.run(
        [*command, "-f", str(FILE), "config", "-q"],
        env=os.environ | SECRETS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_secret_is_refused_by_name() -> None:
    text = FILE.read_text()
    for name in SECRETS:
        assert f"${{{name}:?set {name}}}" in text
