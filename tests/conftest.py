"""What Django's flush after a transactional test does not know: the tables of readings.

And a web process of the console on the test database.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_django
from django.db import connection

from tests import servers, services
from tests.telemetry.rows import clear_landing, sql

_COMMITTING = {"transactional_db", "landing_zone", "live_server"}


@pytest.fixture(scope="session")
def django_db_keepdb(request: pytest.FixtureRequest) -> bool:
    """A server of our own goes as a whole, with whoever is still connected to its database."""
    return services.ARE_OURS or bool(request.config.getvalue("reuse_db"))


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> None:
    """Django empties all tables after a transactional test; the audit lets nobody empty its own.

    Rows stay as safe as they are: only TRUNCATE is let through, and only here.
    """
    with django_db_blocker.unblock():
        for table in ("routing_action", "routing_actionseal"):
            sql(f"ALTER TABLE {table} DISABLE TRIGGER {table}_whole")


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


@pytest.fixture(scope="module")
def web(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    """A console as it runs; its caches outlive a test, so use fresh names."""
    yield from servers.shared(django_db_blocker, tmp_path_factory.mktemp("web"))
