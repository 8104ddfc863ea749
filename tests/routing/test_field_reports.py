"""What the field reports of pools (S-03, S-20, S-22), from stored rows to what the loop sees."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from routing import delivery, fleets, scheduler
from routing.core.types import PdObservation
from routing.models import Fleet, Tick
from routing.observe import observe
from telemetry import store, wire
from tests.routing.cases import (
    NOW_S,
    Gate,
    after,
    engines,
    feed,
    instance,
    link,
    make_fleet,
    steady,
)

pytestmark = pytest.mark.django_db


def pd(fleet: Fleet, at_s: float = 0.0) -> PdObservation:
    return observe(fleet.pk, fleets.scenario_of(fleet), at_s=NOW_S + at_s).pd["pd"]


def test_two_equal_instances_at_40_per_cent_are_a_pool_at_40_per_cent() -> None:
    """S-03: neither 80 % nor a mean of the ones that were read and a zero."""
    fleet = make_fleet()
    busy = wire.InstanceSignals(
        requests_running=1.0, requests_waiting=0.0, kv_cache_usage_ratio=0.4
    )
    for name in ("d0", "d1"):
        sample = instance(f"f1/pd/{name}", role="decode", at_s=-1.0)
        feed([msgspec.structs.replace(sample, signals=busy)])
    feed([instance("f1/pd/d2", role="decode", at_s=-1.0, state="failed")])
    assert pd(fleet).decode_kv_usage_ratio == 0.4


@pytest.mark.parametrize(("says_so", "within_s"), [(True, 1.0), (False, 61.0)])
def test_an_instance_that_was_removed_leaves_capacity_and_keeps_its_history(
    says_so: bool, within_s: float
) -> None:
    """S-20: at once where its agent says so, else after a minute of silence."""
    fleet = make_fleet()
    feed(engines(at_s=-1.0))
    assert pd(fleet).n_decode == 5
    if says_so:
        feed([instance("f1/pd/d4", role="decode", at_s=0.0, state="gone")])
    feed([one for one in engines(at_s=within_s - 1.0) if one.id != "f1/pd/d4"])
    found = pd(fleet, within_s)
    assert (found.n_decode, found.decode_silent) == (4, ())
    kept = store.window(
        "instance", prefix="f1/pd/d4", since_s=NOW_S - 10, until_s=NOW_S + within_s, bin_s=1.0
    )
    assert [r.state for r in kept["f1/pd/d4"]] == ["ok", *(["gone"] if says_so else [])]


def test_an_instance_last_seen_idle_is_taken_as_full_and_not_as_spare() -> None:
    """S-22: it keeps its place in the pool, and its old zero is no queue of now."""
    fleet = make_fleet()
    feed([one for one in engines(at_s=-30.0) if one.id == "f1/pd/d4"])
    feed([one for one in engines() if one.id != "f1/pd/d4"])
    found = pd(fleet)
    assert (found.n_prefill, found.n_decode) == (3, 5)
    assert found.decode_silent == ("f1/pd/d4",)
    assert found.queue_decode == 0.0  # of the four that are read
    feed([one for one in engines(at_s=50.0) if one.id == "f1/pd/p0"])
    later = pd(fleet, 50.0)
    assert later.queue_decode is None  # nobody of the pool is read: not zero


def run(fleet: Fleet, at_s: float) -> Tick:
    found = scheduler.run_tick(fleet.pk, now=after(at_s), tick_s=2.0)
    assert found is not None
    return found


def test_a_pool_of_one_that_went_silent_keeps_the_last_safe_t_and_says_so() -> None:
    """S-22: neither blocked nor steered by a zero of a minute ago."""
    fleet = make_fleet(pd={"instances": 2, "start": {"n_prefill": 1, "threshold_tokens": 4000}})
    feed(steady(Gate(), np.random.default_rng(3), until_s=40.0, every_s=5.0))
    feed([instance("f1/pd/p0"), instance("f1/pd/d0", role="decode")])
    for at_s in range(-1, 40, 10):  # all but the pool goes on
        feed([one for one in engines(at_s=at_s) if "/prfaas/" in one.id])
        feed([link(at_s=at_s, tx_gbps=1.0, capacity_gbps=100.0, retransmit_ratio=0.0)])
    run(fleet, 0.0)
    safe = fleets.newest_adopted(fleet)
    assert safe is not None
    assert safe.plan["clusters"]["pd"]["threshold_tokens"] == 4000
    for at_s in (20.0, 30.0, 40.0):
        tick = run(fleet, at_s)
    assert tick.action == "hold"
    assert tick.observed["pd"]["pd"]["prefill_silent"] == ["f1/pd/p0"]
    assert tick.observed["pd"]["pd"]["queue_prefill"] is None
    said = "pd: silent instances f1/pd/p0, f1/pd/d0 are taken as full"
    assert said in tick.verdict["warnings"]
    assert fleets.newest_adopted(fleet) == safe
    document = delivery.newest_document(fleet)
    assert document is not None
    assert document["clusters"]["pd"]["threshold_tokens"] == 4000
