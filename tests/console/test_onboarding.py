"""The onboarding page and its API: what is expected, what came, what fits, what to type next."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from telemetry import wire
from telemetry.models import Source
from tests.console import onboarding_case as case
from tests.console.api_case import conforms, machine, person, send, token
from tests.console.test_pages import text, words
from tests.routing.cases import make_fleet
from tests.telemetry import batches
from tests.telemetry.rows import clear_landing, commit

pytestmark = pytest.mark.django_db


def page(client: Client, fleet: str = "f1", **query: str) -> str:
    return text(client, "fleet-onboarding", fleet, **query)


def row(client: Client, path: str, fleet: str = "f1") -> str:
    """The visible words of one source's row."""
    html = client.get(reverse("fleet-onboarding", args=[fleet])).content.decode()
    place = re.escape(escape(path))
    found = re.search(rf'<tr data-source="{place}".*?</tr>', html, re.DOTALL)
    assert found, f"no row {path}"
    return words(found[0])


def test_both_pages_need_a_login_and_a_group() -> None:
    make_fleet()
    for path in ("/onboarding/", "/fleets/f1/onboarding/"):
        assert Client().get(path)["Location"] == f"/login/?next={path}"
    nobody = person("nobody")
    assert nobody.get("/onboarding/").status_code == 403
    assert person("viewer").get("/fleets/none/onboarding/").status_code == 404


def test_without_a_fleet_the_first_step_is_to_register_one(viewer: Client) -> None:
    found = text(viewer, "onboarding")
    assert "From nothing to the first figures" in found
    assert "python3 -m uv run manage.py fleet apply scenario.toml" in found


def test_before_anything_reports_a_path_leads_to_the_first_figures(viewer: Client) -> None:
    make_fleet()
    found = page(viewer)
    steps = (
        "f1 is registered",
        "manage.py token issue agent-prfaas --scope ingest --fleet f1 &gt; agent.token",
        "console_url = &quot;http://testserver&quot;",
        "id = &quot;f1/prfaas/h200-1&quot;",
        "python -m telemetry.agent --config agent.toml --once --print",
        "First figures stand here",
    )
    places = [found.index(step) for step in steps]
    assert places == sorted(places)
    assert "What to do next" in found  # hidden, and without what the path says already
    assert "Have an agent read" not in found


def test_a_token_that_exists_is_a_step_that_is_done(viewer: Client) -> None:
    make_fleet()
    step = "Issue a token for the agent"
    assert f"done {step}" not in labelled(viewer)
    make_fleet("other")
    token("ingest", fleet="other")
    assert f"done {step}" not in labelled(viewer)
    token("ingest")
    assert f"done {step}" in labelled(viewer)


def labelled(client: Client) -> str:
    """The page's words with the labels of its icons."""
    html = client.get("/fleets/f1/onboarding/").content.decode()
    return words(re.sub(r'aria-label="([^"]*)"[^>]*>', r"> \1 ", html))


def test_a_fleet_in_health_says_so_and_names_no_command(viewer: Client) -> None:
    make_fleet()
    case.well()
    found = page(viewer)
    assert "Everything that is expected reports, with every signal" in found
    assert "instances of pd 8 of 8 received all read well" in found
    assert "instances of prfaas 4 of 4 received" in found
    assert "Nothing. All that is expected comes in." in found
    assert "uncached_tokens 1 gate, for threshold t" in found
    assert "telemetry.agent" not in found


def test_what_was_never_read_gets_the_lines_to_add(viewer: Client) -> None:
    make_fleet()
    case.well(n_pd=6)
    Source.objects.filter(kind="link").delete()
    found = page(viewer)
    assert "instances of pd 6 of 8 received 6 read well" in found
    assert "Have an agent read 2 instances of pd" in found
    assert "f1/pd/h20-7" in found
    assert "f1/pd/h20-8" in found
    assert "Have an agent of prfaas read link prfaas → pd" in found
    assert "read by no agent" in row(viewer, "prfaas->pd")


