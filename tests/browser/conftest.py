"""Chromium on the real console: uvicorn, PostgreSQL, Valkey, ingest and live sockets.

One browser and one server serve all tests of this folder. Every page opened here must stay free of
script errors, failed requests and violations of the content security policy; a test that breaks
things on purpose says so with `Tab.forgive()`.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_django
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.test import Client
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

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


_LEFT = "WebSocket is closed before the connection is established"
"""What a browser says of a page that was left while its socket opened: nothing went wrong."""


class Watch:
    """What went wrong in any page of any context, by context; each test ends with none of it."""

    def __init__(self) -> None:
        self.wrong: dict[BrowserContext, list[str]] = {}

    def over(self, context: BrowserContext) -> None:
        lines = self.wrong.setdefault(context, [])
        context.on("weberror", lambda error: lines.append(f"script: {error.error}"))
        context.on("console", lambda message: self._said(message, lines))
        context.on("close", lambda: self._closed(context))

    def take(self) -> list[str]:
        """Every line so far; it is told once."""
        found = [line for lines in self.wrong.values() for line in lines]
        for lines in self.wrong.values():
            lines.clear()
        return found

    def _said(self, message: ConsoleMessage, lines: list[str]) -> None:
        if message.type in ("error", "warning") and _LEFT not in message.text:
            where = message.page.url if message.page else "no page"
            lines.append(f"console: {message.text} ({where})")

    def _closed(self, context: BrowserContext) -> None:
        if not self.wrong[context]:
            del self.wrong[context]


watch = Watch()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    # Playwright keeps a loop in this thread, and Django would refuse to touch the database
    # beside it; nothing here runs concurrently.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with sync_playwright() as playwright:
            running = playwright.chromium.launch(executable_path=chromium(), args=list(_ARGUMENTS))
            running.on("context", watch.over)
            yield running
            running.close()


@pytest.fixture(autouse=True)
def nothing_goes_wrong() -> Iterator[None]:
    """Set up first, so that it looks last: every page of a test, whoever opened it."""
    yield
    assert watch.take() == []


@pytest.fixture(scope="package")
def server(
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Server]:
    # Charts that are drawn for the first time may keep a page busy for a second or two.
    folder = tmp_path_factory.mktemp("browser")
    yield from servers.shared(django_db_blocker, folder, app=APP, HEARTBEAT_S="2")


@pytest.fixture(scope="module")
def blank(browser: Browser, server: servers.Server) -> Iterator[Page]:
    """A page of the console's origin for tests of single script modules."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://{server.host}/login/")
    yield page
    context.close()


@pytest.fixture
def fleet(browser: Browser, transactional_db: None) -> Iterator[Fleet]:
    """A fleet with a past, under a name no other test uses: servers remember fleets."""
    clear_landing()
    yield busy_fleet(f"f-{uuid.uuid4().hex[:8]}")
    clear_landing()


HURRIED = """
    const unhurried = window.setInterval;
    window.setInterval = (run, ms, ...more) => unhurried(run, ms < 5000 ? ms : ms / 15, ...more);
"""
"""What a page looks at again every five seconds or less often, it looks at every second."""


class Tab:
    """One page, and everything that went wrong on it."""

    def __init__(self, page: Page, server: servers.Server) -> None:
        self.page = page
        self.base = f"http://{server.host}"
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) =>"
            " console.error('CSP', e.violatedDirective, e.blockedURI, e.sourceFile))"
        )

    @property
    def wrong(self) -> list[str]:
        return watch.wrong[self.page.context]

    def open(self, path: str) -> Page:
        self.page.goto(self.base + path)
        return self.page

    def forgive(self) -> None:
        """What went wrong so far was meant to."""
        self.wrong.clear()


Open = Callable[..., Tab]


@pytest.fixture
def tab(browser: Browser, server: servers.Server, fleet: Fleet) -> Iterator[Open]:
    """Opens pages, signed in by `role` (None: signed out), of any width, `hurried` or not."""
    opened: list[BrowserContext] = []

    def make(
        role: str | None = "operator", *, width: int = 1440, hurried: bool = False, **options: Any
    ) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        opened.append(context)
        context.set_default_timeout(PATIENCE_MS)
        if hurried:
            context.add_init_script(HURRIED)
        if role is not None:
            context.add_cookies([session(role, server)])
        return Tab(context.new_page(), server)

    yield make
    for context in opened:
        context.close()
    servers.settle()


def until(page: Page, expression: str, value: object = True) -> None:
    """Wait for a script expression to be `value`.

    Playwright's own wait evaluates text inside the page at every look but its first, which the
    pages' policy forbids; here each look is one evaluation from outside.
    """
    deadline_s = time.monotonic() + PATIENCE_MS / 1000
    while (found := page.evaluate(expression)) != value:
        assert time.monotonic() < deadline_s, (expression, found)
        page.wait_for_timeout(50)


def session(role: str, server: servers.Server) -> Any:
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
