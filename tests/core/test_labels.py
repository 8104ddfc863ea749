"""What limits a cluster, by signs and model together, and what that forbids."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import bottleneck
from routing.core.links.state import LinkView
from routing.core.model.lengths import LogNormalLengths
from routing.core.types import (
    Bottleneck,
    LinkMemory,
    Prediction,
    PrefillObservation,
    StageLoad,
    Verdict,
)
from tests.core.asked import GAINED, roles, says, scenario
from tests.core.cases import LINK, exact_histogram, link, pd, plan, seen


def view(label: Any = "clear", **memory: Any) -> LinkView:
    return LinkView(
        id=LINK,
        memory=LinkMemory(label=label, signs=f"it is {label}", **memory),
        base_rtt_s=0.005,
        capacity_gbps=100.0,
        known=True,
        planned_gbps=100.0,
    )


def predicted(local: float = 0.5, decode: float = 0.5, remote: float = 0.5) -> Prediction:
    used = {"local_prefill:pd": local, "decode:pd": decode, "remote_prefill:prfaas": remote}
    return Prediction(
        lambda_max_rps=3.0,
        headroom=1.0 / max(used.values()),
        remote_fraction=0.5,
        bottleneck=max(used, key=lambda name: used[name]),
        stages=tuple(StageLoad(name, 3.0, ratio) for name, ratio in used.items()),
        link_gbps={LINK: 10.0},
        link_utilisation_ratio={LINK: 0.1},
    )


FULL = {"decode_kv_usage_ratio": 0.97, "preemptions_per_s": 0.5}
QUEUED = {"queue_prefill": 12.0}
ROOM = {"decode_kv_usage_ratio": 0.3, "preemptions_per_s": 0.0}
MODEL_SAYS_DECODE = predicted(decode=0.9)
MODEL_SAYS_PREFILL = predicted(local=0.9)

# what is measured, of the link, of the model; the label, its stage
LABELS: list[tuple[str, dict[str, Any], LinkView, Prediction | None, str, str]] = [
    ("S-33 KV full, preempting", FULL, view(), MODEL_SAYS_PREFILL, "decode", "decode:pd"),
    ("KV full, no counter", {"decode_kv_usage_ratio": 0.96}, view(), None, "decode", "decode:pd"),
    (
        "KV tight, preempting",
        {"decode_kv_usage_ratio": 0.91, "preemptions_per_s": 0.1},
        view(),
        MODEL_SAYS_PREFILL,
        "decode",
        "decode:pd",
    ),
    (
        "KV tight, none put back",
        {"decode_kv_usage_ratio": 0.91, "preemptions_per_s": 0.0},
        view(),
        MODEL_SAYS_PREFILL,
        "prefill",
        "local_prefill:pd",
    ),
    (
        "KV absurd",
        {"decode_kv_usage_ratio": 97.0},
        view(),
        MODEL_SAYS_PREFILL,
        "prefill",
        "local_prefill:pd",
    ),
    (
        "waiting for a slot",
        {"queue_decode": 12.0, "decode_in_transfer": 1.0},
        view(),
        MODEL_SAYS_PREFILL,
        "decode",
        "decode:pd",
    ),
    (
        "S-23 waiting for their KV",
        {"queue_decode": 142.0, "decode_in_transfer": 142.0},
        view(),
        MODEL_SAYS_PREFILL,
        "prefill",
        "local_prefill:pd",
    ),
    (
        "waiting, nobody knows for what",
        {"queue_decode": 142.0},
        view(),
        MODEL_SAYS_PREFILL,
        "prefill",
        "local_prefill:pd",
    ),
    ("decode before the link", FULL, view("congested", trouble="congested"), None, "decode", ""),
    ("congested", {}, view("congested", trouble="congested"), MODEL_SAYS_PREFILL, "link", ""),
    ("down", {}, view("down", trouble="down"), MODEL_SAYS_PREFILL, "link", ""),
    ("S-41 flow-limited", {}, view("flow_limited"), MODEL_SAYS_PREFILL, "flow", f"link:{LINK}"),
    ("burst", {}, view("burst"), MODEL_SAYS_PREFILL, "burst", f"link:{LINK}"),
    ("near its limit", {}, view("near_limit"), MODEL_SAYS_PREFILL, "prefill", "local_prefill:pd"),
    ("queue at prefill", QUEUED, view(), None, "prefill", "local_prefill:pd"),
    ("queue and the model agree", QUEUED, view(), MODEL_SAYS_PREFILL, "prefill", ""),
    (
        "B14 queue at prefill, model says decode, KV unknown",
        QUEUED,
        view(),
        MODEL_SAYS_DECODE,
        "decode",
        "decode:pd",
    ),
    (
        "queue at prefill, model says decode, decode has room",
        {**QUEUED, **ROOM},
        view(),
        MODEL_SAYS_DECODE,
        "unknown",
        "",
    ),
    ("the model: decode", {}, view(), MODEL_SAYS_DECODE, "decode", "decode:pd"),
    (
        "the model: remote prefill",
        {},
        view(),
        predicted(remote=0.9),
        "prefill",
        "remote_prefill:prfaas",
    ),
    ("nothing known", {}, view(), None, "unknown", ""),
]


@pytest.mark.parametrize(
    ("what", "measured", "path", "model", "label", "stage"), LABELS, ids=[row[0] for row in LABELS]
)
def test_a_label(what, measured, path, model, label, stage) -> None:
    found = bottleneck.of_cluster("pd", pd(**measured), [path], model, {})
    assert found.label == label, found
    assert found.signs
    if stage:
        assert found.stage == stage


@pytest.mark.parametrize(
    ("silent", "warming", "label"),
    [((), (), "decode"), (("p1", "p2"), (), "prefill"), ((), ("p1", "p2"), "prefill")],
    ids=["two a warm instance", "of one that is read", "of one that is warm"],
)
def test_a_queue_is_judged_by_the_instances_it_was_read_of(silent, warming, label) -> None:
    waiting = pd(queue_prefill=3.0, prefill_silent=silent, prefill_warming=warming)
    found = bottleneck.of_cluster("pd", waiting, [view()], predicted(decode=0.8, remote=0.9), {})
    assert found.measured is (label == "prefill")


@pytest.mark.parametrize(
    ("queue", "n", "measured"),
    [(8.0, 4, True), (7.0, 4, False), (None, 4, False), (8.0, 0, False)],
)
def test_a_queue_at_the_far_end_is_prefills(queue, n, measured) -> None:
    remotes = {"prfaas": PrefillObservation(n, queue_prefill=queue)}
    found = bottleneck.of_cluster("pd", pd(), [view()], MODEL_SAYS_DECODE, remotes)
    assert found.measured is measured
    assert found.stage == ("remote_prefill:prfaas" if measured else "decode:pd")


wild = st.none() | st.floats() | st.sampled_from([0.97, 12.0, 1e300, -1.0])


@given(wild, wild, wild, wild, wild, st.integers(-3, 40), st.integers(-3, 40))
def test_whatever_is_measured_there_is_a_label(
    kv, preempted, queue_p, queue_d, moving, n_prefill, n_decode
) -> None:
    found = bottleneck.of_cluster(
        "pd",
        pd(
            decode_kv_usage_ratio=kv,
            preemptions_per_s=preempted,
            queue_prefill=queue_p,
            queue_decode=queue_d,
            decode_in_transfer=moving,
            n_prefill=n_prefill,
            n_decode=n_decode,
        ),
        [view()],
        MODEL_SAYS_PREFILL,
        {},
    )
    assert found.label in ("decode", "prefill")
    if found.label == "decode":
        assert found.measured


def test_the_fleets_label_is_the_gravest_measured_one() -> None:
    model, link_ = (
        Bottleneck("prefill", "local_prefill:a"),
        Bottleneck("link", "link:x->b", "", True),
    )
    decode = Bottleneck("decode", "decode:c", "", True)
    whole = predicted(local=0.9)
    assert bottleneck.of_fleet({"a": model, "b": link_, "c": decode}, whole) == decode
    assert bottleneck.of_fleet({"a": model, "b": link_}, whole) == link_
    pd_ = Bottleneck("prefill", "local_prefill:pd")
    assert bottleneck.of_fleet({"a": model, "pd": pd_}, whole) == pd_
    assert bottleneck.of_fleet({}, None).label == "unknown"


# label, measured, roles before -> after, whether it is forbidden
FORBIDDEN: list[tuple[Bottleneck, tuple[int, int], tuple[int, int], bool]] = [
    (Bottleneck("decode", "decode:pd", "", True), (3, 5), (4, 4), True),
    (Bottleneck("decode", "decode:pd", "", True), (3, 5), (2, 6), False),
    (Bottleneck("prefill", "local_prefill:pd", "", True), (3, 5), (2, 6), True),
    (Bottleneck("prefill", "local_prefill:pd", "", True), (3, 5), (4, 4), False),
    (Bottleneck("prefill", "remote_prefill:prfaas"), (3, 5), (2, 6), False),
    (Bottleneck("unknown", ""), (3, 5), (4, 4), True),
    (Bottleneck("unknown", ""), (3, 5), (2, 6), True),
    (Bottleneck("flow", f"link:{LINK}", "", True), (3, 5), (4, 4), False),
    (Bottleneck("link", f"link:{LINK}", "", True), (3, 5), (4, 4), False),
]


@pytest.mark.parametrize(("found", "before", "after", "forbidden"), FORBIDDEN)
def test_what_a_label_forbids(found, before, after, forbidden) -> None:
    why = bottleneck.forbids(found, "pd", before, after, predicted=predicted(), margin_ratio=0.04)
    assert bool(why) is forbidden


@pytest.mark.parametrize(("decode", "forbidden"), [(0.51, False), (0.53, True)])
def test_a_stage_that_only_the_model_finds_tightest_has_to_be_clearly_so(decode, forbidden) -> None:
    """Else nobody moves: within the margin the best t of the new roles may even the two out."""
    why = bottleneck.forbids(
        Bottleneck("decode", "decode:pd"),
        "pd",
        (3, 5),
        (4, 4),
        predicted=predicted(local=0.5, decode=decode),
        margin_ratio=0.04,
    )
    assert bool(why) is forbidden


class TestS33:
    """Behind a narrow link the model wants more prefill; decode has no memory left."""

    narrow = scenario(gbps=5.0)
    idle_prefill = {"queue_prefill": 0.0, "demand_rps": 1.5}

    def verdict(self, mode: Any = "active", threshold: int = 42_000, **measured: Any) -> Verdict:
        observation = seen(
            pd=pd(n_prefill=3, n_decode=5, **self.idle_prefill, **measured),
            link=link(capacity_gbps=5.0, tx_gbps=1.0),
        )
        running = plan(threshold, n_prefill=3, n_decode=5)
        return says(observation, running=running, described=self.narrow, mode=mode)

    def test_without_signs_prefill_is_added(self) -> None:
        verdict = self.verdict(**ROOM)
        assert (verdict.reason, roles(verdict)) == ("RoleImbalance", (5, 3)), verdict.message

    @pytest.mark.parametrize("mode", ["active", "advisory"])
    def test_full_decode_is_the_label_and_no_prefill_is_added_nor_advised(self, mode) -> None:
        verdict = self.verdict(mode, **FULL)
        assert verdict.bottleneck.label == "decode"
        assert verdict.bottleneck.stage == "decode:pd"
        assert "97%" in verdict.bottleneck.signs
        assert roles(verdict) == (3, 5)
        assert all(plan_.n_prefill <= 3 for plan_ in verdict.best_plan.values())

    def test_what_was_forbidden_is_said(self) -> None:
        verdict = self.verdict(**FULL)
        (clamp,) = [c for c in verdict.clamps if c.name == "bottleneck_decode"]
        assert (clamp.wanted, clamp.allowed) == (5.0, 3.0)
        (row,) = [a for a in verdict.alternatives if a.name == "forbidden"]
        assert "3/5 -> 5/3" in row.text
        assert "forbids adding prefill" in row.why_not
        assert row.gain_ratio is not None
        assert row.gain_ratio > 0.04

    def test_where_t_has_nothing_to_say_it_is_the_reason(self) -> None:
        best = self.verdict(**FULL).best_plan["pd"].threshold_tokens
        verdict = self.verdict(threshold=best, **FULL)
        assert (verdict.action, verdict.reason) == ("hold", "BottleneckForbids"), verdict.message
        assert "decode limits, which forbids adding prefill" in verdict.message

    def test_the_gain_goes_on_lasting_while_it_is_forbidden(self) -> None:
        verdict = self.verdict(**FULL)
        assert verdict.memory.roles_gain_since_s == 900.0


def test_prefill_that_is_seen_to_wait_is_not_taken() -> None:
    """The mix wants 3/5, requests queue for the four that prefill."""
    mix = exact_histogram(lengths=LogNormalLengths(9.6, 1.0, 128, 131_072))
    free = says(
        seen(pd=pd(n_prefill=4, n_decode=4, lengths=mix)),
        running=plan(16_000, n_prefill=4, n_decode=4),
    )
    assert roles(free) == (3, 5), free.message
    queued = pd(n_prefill=4, n_decode=4, lengths=mix, queue_prefill=30.0, **ROOM)
    verdict = says(seen(pd=queued), running=plan(16_000, n_prefill=4, n_decode=4))
    assert roles(verdict) == (4, 4), verdict.message
    assert any(a.name == "forbidden" for a in verdict.alternatives)


def test_signs_that_contradict_the_model_stop_roles_and_say_so() -> None:
    """6/2: the model finds decode tightest, decode has room and prefill waits."""
    odd = pd(n_prefill=6, n_decode=2, queue_prefill=30.0, **ROOM)
    verdict = says(seen(pd=odd))
    assert verdict.bottlenecks["pd"].label == "unknown"
    assert (verdict.reason, roles(verdict)) == ("BottleneckForbids", (6, 2)), verdict.message


SLOW = {"transfer_s": 4.0, "transfer_bytes": 5e8, "transfers": 20.0, "connections": 4.0}


def test_s41_a_flow_limited_link_does_not_move_t_as_congestion_does() -> None:
    """9 Gbps of which the model wants more; transfers crawl at 1 Gbps while 8 are free."""
    narrow = link(capacity_gbps=9.0, tx_gbps=1.0)
    free = says(seen(link=narrow), running=plan(4000), memory=GAINED, roles_mode="fixed")
    assert (free.action, free.reason) == ("adopt", "LinkLimit"), free.message
    slow = dataclasses.replace(narrow, **SLOW)
    verdict = says(seen(link=slow), running=plan(4000), memory=GAINED, roles_mode="fixed")
    assert verdict.plan.clusters["pd"].threshold_tokens == 4000, verdict.message
    assert verdict.bottleneck.label == "flow"
    assert [c.name for c in verdict.clamps] == ["bottleneck_flow"]
    assert verdict.memory.gain_since_s == 900.0
    # What it asks for instead is more connections; once they are planned, t is what is left to say.
    settled = dataclasses.replace(verdict.plan, version=1)
    again = says(
        seen(1010.0, link=slow), running=settled, memory=verdict.memory, roles_mode="fixed"
    )
    assert (again.action, again.reason) == ("hold", "BottleneckForbids"), again.message


def test_s41_what_balances_prefill_goes_on_over_a_flow_limited_link() -> None:
    slow = link(tx_gbps=8.0, **SLOW)
    verdict = says(seen(link=slow), running=plan(4000), memory=GAINED, roles_mode="fixed")
    assert verdict.bottleneck.label == "flow"
    assert (verdict.action, verdict.reason) == ("adopt", "PrefillImbalance"), verdict.message
