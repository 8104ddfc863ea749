"""Live charts: marks, menus, the crosshair and the zoom of a page; a day of frames in one tab, and
a tab that nobody sees."""

from __future__ import annotations

import csv
import io
import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Download, Page, expect

from console.csv_cells import neutral
from routing.models import Fleet
from tests import servers
from tests.browser.conftest import Open, until
from tests.browser.traffic import Traffic

CELLS = [
    *("=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\nx", "  =1", "\u00a0=1", "\u200b=1"),
    *('"=1', "'=1", "\u201c=1", "＝1", "＠x", "−5", "-5 req/s", "-", "--5"),
    *("pd/h20-1", "a->b", "a=b", "", "한국어", "-5", "-0.5", "1e-3"),
]
HEAP_GROWTH_BYTES = 3_000_000
# Feeds a page's own live connection with copies of its newest frame, each later than the last.
FEED = """async ([n, stepS]) => {
    const { live } = await import("/static/console/live.js");
    if (live.socket) { live.socket.onclose = live.socket.onmessage = null; live.socket.close(); }
    const moments = new Set(["at_s", "received_s"]);
    const later = (value, key) => Array.isArray(value) ? value.map((v) => later(v, ""))
        : value && typeof value === "object"
            ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, later(v, k)]))
            : moments.has(key) && value !== null ? value + stepS : value;
    let frame = { ...live.frame, type: "frame", snapshot: false, events: [] };
    for (let i = 0; i < n; i += 1) {
        frame = { ...later(frame, ""), seq: frame.seq + 1 };
        frame.loop.observed.demand_rps = 2 + Math.sin(i / 40);
        live.receive(frame);
        if (i % 40 === 0) await new Promise(requestAnimationFrame);
    }
    const { series } = await import("/static/console/plots.js");
    return Math.max(...[...series.rings.values()].map((ring) => ring.length));
}"""


def modules(page: Page, body: str, *arguments: Any) -> Any:
    return page.evaluate(
        f"""async (a) => {{
            const at = (name) => import(`/static/console/${{name}}.js`);
            {body}
        }}""",
        list(arguments),
    )


def test_cells_are_as_inert_here_as_on_the_server(blank: Page) -> None:
    """S-61"""
    body = "const { neutral } = await at('export'); return a[0].map(neutral);"
    assert modules(blank, body, CELLS) == [neutral(cell) for cell in CELLS]
    numbers = (
        "const e = await at('export'); return e.csv(['a', 'b'], [[-5, NaN], ['x,\"y', 1e-3]]);"
    )
    assert modules(blank, numbers) == 'a,b\r\n-5,\r\n"x,""y",0.001\r\n'


@pytest.mark.parametrize(
    ("span_s", "first", "text"),
    [(300, 60, "00:01"), (900, 300, "00:05"), (86_400, 14_400, "04:00"), (20, 5, "00:00:05")],
)
def test_a_time_axis_has_round_moments(blank: Page, span_s: int, first: int, text: str) -> None:
    body = "const t = await at('time_axis'); return t.ticks(1, 1 + a[0], 6);"
    found = modules(blank, body, span_s)
    assert 2 <= len(found["tickvals"]) <= 7
    assert found["tickvals"][0] % (first * 1000) == 0 or found["tickvals"][0] > 0
    assert re.fullmatch(r"\d\d:\d\d(:\d\d)?", found["ticktext"][0]), text


def test_marks_say_who_why_and_what_and_hostile_words_stay_words(blank: Page) -> None:
    found = modules(
        blank,
        """const m = await at('annotations');
           const decision = { id: 7, at_s: 1769868300, version: 3, who: "ann", reason: "Held",
               message: a[0], changes: { pd: { threshold_tokens: [4000, null] } } };
           const node = document.createElement("div");
           node.id = "x";
           node._fullLayout = { xaxis: { _offset: 10, _length: 100 } };
           document.body.append(node);
           const marks = new m.Annotations(node);
           const many = Array.from({ length: 40 },
               (_, i) => ({ ...decision, id: i, at_s: 10 * i }));
           const span = { kind: "hold", id: 1, cluster: "", since_s: 100, until_s: null, who: "bob",
               reason: a[0] };
           marks.show({ decisions: many, spans: [span], pages: "/fleets/f" }, [0, 400]);
           const links = [...node.querySelectorAll("a")];
           links.at(-1).dispatchEvent(new Event("focus"));
           const told = node.querySelector(".mark-words");
           const out = { words: m.decisionWords(decision), n: links.length, href: links.at(-1).href,
               told: told.textContent, hidden: told.hidden,
               images: node.querySelectorAll("img").length,
               span: links[0].getAttribute("aria-label"), left: links[0].style.left };
           node.remove();
           return out;""",
        "<img src=x onerror=alert(1)>",
    )
    assert found["words"] == [
        "v3 at 14:05:00 UTC, by ann",
        "Held: <img src=x onerror=alert(1)>",
        "pd: t 4K tok → –",
    ]
    assert found["n"] <= 31
    assert re.search(r"/fleets/f/decisions/(\d+/|\?from=\d+&to=\d+)$", found["href"])
    assert "onerror=alert(1)" in found["told"]
    assert (found["hidden"], found["images"], found["left"]) == (False, 0, "25%")
    assert found["span"].startswith("Held in every cluster, 00:01:40 to now, by bob")


def overview(page: Page) -> Page:
    expect(page.locator("#truth-socket")).to_contain_text("socket ok")
    page.locator("#chart-demand").scroll_into_view_if_needed()
    expect(page.locator("#chart-demand .main-svg").first).to_be_visible()
    return page


