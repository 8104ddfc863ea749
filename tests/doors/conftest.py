"""What a test of the doors needs of the database. Names are fresh in each test, so nothing is
emptied before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_django

from telemetry import tokens
from tests import servers
from tests.doors.texts import OTEL_RULE, RULES


@pytest.fixture
def token(transactional_db: None) -> str:
    """The secret of a token that may ingest."""
    return tokens.issue("test door", ["ingest"], "", "tests")[1]


@pytest.fixture(scope="package")
def console(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    """A running console with open doors; its caches outlive a test, so use fresh names."""
    folder = tmp_path_factory.mktemp("console")
    rules = folder / "doors.toml"
    rules.write_text(RULES + OTEL_RULE)
    yield from servers.shared(django_db_blocker, folder, CONSOLE_DOORS_RULES=str(rules))
