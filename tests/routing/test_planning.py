"""The planner's edge: what an address asks, what is recorded, what runs, what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from routing import fleets, planning
from routing.commands import Refused
from routing.core.jsonable import to_jsonable
from routing.core.model.planner import plan_scenario
from routing.core.scenario.document import parse_scenario
from routing.core.types import PdObservation
from routing.models import Fleet, Tick
from routing.planning import Asked
from tests.console.page_case import busy_fleet, observation, tick
from tests.routing.cases import make_fleet, scenario

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def ask(fleet: Fleet, **numbers: Any) -> dict[str, Any]:
    return planning.answer(fleet, Asked({k.replace("__", "."): v for k, v in numbers.items()}))


def test_an_address_is_numbers_by_name_and_where_to_look_from() -> None:
    asked = planning.from_query(
        {
            "cluster": "pd",
            "least_headroom": "1.5",
            "pd.rate_rps": "4",
            "pd.mu": "9.25",
            "pd.lengths": "lognormal",
            "prfaas->pd.gbps": "1e1",
            "prfaas.most_instances": "12",
        }
    )
    assert asked == Asked(
        {"pd.rate_rps": 4, "pd.mu": 9.25, "pd.lengths": "lognormal", "prfaas->pd.gbps": 10.0},
        "pd",
        1.5,
        {"prfaas": 12},
    )
    assert planning.from_query({}) == Asked()


def test_without_numbers_it_is_the_plan_of_the_scenario(fleet: Fleet) -> None:
    found = ask(fleet)
    assert found["optimum"] == plan_scenario(fleets.scenario_of(fleet))
    assert (found["plan"], found["changed"]) == (None, {})
    assert found["recorded"] == {"at_s": None, "clusters": {}}


def test_changed_numbers_are_told_beside_what_they_were(fleet: Fleet) -> None:
    found = ask(fleet, pd__rate_rps=4, pd__sigma=1.0, pd__lengths="lognormal")
    assert found["changed"] == {
        "pd.rate_rps": {"scenario": 2.5, "asked": 4},
        "pd.lengths": {"scenario": None, "asked": "lognormal"},
    }
    document = scenario()
    document["workload"]["rate_rps"] = 4
    assert found["optimum"] == plan_scenario(parse_scenario(document))
    assert Fleet.objects.get().scenario == scenario(), "nothing is written"


def test_the_plan_in_force_is_the_newest_of_the_fleet() -> None:
    found = planning.answer(busy_fleet(), Asked())
    assert found["plan"] == "1.2"
    runs = found["running"]["clusters"]["pd"]
    assert (runs["threshold_tokens"], runs["n_prefill"], runs["n_decode"]) == (6000, 3, 5)
    assert found["running"]["headroom"] < found["optimum"]["headroom"]


def test_recorded_lengths_are_those_of_the_newest_tick(fleet: Fleet) -> None:
    now = timezone.now()
    other = observation("f1", now.timestamp(), lengths=None, demand_rps=None)
    old = tick(fleet, now - timedelta(minutes=1))
    old.observed = to_jsonable(other)
    old.save()
    tick(fleet, now)
    found = ask(fleet, pd__lengths="recorded")
    document = scenario()
    document["workload"]["lengths"] = {
        "kind": "empirical",
        "buckets": [[1e3, 1.0], [1e4, 2.0], [1.1e4, 3.0]],
    }
    assert found["optimum"] == plan_scenario(parse_scenario(document))
    assert found["recorded"]["at_s"] == now.timestamp()
    assert found["recorded"]["clusters"] == {"pd": {"demand_rps": 2.5, "n_requests": 6}}


def test_a_tick_of_another_release_records_nothing(fleet: Fleet) -> None:
    tick(fleet, timezone.now())
    Tick.objects.update(observed={"pd": {}, "else": 1})
    assert planning.recorded(fleet).pd == {}
    with pytest.raises(Refused, match="no lengths were counted"):
        ask(fleet, pd__lengths="recorded")


def test_lengths_that_nobody_counted_are_not_recorded(fleet: Fleet) -> None:
    seen = PdObservation(None, "missing", None, 3, 5)
    row = tick(fleet, timezone.now())
    row.observed = {**row.observed, "pd": {"pd": to_jsonable(seen)}}
    row.save()
    assert ask(fleet)["recorded"]["clusters"] == {"pd": {"demand_rps": None, "n_requests": None}}
    with pytest.raises(Refused) as refused:
        ask(fleet, pd__lengths="recorded")
    assert (refused.value.field, refused.value.value) == ("pd.lengths", "recorded")


def test_the_cheapest_fleet_has_the_policys_headroom_unless_another_is_asked(fleet: Fleet) -> None:
    fleet.policy.knobs = {"headroom_target": 1.4}
    assert ask(fleet)["cheapest"]["least_headroom"] == 1.4
    asked = Asked(least_headroom=1.1, most_instances={"pd": 5, "prfaas": 20})
    found = planning.answer(fleet, asked)["cheapest"]
    assert found["least_headroom"] == 1.1
    assert found["searched"] == {"prfaas": (0, 20), "pd": (2, 5)}
    assert found["found"]["counts"]["pd"] <= 5
    smaller = planning.answer(fleet, Asked({"pd.instances": 5}))["cheapest"]
    assert smaller["searched"]["pd"] == (2, 16), "twice what the scenario has, whatever is asked"


REFUSED = [
    (Asked({"pd.rate_rps": "lots"}), "pd.rate_rps", "lots", "must be a number"),
    (Asked({"nowhere.gbps": 3}), "nowhere.gbps", 3, "is no number of this fleet"),
    (Asked({"slo.tokens_per_s": 90}), "slo.tokens_per_s", 90, "decodes 40 tokens/s"),
    (Asked(cluster="prfaas"), "cluster", "prfaas", "must be a PD cluster in service: pd"),
    (Asked(least_headroom=0.5), "least_headroom", 0.5, "must be a number in 1..10"),
    (Asked(least_headroom="much"), "least_headroom", "much", "must be a number in 1..10"),
    (Asked(most_instances={"gone": 3}), "gone.most_instances", 3, "is no cluster of this fleet"),
    (Asked(most_instances={"pd": 2.5}), "pd.most_instances", 2.5, "whole number in 1..256"),
    (Asked(most_instances={"pd": 1000}), "pd.most_instances", 1000, "whole number in 1..256"),
]


@pytest.mark.parametrize(("asked", "field", "value", "says"), REFUSED, ids=[r[1] for r in REFUSED])
def test_what_cannot_be_meant_names_field_and_value(
    fleet: Fleet, asked: Asked, field: str, value: Any, says: str
) -> None:
    with pytest.raises(Refused, match="^" + field.replace(".", r"\.")) as refused:
        planning.answer(fleet, asked)
    assert (refused.value.field, refused.value.value) == (field, value)
    assert says in refused.value.message