def test_a_signal_that_decisions_need_is_missed_by_name_and_reason(viewer: Client) -> None:
    make_fleet()
    case.well()
    case.report(
        "a1",
        case.tells("f1/pd/gw-1", "router", without=("uncached_tokens",)),
        case.tells("f1/pd/h20-4", role="decode", without=("requests_waiting",)),
        case.tells("f1/pd/h20-5", role="decode", without=("preemptions_total",)),
    )
    found = page(viewer)
    assert "Have 1 gate tell uncached_tokens" in found
    assert "no t is computed" in found
    assert "no series of this engine says it" in found
    told = row(viewer, "f1/pd/h20-4")
    assert "1 signal missing that decisions need" in told
    assert "requests_waiting" in told
    # What decides nothing is told of, and is no trouble.
    assert "preemptions_total" in row(viewer, "f1/pd/h20-5")
    assert "fresh" in row(viewer, "f1/pd/h20-5")


@pytest.mark.django_db(transaction=True)
def test_without_a_report_the_newest_reading_tells_what_is_there(viewer: Client) -> None:
    make_fleet()
    now_s = timezone.now().timestamp()
    sample = batches.instance("f1/pd/d1", now_s - 2, signals={"requests_waiting": 0.0})
    gate = batches.router("f1/pd/gw-1", now_s - 2, state="failed", error="refused")
    commit(batches.batch(batches.unique("agent"), sample, gate), received_s=now_s)
    told = row(viewer, "f1/pd/d1")
    assert "kv_cache_usage_ratio" in told
    assert "requests_waiting " not in told.replace("requests_waiting_by_stage", "")  # zero is told
    assert "read failed: refused" in row(viewer, "f1/pd/gw-1")
    clear_landing()


def test_a_report_that_is_long_past_is_not_believed(viewer: Client) -> None:
    make_fleet()
    case.source("f1/pd/d1", role="decode")
    case.agent("a1")
    case.report("a1", case.tells("f1/pd/d1", state="failed", error="was down"), silent_s=600)
    assert "was down" not in row(viewer, "f1/pd/d1")
    assert "not told" in row(viewer, "f1/pd/d1")


@pytest.mark.parametrize(
    ("state", "says"),
    [("failed", "read failed: 500"), ("slow", "unresponsive, maybe busy"), ("down", "down: 500")],
)
def test_down_failing_and_slow_are_told_apart(viewer: Client, state: str, says: str) -> None:
    make_fleet()
    case.well()
    case.report(
        "a1", case.tells("f1/pd/h20-1", state=state, error=None if state == "slow" else "500")
    )
    assert says in row(viewer, "f1/pd/h20-1")
    assert ("never counts as idle" in page(viewer)) == (state == "slow")


def test_one_fault_at_many_addresses_is_one_gap_with_an_address_to_ask(viewer: Client) -> None:
    make_fleet()
    case.well()

    def refused(n: int) -> str:
        to = f"10.0.0.{n}:800{n}"
        return f"Cannot connect to host {to} [Connect call failed] from http://{to}/metrics"

    case.report(
        "a1",
        *(case.tells(f"f1/pd/h20-{n}", state="down", error=refused(n)) for n in (1, 2, 3)),
        case.tells("f1/pd/h20-4", state="failed", error="HTTP 500 from http://h$(rm)/metrics"),
    )
    found = page(viewer)
    assert "Look at 3 sources that cannot be read pd/h20-1, pd/h20-2, pd/h20-3." in found
    assert "curl -sS -i -m 10 http://10.0.0.1:8001/metrics | head -n 20" in found
    assert "Look at pd/h20-4: it cannot be read" in found
    # A command is typed, and an error is text of others.
    assert "curl -sS -i -m 10 http://HOST:8000/metrics" in found
    assert "10 http://h$" not in found


def test_a_router_of_another_make_is_read_and_is_no_gate(viewer: Client) -> None:
    make_fleet()
    case.well()
    Source.objects.filter(kind="router").update(engine="dynamo-frontend")
    lacks = ("uncached_tokens", "movable_tokens_total")
    case.report("a1", case.tells("f1/pd/gw-1", "router", without=lacks, engine="dynamo-frontend"))
    found = page(viewer)
    assert "gates of pd 0 of 1 received none read" in found
    assert "Put a gate in front of pd" in found
    assert "tell uncached_tokens" not in found
    assert "fresh" in row(viewer, "f1/pd/gw-1")


