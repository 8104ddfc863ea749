"""What goes over the wire compressed, for how long browsers keep it, and what stays as it is."""

from __future__ import annotations

import gzip

import brotli
import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from routing.models import Fleet
from tests.console.api_case import machine, person

pytestmark = pytest.mark.django_db
SCRIPT = "/static/console/live.js"
PLOTLY = "/static/console/vendor/plotly-cartesian-4.1.1.min.js"


@pytest.fixture(scope="module")
def raw() -> bytes:
    with open(str(finders.find("console/live.js")), "rb") as file:
        return file.read()


def test_a_script_is_sent_in_the_best_coding_that_is_taken(raw: bytes) -> None:
    best = Client().get(SCRIPT, headers={"Accept-Encoding": "gzip, deflate, br"})
    assert best.headers["Content-Encoding"] == "br"
    assert best.headers["Content-Type"].startswith("text/javascript")
    assert best.headers["Vary"] == "Accept-Encoding"
    assert brotli.decompress(best.content) == raw
    other = Client().get(SCRIPT, headers={"Accept-Encoding": "gzip, deflate"})
    assert gzip.decompress(other.content) == raw
    assert other.headers["ETag"] != best.headers["ETag"]


def test_without_a_coding_it_is_sent_as_it_is(raw: bytes) -> None:
    plain = Client().get(SCRIPT)
    assert "Content-Encoding" not in plain.headers
    assert b"".join(plain) == raw


def test_what_a_browser_holds_is_not_sent_again() -> None:
    headers = {"Accept-Encoding": "br"}
    etag = Client().get(SCRIPT, headers=headers).headers["ETag"]
    again = Client().get(SCRIPT, headers=headers | {"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["Cache-Control"] == "max-age=60, public"


def test_what_names_its_version_is_kept_for_good() -> None:
    found = Client().get(PLOTLY, headers={"Accept-Encoding": "br"})
    assert found.headers["Cache-Control"] == "max-age=31536000, public, immutable"
    assert len(found.content) < 480_000


@pytest.mark.parametrize("path", ["console/../settings.py", "console/no.js", "console/%2e%2e/x.js"])
def test_nothing_else_is_served(path: str) -> None:
    found = Client().get(f"/static/{path}", headers={"Accept-Encoding": "br"})
    assert found.status_code in (302, 404)


def test_a_page_is_compressed(fleet: Fleet) -> None:
    headers = {"Accept-Encoding": "gzip"}
    page = person("viewer").get("/fleets/f1/findings/", headers=headers)
    assert page.headers["Content-Encoding"] == "gzip"
    assert b"<html" in gzip.decompress(page.content)


def test_an_api_keeps_its_etag(fleet: Fleet) -> None:
    headers = {"Accept-Encoding": "gzip"}
    policy = machine("read").get("/api/v1/fleets/f1/policy", headers=headers)
    assert policy.headers["ETag"] == '"1"'
    assert "Content-Encoding" not in policy.headers
