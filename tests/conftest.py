"""What Django's flush after a transactional test does not know: the tables of readings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_django
from django.db import connection

from tests.telemetry.rows import clear_landing, sql

_COMMITTING = {"transactional_db", "landing_zone", "live_server"}


@pytest.fixture(autouse=True)
def no_readings_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    """Readings that a test committed are gone before the next one."""
    yield
    marker = request.node.get_closest_marker("django_db")
    commits = marker is not None and marker.kwargs.get("transaction")
    if not commits and not _COMMITTING & set(request.fixturenames):
        return
    blocker: pytest_django.DjangoDbBlocker = request.getfixturevalue("django_db_blocker")
    with blocker.unblock():
        if sql("SELECT 1 FROM telemetry_layout LIMIT 1"):
            clear_landing()
        # Beside a browser's event loop this is another connection than the test's.
        connection.close()


@pytest.fixture
def landing_zone(transactional_db: None) -> Iterator[None]:
    """The database with empty landing tables, which Django's own flush leaves alone."""
    clear_landing()
    yield
    clear_landing()
