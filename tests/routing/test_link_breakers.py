"""Failing transfers turn remote prefill off in the next tick, and a person may turn it on again."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from routing import fleets, link_breakers, scheduler
from routing.commands import Refused
from routing.models import Action, Fleet, Tick
from telemetry import wire
from tests.console.api_case import conforms, machine, send
from tests.routing.cases import NOW_S, Gate, after, engines, feed, link, make_fleet, steady

pytestmark = pytest.mark.django_db

LINK = "prfaas->pd"


def with_errors(sample: wire.RouterSample, failed: float) -> wire.RouterSample:
    signals = msgspec.structs.replace(sample.signals, errors_total={"remote": failed})
    return msgspec.structs.replace(sample, signals=signals)


def tick(at_s: float) -> Tick:
    feed(engines("f1", at_s=at_s))
    feed([link(at_s=at_s, tx_gbps=9.0, capacity_gbps=100.0, retransmit_ratio=0.0)])
    found = scheduler.run_tick("f1", now=after(at_s), tick_s=2.0)
    assert found is not None
    return found


def mode(fleet: Fleet) -> str:
    decision = fleets.newest_adopted(fleet)
    assert decision is not None
    return decision.plan["clusters"]["pd"]["mode"]


@pytest.fixture
def failed() -> tuple[Fleet, Gate]:
    """A fleet whose remote requests fail from second 2 on, after the tick that read it."""
    fleet, gate = make_fleet(), Gate()
    feed(steady(gate, np.random.default_rng(3)))
    tick(0.0)
    gate.arrive([20_000.0] * 12)
    feed([with_errors(gate.sample(NOW_S + 2.0), 11.0)])
    tick(4.0)
    return fleet, gate


def test_s43_remote_is_off_in_the_tick_that_reads_the_failures(failed: tuple[Fleet, Gate]) -> None:
    fleet, _ = failed
    assert mode(fleet) == "always_local"
    assert link_breakers.breaker_of(fleet, LINK) == "open"


def test_a_reset_is_audited_and_closes_it_with_the_next_tick(failed: tuple[Fleet, Gate]) -> None:
    fleet, gate = failed
    # Real clocks and the test's are hours apart: the row counts by the time that was given.
    link_breakers.reset(
        fleet=fleet, link=LINK, actor="ada", via="test", reason="cable", now=after(40.0)
    )
    row = Action.objects.get(verb="breaker.reset")
    assert (row.actor, row.target, row.before) == ("ada", LINK, {"breaker": "open"})
    feed([with_errors(gate.sample(NOW_S + 41.0), 11.0)])
    tick(42.0)
    assert link_breakers.breaker_of(fleet, LINK) == "closed"
    assert mode(fleet) == "threshold"


def test_a_link_that_is_not_there_is_refused(failed: tuple[Fleet, Gate]) -> None:
    fleet, _ = failed
    with pytest.raises(Refused, match="no such link"):
        link_breakers.reset(
            fleet=fleet, link="a->b", actor="ada", via="test", reason="", now=after(5.0)
        )
    assert not Action.objects.filter(verb="breaker.reset").exists()


def test_over_rest(failed: tuple[Fleet, Gate]) -> None:
    path, client = "/fleets/f1/breakers/reset", machine("operate")
    body: dict[str, Any] = {"link": LINK, "reason": "cable"}
    assert send(client, "post", path, body).status_code == 204
    assert Action.objects.get(verb="breaker.reset").reason == "cable"
    assert send(client, "post", path, {**body, "link": "a->b"}).status_code == 422
    assert send(client, "post", path, {"link": LINK}).status_code == 422


def test_the_links_of_a_fleet_show_what_the_loop_found(failed: tuple[Fleet, Gate]) -> None:
    answer = send(machine("read"), "get", "/fleets/f1/links")
    [row] = conforms(answer, "/fleets/{fleet}/links")["results"]
    assert (row["label"], row["breaker"]) == ("down", "open")
    assert "breaker is open" in row["signs"]
