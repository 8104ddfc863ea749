"""A clean landing zone for every test that may touch the database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_django

from telemetry import tokens
from tests import servers


@pytest.fixture(scope="module")
def server(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    """A running console on the test database; its caches outlive a test, so use fresh names."""
    with django_db_blocker.unblock():
        running = servers.start(tmp_path_factory.mktemp("server") / "log")
    yield running
    running.stop()


@pytest.fixture
def token(landing_zone: None) -> str:
    """The secret of a token that may ingest."""
    return tokens.issue("test agent", ["ingest"], "", "tests")[1]