def test_a_signal_s_example_is_of_the_reason_it_stands_beside(viewer: Client) -> None:
    make_fleet()
    case.well()
    lacks = ("requests_waiting",)
    case.report(
        "a1",
        case.tells("f1/pd/h20-4", role="decode", without=lacks, missing={lacks[0]: "odd"}),
        *(case.tells(f"f1/pd/h20-{n}", role="decode", without=lacks) for n in (5, 6)),
    )
    assert "f1/pd/h20-5: no series of this engine says it" in page(viewer)
    assert "f1/pd/h20-4: no series" not in page(viewer)


@pytest.mark.parametrize(("lived_s", "shown"), [(1, "–"), (100, "2.00 %")])
def test_the_cost_of_starting_is_not_the_cost_of_an_agent(
    viewer: Client, lived_s: int, shown: str
) -> None:
    make_fleet()
    case.well()
    case.report("a1", started_s=timezone.now().timestamp() - lived_s, cpu_s=2.0)
    html = viewer.get("/fleets/f1/onboarding/").content.decode()
    assert re.findall('data-label="CPU">([^<]*)', html) == [shown]


def test_telemetry_of_nothing_registered_is_listed_and_not_dropped(viewer: Client) -> None:
    make_fleet()
    make_fleet("other")
    case.well()
    for path in ("f9/pd/x", "f1/pdd/x", "other/nope/x"):
        case.source(path, role="decode", by="a2")
    case.source("pd->moon", "link", by="a2")
    case.agent("a2")
    found = page(viewer)
    assert "no fleet is called f9" in row(viewer, "f9/pd/x")
    assert "fleet f1 has no cluster pdd" in row(viewer, "f1/pdd/x")
    assert "no fleet has this link" in row(viewer, "pd->moon")
    assert "Give 1 source a place" in found
    # What names another registered fleet is that fleet's to see, and the site's.
    assert "other/nope/x" not in found
    assert "fleet other has no cluster nope" in text(viewer, "onboarding")
    assert "instances of pd 8 of 8" in found  # it counts for nothing


def test_a_link_of_two_fleets_is_of_both(viewer: Client) -> None:
    make_fleet("a1-fleet")
    make_fleet("f1")
    case.well("f1")
    case.source("a1-fleet/pd/h20-1", role="prefill", by="a2")
    case.agent("a2")
    for fleet in ("f1", "a1-fleet"):
        assert "links 1 of 1 received all read well" in page(viewer, fleet)
    site = text(viewer, "onboarding")
    assert site.count("1 of 1 received all read well") == 3  # both links, and the gate of f1
    assert "read link prfaas" not in site


def test_series_no_map_knows_are_listed_by_engine(viewer: Client) -> None:
    make_fleet()
    case.well()
    names = [f"vllm:strange_{n}" for n in range(3)]
    case.report(
        "a1",
        *(case.tells(f"f1/pd/h20-{n}", unmatched=names[:n], n_unmatched=40 + n) for n in (1, 2, 3)),
    )
    found = page(viewer)
    assert "vllm:strange_0 vllm 3 f1/pd/h20-1" in found
    assert "vllm:strange_2 vllm 1 f1/pd/h20-3" in found
    assert "43 unknown" in row(viewer, "f1/pd/h20-3")


def test_a_batch_too_large_is_counted_and_takes_nobody_down(viewer: Client) -> None:
    make_fleet()
    case.well()
    case.agent("a1", silent_s=60)
    Source.objects.update(last_seen_at=timezone.now())
    case.refusal(413, name="a1", count=37, error="the body is larger than 8388608 bytes")
    found = page(viewer)
    assert "its batches are refused: 413" in found
    assert "37 × 413" in found
    assert "Send less at once" in found
    assert "CONSOLE_INGEST_MAX_BYTES=" in found
    assert "Agent a1 has been silent" not in found


