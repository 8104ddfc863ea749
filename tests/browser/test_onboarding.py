"""The onboarding page in a browser: from an empty fleet to its first figures, and what breaks."""

from __future__ import annotations

import re
import time

import msgspec
from playwright.sync_api import expect

from routing.models import Fleet
from telemetry import wire
from tests import servers
from tests.browser.conftest import Open
from tests.browser.traffic import Traffic
from tests.console import onboarding_case as case
from tests.console.api_case import token
from tests.telemetry import batches


def address(fleet: Fleet) -> str:
    return f"/fleets/{fleet.pk}/onboarding/"


def test_the_first_batch_ends_the_path_without_a_reload(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    page = tab(hurried=True).open(address(fleet))
    page.evaluate("window.same = true")
    expect(page.locator("#onboarding-path")).to_contain_text("Issue a token for the agent")
    expect(page.locator("#onboarding-gaps")).to_be_hidden()
    Traffic(server, fleet).send()
    expect(page.locator("#onboarding-path")).to_have_count(0)
    row = page.locator(f"tr[data-source='{fleet.pk}/pd/d1']")
    expect(row).to_contain_text("fresh")
    expect(page.locator("#onboarding-gaps")).to_contain_text("Have an agent read 6 instances of pd")
    expect(page.locator("#onboarding-signals [data-signal=uncached_tokens]")).to_contain_text(
        "told by none"
    )
    assert page.evaluate("window.same") is True


def test_a_report_that_a_batch_carries_is_on_the_page(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    agent, path = batches.unique("agent"), f"{fleet.pk}/pd/d1"
    report = wire.AgentReport(
        version="9.8.7",
        n_dropped_batches=3,
        sources=[case.tells(path, role="decode", unmatched=["vllm:odd"], n_unmatched=1)],
    )
    batch = batches.batch(agent, batches.instance(path, time.time()))
    answer = server.post(msgspec.structs.replace(batch, report=report), token("ingest"))
    assert answer.status == 200, answer
    page = tab("viewer").open(address(fleet))
    expect(page.locator("#onboarding-strangers")).to_contain_text("vllm:odd")
    row = page.locator(f"tr[data-agent-row='{agent}']")
    expect(row).to_contain_text("it dropped readings")
    expect(row).to_contain_text("9.8.7")
    expect(page.locator(f"tr[data-source='{path}']")).to_contain_text("1 unknown")


def test_commands_are_copied_with_a_click(tab: Open, fleet: Fleet) -> None:
    page = tab(permissions=["clipboard-read", "clipboard-write"]).open(address(fleet))
    step = page.locator("#onboarding-path li", has_text="Read everything once")
    step.get_by_role("button", name="Copy").click()
    expect(step.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "python -m telemetry.agent --config agent.toml --once --print"


def test_details_that_somebody_reads_stay_open(tab: Open, fleet: Fleet) -> None:
    case.well(fleet.pk)
    page = tab("viewer", hurried=True).open(address(fleet))
    case.report("a1", case.tells(f"{fleet.pk}/pd/h20-1", unmatched=["vllm:odd"], n_unmatched=1))
    row = page.locator(f"tr[data-source='{fleet.pk}/pd/h20-1']")
    row.locator("summary").click()
    expect(row).to_contain_text("vllm:odd")
    # The other parts of the page go on.
    case.refusal(413, name="a1", count=3, error="the body is too large")
    expect(page.locator("#onboarding-refused")).to_contain_text("the body is too large")
    expect(row.locator("details")).to_have_attribute("open", "")


def broken(fleet: Fleet) -> None:
    """Everything that can be wrong, with long words."""
    name = fleet.pk
    case.well(name, n_pd=6)
    long = "vllm:" + "a_series_with_a_name_that_does_not_end_" * 3
    sources = [
        case.tells(f"{name}/pd/h20-4", role="decode", without=("requests_waiting",)),
        case.tells(f"{name}/pd/h20-5", role="decode", state="down", error="refused " * 20),
        case.tells(f"{name}/pd/h20-6", unmatched=[long] * 3, n_unmatched=99, n_bad_lines=4),
        wire.SourceReport(kind="unmatched", id="rules", unmatched=[long], n_unmatched=1),
    ]
    case.report(
        "a1", *sources, n_dropped_batches=9, warnings=["word" * 40], started_s=time.time() - 60
    )
    case.source(f"{name}-typo/pd/" + "x" * 120, role="decode", by="a2")
    case.agent("a2", skew_s=77.0)
    case.refusal(422, name="a-" + "y" * 60, field="instances[].signals", error="must be finite")


def test_on_a_phone_nothing_scrolls_sideways(tab: Open, fleet: Fleet) -> None:
    for prepare in (lambda fleet: None, broken):
        prepare(fleet)
        for path in (address(fleet), "/onboarding/"):
            page = tab(width=390).open(path)
            expect(page.locator("#onboarding-now")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") == 390, path
            wide = page.evaluate(
                "[...document.querySelectorAll('.table-wrap:has(.stacked)')]"
                ".filter((node) => node.scrollWidth > node.clientWidth).length"
            )
            assert wide == 0, path


def test_the_filter_is_in_the_address_and_reached_by_a_key(tab: Open, fleet: Fleet) -> None:
    case.well(fleet.pk)
    page = tab("viewer").open(address(fleet))
    page.get_by_label("Which sources").select_option("router")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile(r"\?show=router&q=#sources$"))
    expect(page.locator("tr[data-source]")).to_have_count(2)  # gw-2 asked for plans only
    expect(page.locator("tr[data-source]").first).to_contain_text("read by no agent")