def pick(page: Page, chart: str, action: str) -> None:
    panel = page.locator(".panel", has=page.locator(f"#chart-{chart}"))
    if panel.locator("details.chart-menu[open]").count() == 0:
        panel.locator("details.chart-menu summary").click()
    panel.get_by_role("button", name=action, exact=True).click()


def taken(page: Page, chart: str, action: str) -> Download:
    with page.expect_download() as waited:
        pick(page, chart, action)
    return waited.value


def test_a_chart_is_taken_away_as_picture_table_and_call(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    Traffic(server, fleet).send(waiting=3.0)
    page = overview(tab("viewer").open(f"/fleets/{fleet.pk}/"))
    expect(page.locator("#legend-queue")).to_contain_text("pd/prefill")
    table = taken(page, "queue", "Table of what is shown (CSV)")
    assert re.fullmatch(
        rf"{fleet.pk}-Effective-queue-by-pool-[\dT-]+\.csv", table.suggested_filename
    )
    rows = list(csv.reader(io.StringIO(Path(table.path()).read_text())))
    assert rows[0] == [
        "time_utc",
        *(f"{p} (req)" for p in ("prfaas/prefill", "pd/prefill", "pd/decode")),
    ]
    assert ["3", "3", "3"] in [row[1:] for row in rows], "what each pool told, not their sums"
    picture = Path(taken(page, "queue", "Picture (PNG)").path()).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000
    pick(page, "queue", "Copy as curl")
    panel = page.locator(".panel", has=page.locator("#chart-queue"))
    expect(panel.locator("code.command")).to_contain_text("Authorization: Bearer $PRFAAS_TOKEN")
    expect(panel.locator("code.command")).to_contain_text(re.compile(r"since=\d+.*until=\d+"))
    pick(page, "queue", "What is shown")
    expect(panel.locator(".about")).to_contain_text("At most one value each")
    expect(panel.locator(".about tbody tr")).to_have_count(3)


def test_the_crosshair_runs_through_all_charts_and_a_zoom_zooms_all(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    Traffic(server, fleet).send()
    page = overview(tab("viewer").open(f"/fleets/{fleet.pk}/?range=1h"))
    expect(page.locator("#chart-link .main-svg").first).to_be_visible()
    plot = page.locator("#chart-threshold .nsewdrag").first.bounding_box()
    assert plot is not None
    y = plot["y"] + 10
    page.mouse.move(plot["x"] + plot["width"] - 4, y)
    page.mouse.move(plot["x"] + plot["width"] - 8, y)
    for chart in ("threshold", "link"):
        expect(page.locator(f"#chart-{chart} .crosshair")).to_be_visible()
        expect(page.locator(f"#chart-{chart} .crosshair")).to_contain_text("UTC")
    page.mouse.move(plot["x"] + 100, y)
    page.mouse.down()
    page.mouse.move(plot["x"] + 200, y, steps=3)
    page.mouse.up()
    until(page, "location.search.includes('from=')")
    same = """() => {
        const range = (id) => document.getElementById(`chart-${id}`)._fullLayout.xaxis.range.join();
        return range("threshold") === range("link") && range("link") === range("demand");
    }"""
    until(page, same)
    page.mouse.dblclick(plot["x"] + 150, y)
    until(page, "!location.search.includes('from=')")


def heap(session: CDPSession) -> int:
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


@pytest.mark.parametrize(
    ("n_frames", "step_s"),
    [
        (2880, 30),
        pytest.param(86_400, 1, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_a_day_of_frames_does_not_grow_the_heap(
    tab: Open, fleet: Fleet, server: servers.Server, n_frames: int, step_s: int
) -> None:
    """S-48"""
    traffic = Traffic(server, fleet)
    traffic.send()
    traffic.loop()
    page = overview(tab("viewer").open(f"/fleets/{fleet.pk}/?range=6h"))
    until(page, "import('/static/console/live.js').then(({live}) => Boolean(live.frame?.loop))")
    session = page.context.new_cdp_session(page)
    page.evaluate(FEED, [n_frames // 8, step_s])
    before = heap(session)
    longest = page.evaluate(FEED, [n_frames - n_frames // 8, step_s])
    assert heap(session) - before < HEAP_GROWTH_BYTES
    assert longest <= 1440


def test_a_hidden_tab_rests_and_comes_back_with_one_snapshot(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    """S-48"""
    traffic = Traffic(server, fleet)
    traffic.send(waiting=3.0)
    page = overview(tab("viewer").open(f"/fleets/{fleet.pk}/"))
    page.evaluate(
        """async () => {
            const { live } = await import("/static/console/live.js");
            window.seen = { frames: 0, draws: 0, sent: [] };
            live.addEventListener("frame", () => (seen.frames += 1));
            const { send } = live.socket;
            live.socket.send = function (text) { seen.sent.push(text); send.call(this, text); };
            for (const name of ["update", "react"]) {
                const draw = Plotly[name];
                Plotly[name] = (...of) => { seen.draws += 1; return draw(...of); };
            }
            window.isAway = true;
            Object.defineProperty(document, "hidden", { get: () => window.isAway });
            document.dispatchEvent(new Event("visibilitychange"));
            seen.frames = seen.draws = 0;
        }"""
    )
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for waiting in (4.0, 5.0):
        traffic.send(waiting=waiting)
        traffic.loop()
        time.sleep(1.2)
    assert page.evaluate("[seen.frames, seen.draws]") == [0, 0]
    assert asked == []
    page.evaluate("window.isAway = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#legend-queue")).to_contain_text("prfaas/prefill5")
    until(page, "seen.frames >= 2")
    snapshots = "seen.sent.filter((text) => text.includes('snapshot')).length"
    assert page.evaluate(snapshots) == 1
    assert sum("/series?" in url for url in asked) == 1