def test_a_clock_ahead_is_said_to_be_that_also_where_nothing_was_ever_stored(
    viewer: Client,
) -> None:
    make_fleet()
    case.well()
    case.refusal(
        422,
        name="a9",
        field="instances[].at_s",
        error="900 s ahead of this console: the clock of agent a9 is wrong",
    )
    case.agent("a1", skew_s=-12.0)
    found = page(viewer)
    assert "a9 its clock is ahead: its batches are refused" in found
    assert "Set the clock of a9" in found
    assert "The clock of a1 is 12 s behind" in found
    assert "timedatectl status" in found


def test_of_two_estimates_of_a_clock_the_nearer_one_counts(viewer: Client) -> None:
    make_fleet()
    case.well()
    case.agent("a1", skew_s=-40.0)  # batches that waited in a spool
    case.report("a1", skew_s=0.3)
    assert "Set the clock" not in page(viewer)


def test_drops_bad_lines_and_the_spool_are_shown(viewer: Client) -> None:
    make_fleet()
    case.well()
    case.report(
        "a1",
        case.tells("f1/pd/h20-1", n_bad_lines=3, warnings=["two ranks of four"]),
        n_dropped_batches=12,
        n_spooled_batches=5,
        spooled_bytes=2048,
    )
    found = page(viewer)
    assert "it dropped readings" in found
    assert "12 batches left its full spool unsent" in found
    assert "5 batches, 2 KiB" in found
    assert "3 lines that could not be read" in found
    assert "two ranks of four" in row(viewer, "f1/pd/h20-1")


def test_an_instance_that_was_replaced_is_gone_and_not_missed(viewer: Client) -> None:
    make_fleet()
    case.well()
    case.source("f1/pd/old", role="decode", by="a0", silent_s=600)
    assert "gone since" in row(viewer, "f1/pd/old")
    found = page(viewer)
    assert "instances of pd 8 of 8 received all read well" in found
    assert "Nothing. All that is expected comes in." in found
    Source.objects.filter(path="f1/pd/h20-1").update(
        last_seen_at=timezone.now() - timedelta(seconds=600), agent="a0"
    )
    assert "silent since" in row(viewer, "f1/pd/old")
    Source.objects.filter(path="f1/pd/old").update(last_seen_at=timezone.now() - timedelta(days=2))
    assert "f1/pd/old" not in page(viewer)


def test_an_instance_that_left_its_agents_configuration_is_gone_at_once(viewer: Client) -> None:
    make_fleet()
    case.well()
    case.source("f1/pd/left", role="decode")
    assert "a1 reads it no more" in row(viewer, "f1/pd/left")
    assert "instances of pd 8 of 8 received all read well" in page(viewer)


def test_the_table_of_sources_may_lag_behind_what_agents_say(viewer: Client) -> None:
    make_fleet()
    case.well()
    Source.objects.update(last_seen_at=timezone.now() - timedelta(seconds=290))
    assert "fresh" in row(viewer, "f1/pd/h20-1")
    assert "Everything that is expected reports" in page(viewer)


def test_what_a_door_matched_to_nothing_is_listed(viewer: Client) -> None:
    make_fleet()
    case.well()
    case.agent("door")
    case.source("f1/pd/h20-1", role="prefill", by="door")
    stray = wire.SourceReport(kind="unmatched", id="rules", unmatched=["up{job=x}"], n_unmatched=1)
    case.report("door", case.tells("f1/pd/h20-1", role="prefill"), stray)
    assert "up{job=x} no rule 1 door, rules" in page(viewer)


def test_a_silent_agent_gets_the_command_that_starts_it(viewer: Client) -> None:
    make_fleet()
    case.well()
    case.agent("a1", silent_s=100)
    Source.objects.update(last_seen_at=timezone.now() - timedelta(seconds=100))
    found = page(viewer)
    assert "Bring agent a1 back" in found
    assert "python -m telemetry.agent --config agent.toml" in found
    assert found.count("Bring agent") == 1  # one cause, not one for each of its sources
    assert "Read the instances" not in found


