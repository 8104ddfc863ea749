"""Real web processes on the test database, and a fleet no other test knows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import pytest_django

from routing.models import Fleet
from tests import servers
from tests.routing.cases import make_fleet


def _serve(
    app: str, blocker: pytest_django.DjangoDbBlocker, paths: pytest.TempPathFactory
) -> Iterator[servers.Server]:
    with blocker.unblock():
        running = servers.start(paths.mktemp("web") / "log", app=app)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def web(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    """A console as it runs."""
    yield from _serve("console.asgi:application", django_db_blocker, tmp_path_factory)


@pytest.fixture(scope="module")
def hasty_web(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    """A console that checks its plan sockets several times a second."""
    yield from _serve("tests.routing.hasty_app:application", django_db_blocker, tmp_path_factory)


@pytest.fixture
def fleet(transactional_db: None) -> Fleet:
    """An active fleet under a name of its own: web processes outlive a test."""
    return make_fleet(f"f-{uuid.uuid4().hex[:8]}")
