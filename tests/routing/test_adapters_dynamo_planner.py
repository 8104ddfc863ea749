"""The planner handshake, with an etcd of a few lines (tests/peers has the real one)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from routing.adapters.dynamo_planner import OtherWriter, Planner, Superseded
from routing.adapters.surface import SurfaceError, Unheeded
from tests.routing.fake_etcd import FakeEtcd
from tests.routing.fake_router import serving


@pytest.fixture
def store() -> FakeEtcd:
    return FakeEtcd()


@pytest.fixture
def planner(store: FakeEtcd) -> Iterator[Planner]:
    with serving(store) as url:  # type: ignore[arg-type]
        yield Planner(url, "ns")


def decide(store: FakeEtcd, id: int, n_prefill: int = 2, n_decode: int = 3) -> None:
    store.write(
        together=True, num_prefill_workers=n_prefill, num_decode_workers=n_decode, decision_id=id
    )


def test_nothing_is_decided_yet(planner: Planner) -> None:
    now = planner.read()
    assert (now.decision, now.done, now.pending, now.is_settled) == (None, None, None, True)


def test_a_decision_waits_until_it_is_reported(planner: Planner, store: FakeEtcd) -> None:
    decide(store, 0)
    decision = planner.read().pending
    assert decision is not None
    assert (decision.id, decision.n_prefill, decision.n_decode) == (0, 2, 3)
    done = planner.report_done(decision, ours=None)
    assert store.values["v1/ns/planner/scaled_decision_id"][0] == "0"
    assert (planner.read().pending, planner.read().done) == (None, done)
    assert planner.report_done(decision, ours=done) == done
    assert store.revision == done.revision, "said twice is written once"
    decide(store, 1)
    assert planner.read().pending is not None


def test_counts_before_their_id_are_no_decision(planner: Planner, store: FakeEtcd) -> None:
    store.write(num_prefill_workers=4, num_decode_workers=4)
    assert (planner.read().is_settled, planner.read().pending) == (False, None)
    store.write(decision_id=0)
    assert planner.read().pending is not None
    store.write(num_prefill_workers=5)
    assert (planner.read().is_settled, planner.read().pending) == (False, None)


def test_a_planner_that_starts_anew_counts_from_0(planner: Planner, store: FakeEtcd) -> None:
    decide(store, 7)
    seventh = planner.read().pending
    assert seventh is not None
    done = planner.report_done(seventh, ours=None)
    for name in ("num_prefill_workers", "num_decode_workers", "decision_id"):
        del store.values[f"v1/ns/planner/{name}"]
    assert planner.read().pending is None
    decide(store, 0)
    first = planner.read().pending
    assert first is not None, "the old report of 7 is none of the new 0"
    assert planner.report_done(first, ours=done).id == 0


def test_an_older_decision_is_not_reported_any_more(planner: Planner, store: FakeEtcd) -> None:
    decide(store, 5)
    old = planner.read().pending
    assert old is not None
    decide(store, 0)
    with pytest.raises(Superseded, match="5 is no longer the newest"):
        planner.report_done(old, ours=None)
    assert "v1/ns/planner/scaled_decision_id" not in store.values


def test_somebody_else_reports_too(planner: Planner, store: FakeEtcd) -> None:
    decide(store, 0)
    first = planner.read().pending
    assert first is not None
    ours = planner.report_done(first, ours=None)
    assert planner.read().other_writer(ours) is None
    decide(store, 1)
    store.write(scaled_decision_id=1)
    assert "decision 1 was reported" in (planner.read().other_writer(ours) or "")
    decide(store, 2)
    second = planner.read().pending
    assert second is not None
    with pytest.raises(OtherWriter, match="not by this console"):
        planner.report_done(second, ours=ours)
    assert planner.read().other_writer(None) is not None


def test_written_between_read_and_report(planner: Planner, store: FakeEtcd) -> None:
    decide(store, 0)
    decision = planner.read().pending
    assert decision is not None
    heard = store._txn

    def meanwhile(body: object) -> object:
        store.write(scaled_decision_id=0)
        return heard(body)

    store.at["POST /v3/kv/txn"] = meanwhile
    with pytest.raises(Superseded, match="meanwhile"):
        planner.report_done(decision, ours=None)


def test_a_store_that_says_yes_and_forgets(planner: Planner, store: FakeEtcd) -> None:
    decide(store, 0)
    decision = planner.read().pending
    assert decision is not None
    store.heeds = False
    with pytest.raises(Unheeded, match="shows none"):
        planner.report_done(decision, ours=None)


@pytest.mark.parametrize("value", ["", "-1", "two", "1e3", "1" * 30, "²"])
def test_a_count_that_is_none(planner: Planner, store: FakeEtcd, value: str) -> None:
    store.write(decision_id=0, num_prefill_workers=value)
    with pytest.raises(SurfaceError, match="num_prefill_workers"):
        planner.read()


def test_an_answer_that_is_not_etcds(planner: Planner, store: FakeEtcd) -> None:
    store.at["POST /v3/kv/range"] = {"kvs": [{"key": "!!"}]}
    with pytest.raises(SurfaceError, match="kvs"):
        planner.read()
    store.at["POST /v3/kv/range"] = {"kvs": [], "more": True}
    with pytest.raises(SurfaceError, match="more than"):
        planner.read()
