"""Where a request runs and why: the paper's example, every boundary, and the gate's own rule."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.placement import sides
from routing.core.placement.costs import costs_of
from routing.core.placement.explain import (
    DECIDED_BY,
    Costs,
    Moment,
    Path,
    Placement,
    Request,
    RequestError,
    explain,
)
from routing.core.placement.rule import Prefixes, Rule, Situation, judge, route
from routing.core.scenario.document import parse_scenario
from routing.core.types import ClusterPlan
from tests.core.cases import demo_document, demo_scenario

TO_LOCAL, TO_REMOTE = "prfaas->pd", "pd->prfaas"
BLOCK = 512


def plan(threshold: int | None = 19_400, **more: Any) -> ClusterPlan:
    facts: dict[str, Any] = {"mode": "threshold", "remote": {"prfaas": 1.0}, **more}
    return ClusterPlan(threshold_tokens=threshold, n_prefill=3, n_decode=5, **facts)


def abundant(threshold: int = 19_400, moves: dict[str, int] | None = None) -> ClusterPlan:
    both = {TO_LOCAL: 0, TO_REMOTE: 0} if moves is None else moves
    return plan(threshold, cache_mode="abundant", moves=both)


def place(
    total: int, local: int = 0, remote: int = 0, *, under: ClusterPlan | None, **more: Any
) -> Placement:
    request = Request(total, {"local": local, "remote": remote})
    return explain(request, under, cluster="pd", **more)


def case_study(**link: Any) -> Costs:
    document = demo_document()
    document["links"][0].update(link)
    document["links"].append({"from": "pd", "to": "prfaas", "gbps": 100.0})
    return costs_of(parse_scenario(document), capacity_gbps={}, free_ratio=0.3)


BOUNDARIES = [
    # S-36: name, t, total, local cached, side, reason
    ("t - 1", 1000, 999, 0, "local", "Short"),
    ("t itself", 1000, 1000, 0, "local", "Short"),
    ("t + 1", 1000, 1001, 0, "remote", "Long"),
    ("t = 0 is a threshold", 0, 1, 0, "remote", "Long"),
    ("t = 0, all of it cached", 0, 8192, 8192, "local", "Short"),
    ("t = 0, an empty prompt", 0, 0, 0, "local", "Short"),
    ("below one block: no exception", 100, 101, 0, "remote", "Long"),
    ("below one block, at t", 100, 100, 0, "local", "Short"),
    # S-37
    ("10,000 of which 8,000 are cached", 4000, 10_000, 8000, "local", "Short"),
    ("the second turn: 60,000, 1,000 new", 4000, 60_000, 59_000, "local", "Short"),
    ("the first turn", 4000, 59_000, 0, "remote", "Long"),
]


@pytest.mark.parametrize(
    ("case", "t", "total", "local", "side", "reason"), BOUNDARIES, ids=[c[0] for c in BOUNDARIES]
)
def test_remote_iff_uncached_above_t(
    case: str, t: int, total: int, local: int, side: str, reason: str
) -> None:
    found = place(total, local, under=plan(t))
    assert (found.side, found.reason, found.decided_by) == (side, reason, "threshold_tokens")
    assert (found.uncached_tokens, found.threshold_tokens) == (total - local, t)


def test_the_papers_example_with_scarce_bandwidth() -> None:
    """30K tokens, 10K cached at the PD cluster, 25K at PrfaaS, t = 19.4K: PrfaaS computes 5K."""
    found = place(30_000, 10_000, 25_000, under=plan(), costs=case_study())
    assert (found.side, found.reason, found.remote) == ("remote", "Long", "prfaas")
    assert (found.uncached_tokens, found.holder) == (20_000, "local")
    assert found.compute_tokens == {"local": 20_000, "remote": 5000}
    [kv] = found.shipments
    assert (kv.link, kv.what, kv.tokens) == (TO_LOCAL, "kv", 20_000)
    assert kv.bytes == pytest.approx(182_347_366 + 17_280 * 20_000)
    assert found.longer_prefix is not None
    assert not found.longer_prefix.moved
    assert found.longer_prefix.why == "the prefill is remote, where it is"
    assert found.sentence == (
        "Remote, at prfaas: 20,000 uncached tokens are above the threshold of 19,400."
    )


def test_the_papers_example_with_abundant_bandwidth() -> None:
    """The same request stays: the 15K tokens that only PrfaaS holds are moved."""
    found = place(30_000, 10_000, 25_000, under=abundant(), costs=case_study())
    assert (found.side, found.reason) == ("local", "Short")
    assert (found.uncached_tokens, found.holder) == (5000, "remote")
    assert found.compute_tokens == {"local": 5000, "remote": 5000}
    [prefix] = found.shipments
    assert (prefix.link, prefix.what, prefix.tokens) == (TO_LOCAL, "prefix", 15_000)
    longer = found.longer_prefix
    assert longer is not None
    assert (longer.link, longer.to, longer.tokens, longer.moved) == (
        TO_LOCAL,
        "local",
        15_000,
        True,
    )
    # 441.5 MB at 30 of 100 Gbps behind one round trip, against 15,000 tokens of an H20.
    assert longer.transfer_s == pytest.approx(0.005 + 8 * (182_347_366 + 17_280 * 15_000) / 30e9)
    h20_s = 1.829 + (20_000 - 10_224) * (4.265 - 1.829) / (27_486 - 10_224)
    alone_s = 1.829 + (5000 - 10_224) * (4.265 - 1.829) / (27_486 - 10_224)
    assert longer.recompute_s == pytest.approx(h20_s - alone_s)
    assert longer.transfer_s < longer.recompute_s / 2, "so carried.py gives this link an entry"
    assert found.sentence == (
        "Local: 5,000 uncached tokens, with what prfaas holds, are at or below the threshold of "
        "19,400. 15,000 tokens of prefix come over prfaas->pd first."
    )


STAYS = [
    # name, plan, total, local, remote, why
    ("scarce", plan(60_000), 30_000, 10_000, 25_000, "caches are judged separately while bandwidth is scarce"),
    ("the plan names another link", abundant(60_000, {TO_REMOTE: 0}), 30_000, 10_000, 25_000, "the plan moves nothing over prfaas->pd"),
    ("too little", abundant(60_000, {TO_LOCAL: 15_001}), 30_000, 10_000, 25_000, "the plan moves 15,001 tokens or more over prfaas->pd"),
    ("always_local", plan(None, mode="always_local", cache_mode="abundant", moves={TO_LOCAL: 0}), 30_000, 10_000, 25_000, "nothing is asked of the link"),
    ("no plan", None, 30_000, 10_000, 0, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "under", "total", "local", "remote", "why"), STAYS, ids=[c[0] for c in STAYS]
)
def test_a_longer_prefix_that_is_not_moved_says_why(
    case: str, under: ClusterPlan | None, total: int, local: int, remote: int, why: str | None
) -> None:
    found = place(total, local, remote, under=under, costs=case_study())
    assert found.side == "local"
    assert found.shipments == ()
    assert found.compute_tokens["local"] == total - local
    if why is None:
        assert found.longer_prefix is None
    else:
        assert found.longer_prefix is not None
        assert (found.longer_prefix.moved, found.longer_prefix.why) == (False, why)


def test_locals_prefix_is_moved_to_where_a_long_request_computes() -> None:
    found = place(60_000, 30_000, 0, under=abundant(), costs=case_study())
    assert found.side == "remote"
    assert [(s.link, s.what, s.tokens) for s in found.shipments] == [
        (TO_REMOTE, "prefix", 30_000),
        (TO_LOCAL, "kv", 30_000),
    ]
    assert found.compute_tokens == {"local": 30_000, "remote": 30_000}


WHAT_DECIDES = [
    # name, plan, moment, side, reason, decided by
    ("no plan", None, {}, "local", "NoPlan", "no_plan"),
    ("always_local", plan(None, mode="always_local"), {}, "local", "AlwaysLocal", "mode"),
    ("always_remote", plan(None, mode="always_remote"), {}, "remote", "AlwaysRemote", "mode"),
    ("nobody to send to", plan(remote={}), {}, "local", "NoRemote", "remote"),
    ("a remote without weight", plan(remote={"prfaas": 0.0}), {}, "local", "NoRemote", "remote"),
    ("the remote is down", plan(), {"admissible": []}, "local", "RemoteDown", "remote_down"),
    ("the limit is reached", plan(max_remote_in_flight=4), {"remote_in_flight": 4}, "local", "RemoteLimit", "max_remote_in_flight"),
    ("the limit is 0", plan(max_remote_in_flight=0), {}, "local", "RemoteLimit", "max_remote_in_flight"),
    ("in the band, local sooner", plan(band=(10_000, 40_000)), {"waits_s": {"local": 1.0, "remote": 2.0}}, "local", "BandLocal", "band"),
    ("in the band, remote sooner", plan(25_000, band=(10_000, 40_000)), {"waits_s": {"local": 2.0, "remote": 1.0}}, "remote", "BandRemote", "band"),
    ("in the band, nobody measured", plan(band=(10_000, 40_000)), {}, "remote", "Long", "threshold_tokens"),
    ("local is down", plan(25_000), {"local_up": False}, "remote", "LocalDown", "local_down"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "under", "moment", "side", "reason", "decided_by"),
    WHAT_DECIDES,
    ids=[c[0] for c in WHAT_DECIDES],
)
def test_what_decides(
    case: str, under: ClusterPlan | None, moment: Any, side: str, reason: str, decided_by: str
) -> None:
    found = place(20_000, under=under, moment=Moment(**moment))
    assert (found.side, found.reason, found.decided_by) == (side, reason, decided_by)
    assert found.sentence.startswith(side.capitalize())
    assert found.sentence.endswith(".")
    if decided_by == "band":
        assert "band of 10,000 to 40,000" in found.sentence


def test_every_reason_says_what_decided() -> None:
    assert DECIDED_BY.keys() == sides.REASONS.keys()


def test_of_several_remotes_the_heaviest_is_first_in_turn() -> None:
    weights = {"a": 1.0, "b": 3.0, "c": 2.0}
    assert place(20_000, under=plan(remote=weights)).remote == "b"
    without = place(20_000, under=plan(remote=weights), moment=Moment(admissible=["a", "c"]))
    assert without.remote == "c"


IMPOSSIBLE = [
    ("a negative length", -1, {"local": 0, "remote": 0}, "total_tokens = -1"),
    ("more cached than there is", 10, {"local": 11, "remote": 0}, "cached_tokens.local = 11"),
    ("less than nothing", 10, {"local": 0, "remote": -1}, "cached_tokens.remote = -1"),
    ("absent is not zero", 10, {"local": 0}, "cached_tokens.remote = None"),
]


@pytest.mark.parametrize(
    ("case", "total", "cached", "says"), IMPOSSIBLE, ids=[c[0] for c in IMPOSSIBLE]
)
def test_a_request_that_cannot_be_is_refused(case: str, total: int, cached: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        Request(total, cached)


def test_what_is_not_known_stays_unknown() -> None:
    found = place(30_000, 10_000, 25_000, under=abundant())
    assert found.compute_s == {"local": None, "remote": None}
    assert (found.shipments[0].bytes, found.shipments[0].seconds) == (None, None)
    assert found.longer_prefix is not None
    assert (found.longer_prefix.transfer_s, found.longer_prefix.recompute_s) == (None, None)
    unknown_link = Costs(kv_bytes=float, paths={"other->pd": Path(1.0)})
    found = place(30_000, 10_000, 25_000, under=abundant(), costs=unknown_link)
    assert (found.shipments[0].bytes, found.shipments[0].seconds) == (15_000.0, None)


def test_over_a_link_that_is_down_nothing_arrives() -> None:
    costs = costs_of(demo_scenario(), capacity_gbps={TO_LOCAL: 0.0}, free_ratio=1.0)
    found = place(30_000, under=plan(), costs=costs)
    assert found.shipments[0].seconds is None
    with pytest.raises(ValueError, match="free_ratio = "):
        costs_of(demo_scenario(), capacity_gbps={}, free_ratio=1.5)


@given(
    t=st.integers(0, 3 * BLOCK),
    total=st.integers(0, 4 * BLOCK),
    cached=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    cache_mode=st.sampled_from(["scarce", "abundant"]),
    moves=st.dictionaries(st.sampled_from([TO_LOCAL, TO_REMOTE]), st.integers(0, 2 * BLOCK)),
    mode=st.sampled_from(["threshold", "always_local", "always_remote"]),
    limit=st.none() | st.integers(0, 2),
    in_flight=st.integers(0, 2),
    up=st.booleans(),
)
def test_it_is_the_route_a_gate_takes_and_its_numbers_add_up(
    t: int, total: int, cached: Any, cache_mode: Any, moves: Any, mode: Any, limit: Any,
    in_flight: int, up: bool,
) -> None:  # fmt: skip
    local, remote = (int(share * total) for share in cached)
    under = plan(
        t if mode == "threshold" else None, mode=mode, cache_mode=cache_mode, moves=moves,
        max_remote_in_flight=limit,
    )  # fmt: skip
    moment = Moment(admissible=None if up else [], remote_in_flight=in_flight)
    found = place(total, local, remote, under=under, moment=moment, costs=case_study())
    movable = (local, remote) if up else (0, 0)
    judged = judge(
        Rule.of(under), Prefixes(total, local, remote, *movable), to_local=TO_LOCAL,
        to_remote=TO_REMOTE,
    )  # fmt: skip
    gate = route(
        Rule.of(under), Situation(judged, ["prfaas"], ["prfaas"] if up else [], in_flight, True)
    )
    assert (found.side, found.reason) == (gate.side, gate.reason)
    assert found.uncached_tokens == judged.uncached_tokens
    moved = [s for s in found.shipments if s.what == "prefix"]
    assert [s.link for s in moved] == ([gate.link] if gate.link else [])
    held = local if found.side == "local" else remote
    assert held + sum(s.tokens for s in moved) + found.compute_tokens[found.side] == total
    kv = sum(s.tokens for s in found.shipments if s.what == "kv")
    assert kv == (total - local if found.side == "remote" else 0)
    assert all(s.bytes and s.seconds for s in found.shipments)
