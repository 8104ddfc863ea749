"""The planner handshake over a real etcd: with a writer of our own, and with Dynamo's own planner
side (its compiled coordinator, which its planner writes by)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from routing.adapters import etcd
from routing.adapters.dynamo_planner import Decision, Done, OtherWriter, Planner, Superseded
from tests.peers import etcd_server, planner_side

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    with etcd_server.serving(tmp_path) as url:
        yield url


def wait(holds: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.05)


def write(url: str, namespace: str, **values: str) -> None:
    for name, value in values.items():
        key = f"v1/{namespace}/planner/{name}"
        found = etcd.prefix(url, key).get(key)
        assert etcd.put_if(url, key, value, at={key: found.revision if found else 0})


def pending(planner: Planner) -> Decision:
    found = planner.read().pending
    assert found is not None
    return found


def wanted(planner: Planner) -> tuple[int, int | None, int | None] | None:
    found = planner.read().pending
    return None if found is None else (found.id, found.n_prefill, found.n_decode)


def test_a_decision_is_read_carried_out_and_reported(store: str) -> None:
    planner = Planner(store, "ns")
    before = planner.read()
    assert (before.decision, before.done, before.pending) == (None, None, None)
    write(store, "ns", num_prefill_workers="2", num_decode_workers="3")
    assert not planner.read().is_settled
    write(store, "ns", decision_id="0")
    decision = pending(planner)
    assert (decision.id, decision.n_prefill, decision.n_decode) == (0, 2, 3)

    done = planner.report_done(decision, ours=None)
    assert planner.report_done(decision, ours=done) == done
    after = planner.read()
    assert (after.pending, after.done, after.other_writer(done)) == (None, done, None)

    write(store, "ns", num_prefill_workers="1")
    assert planner.read().pending is None, "the counts of the decision to come are not its id yet"
    write(store, "ns", decision_id="1")
    assert wanted(planner) == (1, 1, 3)


def test_somebody_else_who_reports_is_found_and_not_joined(store: str) -> None:
    planner = Planner(store, "ns")
    write(store, "ns", num_prefill_workers="2", num_decode_workers="2", decision_id="4")
    decision = pending(planner)
    ours = planner.report_done(decision, ours=None)
    write(store, "ns", num_decode_workers="3", decision_id="5", scaled_decision_id="5")
    assert "decision 5 was reported" in (planner.read().other_writer(ours) or "")
    newest = planner.read().decision
    assert newest is not None
    with pytest.raises(OtherWriter):
        planner.report_done(newest, ours=ours)
    assert planner.read().other_writer(None)
    assert isinstance(planner.read().done, Done)


def test_namespaces_do_not_mix(store: str) -> None:
    write(store, "ns", num_prefill_workers="2", num_decode_workers="2", decision_id="0")
    write(store, "ns2", num_prefill_workers="7", num_decode_workers="7", decision_id="9")
    assert wanted(Planner(store, "ns")) == (0, 2, 2)


def test_a_planner_that_starts_anew_counts_from_0_again(store: str) -> None:
    planner = Planner(store, "ns")
    write(store, "ns", num_prefill_workers="2", num_decode_workers="2", decision_id="7")
    seventh = pending(planner)
    done = planner.report_done(seventh, ours=None)
    write(store, "ns", num_prefill_workers="3", decision_id="0")
    assert wanted(planner) == (0, 3, 2), "an old report of 7 is none of the new 0"
    first = pending(planner)
    done = planner.report_done(first, ours=done)
    assert (done.id, planner.read().pending) == (0, None)


@pytest.mark.timeout(300)
def test_dynamos_own_planner_goes_on_when_we_report(store: str) -> None:
    with planner_side.deciding(store, "ns") as said:
        planner = Planner(store, "ns")
        assert said("2 3") == "decided"
        first = pending(planner)
        assert wanted(planner) == (0, 2, 3)
        assert said("ready") == "False"
        assert said("4 1") == "decided"
        assert planner.read().pending == first, "it holds while its decision is not carried out"

        done = planner.report_done(first, ours=None)
        wait(lambda: said("ready") == "True", "the planner sees the report")
        assert said("4 1") == "decided"
        second = pending(planner)
        assert wanted(planner) == (1, 4, 1)
        with pytest.raises(Superseded):
            planner.report_done(first, ours=done)
        done = planner.report_done(second, ours=done)
        wait(lambda: said("ready") == "True", "the planner sees the second report")
