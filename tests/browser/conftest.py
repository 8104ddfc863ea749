"""Chromium on the real console: uvicorn, PostgreSQL, Valkey, ingest and live sockets.

Every page opened here must stay free of script errors, failed requests and violations of the
content security policy; a test that breaks things on purpose says so with `page.forgive()`.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_django
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.test import Client
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from routing.models import Fleet
from tests import servers
from tests.console.page_case import busy_fleet
from tests.telemetry.rows import clear_landing

APP = "tests.live_app:application"
PATIENCE_MS = 20_000
"""How long anything on a page may take on a busy machine."""
expect.set_options(timeout=PATIENCE_MS)
_ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


def chromium() -> str | None:
    return (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="no chromium on this machine (set CHROMIUM to its path)")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(180))
            if chromium() is None:
                item.add_marker(missing)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Playwright keeps a loop in this thread, and Django would refuse to touch the database
    # beside it; nothing here runs concurrently.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with sync_playwright() as playwright:
            running = playwright.chromium.launch(executable_path=chromium(), args=list(_ARGUMENTS))
            yield running
            running.close()


@pytest.fixture(scope="module")
def server(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    with django_db_blocker.unblock():
        running = servers.start(tmp_path_factory.mktemp("browser") / "log", app=APP)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def blank(browser: Browser, server: servers.Server) -> Page:
    """A page of the console's origin for tests of single script modules."""
    page = browser.new_page()
    page.goto(f"http://{server.host}/login/")
    return page


@pytest.fixture
def fleet(browser: Browser, transactional_db: None) -> Iterator[Fleet]:
    """A fleet with a past, under a name no other test uses: servers remember fleets."""
    clear_landing()
    yield busy_fleet(f"f-{uuid.uuid4().hex[:8]}")
    clear_landing()


class Tab:
    """One page, and everything that went wrong on it."""

    def __init__(self, page: Page, server: servers.Server) -> None:
        self.page = page
        self.base = f"http://{server.host}"
        self.wrong: list[str] = []
        page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        page.on("console", self._said)
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) =>"
            " console.error('CSP', e.violatedDirective, e.blockedURI, e.sourceFile))"
        )

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def open(self, path: str) -> Page:
        self.page.goto(self.base + path)
        return self.page

    def forgive(self) -> None:
        """What went wrong so far was meant to."""
        self.wrong.clear()


Open = Callable[..., Tab]


@pytest.fixture
def tab(browser: Browser, server: servers.Server, fleet: Fleet) -> Iterator[Open]:
    """Opens pages, signed in by `role` (None: signed out), of any width."""
    opened: list[Tab] = []

    def make(role: str | None = "operator", *, width: int = 1440, **options: Any) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(PATIENCE_MS)
        if role is not None:
            context.add_cookies([_session(role, server)])
        made = Tab(context.new_page(), server)
        opened.append(made)
        return made

    yield make
    wrong = [line for found in opened for line in found.wrong]
    for found in opened:
        found.page.context.close()
    assert wrong == []


def _session(role: str, server: servers.Server) -> Any:
    user = User.objects.create_user(f"{role}-{uuid.uuid4().hex[:6]}", is_superuser=role == "admin")
    if role != "admin":
        user.groups.add(Group.objects.get_or_create(name=role)[0])
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return {
        "name": settings.SESSION_COOKIE_NAME,
        "value": client.session.session_key,
        "url": f"http://{server.host}",
    }
