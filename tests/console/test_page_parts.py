"""What pages of large fleets leave out, and the order of what they show."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import Http404
from django.test import RequestFactory
from django.utils import timezone

from console import planner, rebalances, sources
from console.context import GOOD, WARN, Mark
from console.opened import opened_at_tick, opened_running
from routing.core.scenario.document import Scenario, parse_scenario
from routing.models import Fleet
from tests.console import big_site
from tests.console.page_case import busy_fleet
from tests.console.test_rebalances import moving
from tests.routing.cases import SCENARIO, make_fleet


@pytest.fixture(scope="module")
def large() -> Scenario:
    return parse_scenario(big_site.scenario())


def gate(name: str, *, is_good: bool = True, finding: str = "") -> dict[str, Any]:
    tone = GOOD if is_good else WARN
    return {"name": name, "mark": Mark(*tone, "x"), "findings": [finding] if finding else []}


def test_of_many_gates_those_with_something_to_tell_come_first() -> None:
    few = [gate("a"), gate("b", is_good=False)]
    assert sources.worst_first(few) == few
    many = [gate(f"g{n}") for n in range(100)]
    many += [gate("late", is_good=False), gate("odd", finding="acks one plan, shows another")]
    shown = sources.worst_first(many)
    assert [one["name"] for one in shown[:3]] == ["late", "odd", "g0"]
    assert len(shown) == sources.MOST_GATES


def test_the_planner_of_a_small_fleet_has_every_number() -> None:
    assert planner.places_shown(parse_scenario(SCENARIO), "pd", {}) is None


def test_the_planner_of_a_large_fleet_has_what_is_around_a_cluster_and_what_was_changed(
    large: Scenario,
) -> None:
    shown = planner.places_shown(large, "pd-03", {})
    assert shown is not None
    prfaas = {f"prfaas-{n}" for n in range(big_site.N_PRFAAS)}
    assert shown == {"pd-03", *prfaas, *(f"{name}->pd-03" for name in prfaas)}
    asked = {"pd-07.rate_rps": "3", "prfaas-1->pd-09.gbps": "9", "nowhere.gbps": "1", "slo.x": "1"}
    assert planner.places_shown(large, "pd-03", asked) == shown | {"pd-07", "prfaas-1->pd-09"}
    assert planner.places_shown(large, "<b>", {}) == frozenset()


@pytest.mark.django_db
def test_a_fleet_is_opened_with_its_newest_tick_or_its_plan(rf: RequestFactory) -> None:
    request: Any = rf.get("/")
    request.session = {}
    busy_fleet()
    make_fleet("new")
    found, _scenario, tick = opened_at_tick(request, "f1")
    assert tick is not None
    assert (found.pk, request.session["fleet"]) == ("f1", "f1")
    assert tick.seq == max(found.ticks.values_list("seq", flat=True))
    running = opened_running(request, "f1")[2]
    assert (running and running.version) == 2
    for opening in (opened_at_tick, opened_running):
        assert opening(request, "new")[::2] == (Fleet.objects.get(pk="new"), None)
        with pytest.raises(Http404):
            opening(request, "nowhere")


@pytest.mark.django_db
def test_moves_come_with_their_steps_in_one_statement(django_assert_num_queries: Any) -> None:
    row = moving(busy_fleet())
    with django_assert_num_queries(1):
        [under_way], ended = rebalances.lately(row.fleet, row.cluster)
    assert ended == []
    assert under_way["rebalance"].pk == row.pk
    told = [(m["move"].seq, m["move"].step, m["move"].started_at) for m in under_way["moves"]]
    assert told == list(row.moves.order_by("seq").values_list("seq", "step", "started_at"))
    row.state, row.finished_at = "done", timezone.now()
    row.save()
    assert [len(rows) for rows in rebalances.lately(row.fleet)] == [0, 1]
