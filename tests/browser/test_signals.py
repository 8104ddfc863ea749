"""The signals page in a browser: what is drawn, what is said of gaps and of what breaks."""

from __future__ import annotations

import re
import time

from playwright.sync_api import Page, Route, expect

from routing.models import Fleet
from telemetry import wire
from tests import servers
from tests.browser.conftest import Open, until
from tests.console.api_case import token
from tests.telemetry import batches

EDGES = [0.5, 1.0, 2.0]
N_PD = 10
SERIES = re.compile(r"/telemetry/series")


def address(fleet: Fleet, query: str = "") -> str:
    return f"/fleets/{fleet.pk}/signals/{query}"


def feed(server: servers.Server, fleet: Fleet) -> None:
    """Five minutes of ten instances with a minute of silence; half of all first tokens come after
    more than two seconds."""
    now, samples = time.time(), []
    for step in (0, 10, 20, 30, 100, 110, 120, 130, 140, 150):
        for i in range(N_PD):
            ttft = wire.Histogram(EDGES, [0.0, 5.0 * step, 0.0, 5.0 * step], 1.0)
            signals = {"requests_waiting": float(i), "ttft_seconds": ttft}
            samples.append(
                batches.instance(
                    f"{fleet.pk}/pd/d{i}", now - 200 + step, role="decode", signals=signals
                )
            )
    answer = server.post(batches.batch(batches.unique("agent"), *samples), token("ingest"))
    assert answer.status == 200, answer


def drawn(page: Page, chart: str, trace: int) -> list[float | None]:
    """The y values of a chart's trace, once it is there: empty axes come before."""
    expect(page.locator(f"#{chart} .main-svg").first).to_be_visible()
    until(page, f"document.getElementById('{chart}').data.length > {trace}")
    found: list[float | None] = page.evaluate(
        f"[...document.getElementById('{chart}').data[{trace}].y].map((v) => v ?? null)"
    )
    return found


def mapped(page: Page, chart: str) -> list[float | None]:
    """The cells of a chart that is a heat map."""
    page.locator(f"#{chart}").scroll_into_view_if_needed()
    expect(page.locator(f"#{chart} .main-svg").first).to_be_visible()
    found: list[float | None] = page.evaluate(
        f"document.getElementById('{chart}').data[0].z.flat()"
    )
    return found


def test_bands_leave_a_gap_where_nobody_told(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    feed(server, fleet)
    page = tab("viewer").open(address(fleet))
    median = drawn(page, "chart-main", 2)
    first = next(i for i, v in enumerate(median) if v is not None)
    told = median[first : first + 16]
    assert set(told) == {4.5, None}
    assert told.count(None) >= 5
    outline = drawn(page, "chart-main", 0)
    assert outline.count(None) == 2  # two closed areas, nothing over the silence
    expect(page.locator("#legend-main")).to_contain_text("median, last4.50 req")
    cells = mapped(page, "chart-heat")
    assert 0 not in cells
    assert 1 in cells
    rows = mapped(page, "chart-rows")
    assert set(rows) == {None, *map(float, range(N_PD))}
    expect(page.locator("#note-rows")).to_contain_text("Rows 1 to 10 of 10")
    names = page.evaluate("document.getElementById('chart-rows').data[0].meta.rows")
    assert names[0] == "pd/d9"


def test_what_lies_above_the_largest_bound_is_said_and_not_drawn(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    feed(server, fleet)
    page = tab("viewer").open(address(fleet, "?signal=instance.ttft_seconds"))
    p90 = drawn(page, "chart-main", 1)
    assert set(p90) == {None}
    assert any(v is not None for v in drawn(page, "chart-main", 0))
    expect(page.locator("#note-main")).to_contain_text(
        re.compile(r"P90 was above the largest bound, 2 s, in \d+ of \d+ bins")
    )
    expect(page.locator("#legend-main")).to_contain_text("P99, lastabove 2 s")
    expect(page.locator("#note-heat")).to_contain_text("above 2 s, the largest bound")


def test_a_choice_is_a_new_address_and_takes_along_what_it_ends(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    feed(server, fleet)
    page = tab("viewer").open(address(fleet, "?cluster=pd&role=decode&source=pd/d1&range=1h"))
    expect(page.locator("#legend-main")).to_contain_text("pd/d1")
    page.select_option("[name=signal]", "router.requests_waiting")
    page.wait_for_url(re.compile(r"signal=router\.requests_waiting"))
    assert re.search(r"[?&](role|source)=", page.url) is None
    assert "cluster=pd" in page.url
    assert "range=1h" in page.url
    expect(page.locator("main")).to_contain_text(f"No gate of fleet {fleet.pk} has reported.")


def test_an_answer_that_fails_leaves_the_last_one_and_says_so(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    feed(server, fleet)
    made = tab("viewer")
    page = made.page
    page.clock.install()
    made.open(address(fleet))
    drawn(page, "chart-main", 2)
    expect(page.locator("#trouble")).to_be_hidden()

    def fail(route: Route) -> None:
        said = '{"ok": false, "error": "the forwarded history does not answer: timed out"}'
        route.fulfill(status=502, content_type="application/json", body=said)

    page.route(SERIES, fail)
    page.clock.run_for(16_000)
    trouble = page.locator("#trouble")
    expect(trouble).to_contain_text("the forwarded history does not answer: timed out")
    expect(trouble).to_contain_text("Below is what it said at")
    assert any(v is not None for v in drawn(page, "chart-main", 2))
    made.forgive()  # the browser logs every answer of 502
    page.unroute(SERIES)
    page.clock.run_for(16_000)
    expect(trouble).to_be_hidden()
    # The clock that was moved on made the socket look silent too: it is opened anew, maybe twice.
    assert all("WebSocket is closed before" in wrong for wrong in made.wrong), made.wrong
    made.forgive()
