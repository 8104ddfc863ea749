"""From a cluster to a raw sample: what each page of one thing says, and where its numbers lead."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console import instance_page, signal_rows
from routing import fleets
from routing.core.types import Bottleneck, LinkMemory, Memory
from routing.models import Action, Decision, Fleet, ManagedRouter, Rebalance, RoleMove
from telemetry import store, wire
from tests.console.api_case import person
from tests.console.drill_case import EDGES, instance, land, link, now_s
from tests.console.page_case import busy_fleet, decision, prediction, tick
from tests.console.test_pages import text, words
from tests.routing import cases

pytestmark = pytest.mark.django_db

LINK = "prfaas->pd"
PAGES = (
    ("instance", {"id": "pd/e-1"}),
    ("link", {"id": LINK}),
    ("cluster", {"id": "pd"}),
    ("router", {"id": "pd/gw-1"}),
    ("samples", {"kind": "instance", "id": "pd/e-1"}),
)


@pytest.fixture
def busy() -> Fleet:
    """A fleet with a past whose engines, link and gate were read a second ago."""
    fleet = busy_fleet()
    at_s = now_s() - 1.0
    for ago_s in (45.0, 0.0):
        counts = [1.0, 5.0 + (45.0 - ago_s), 3.0, 1.0, 0.0, 0.0]
        ttft = wire.Histogram(EDGES, counts, 9.0)
        land(
            [
                *(instance(f"f1/pd/e-{i}", at_s - ago_s, signals={"ttft_seconds": ttft})
                  for i in range(3)),
                instance("f1/prfaas/x", at_s - ago_s, role="prefill"),
            ]
        )  # fmt: skip
        land([link(LINK, at_s - ago_s)])
        cases.feed([cases.Gate(path="f1/pd/gw-1", plan=(1, 2)).sample(at_s - ago_s)])
    return fleet


def html(client: Client, name: str, **query: Any) -> str:
    response = client.get(reverse(name, args=["f1"]), query)
    assert response.status_code == 200, response.status_code
    return response.content.decode()


@pytest.mark.parametrize(("name", "query"), PAGES, ids=lambda v: str(v)[:12])
def test_a_page_of_one_thing_needs_a_login_and_a_group(
    busy: Fleet, name: str, query: dict[str, str]
) -> None:
    address = reverse(name, args=["f1"])
    assert Client().get(address, query).status_code == 302
    assert person("nobody").get(address, query).status_code == 403


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("instance", {"id": "pd/nobody"}),
        ("instance", {"id": ""}),
        ("link", {"id": "pd->nowhere"}),
        ("link", {}),
        ("cluster", {"id": "nowhere"}),
        ("router", {"id": "pd/nobody"}),
        ("samples", {"kind": "instance", "id": "pd/nobody"}),
        ("samples", {"kind": "engine", "id": "pd/e-1"}),
        ("samples", {"kind": "link", "id": "of->another"}),
    ],
)
def test_what_is_not_there_is_not_found(
    busy: Fleet, viewer: Client, name: str, query: dict[str, str]
) -> None:
    assert viewer.get(reverse(name, args=["f1"]), query).status_code == 404


def test_crumbs_lead_from_a_sample_back_to_the_fleet(busy: Fleet, viewer: Client) -> None:
    page = html(viewer, "samples", kind="instance", id="pd/e-1")
    crumbs = page[page.index('class="crumbs-text"') : page.index("</h1>")]
    assert re.findall(r'href="([^"]+)"', crumbs) == [
        "/fleets/f1/",
        "/fleets/f1/instances/",
        "/fleets/f1/instance/?id=pd%2Fe-1",
    ]
    page = html(viewer, "instance", id="pd/e-1")
    crumbs = page[page.index('class="crumbs-text"') : page.index("</h1>")]
    assert "/fleets/f1/cluster/?id=pd" in crumbs


def test_every_page_of_the_way_down_names_the_next(busy: Fleet, viewer: Client) -> None:
    assert "/fleets/f1/instances/" in html(viewer, "fleet-overview")
    assert "/fleets/f1/instance/?id=pd%2Fe-1" in html(viewer, "cluster", id="pd")
    assert "/fleets/f1/link/?id=prfaas-%3Epd" in html(viewer, "cluster", id="pd")
    assert "/fleets/f1/router/?id=pd%2Fgw-1" in html(viewer, "cluster", id="pd")
    own = html(viewer, "instance", id="pd/e-1")
    assert "samples/?kind=instance&amp;id=pd%2Fe-1&amp;signal=requests_waiting" in own
    assert "signals/?signal=instance.requests_waiting&amp;source=pd%2Fe-1" in own


def test_figures_of_the_overview_lead_to_their_evidence(busy: Fleet, viewer: Client) -> None:
    page = html(viewer, "fleet-overview")
    tiles = page[page.index('class="kpis"') : page.index("Clusters and links")]
    assert re.findall(r'<a href="/fleets/f1/(\w+)/', tiles) == [
        "signals", "decisions", "ticks", "links", "signals",
    ]  # fmt: skip


def test_a_cluster_says_what_it_has_what_limits_it_and_what_was_decided(
    busy: Fleet, viewer: Client
) -> None:
    limits = Bottleneck("prefill", "local_prefill:pd", "26 requests wait", True)
    tick(busy, timezone.now(), current=prediction(1.2), bottlenecks={"pd": limits})
    found = text(viewer, "cluster", "f1", id="pd")
    assert "3 read in the last day, the scenario has 8 of h20" in found
    assert "The plan asks for 3/5 prefill/decode, engines report 0/3" in found
    assert "prefill (Local prefill pd): 26 requests wait." in found
    assert "Measured, not only predicted." in found
    assert "Local prefill pd 83.3 %" in found
    assert "t 6K tok" in found
    assert "v1 no plan → t 4K tok" in found
    assert "from prfaas" in found
    assert "e-1" in found


def test_a_cluster_tells_only_the_decisions_that_touched_it(busy: Fleet, viewer: Client) -> None:
    row = decision(busy, timezone.now(), 3, 6000, previous=6000, message="Nothing of pd changed.")
    Decision.objects.filter(pk=row.pk).update(previous=row.plan)
    assert "Nothing of pd changed." not in text(viewer, "cluster", "f1", id="pd")
    found = text(viewer, "cluster", "f1", id="prfaas")
    assert "Threshold" not in found
    assert "prefill as a service" in found


def test_a_cluster_without_engines_says_how_to_begin(fleet: Fleet, viewer: Client) -> None:
    found = text(viewer, "cluster", "f1", id="pd")
    assert "No agent has reported an instance of this cluster" in found
    assert "Nothing is predicted yet" in found
    assert "No plan yet: every gate sends everything local." in found


def test_an_instance_shows_every_signal_its_state_and_what_it_lacks(
    busy: Fleet, viewer: Client
) -> None:
    found = text(viewer, "instance", "f1", id="pd/e-1")
    assert "requests_waiting Requests in the engine's queue. 2 measured" in found.replace(
        "&#x27;", "'"
    )
    assert "kv_cache_usage_ratio" in found
    assert "P50" in found
    assert "45 in the last minute" in found
    assert "signals it does not tell" in found
    assert "Read by agent a-000 fresh" in found
    assert "vllm 0.32.0" in found


def test_an_instance_that_nobody_reads_any_more_says_since_when(
    fleet: Fleet, viewer: Client
) -> None:
    land([instance("f1/pd/old", now_s() - 90_000)])
    found = text(viewer, "instance", "f1", id="pd/old")
    assert "It has not been read since" in found
    assert "its role is not known" in found
    land([instance("f1/pd/late", now_s() - 60)])
    assert "silent since" in text(viewer, "instance", "f1", id="pd/late")


def list_it(fleet: Fleet, *, desired: str, observed: str) -> ManagedRouter:
    """A router of the cluster that lists e-1."""
    worker = {"status": "ready", "key": "f1/pd/e-1"}
    return ManagedRouter.objects.create(
        fleet=fleet,
        cluster="pd",
        name="stack-1",
        kind="stack",
        url="http://stack",
        state="sync",
        since=timezone.now(),
        desired={"http://e-1": {**worker, "role": desired}},
        observed={"workers": {"http://e-1": {**worker, "role": observed, "requests": 7}}},
        observed_at=timezone.now(),
    )


@pytest.mark.parametrize(
    ("desired", "observed", "says"),
    [
        ("decode", "decode", ("engine and routers agree", "as desired")),
        ("prefill", "prefill", ("it says decode, a router has it as prefill", "as desired")),
        ("decode", "prefill", ("it says decode, a router has it as prefill", "differs")),
    ],
)
def test_the_role_of_an_instance_is_what_it_says_and_what_each_router_lists(
    busy: Fleet, viewer: Client, desired: str, observed: str, says: tuple[str, str]
) -> None:
    list_it(busy, desired=desired, observed=observed)
    found = text(viewer, "instance", "f1", id="pd/e-1")
    assert f"stack-1 stack {desired} {observed} {says[1]} 7" in found
    assert says[0] in found
    assert "The plan asks for 3 prefill and 5 decode instances in this cluster" in found


def test_an_instance_lists_the_moves_it_took_part_in(busy: Fleet, viewer: Client) -> None:
    now = timezone.now()
    moved = Rebalance.objects.create(
        fleet=busy, cluster="pd", from_n_prefill=3, from_n_decode=5, to_n_prefill=4,
        to_n_decode=4, state="failed", requested_by="ann", drain_timeout_s=10.0,
        created_at=now, deadline_at=now, updated_at=now, finished_at=now,
    )  # fmt: skip
    RoleMove.objects.create(
        rebalance=moved, seq=1, instance="f1/pd/e-1", url="u", from_role="decode",
        to_role="prefill", step="restored", error="it did not drain", started_at=now,
    )  # fmt: skip
    found = text(viewer, "instance", "f1", id="pd/e-1")
    assert "decode → prefill" in found
    assert "it did not drain" in found
    assert "asked by ann" in found
    assert "it has had its role" in text(viewer, "instance", "f1", id="pd/e-2")


def test_a_group_moves_together() -> None:
    fleet = cases.make_fleet(
        pd={
            "engines": {f"e-{i}": f"http://e-{i}" for i in range(8)},
            "groups": {"node-a": ["e-0", "e-1"]},
        }
    )
    cluster = fleets.scenario_of(fleet).cluster("pd")
    assert instance_page.group_of(cluster, "e-1") == ("node-a", ("e-0", "e-1"))
    assert instance_page.group_of(cluster, "e-7") is None
    found = text(person("viewer"), "instance", "f1", id="pd/e-1")
    assert "No agent has read it." in found, "the scenario names it"
    assert "Moves with e-0, e-1" in found


def judge(fleet: Fleet, **memory: Any) -> None:
    links = Memory(links={LINK: LinkMemory(**memory)})
    tick(fleet, timezone.now() - timedelta(seconds=4), memory=Memory(links={LINK: LinkMemory()}))
    tick(fleet, timezone.now(), memory=links)


def test_a_link_tells_what_it_is_what_follows_and_its_breaker(busy: Fleet, viewer: Client) -> None:
    at_s = now_s()
    judge(busy, label="down", trouble="down", signs="its breaker is open", breaker="open",
          breaker_at_s=at_s - 20.0, n_openings=2)  # fmt: skip
    page = html(viewer, "link", id=LINK)
    found = words(page)
    assert "down : its breaker is open . It asks for local prefill. It forbids sending" in found
    assert "opened 2 times in a row" in found
    assert "40 Gbps" in found
    assert "the scenario says 100 Gbps" in found
    assert "The scenario names no link back" in found
    assert "Predicted egress 9.40 Gbps, 9.40 %" in found
    assert "Reset breaker" not in found, "a viewer may not"
    assert "/breakers/reset/?link=prfaas-%3Epd" in html(person("operator"), "link", id=LINK)


def test_a_link_tells_what_happened_to_it_and_who_reset_it(busy: Fleet, viewer: Client) -> None:
    judge(busy, label="congested", signs="it sends 98 of 100 Gbps")
    Action.objects.create(
        actor="ann", via="console", verb="breaker.reset", fleet="f1", target=LINK, reason="cable"
    )
    found = text(viewer, "link", "f1", id=LINK)
    assert "congested it sends 98 of 100 Gbps" in found
    assert "ann reset its breaker: cable" in found


def test_a_link_names_the_decisions_it_bound(busy: Fleet, viewer: Client) -> None:
    assert "None: in none of the newest 60 decisions" in text(viewer, "link", "f1", id=LINK)
    row = decision(busy, timezone.now(), 3, 9000, previous=6000, message="The link limits.")
    verdict = row.tick.verdict
    verdict["current"]["bottleneck"] = f"link:{LINK}"
    row.tick.save()
    found = text(viewer, "link", "f1", id=LINK)
    assert "v3 now Prefill imbalance The link limits." in found


def test_a_link_that_nobody_read_says_how_to_read_it(fleet: Fleet, viewer: Client) -> None:
    found = text(viewer, "link", "f1", id=LINK)
    assert "never read" in found
    assert "No agent has read this link in the last day." in found
    assert "The scenario has neither a price nor a cap for this link." in found
    asked = text(viewer, "link", "f1", id=LINK, bill="1")
    assert "No five minutes of this month were measured yet." in asked


def test_a_gate_shows_what_it_runs_what_its_metrics_say_and_its_acks(
    busy: Fleet, viewer: Client
) -> None:
    found = text(viewer, "router", "f1", id="pd/gw-1")
    assert "Desired v2 t 6K tok" in found
    assert "Its metrics show v2 ok" in found
    assert "v2 applied" in found
    assert "v1 applied" in found
    assert "local|short 0" in found
    assert "No agent has read its metrics" in text(viewer, "router", "f1", id="pd/gw-2")


def test_a_router_of_another_make_shows_desired_applied_and_observed(
    busy: Fleet, viewer: Client
) -> None:
    list_it(busy, desired="decode", observed="prefill")
    found = text(viewer, "router", "f1", id="pd/stack-1")
    assert "Engine Desired Last applied Observed" in found
    assert "e-1" in found


def test_raw_samples_are_as_they_landed_and_page_by_time(busy: Fleet, viewer: Client) -> None:
    found = text(viewer, "samples", "f1", kind="instance", id="pd/e-1")
    assert "2 samples" in found
    assert "a-000 1 1" in found
    assert "requests_waiting" in found
    only = html(viewer, "samples", kind="instance", id="pd/e-1", signal="requests_waiting")
    heads = only[only.index("<thead>") : only.index("</thead>")]
    assert re.findall(r"<code>(\w+)</code>", heads) == ["requests_waiting"]
    past = text(viewer, "samples", "f1", kind="instance", id="pd/e-1", until=now_s() - 30)
    assert "1 sample" in past
    assert "Newest" in past
    nothing = text(viewer, "samples", "f1", kind="instance", id="pd/e-1", until=1e9)
    assert "Nothing is kept from before that moment" in nothing


@pytest.mark.parametrize("query", [{"until": "yesterday"}, {"n": "17"}, {"signal": "nonsense"}])
def test_a_question_that_cannot_be_meant_says_which_part(
    busy: Fleet, viewer: Client, query: dict[str, str]
) -> None:
    asked = {"kind": "instance", "id": "pd/e-1", **query}
    answer = viewer.get(reverse("samples", args=["f1"]), asked)
    assert answer.status_code == 422
    assert 'role="alert"' in answer.content.decode()


@pytest.mark.parametrize(("kind", "of"), [("instance", "pd/e-1"), ("link", LINK),
                                          ("router", "pd/gw-1")])  # fmt: skip
def test_raw_samples_as_csv(busy: Fleet, viewer: Client, kind: str, of: str) -> None:
    asked = {"kind": kind, "id": of, "format": "csv"}
    answer = viewer.get(reverse("samples", args=["f1"]), asked)
    lines = b"".join(answer).decode().splitlines()
    assert lines[0].startswith("at_s,received_s,agent,boot,seq,state,error,epoch_s,")
    assert len(lines) == 3


def test_a_signal_is_written_with_the_unit_of_its_name() -> None:
    written = {
        "kv_cache_usage_ratio": (0.5, "50 %"),
        "tx_gbps": (9.4, "9.40 Gbps"),
        "rtt_s": (0.005, "5 ms"),
        "kv_transfer_bytes_total": (2048.0, "2 KiB"),
        "prompt_tokens_total": (19_600.0, "19.6K tok"),
        "requests_per_s": (2.5, "2.50 req/s"),
        "generation_tokens_per_s": (400.0, "400 tok/s"),
        "gpu_power_w": (350.0, "350 W"),
        "requests_waiting": (0.0, "0"),
    }
    for name, (value, words_) in written.items():
        assert signal_rows.number(name, value) == words_
        assert signal_rows.number(name, None) == "–"


def reading(**signals: Any) -> store.Reading:
    return store.from_sample(instance("f1/pd/e", 1.8e9, signals=signals), received_s=1.8e9)


def test_of_a_failed_reading_nothing_is_measured_and_nothing_is_zero() -> None:
    sample = wire.InstanceSample(
        id="f1/pd/e", role="decode", engine="vllm", at_s=1.8e9, state="failed", error="502"
    )
    found = signal_rows.rows(store.from_sample(sample, received_s=1.8e9))
    assert {row.mark.text for row in found.told} == {"read failed"}
    assert {row.value for row in found.told} <= {"–", ""}


def test_what_a_histogram_saw_is_told_only_against_a_reading_of_the_same_process() -> None:
    before = reading(ttft_seconds=wire.Histogram([1.0], [1.0, 0.0], 1.0))
    after = reading(ttft_seconds=wire.Histogram([1.0], [1.0, 3.0], 9.0))

    def ttft(earlier: store.Reading | None) -> str:
        return next(
            r for r in signal_rows.rows(after, earlier).told if r.name == "ttft_seconds"
        ).value

    assert ttft(before) == "P50 > 1 s, P90 > 1 s, P99 > 1 s (3 in the last minute)"
    assert ttft(None) == "4 observations in all"


def test_a_missing_signal_says_why_where_the_agent_told() -> None:
    found = signal_rows.rows(reading(), None, {"gpu_power_w": "not exposed"})
    why = {row.name: row.why for row in found.missing}
    assert why["gpu_power_w"] == "not exposed"
    assert why["gpu_temperature_celsius"] == ""


def test_labels_are_shown_the_largest_first_and_not_without_end() -> None:
    stages = {f"s{i}": float(i) for i in range(60)}
    found = signal_rows.rows(reading(requests_waiting_by_stage=stages)).told
    row = next(row for row in found if row.name == "requests_waiting_by_stage")
    assert row.parts[0] == ("s59", "59")
    assert (len(row.parts), row.n_more) == (40, 20)
