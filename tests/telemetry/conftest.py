"""A clean landing zone for every test that may touch the database."""

from __future__ import annotations

import pytest

from telemetry import tokens
from tests import servers


@pytest.fixture(scope="module")
def server(web: servers.Server) -> servers.Server:
    return web


@pytest.fixture
def token(landing_zone: None) -> str:
    """The secret of a token that may ingest."""
    return tokens.issue("test agent", ["ingest"], "", "tests")[1]
