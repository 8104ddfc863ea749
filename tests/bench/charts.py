"""What twenty live charts cost a browser's main thread: ours, Plotly.react and uPlot, in one run.

    python3 -m uv run python -m tests.bench.charts [--seconds 20] [--runs 3] [--realtime]

Each chart has ten lines of 300 points and gets a value a second. The page is served by the bench
itself and made of the console's own modules. With `--realtime` it runs before other work of the
machine. uPlot is fetched from the npm registry into `--cache`
once; without it the others run alone.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[2]
UPLOT = "uplot@1.6.32"
_FILES = ("uPlot.iife.min.js", "uPlot.min.css", "LICENSE")
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
_CATEGORIES = (
    "toplevel",
    "disabled-by-default-devtools.timeline",
    "devtools.timeline",
    "__metadata",
)
_WARM_UP_MS = 8_000
_HEIGHTS_PX = {20: 2800, 8: 960}
"""Viewports with so many charts in view: 266 px a row of two, beyond 80 px nothing is drawn."""


@dataclass(frozen=True)
class Cost:
    """Of the page's main thread: shares of the time, and its longest task. CPU time is the
    thread's own, so that other work of the machine does not count; wall time is what one waits."""

    cpu: float
    wall: float
    longest_cpu_ms: float
    longest_wall_ms: float
    n_long: int


def uplot(cache: Path) -> bool:
    """Whether uPlot lies in the cache, fetched if it did not."""
    if all((cache / name).exists() for name in _FILES):
        return True
    cache.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["npm", "pack", UPLOT, "--silent"], cwd=cache, check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as exc:
        print(f"uPlot is left out, npm cannot fetch it: {exc}")
        return False
    with tarfile.open(next(cache.glob("uplot-*.tgz"))) as archive:
        for name in _FILES:
            inside = name if name == "LICENSE" else f"dist/{name}"
            found = archive.extractfile(f"package/{inside}")
            if found is not None:
                (cache / name).write_bytes(found.read())
    return True


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The page, the console's static files, what was fetched."""

    def __init__(self, *args: Any, cache: Path, **kwargs: Any) -> None:
        self._folders = {
            "/static/": ROOT / "console" / "static",
            "/page/": ROOT / "tests" / "bench" / "charts_page",
            "/cache/": cache,
        }
        super().__init__(*args, **kwargs)

    def translate_path(self, path: str) -> str:
        plain = path.partition("?")[0]
        for prefix, folder in self._folders.items():
            if plain.startswith(prefix) and ".." not in plain:
                return str(folder / plain.removeprefix(prefix))
        return str(self._folders["/page/"] / "index.html")

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def served(cache: Path) -> Iterator[str]:
    """The page's address."""
    handler = functools.partial(_Handler, cache=cache)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()


def measure(browser: Browser, address: str, *, by: str, visible: int, seconds: float) -> Cost:
    """The cost while the charts run."""
    page = browser.new_page(viewport={"width": 1440, "height": _HEIGHTS_PX[visible]})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{address}?by={by}&range=5m")
    page.wait_for_timeout(_WARM_UP_MS)
    browser.start_tracing(page=page, categories=list(_CATEGORIES))
    page.wait_for_timeout(seconds * 1000)
    trace = json.loads(browser.stop_tracing())
    page.close()
    if wrong:
        raise RuntimeError(f"{by}: {wrong[0]}")
    return cost_of(trace["traceEvents"])


def cost_of(events: list[dict[str, Any]]) -> Cost:
    """Folds the tasks of the busiest renderer's main thread."""
    mains = {
        (e["pid"], e["tid"])
        for e in events
        if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"
    }
    tasks: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        thread = (event["pid"], event["tid"])
        if event["name"] == "RunTask" and event["ph"] == "X" and thread in mains:
            tasks.setdefault(thread, []).append(event)
    busiest = max(tasks.values(), key=lambda found: sum(e.get("tdur", 0) for e in found))
    first, last = busiest[0]["ts"], busiest[-1]["ts"] + busiest[-1]["dur"]
    cpu_us = [e.get("tdur", 0) for e in busiest]
    wall_us = [e["dur"] for e in busiest]
    return Cost(
        cpu=sum(cpu_us) / (last - first),
        wall=sum(wall_us) / (last - first),
        longest_cpu_ms=max(cpu_us) / 1e3,
        longest_wall_ms=max(wall_us) / 1e3,
        n_long=sum(us > 50_000 for us in wall_us),
    )


def main() -> None:
    """Runs all in turn, the order turned each round, and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", help="one of ours, react, uplot")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "uplot-cache")
    parser.add_argument("--realtime", action="store_true")
    asked = parser.parse_args()
    if asked.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    kinds = ["ours", "react", *(["uplot"] if uplot(asked.cache) else [])]
    cases = [(by, n) for n in _HEIGHTS_PX for by in kinds if asked.only in (None, by)]
    found: dict[tuple[str, int], list[Cost]] = {case: [] for case in cases}
    with served(asked.cache) as address, sync_playwright() as playwright:
        for i in range(asked.runs):
            for by, visible in cases[i % len(cases) :] + cases[: i % len(cases)]:
                browser = playwright.chromium.launch(
                    executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"),
                    args=list(_ARGUMENTS),
                )
                cost = measure(browser, address, by=by, visible=visible, seconds=asked.seconds)
                found[by, visible].append(cost)
                browser.close()
    print("| drawn by | in view | CPU | wall | longest task, CPU | wall | over 50 ms |")
    print("|---|---|---|---|---|---|---|")
    for (by, visible), costs in found.items():
        median = {
            name: statistics.median(getattr(c, name) for c in costs)
            for name in ("cpu", "wall", "longest_cpu_ms", "longest_wall_ms", "n_long")
        }
        print(
            f"| {by} | {visible} | {median['cpu']:.1%} | {median['wall']:.1%} |"
            f" {median['longest_cpu_ms']:.0f} ms | {median['longest_wall_ms']:.0f} ms |"
            f" {median['n_long']:.0f} |"
        )


if __name__ == "__main__":
    main()
