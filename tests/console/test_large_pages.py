"""What pages of a large fleet leave undone: of thousands of rows that are alike, or are not shown,
nothing is read or put into words one by one. Their times are the bench's (`bench/pages`)."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import QueryDict
from django.test import RequestFactory
from django.utils import timezone

from console import instances, onboarding, onboarding_words, plans, rebalances, timeline, verdicts
from console.onboarding_rows import Heard, Inventory, Read, Site, SourceRow, source_rows
from console.onboarding_signals import signal_rows
from console.opened import opened_at_tick
from routing.models import Decision, Rebalance
from telemetry import store, wire
from tests.console.page_case import busy_fleet
from tests.telemetry import batches

NOW_S = 1_800_000_000.0
N = 40
SITES = {f"pd-{i:02d}": Site("pd", "h20", 8) for i in range(N)}


def judged(*heard: Heard, found: frozenset[str] = frozenset()) -> list[SourceRow]:
    reads = {
        (one.kind, one.path): Read(frozenset(found), NOW_S, one.last_s) for one in heard if found
    }
    everyone = {"f1": Inventory("f1", SITES, {})}
    return source_rows(heard, reads, everyone, shown="f1", now_s=NOW_S)


def engine(name: str, *, silent_s: float = 1.0, role: str = "decode") -> Heard:
    last_s = NOW_S - silent_s
    return Heard("instance", f"f1/pd-00/{name}", role, "vllm", "", "a", first_s=0.0, last_s=last_s)


def gaps(rows: list[SourceRow], *, has_begun: bool = True) -> tuple[list[Any], int]:
    everyone = {"f1": Inventory("f1", SITES, {})}
    return onboarding_words.gaps(
        everyone, rows, [], [], signal_rows(rows), [], now_s=NOW_S, has_begun=has_begun
    )


def test_what_sources_that_are_alike_lack_is_found_out_once() -> None:
    first, second, other = judged(
        engine("a"), engine("b"), engine("c", role="prefill"), found=frozenset({"requests_waiting"})
    )
    assert first.lacks
    assert first.lacks is second.lacks
    assert first.lacks is not other.lacks
    assert first.mark is second.mark


def test_the_reason_that_an_agent_gives_is_not_another_s() -> None:
    heard = [engine(name) for name in "abc"]
    reads = {}
    for one, why in zip(heard, ("too old", "switched off", "too old"), strict=True):
        report = wire.SourceReport(
            kind="instance", id=one.path, missing={"requests_running": why}, found=["kv"]
        )
        reads["instance", one.path] = Read(frozenset({"kv"}), NOW_S, NOW_S, report=report)
    rows = source_rows(heard, reads, {"f1": Inventory("f1", SITES, {})}, shown="f1", now_s=NOW_S)
    said = [lack.why for row in rows for lack in row.lacks if lack.want.name == "requests_running"]
    assert said == ["too old", "switched off", "too old"]
    [told] = [row for row in signal_rows(rows) if row.want.name == "requests_running"]
    assert (told.n_wanted, told.n_found, told.why) == (3, 0, "too old")
    assert told.example == heard[0].path


def test_each_silence_has_its_own_time() -> None:
    rows = judged(
        engine("a", silent_s=60.0), engine("b", silent_s=60.0), engine("c", silent_s=90.0)
    )
    assert [row.state for row in rows] == ["silent"] * 3
    assert rows[0].mark is rows[1].mark
    assert rows[0].mark.text != rows[2].mark.text


def test_of_hundreds_of_gaps_only_those_that_show_are_put_into_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each cluster lacks its instances, and a gate."""
    said = []
    no_gate = onboarding_words._no_gate
    monkeypatch.setattr(onboarding_words, "_no_gate", lambda *of: said.append(of) or no_gate(*of))
    found, n = gaps(judged(engine("a")))
    unread = [gap for gap in found if gap.key.startswith(("unread:", "no-gate:"))]
    assert len(unread) == onboarding_words.MAX_GAPS
    assert n == len(found) - len(unread) + 2 * N
    assert len(said) == onboarding_words.MAX_GAPS // 2
    assert gaps([], has_begun=False) == ([], 0)