def test_many_gaps_of_one_kind_are_one_and_hide_no_other(viewer: Client) -> None:
    make_fleet(pd={"instances": 40})
    case.well(n_pd=10)
    for n in range(11, 41):
        case.source(f"f1/pd/h20-{n}", by=f"b{n}", silent_s=90)
        case.agent(f"b{n}", silent_s=90)
    case.report("a1", n_dropped_batches=1)
    html = viewer.get("/fleets/f1/onboarding/").content.decode()
    titles = re.findall("<h3 class=.*?>(.*?)</h3>", html)
    assert titles == ["Bring 30 agents back", "Give a1 more room"]
    assert "30 agents (b11, b12, b13 and 27 more) have been silent" in words(html)


def test_a_few_silent_agents_of_one_kind_are_one_gap_too(viewer: Client) -> None:
    make_fleet()
    case.well(n_pd=4)
    for n in range(5, 9):
        case.source(f"f1/pd/h20-{n}", by=f"b{n}", silent_s=90)
        case.agent(f"b{n}", silent_s=90)
    found = page(viewer)
    assert "Bring 4 agents back" in found
    assert "The same holds for 3 more." in found


def test_sources_are_filtered_and_paged_with_trouble_first(viewer: Client) -> None:
    make_fleet(pd={"instances": 150})
    case.well(n_pd=150)
    case.report("a1", case.tells("f1/pd/h20-99", state="failed", error="500"))
    html = viewer.get("/fleets/f1/onboarding/").content.decode()
    shown = re.findall(r'<tr data-source="([^"]*)"', html)
    assert (len(shown), shown[0]) == (50, "f1/pd/h20-99")
    assert "page 1 of 4" in words(html)
    last = viewer.get("/fleets/f1/onboarding/?page=4").content.decode()
    assert len(re.findall("<tr data-source=", last)) == 6
    trouble = viewer.get("/fleets/f1/onboarding/?show=trouble").content.decode()
    assert re.findall(r'<tr data-source="([^"]*)"', trouble) == ["f1/pd/h20-99"]
    gates = viewer.get("/fleets/f1/onboarding/?show=router&q=GW").content.decode()
    assert re.findall(r'<tr data-source="([^"]*)"', gates) == ["f1/pd/gw-1"]
    assert "No source matches" in page(viewer, q="nothing like it")


def test_text_of_agents_cannot_write_the_page(viewer: Client) -> None:
    make_fleet()
    evil = "<script>alert(1)</script>"
    case.well()
    case.report("a1", case.tells("f1/pd/h20-1", unmatched=[evil], warnings=[evil]))
    case.source("f1/x<b>/y", role="decode")
    html = viewer.get("/fleets/f1/onboarding/").content.decode()
    assert evil not in html
    assert "x<b>" not in html


def test_the_api_says_the_same_for_a_fleet_and_for_the_site() -> None:
    make_fleet()
    case.well()
    case.report("a1", case.tells("f1/pd/gw-1", "router", without=("uncached_tokens",)))
    case.source("f9/pd/x", role="decode")
    reader = machine("read")
    body = conforms(send(reader, "get", "/telemetry/sources?state=trouble"), "/telemetry/sources")
    assert [(one["id"], one["state"]) for one in body["results"]] == [
        ("f9/pd/x", "unmatched"),
        ("f1/pd/gw-1", "incomplete"),
    ]
    gate = body["results"][1]
    assert gate["missing"][0]["signal"] == "uncached_tokens"
    assert gate["missing"][0]["decides"] is True
    assert "no t is computed" in gate["missing"][0]["without"]
    mine = conforms(
        send(machine("read", fleet="f1"), "get", "/fleets/f1/telemetry/sources?kind=link"),
        "/fleets/{fleet}/telemetry/sources",
    )
    assert [one["id"] for one in mine["results"]] == ["prfaas->pd"]
    assert send(machine("read", fleet="f1"), "get", "/telemetry/sources").status_code == 403
    assert send(machine("ingest"), "get", "/telemetry/sources").status_code == 403
    wrong = send(reader, "get", "/telemetry/sources?state=odd")
    assert (wrong.status_code, list(wrong.json()["errors"])) == (422, ["state"])
