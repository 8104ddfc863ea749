"""The API's documentation: every operation is there, whoever reads it."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from console import api_docs
from tests.console.api_case import person
from tests.console.page_case import busy_fleet

pytestmark = pytest.mark.django_db


def test_every_operation_is_listed(viewer: Client) -> None:
    page = viewer.get("/api/docs/").content.decode()
    known = api_docs.operations(api_docs.schema())
    assert len(known) > 80
    for operation in known:
        assert f"?operation={operation.id}" in page
    assert len({operation.id for operation in known}) == len(known)


def test_words_narrow_the_list(viewer: Client) -> None:
    page = viewer.get("/api/docs/", {"q": "post holds extend"}).content.decode()
    assert re.findall(r'href="\?operation=([^"]+)"', page) == ["fleets_holds_extend_create"]
    assert "No operation has all these words" in viewer.get("/api/docs/?q=zzz").content.decode()


def test_every_operation_has_a_page(viewer: Client) -> None:
    for operation in api_docs.operations(api_docs.schema()):
        response = viewer.get("/api/docs/", {"operation": operation.id})
        assert response.status_code == 200, operation.id
        assert operation.path in response.content.decode()
    assert viewer.get("/api/docs/?operation=none").status_code == 404


def test_what_may_not_be_done_is_not_offered(viewer: Client) -> None:
    busy_fleet()
    address = "/api/docs/?operation=fleets_holds_create"
    assert 'id="try"' not in viewer.get(address).content.decode()
    mine = person("operator").get(address).content.decode()
    assert 'id="try"' in mine
    assert 'id="sure"' in mine
    assert "&quot;expires_at&quot;: &quot;2026-12-01T12:00:00Z&quot;" in mine


def test_a_stream_and_a_file_are_not_tried_in_a_page() -> None:
    known = {each.id: each for each in api_docs.operations(api_docs.schema())}
    for name in ("events_retrieve", "ingest", "fleets_traces_create"):
        detail = api_docs.detail(api_docs.schema(), known[name])
        assert not detail.can_be_tried or name == "ingest"


def test_it_is_for_people_who_are_signed_in() -> None:
    assert Client().get("/api/docs/").status_code == 302
