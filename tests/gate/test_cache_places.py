"""Caches of a cluster with several stacks: told by the stack's name, forgotten by the cluster's."""

from __future__ import annotations

import json

import pytest

from routing.gate.cache_map import place_names
from routing.gate.prefix import PrefixIndex
from tests.gate.test_cache_map import Clock, Gate, chain, keys_of

SEVERAL = ("pd", "far/a", "far/b")


def several(name: str, clock: Clock, places: tuple[str, ...] = SEVERAL) -> Gate:
    gate = Gate(name, clock)
    gate.places = {place: PrefixIndex(None) for place in places}
    gate.map.set_places(gate.places)
    gate.map.opened()
    return gate


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_place_is_its_cluster_unless_that_has_several_stacks() -> None:
    assert place_names("far", ["anything"]) == ["far"]
    assert place_names("far", ["a", "b"]) == ["far/a", "far/b"]


async def test_what_one_stack_holds_no_other_is_believed_to_hold(clock: Clock) -> None:
    a, b, single = several("a", clock), several("b", clock), Gate("c", clock)
    prompt = chain(20)
    a.prefill(prompt, place="far/b")
    [news] = a.says()
    assert (news["place"], keys_of(news)) == ("far/b", prompt)
    await b.hears([news])
    assert [b.believes(prompt, place=place) for place in SEVERAL] == [0, 0, 20]
    await single.hears([news])
    assert single.ignored() == {"unknown_place": 1}, "who knows one cache takes no part of several"


async def test_it_asks_for_stacks_and_for_the_epochs_of_their_cluster(clock: Clock) -> None:
    gate = several("a", clock)
    wanted = json.loads(gate.map.opened())
    assert wanted["places"] == ["far", "far/a", "far/b", "pd"]
    prompt = chain(20)
    for place in SEVERAL:
        gate.prefill(prompt, place=place)
    await gate.hears([{"type": "cache_epoch", "place": "far", "epoch": 7}])
    assert [gate.believes(prompt, place=place) for place in SEVERAL] == [20, 0, 0]


async def test_other_places_keep_what_stays_and_are_asked_for(clock: Clock) -> None:
    gate = several("a", clock, ("pd", "far"))
    await gate.hears([{"type": "cache_epoch", "place": "far", "epoch": 7}])
    prompt = chain(20)
    gate.prefill(prompt, place="far")
    assert len(gate.says()) == 1
    gate.places = {"pd": gate.places["pd"], "far/a": gate.places["far"], "far/b": PrefixIndex(None)}
    gate.map.set_places(gate.places)
    [wanted] = gate.says()
    assert (wanted["type"], wanted["places"]) == ("cache_wanted", ["far", "far/a", "far/b", "pd"])
    assert gate.believes(prompt, place="far/a") == 20
    gate.prefill(chain(5, seed=1), place="far/b")
    [news] = gate.says()
    assert (news["place"], news["epoch"]) == ("far/b", 7), "the cluster's engines did not restart"