def test_what_a_reading_holds_is_told_from_what_it_does_not() -> None:
    """A zero is told, an empty map is not; readings that hold the same share the set."""
    names = []
    for number in (0.0, 3.0):
        sample = batches.instance("f1/pd/d1", NOW_S, signals={"requests_waiting": number})
        signals = store.from_sample(sample, received_s=NOW_S).signals
        names.append(onboarding.told_of(signals))
    assert "requests_waiting" in names[0]
    assert "requests_swapped" not in names[0]
    assert names[0] is names[1]
    empty = wire.RouterSignals(requests_total={})
    assert "requests_total" not in onboarding.told_of(empty)


def test_a_search_puts_each_state_into_words_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    rows = [
        instances.row_of(
            store.from_sample(
                batches.instance(f"f1/pd/d{n}", NOW_S), received_s=now.timestamp() - silent_s
            ),
            {},
            now,
        )
        for n, silent_s in enumerate((1.0, 2.0, 3.0, 600.0))
    ]
    said = []
    freshness = instances.sources.freshness
    monkeypatch.setattr(
        instances.sources, "freshness", lambda *of: said.append(of) or freshness(*of)
    )
    assert instances.narrowed(rows, QueryDict("q=FRESH")) == rows[:3]
    assert instances.narrowed(rows, QueryDict("q=d3")) == rows[3:]
    assert instances.narrowed(rows, QueryDict("q=silent+since")) == rows[3:]
    assert len(said) == 2  # one word for the fresh ones, and the silent one's, which its row keeps
    said.clear()
    assert instances.narrowed(rows, QueryDict("role=decode")) == rows
    assert said == []


def test_stages_are_put_in_order_once_however_many_clusters_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = []
    stages = verdicts.stages
    monkeypatch.setattr(verdicts, "stages", lambda found: said.append(1) or stages(found))
    names = [f"pd-{i:02d}" for i in range(N)]
    verdict = {
        "current": {
            "bottleneck": "",
            "stages": [
                {"name": f"{kind}:{name}", "capacity_rps": 1.0, "utilisation_ratio": use}
                for name in names
                for kind, use in (("local_prefill", 0.5), ("decode", 0.8))
            ],
        },
        "bottlenecks": {
            name: {"label": "link", "stage": f"local_prefill:{name}", "signs": "", "measured": True}
            for name in names
        },
    }
    found = verdicts.bottlenecks(verdict)
    assert [one["by_model"] for one in found] == [f"Decode {name}" for name in names]
    assert len(said) == 1


@pytest.mark.django_db
def test_a_list_of_decisions_reads_no_plan(django_assert_num_queries: Any) -> None:
    """What changed is found in the database, and is what two whole plans would tell."""
    fleet = busy_fleet()
    newest = timeline.listed(fleet)[0]
    clusters = {
        name: {**newest.plan["clusters"]["pd"], "n_prefill": n} for n, name in enumerate("abc")
    }
    was = {name: plan for name, plan in clusters.items() if name != "b"} | {"gone": clusters["a"]}
    was["c"] = {**was["c"], "threshold_tokens": 1234}
    Decision.objects.filter(pk=newest.pk).update(
        plan={**newest.plan, "clusters": clusters}, previous={**newest.plan, "clusters": was}
    )
    whole = list(timeline.listed(fleet))
    brief = list(timeline.brief(timeline.listed(fleet)))
    with django_assert_num_queries(0):
        found = [timeline.parts(row) for row in brief]
    assert found == [plans.headline(row.previous, row.plan) for row in whole]
    assert [part["cluster"] for part in found[0]] == ["b", "c"]
    assert {frozenset(row.get_deferred_fields()) for row in brief} == {
        frozenset({"plan", "previous"})
    }


@pytest.mark.django_db
def test_pages_read_no_documents_that_they_do_not_show() -> None:
    fleet = busy_fleet()
    request = RequestFactory().get("/")
    request.session = {}  # type: ignore[assignment]
    *_, tick = opened_at_tick(request, fleet.pk)
    assert tick is not None
    assert tick.get_deferred_fields() == {"observed"}
    now = timezone.now()
    Rebalance.objects.create(
        fleet=fleet,
        cluster="pd",
        decision=Decision.objects.filter(fleet=fleet, version=2).get(),
        from_n_prefill=3,
        from_n_decode=5,
        to_n_prefill=4,
        to_n_decode=4,
        drain_timeout_s=60.0,
        created_at=now,
        deadline_at=now,
        updated_at=now,
    )
    [moving], _ = rebalances.lately(fleet)
    assert moving["rebalance"].decision.get_deferred_fields() == {"plan", "previous"}
    assert moving["rebalance"].decision.version == 2
