"""Each make that can change roles, as its real program, and a fleet that names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from routing.adapters import places
from routing.models import Fleet
from tests.peers.routers import STARTS, Routed
from tests.routing.lab_stack import fleet_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where settings name their files."""
    monkeypatch.setenv(places.FOLDER_SETTING, str(tmp_path))
    return tmp_path


@pytest.fixture(params=list(STARTS))
def routed(request: pytest.FixtureRequest, folder: Path) -> Iterator[Routed]:
    with STARTS[request.param](folder) as started:
        yield started


@pytest.fixture
def fleet(routed: Routed) -> Fleet:
    return fleet_of(
        (),
        routers=[{"kind": routed.surface.kind, **routed.settings}],
        engines=routed.engines.urls,
        role_switch="label" if routed.is_label else "engine",
    )
