"""Every page of a site with 3,000 engines, 300 links and 100 fleets, over HTTP. Run by hand.

    .venv/bin/python -m tests.bench.pages [--n 20] [--browser]

A console of its own (`manage.py up`) with the site of `tests.console.big_site`, which goes on
reporting, but without beat: nothing else happens meanwhile. Found is the server's time of each
page, p50 and p95, its queries' share left to `tests/console/test_big_site.py`; with `--browser`
what a first and a second view transfer and when Chromium is done with them.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from playwright.sync_api import sync_playwright

from tests.bench.console_up import Console

ROOT = Path(__file__).parents[2]
TARGET_MS, TARGET_KB, TARGET_S = 150.0, 600.0, 1.5
REPORT_EVERY_S = 5.0
_SITE = """
import sys, time, json
import django
django.setup()
from tests.console import big_site
from tests.console.test_big_site import addresses
site = big_site.make()
print(json.dumps(addresses()), flush=True)
while True:
    time.sleep({every_s})
    site.plant.report([time.time()])
"""


@contextlib.contextmanager
def site_of(console: Console) -> Iterator[dict[str, str]]:
    """Makes the site and lets it report on. Addresses of its pages, by what they are called."""
    urls = json.loads((console.state / "run" / "urls.json").read_text())
    process = subprocess.Popen(
        [sys.executable, "-c", _SITE.format(every_s=REPORT_EVERY_S)],
        cwd=ROOT,
        env={**os.environ, **urls, "DJANGO_SETTINGS_MODULE": "console.settings"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the site could not be made")
        yield json.loads(line)
    finally:
        process.kill()
        process.wait()


class Visitor:
    """Signed in, over one connection that is kept, as a browser's."""

    def __init__(self, console: Console) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
        self._cookies: dict[str, str] = {}
        self.get("/login/")
        name, password = console.login
        token = self._cookies["csrftoken"]
        body = urlencode({"username": name, "password": password, "csrfmiddlewaretoken": token})
        status, _ = self._ask("POST", "/login/", body)
        assert status == 302, status

    def get(self, address: str) -> tuple[int, bytes]:
        return self._ask("GET", address)

    def _ask(self, method: str, address: str, body: str | None = None) -> tuple[int, bytes]:
        headers = {"Cookie": "; ".join(f"{k}={v}" for k, v in self._cookies.items())}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self._client.request(method, address, body, headers)
        response = self._client.getresponse()
        raw = response.read()
        for key, value in response.getheaders():
            if key.lower() == "set-cookie":
                name, _, rest = value.partition("=")
                self._cookies[name] = rest.partition(";")[0]
        return response.status, raw


def served(visitor: Visitor, pages: dict[str, str], n: int) -> list[dict[str, Any]]:
    """Each page `n` times, in turn, so that a moment of the machine is nobody's alone."""
    took: dict[str, list[float]] = {name: [] for name in pages}
    size: dict[str, int] = {}
    for turn in range(n + 1):
        for name, address in pages.items():
            began_s = time.perf_counter()
            status, raw = visitor.get(address)
            if turn:  # the first is for what is read once and kept
                took[name].append(1e3 * (time.perf_counter() - began_s))
            if status != 200:
                raise SystemExit(f"{name}: {status} at {address}")
            size[name] = len(raw)
    return [
        {
            "page": name,
            "p50_ms": round(float(np.quantile(ms, 0.5)), 1),
            "p95_ms": round(float(np.quantile(ms, 0.95)), 1),
            "kb": round(size[name] / 1e3),
        }
        for name, ms in took.items()
    ]


def viewed(console: Console, pages: dict[str, str], chromium: str) -> list[dict[str, Any]]:
    """A first view with an empty cache and a second one: bytes over the wire, and seconds until
    Chromium has loaded the page and is idle for input (no task of 50 ms after it)."""
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for name, address in pages.items():
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            page.goto(f"{console.url}/login/")
            page.fill("input[name=username]", console.login[0])
            page.fill("input[name=password]", console.login[1])
            page.press("input[name=password]", "Enter")
            page.wait_for_load_state()
            wire = page.context.new_cdp_session(page)
            wire.send("Network.enable")
            wire.send("Network.clearBrowserCache")
            n_bytes = [0]
            wire.on(
                "Network.loadingFinished",
                lambda e, n=n_bytes: n.__setitem__(0, n[0] + int(e["encodedDataLength"])),
            )
            row: dict[str, Any] = {"page": name}
            for view in ("first", "second"):
                n_bytes[0] = 0
                page.add_init_script(_LONG_TASKS)
                page.goto(console.url + address)
                page.wait_for_timeout(2500)
                row[f"{view}_kb"] = round(n_bytes[0] / 1e3)
                row[f"{view}_s"] = round(float(page.evaluate(_INTERACTIVE)) / 1e3, 2)
            found.append(row)
            context.close()
        browser.close()
    return found


_LONG_TASKS = """
globalThis.__ends = [];
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) globalThis.__ends.push(task.startTime + task.duration);
}).observe({ type: 'longtask', buffered: true });
"""
_INTERACTIVE = """() => {
  const [nav] = performance.getEntriesByType('navigation');
  return Math.max(nav.domContentLoadedEventEnd, ...globalThis.__ends.filter((end) => end < 2400));
}"""


def table(rows: list[dict[str, Any]], views: list[dict[str, Any]]) -> str:
    """For `tests/bench/README.md`."""
    lines = ["| page | p50 | p95 | HTML |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: -row["p95_ms"]):
        mark = _mark(row["p95_ms"] < TARGET_MS)
        lines.append(
            f"| {row['page']} | {row['p50_ms']:.0f} ms | {row['p95_ms']:.0f} ms{mark} "
            f"| {row['kb']} KB |"
        )
    if views:
        lines += [
            "",
            "| page | first view | interactive | second view | interactive |",
            "|---|---|---|---|---|",
        ]
        for row in views:
            lines.append(
                f"| {row['page']} | {row['first_kb']} KB{_mark(row['first_kb'] < TARGET_KB)} "
                f"| {row['first_s']} s{_mark(row['first_s'] < TARGET_S)} "
                f"| {row['second_kb']} KB | {row['second_s']} s |"
            )
    return "\n".join(lines)


def _mark(is_met: bool) -> str:
    """Of a target that was not met."""
    return "" if is_met else " (!)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20, help="requests of each page")
    parser.add_argument("--browser", action="store_true", help="Chromium's views as well")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--only", nargs="*", help="names of pages")
    parser.add_argument("--viewed", nargs="*", default=["fleet-overview", "signals", "instances"])
    parser.add_argument("--out", type=Path, help="a JSON line is appended to this file")
    args = parser.parse_args()
    print(f"load average {os.getloadavg()}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="pages-", dir="/tmp") as name,
        Console(Path(name) / "state") as console,
        console.without_beat(),
        site_of(console) as pages,
    ):
        chosen = {k: v for k, v in pages.items() if not args.only or k in args.only}
        rows = served(Visitor(console), chosen, args.n)
        shown = {k: pages[k] for k in args.viewed} if args.browser else {}
        views = viewed(console, shown, args.chromium) if shown else []
    found = {"pages": rows, "views": views, "load_average": os.getloadavg()}
    if args.out is not None:
        with args.out.open("a") as out:
            print(json.dumps(found), file=out)
    print(table(rows, views))
    print(f"load average {os.getloadavg()}")


if __name__ == "__main__":
    main()
