"""When a link counts as down, congested or clear, and what it is believed to carry."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from routing.core.decide import decide
from routing.core.links import congestion
from routing.core.links import state as link_state
from routing.core.types import Memory, Params
from tests.core.cases import demo_scenario, link, plan, seen

PARAMS = Params(mode="active", band_ratio=0.0)
LINK = demo_scenario().links[0]


def watch(readings, params=PARAMS, base_rtt_s=0.005):
    """Views of one reading after another, 2 s apart, each heard of half a second ago."""
    memory, views = link_state.NEW_LINK, []
    for i, reading in enumerate(readings):
        view = link_state.view(
            LINK, reading, memory, base_rtt_s, now_s=1000.0 + 2.0 * i, params=params
        )
        memory, base_rtt_s = view.memory, view.base_rtt_s
        views.append(view)
    return views


FLAT = {"tx_gbps": 40.0}
# what, the reading repeated, congested after five of them, believed Gbps
SIGNS = [
    ("quiet", link(), False, 100.0),
    ("at the limit", link(tx_gbps=90.0), True, 100.0),
    ("just below it", link(tx_gbps=89.9), False, 100.0),
    ("reported narrower", link(capacity_gbps=5.8, tx_gbps=5.5), True, 5.8),
    ("reported wider", link(capacity_gbps=400.0, tx_gbps=50.0), False, 100.0),
    ("flat and losing", link(**FLAT, retransmit_ratio=0.02), True, 40.0),
    ("flat and slow", link(**FLAT, rtt_s=0.02), True, 40.0),
    ("flat, neither", link(**FLAT), False, 100.0),
    ("keep-alives, slow", link(tx_gbps=0.001, rtt_s=0.02), False, 100.0),
    ("a hundredth, losing", link(tx_gbps=1.0, retransmit_ratio=0.02), False, 100.0),
    ("a fiftieth, losing", link(tx_gbps=2.0, retransmit_ratio=0.02), True, 2.0),
    ("jitter of a short path", link(**FLAT, rtt_s=0.009), False, 100.0),
    ("no capacity reported", link(capacity_gbps=None), False, 100.0),
    ("capacity that cannot be", link(capacity_gbps=-3.0), False, 100.0),
]


@pytest.mark.parametrize(("what", "reading", "congested", "gbps"), SIGNS, ids=lambda v: str(v)[:22])
def test_signs(what, reading, congested, gbps) -> None:
    last = watch([reading] * 5)[-1]
    assert last.congested is congested
    assert (last.label == "congested") is congested
    assert last.signs or last.label == "clear"
    assert last.capacity_gbps == gbps


def test_bursts_with_loss_are_not_a_ceiling() -> None:
    bursts = [link(tx_gbps=tx, retransmit_ratio=0.02) for tx in (5.0, 0.0, 30.0, 12.0, 8.0)]
    assert not any(view.congested for view in watch(bursts))


def test_one_reading_met_four_times_is_not_flat() -> None:
    """The agent is late: the same reading, older each tick, is no plateau."""
    readings = [link(tx_gbps=40.0, retransmit_ratio=0.02, age_s=1.0 + 2.0 * i) for i in range(6)]
    assert not any(view.congested for view in watch(readings))


def test_a_learnt_ceiling_does_not_follow_traffic_down_and_is_forgotten() -> None:
    losing, calm = link(tx_gbps=40.0, retransmit_ratio=0.02), link(tx_gbps=20.0)
    views = watch([losing] * 5 + [calm] * 400)
    assert views[5].capacity_gbps == 40.0
    assert views[100].capacity_gbps == 40.0
    assert views[-1].capacity_gbps == 100.0


def test_a_new_promised_capacity_wipes_what_was_learnt_under_the_old() -> None:
    """The link returns from 5.8 to 100 Gbps: its old rate is no ceiling of the new one."""
    narrow = link(capacity_gbps=5.8, tx_gbps=5.8, rtt_s=0.05)
    wide = link(tx_gbps=5.8, rtt_s=0.05)
    assert watch([narrow] * 20 + [wide])[-1].capacity_gbps == 100.0


@pytest.mark.parametrize(
    ("tx_gbps", "signs"),
    [
        (9.24, "it sent 9.24 where 5.8 Gbps fit"),
        (5.802, "it sends 5.8 of 5.8 Gbps"),
        (5.5, "it sends 5.5 of 5.8 Gbps"),
    ],
)
def test_a_mean_from_before_a_link_became_narrow_is_told_as_what_it_was(tx_gbps, signs) -> None:
    """Read in the very tick that finds the link narrow, it is congestion; no link sends 9 of 6."""
    last = watch([link(tx_gbps=9.24), link(capacity_gbps=5.8, tx_gbps=tx_gbps)])[-1]
    assert (last.label, last.signs) == ("congested", signs)


def test_the_base_rtt_falls_at_once_and_rises_slowly() -> None:
    views = watch([link(rtt_s=0.004)] + [link(rtt_s=0.02)] * 30)
    assert views[0].base_rtt_s == 0.004
    assert 0.004 < views[-1].base_rtt_s < 0.0041


def test_an_hour_of_queues_is_no_longer_route_and_four_hours_of_twice_the_rtt_are() -> None:
    base_s = [0.004]
    for _ in range(4 * 1800):
        found = congestion.crept(base_s[-1], 0.008)
        assert found is not None
        base_s.append(found)
    assert base_s[1800] == pytest.approx(1.2 * 0.004, rel=0.01)
    assert base_s[-1] == 0.008


def test_congestion_ends_after_the_clear_time_and_not_before() -> None:
    views = watch([link(tx_gbps=95.0)] + [link()] * 40)
    states = [view.congested for view in views]
    assert states.index(False) == 31
    assert views[31].memory.cleared_at_s == 1062.0


@pytest.mark.parametrize(
    "unknown",
    [
        None,
        link(state="missing", tx_gbps=None),
        link(age_s=60.0),
        link(tx_gbps=None),
        link(tx_gbps=-1.0),
    ],
    ids=["absent", "missing", "old", "no tx", "absurd"],
)
def test_what_is_not_known_never_counts_as_clear(unknown) -> None:
    views = watch([link(tx_gbps=95.0)] + ([link()] * 20 + [unknown]) * 5)
    assert all(view.congested for view in views)
    assert not views[21].known


def test_a_signal_that_swings_around_its_limit_does_not_flap() -> None:
    """S-39: one hour of utilisation at the limit plus and minus 1 %."""
    scenario, params = demo_scenario(gbps=10.0), dataclasses.replace(PARAMS, max_changes_per_hour=6)
    running, memory, steps, troubles = plan(19_500), Memory(), [], []
    for i in range(360):
        reading = link(capacity_gbps=10.0, tx_gbps=9.0 * (1.01 if i % 2 else 0.99))
        verdict = decide(seen(1000.0 + 10.0 * i, link=reading), running, memory, params, scenario)
        before, after = running.clusters["pd"], verdict.plan.clusters["pd"]
        if verdict.action == "adopt":
            steps.append(after.threshold_tokens / before.threshold_tokens)
        running, memory = verdict.plan, verdict.memory
        troubles.append(memory.links[LINK.id].trouble)
    assert 1 <= len(steps) <= 6
    assert all(1 / 1.5 <= step <= 1.5 for step in steps)
    assert sum(a != b for a, b in itertools.pairwise(troubles)) == 1


def test_a_link_that_comes_back_busy_is_not_back_before_its_time() -> None:
    """What had stalled fills it at once: busy is no proof of being well."""
    down = link(capacity_gbps=0.0, tx_gbps=0.0)
    views = watch([down, down] + [link(tx_gbps=96.0)] * 40)
    back = [i for i, view in enumerate(views) if not view.down]
    assert 2.0 * (back[0] - 2) == PARAMS.congestion_clear_s
    assert views[back[0]].congested, "and then it is busy"
