"""The fleet and the person that most pages are looked at with."""

from __future__ import annotations

import pytest
from django.test import Client

from routing.models import Fleet
from tests.console.api_case import person
from tests.routing.cases import make_fleet


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


@pytest.fixture
def viewer() -> Client:
    return person("viewer")
