"""A live chart that moves on without Plotly is what Plotly would draw."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests import servers

# A chart of everything that moves on between two drawings of Plotly's: lines with a gap, dashed
# steps, a filled outline, points that stay, two scales. `step()` adds so many seconds; what is
# drawn then is compared with what Plotly draws of the same.
MOVING = """async ([simplify, stepS]) => {
    const { Board, line } = await import("/static/console/charts.js");
    const { Ring } = await import("/static/console/series.js");
    document.getElementById("moving")?.remove();
    const node = document.createElement("div");
    node.id = "moving";
    node.className = "chart";
    node.style.width = "640px";
    document.body.prepend(node);
    let now = 1769868301.7;
    const bounds = () => [now - 300 * stepS, now];
    const rings = [0, 1, 2, 3].map(() => new Ring(400));
    const add = () => rings.forEach((ring, i) => {
        const gap = i === 1 && Math.floor(now / stepS / 50) % 3 === 0;
        const slow = 30 * Math.sin(now / stepS / 40 + i);
        ring.push(now, gap ? NaN : 50 + slow + 10 * Math.sin(now * 1.7 + i));
    });
    for (let i = 0; i < 330; i += 1, now += stepS) add();
    const begunMs = now * 1000;
    // The scale stays: a highest value that does not leave.
    rings.forEach((ring) => ring.push(now - 0.5, 99.5));
    const x = (ring) => Float64Array.from(ring.times(), (t) => t * 1000);
    const traces = () => [
        { type: "scatter", mode: "lines", name: "filled", x: x(rings[3]),
          y: rings[3].values().slice(), fill: "tozeroy", fillcolor: "rgb(200, 220, 240)",
          line: { width: 0, shape: "hv", simplify } },
        line("linear", rings[0], "rgb(0, 100, 0)", { line: { simplify } }),
        line("gaps", rings[1], "rgb(100, 0, 0)", { line: { simplify } }),
        line("steps", rings[2], "rgb(0, 0, 100)", { line: { simplify, shape: "hv" },
            trace: { yaxis: "y2" } }),
        { type: "scatter", mode: "markers", name: "points", yaxis: "y2",
          x: [begunMs - 60_000 * stepS, begunMs - 20_000 * stepS], y: [20, 60],
          marker: { size: 9, color: "rgb(60, 60, 60)" } },
    ];
    const board = new Board({ bounds, isLive: () => true });
    const chart = board.add({ node, traces, empty: () => "", axes: () => ({
        yaxis: { domain: [0, 0.48] }, yaxis2: { domain: [0.52, 1] } }) });
    const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const until = async (is) => { for (let i = 0; i < 200 && !is(); i += 1) await frame(); };
    await until(() => chart.made);
    let drawings = 0;
    for (const name of ["update", "react"]) {
        const draw = Plotly[name];
        Plotly[name] = (...of) => { drawings += 1; return draw(...of); };
    }
    const paths = () => [...node.querySelectorAll(".trace")].map((trace) =>
        [...trace.querySelectorAll(".js-fill, .js-line")].map((p) => p.getAttribute("d"))
            .filter((d) => d !== "M0,0").join(""));
    const places = () => [...node.querySelectorAll(".xtick, .xtick text, .xgrid, .point")]
        .map((p) => p.getAttribute("transform") + p.textContent);
    window.moving = {
        step: async () => {
            now += stepS;
            add();
            drawings = 0;
            board.tick();
            await until(() => board.dirty.size === 0);
            return drawings;
        },
        anew: async () => { board.mark(chart); await until(() => board.dirty.size === 0); },
        look: () => ({ paths: paths(), places: places(), range: node.layout.xaxis.range,
            last: node.data[1].x.at(-1), at: now * 1000 }),
        rise: () => rings[0].push(now + 0.5, 140),
        node,
    };
}"""


@pytest.fixture(scope="module")
def paper(browser: Browser, server: servers.Server) -> Iterator[Page]:
    """A page to draw charts on; it has none by itself, and no room for Plotly's own styles."""
    context = browser.new_context(bypass_csp=True)
    page = context.new_page()
    page.goto(f"http://{server.host}/login/")
    page.add_style_tag(url="/static/console/charts.css")
    page.add_script_tag(url="/static/console/vendor/plotly-cartesian-4.1.1.min.js")
    yield page
    context.close()


DIFFERING = """async (pictures) => {
    const [one, other] = await Promise.all(pictures.map(async (text) => {
        const image = new Image();
        image.src = `data:image/png;base64,${text}`;
        await image.decode();
        const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
        canvas.drawImage(image, 0, 0);
        return canvas.getImageData(0, 0, image.width, image.height).data;
    }));
    const apart = one.filter((value, i) => Math.abs(value - other[i]) > 48).length;
    return one.length === other.length ? apart / one.length : 1;
}"""


def differing(page: Page, *pictures: bytes) -> float:
    """Share of the values of two pictures' pixels that are clearly apart."""
    texts = [base64.b64encode(picture).decode() for picture in pictures]
    return float(page.evaluate(DIFFERING, texts))


def numbers(paths: list[str]) -> list[list[float]]:
    return [[float(n) for n in re.findall(r"-?[\d.]+", path)] for path in paths]


@pytest.mark.parametrize("step_s", [1, 600])
def test_a_chart_moves_on_as_plotly_would_draw_it(paper: Page, step_s: int) -> None:
    paper.evaluate(MOVING, [False, step_s])
    stepped = [paper.evaluate("moving.step()") for _ in range(20)]
    assert stepped.count(0) >= 16, "a mark of time comes into view or leaves it"
    followed = paper.evaluate("moving.look()")
    assert followed["range"][1] == followed["at"] == followed["last"]
    paper.evaluate("moving.anew()")
    drawn = paper.evaluate("moving.look()")
    assert followed["places"] == drawn["places"]
    assert len(followed["places"]) > 8
    for mine, theirs in zip(numbers(followed["paths"]), numbers(drawn["paths"]), strict=True):
        assert len(mine) > 200 or not theirs
        assert mine[-200:] == pytest.approx(theirs[-200:], abs=0.011)


def test_a_moved_chart_is_the_same_picture(paper: Page) -> None:
    paper.evaluate(MOVING, [True, 1])
    for _ in range(5):
        paper.evaluate("moving.step()")
    chart = paper.locator("#moving")
    followed = chart.screenshot()
    paper.evaluate("moving.anew()")
    assert differing(paper, followed, chart.screenshot()) < 0.002


def test_another_scale_and_a_pointer_have_plotly_draw(paper: Page) -> None:
    paper.evaluate(MOVING, [True, 1])
    paper.evaluate("moving.step()")
    assert paper.evaluate("moving.step()") == 0
    paper.evaluate("moving.rise()")
    assert paper.evaluate("moving.step()") == 1
    assert paper.evaluate("moving.step()") == 0
    paper.locator("#moving").hover()
    assert paper.evaluate("moving.node._fullLayout.xaxis.range[1] === moving.look().at")
    assert paper.evaluate("moving.step()") == 1
