"""What every answer tells browsers: which scripts may run, who may frame it, what it never uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.http import HttpResponse
from django.test import Client
from pytest_django.fixtures import Settings

from console import middleware
from tests.browser import pages, scene
from tests.console.api_case import person
from tests.console.page_case import busy_fleet

pytestmark = pytest.mark.django_db

FORBIDDEN = ("'unsafe-inline'", "'unsafe-eval'", "'unsafe-hashes'", "*", "http:", "https:", "data:")
NO_PAGES = (
    "/api/v1/fleets",
    "/api/v1/schema/",
    "/healthz",
    "/nowhere/",
    "/fleets/none/",
    "/?q=%00",
)


def policy(response: HttpResponse) -> dict[str, list[str]]:
    """The directives of an answer and what each allows."""
    header = response.headers["Content-Security-Policy"]
    parts = [part.split() for part in header.split(";") if part.strip()]
    return {name: allowed for name, *allowed in parts}


def judged(response: HttpResponse) -> list[str]:
    """What is missing of what keeps an answer safe in a browser."""
    found, headers = policy(response), response.headers
    scripts = found.get("script-src", found["default-src"])
    expected = {
        "scripts of ours alone": scripts == ["'self'"],
        "no scripts in attributes": "script-src-attr" not in found,
        "styles of ours": not set(FORBIDDEN) & set(found.get("style-src", [])),
        "nothing by default": found["default-src"] == ["'none'"],
        "no plug-ins": found.get("object-src", found["default-src"]) == ["'none'"],
        "framed by nobody": found["frame-ancestors"] == ["'none'"]
        and headers.get("X-Frame-Options", "DENY") == "DENY",
        "forms to us": found["form-action"] == ["'self'"],
        "no other base": found["base-uri"] == ["'none'"],
        "connections to us": found["connect-src"] == ["'self'"],
        "enforced": "Content-Security-Policy-Report-Only" not in headers,
        "types as told": headers["X-Content-Type-Options"] == "nosniff",
        "addresses kept to us": headers["Referrer-Policy"] == "same-origin",
        "alone in its process": headers["Cross-Origin-Opener-Policy"] == "same-origin",
        "unused features off": headers["Permissions-Policy"] == middleware.PERMISSIONS,
    }
    return [what for what, holds in expected.items() if not holds]


def test_every_page_is_served_with_the_whole_policy() -> None:
    client = person("admin")
    for name, path in pages.addresses(scene.build(busy_fleet())):
        response = client.get(path)
        assert response.status_code == 200, path
        assert judged(response) == [], name


def test_so_is_whatever_else_is_answered() -> None:
    client = person("viewer")
    for path in (*NO_PAGES, "/tokens/", "/"):
        assert judged(client.get(path)) == [], path
    for path in (*pages.SIGNED_OUT, "/audit/"):
        assert judged(Client().get(path)) == [], path


def test_a_style_sheet_is_let_in_by_a_nonce_that_is_used_once() -> None:
    """Plotly writes one where charts are."""
    client, path = person("viewer"), f"/fleets/{busy_fleet().pk}/"
    ours, first = policy(client.get(path))["style-src"]
    assert ours == "'self'"
    assert first.startswith("'nonce-")
    assert policy(client.get(path))["style-src"] != [ours, first]


@pytest.mark.parametrize(("configured", "told"), [(0, None), (31_536_000, "max-age=31536000")])
def test_browsers_keep_to_tls_where_it_is_configured(
    settings: Settings, configured: int, told: str | None
) -> None:
    settings.SECURE_HSTS_SECONDS = configured
    assert Client().get("/login/", secure=True).headers.get("Strict-Transport-Security") == told
    assert "Strict-Transport-Security" not in Client().get("/login/").headers


def test_the_policy_is_in_no_template_and_nowhere_loosened() -> None:
    root = Path(__file__).resolve().parents[2]
    for file in (*(root / "console").rglob("*.py"), *(root / "templates").rglob("*.html")):
        text = file.read_text()
        for loose in ("csp_exempt", "csp_replace", "csp_update", "http-equiv", "xframe_options"):
            assert loose not in text, (file.name, loose)
