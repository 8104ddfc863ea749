"""A hasty web process on the test database, a fleet no other test knows, routers and engines."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_django

from routing.models import Fleet
from tests import servers
from tests.routing.cases import make_fleet
from tests.routing.lab_stack import LabStack, lab_stack
from tests.routing.routers_case import FakeRouter, two_and_two


@pytest.fixture(scope="module")
def hasty_web(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    """A console that checks its plan sockets several times a second."""
    folder = tmp_path_factory.mktemp("web")
    yield from servers.shared(django_db_blocker, folder, app="tests.routing.hasty_app:application")


@pytest.fixture
def fleet(transactional_db: None) -> Iterator[Fleet]:
    """An active fleet under a name of its own: web processes outlive a test."""
    yield make_fleet(f"f-{uuid.uuid4().hex[:8]}")
    servers.settle()


@pytest.fixture
def router() -> FakeRouter:
    return two_and_two()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabStack]:
    with lab_stack(tmp_path) as stack:
        yield stack
