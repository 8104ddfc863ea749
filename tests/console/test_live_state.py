"""What a live frame says: newest wins, silence is visible, missing is never zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from console.context import STALE_AFTER_S
from console.live_state import FORGET_S, MOST_ROWS, FleetState, Scope
from console.router_window import RATE_WINDOW_S
from telemetry import store, wire
from tests.telemetry.batches import batch, instance, link, router

T0 = 1_800_000_000.0


def state() -> FleetState:
    return FleetState("f", link_gbps={"prfaas->pd": 100.0})


def apply(target: FleetState, *samples: Any, received_s: float = T0) -> None:
    target.apply_batch(batch("agent", *samples, sent_at_s=received_s), received_s=received_s)


def test_a_fleet_takes_only_what_is_its_own() -> None:
    live = state()
    apply(live, instance("f/pd/d0", T0), link("prfaas->pd", T0, tx_gbps=1.0))
    live.apply_batch(
        batch("stranger", instance("g/pd/d0", T0), instance("ff/pd/d0", T0), link("a->b", T0)),
        received_s=T0,
    )
    body = live.body(T0)
    assert list(body["instances"]) == ["f/pd/d0"]
    assert list(body["links"]) == ["prfaas->pd"]
    assert list(body["agents"]) == ["agent"]


def test_late_readings_do_not_replace_newer_ones() -> None:
    live = state()
    apply(live, instance("f/pd/d0", T0, signals={"requests_running": 2.0}))
    apply(live, instance("f/pd/d0", T0 - 60, signals={"requests_running": 9.0}))
    assert live.body(T0)["instances"]["f/pd/d0"]["running"] == 2.0


def test_a_pool_sums_what_is_fresh_and_counts_what_is_not() -> None:
    live = state()
    old_s = T0 - STALE_AFTER_S - 1

    def engine(name: str, at_s: float, running: float | None, **more: Any) -> None:
        signals = {"requests_running": running, "kv_cache_usage_ratio": 0.5}
        apply(live, instance(f"f/pd/{name}", at_s, signals=signals, **more), received_s=at_s)

    engine("d0", T0, 3.0)
    engine("d1", T0, None)
    engine("d2", old_s, 50.0)
    engine("d3", T0, 70.0, state="failed", error="timeout")
    engine("p0", T0, 1.0, role="prefill")
    pools = live.body(T0)["pools"]
    assert pools["pd/decode"] == {
        "n": 4, "n_fresh": 2, "running": 3.0, "waiting": None, "kv_ratio": 0.5, "at_s": T0,
    }  # fmt: skip
    assert pools["pd/prefill"]["running"] == 1.0


def test_an_instance_that_changes_role_changes_pool() -> None:
    live = state()
    apply(live, instance("f/pd/x", T0))
    apply(live, instance("f/pd/x", T0 + 1, role="prefill"))
    assert list(live.body(T0 + 1)["pools"]) == ["pd/prefill"]


@pytest.mark.parametrize(
    ("signals", "capacity_gbps", "utilisation"),
    [
        ({"tx_gbps": 25.0, "capacity_gbps": 50.0}, 50.0, 0.5),
        ({"tx_gbps": 25.0}, 100.0, 0.25),
        ({"capacity_gbps": 50.0}, 50.0, None),
        ({"tx_gbps": 0.0}, 100.0, 0.0),
        ({"tx_gbps": 0.0, "capacity_gbps": 0.0}, 0.0, None),
    ],
    ids=["measured capacity", "configured capacity", "rate not measured", "idle is zero", "down"],
)
def test_link_utilisation(
    signals: dict[str, float], capacity_gbps: float, utilisation: float | None
) -> None:
    live = state()
    apply(live, link("prfaas->pd", T0, **signals))
    found = live.body(T0)["links"]["prfaas->pd"]
    assert (found["capacity_gbps"], found["utilisation_ratio"]) == (capacity_gbps, utilisation)


def test_a_link_is_down_from_its_first_reading_without_capacity_until_it_has_some() -> None:
    live = state()
    since_s = []
    for i, capacity_gbps in enumerate((100.0, 0.0, 0.0, None, 0.0, 50.0)):
        apply(live, link("prfaas->pd", T0 + i, capacity_gbps=capacity_gbps), received_s=T0 + i)
        since_s.append(live.body(T0 + i)["links"]["prfaas->pd"]["down_since_s"])
    assert since_s == [None, T0 + 1, T0 + 1, None, T0 + 4, None]


@pytest.mark.parametrize(
    ("signals", "says"),
    [
        ({"path_state": "degraded", "n_members": 2.0, "n_members_up": 1.0}, "1 of 2 members up"),
        (
            {"path_state": "degraded", "n_members": 2.0, "n_members_up": 2.0},
            "the speed of a member is not known",
        ),
        ({"path_state": "degraded"}, "path degraded"),
        ({"path_state": "whole", "n_members": 2.0, "n_members_up": 2.0}, ""),
        ({"path_state": "down"}, ""),
        ({}, ""),
    ],
)
def test_a_path_that_is_less_than_whole_says_so(signals: dict[str, Any], says: str) -> None:
    """S-12: traffic still flows, so it is no label of the loop's, and no silence either."""
    live = state()
    apply(live, link("prfaas->pd", T0, **signals))
    trouble = live.body(T0)["links"]["prfaas->pd"]["path_trouble"]
    assert trouble.endswith(says)
    assert bool(trouble) == bool(says)


def gate(
    at_s: float, local: float, remote: float, ttft: list[float] | None = None, epoch_s: float = 1.0
) -> wire.RouterSample:
    signals: dict[str, Any] = {"requests_total": {"local|short": local, "remote|long": remote}}
    if ttft is not None:
        signals["ttft_seconds"] = {
            "local": wire.Histogram(edges=[1.0, 2.0], counts=ttft, sum=0.0),
            "remote": wire.Histogram(edges=[1.0, 2.0], counts=ttft, sum=0.0),
        }
    return router("f/pd/g", at_s, epoch_s=epoch_s, signals=signals)


def shown(live: FleetState) -> dict[str, Any]:
    return live.body(T0)["routers"]["f/pd/g"]


def test_remote_share_is_of_the_last_minute() -> None:
    live = state()
    for i in range(0, 200, 10):  # everything local at first, three of four remote later
        remote = max(0.0, i - 100.0)
        apply(live, gate(T0 + i, local=1000.0 + i - 0.75 * remote, remote=0.75 * remote))
    assert shown(live)["remote_share"] == pytest.approx(0.75)


def test_the_rate_of_a_gate_is_counted_over_half_a_minute_and_does_not_jump_about() -> None:
    """Four requests arrive together every other reading: from one to the next it is 0 or 4."""
    live, seen = state(), []
    for i in range(60):
        apply(live, gate(T0 + i, local=100.0 + 4.0 * (i // 2), remote=0.0))
        seen.append(shown(live)["requests_per_s"])
    assert seen[0] is None, "a count alone is no rate"
    assert max(abs(rate - 2.0) for rate in seen[30:]) <= 4.0 / RATE_WINDOW_S


def test_the_rate_of_a_gate_that_was_restarted_begins_anew() -> None:
    live = state()
    for i in range(40):
        apply(live, gate(T0 + i, local=100.0 + i, remote=0.0))
    apply(live, gate(T0 + 40, local=0.0, remote=0.0, epoch_s=2.0))
    assert shown(live)["requests_per_s"] is None
    apply(live, gate(T0 + 42, local=6.0, remote=0.0, epoch_s=2.0))
    assert shown(live)["requests_per_s"] == 3.0


def test_a_rate_that_a_router_says_itself_is_averaged_over_the_same_span() -> None:
    live = state()
    for i, rate in enumerate([100.0] * 10 + [0.0, 4.0] * 20):
        apply(live, router("f/pd/g", T0 + i, signals={"requests_per_s": rate}))
    assert shown(live)["requests_per_s"] == pytest.approx(2.0)


def test_the_page_says_over_what_a_gates_rate_is() -> None:
    template = Path("templates/partials/_gates.html").read_text(encoding="utf-8")
    assert f"over {RATE_WINDOW_S:g} s" in template


def test_no_requests_is_no_share() -> None:
    live = state()
    apply(live, gate(T0, 5.0, 5.0), gate(T0 + 10, 5.0, 5.0))
    assert shown(live)["remote_share"] is None


@pytest.mark.parametrize(
    "restarted",
    [gate(T0 + 10, 1.0, 3.0), gate(T0 + 10, 60.0, 60.0, epoch_s=2.0)],
    ids=["counter fell", "start time changed"],
)
def test_a_restart_begins_a_new_window(restarted: wire.RouterSample) -> None:
    live = state()
    apply(live, gate(T0, 50.0, 50.0), restarted)
    assert shown(live)["remote_share"] is None


def test_a_ttft_above_the_largest_bound_is_said_to_be() -> None:
    live = state()
    apply(live, gate(T0, 1.0, 1.0, [0.0, 0.0, 0.0]), gate(T0 + 10, 2.0, 2.0, [8.0, 0.0, 2.0]))
    found = shown(live)
    assert (found["ttft_p50_is_above"], found["ttft_p90_is_above"]) == (False, True)
    assert found["ttft_p90_s"] == 2.0


def test_ttft_quantiles_are_of_both_sides_and_of_the_window() -> None:
    live = state()
    apply(live, gate(T0, 1.0, 1.0, [90.0, 0.0, 0.0]), gate(T0 + 10, 2.0, 2.0, [90.0, 10.0, 0.0]))
    assert shown(live)["ttft_p50_s"] == pytest.approx(1.5)
    assert shown(live)["ttft_p90_s"] == pytest.approx(1.9)
    apply(live, gate(T0 + 80, 3.0, 3.0, [90.0, 10.0, 0.0]))
    assert shown(live)["ttft_p50_s"] is None


def test_unlike_buckets_of_the_sides_are_no_quantile() -> None:
    live = state()
    for at_s, count in ((T0, 0.0), (T0 + 10, 5.0)):
        ttft = {
            "local": wire.Histogram(edges=[], counts=[count], sum=0.0),
            "remote": wire.Histogram(edges=[1.0, 2.0], counts=[count, 0.0, 0.0], sum=0.0),
        }
        requests = {"local|Short": count, "remote|Long": count}
        apply(
            live,
            router("f/pd/g", at_s, signals={"ttft_seconds": ttft, "requests_total": requests}),
        )
    found = shown(live)
    assert (found["remote_share"], found["ttft_p50_s"], found["ttft_p90_s"]) == (0.5, None, None)


def test_a_gate_that_reports_nothing_yet_is_shown_as_such() -> None:
    live = state()
    apply(live, router("f/pd/g", T0))
    found = shown(live)
    assert found["in_flight"] == {"local": None, "remote": None}
    assert (found["remote_share"], found["ttft_p50_s"], found["plan_version"]) == (None, None, None)


def test_the_silent_are_forgotten_after_a_while() -> None:
    live = state()
    apply(live, instance("f/pd/d0", T0), router("f/pd/g", T0))
    apply(live, instance("f/pd/d1", T0 + 1), received_s=T0 + 1)
    live.forget(T0 + FORGET_S + 0.5)
    body = live.body(T0)
    assert (list(body["instances"]), body["routers"]) == (["f/pd/d1"], {})


def test_an_agents_clock_is_shown() -> None:
    live = state()
    live.apply_batch(batch("agent", instance("f/pd/d", T0), sent_at_s=T0 + 2.5), received_s=T0)
    assert live.body(T0)["agents"] == {"agent": {"received_s": T0, "skew_s": 2.5}}


def test_a_backlog_does_not_make_a_clock_look_late() -> None:
    live = state()
    skews = []
    for received_s, sent_at_s in ((0, 0.5), (1, -3600.0), (2, 2.25), (40, -3590.0)):
        sent = batch("agent", instance("f/pd/d", T0 + sent_at_s), sent_at_s=T0 + sent_at_s)
        live.apply_batch(sent, received_s=T0 + received_s)
        skews.append(live.body(T0)["agents"]["agent"]["skew_s"])
    assert skews == [0.5, 0.5, 0.5, -3630.0]


def test_a_stored_reading_and_a_published_sample_show_alike() -> None:
    sample = instance("f/pd/d", T0, signals={"requests_waiting": 4.0})
    stored, published = state(), state()
    stored.apply(store.from_sample(sample, received_s=T0))
    apply(published, sample)
    assert stored.body(T0)["instances"] == published.body(T0)["instances"]


def test_s20_an_instance_that_is_gone_leaves_the_view_and_history_does_not_bring_it_back() -> None:
    live = state()
    apply(live, instance("f/pd/d0", T0), instance("f/pd/d1", T0))
    apply(live, instance("f/pd/d0", T0 + 1, state="gone"), received_s=T0 + 1)
    assert list(live.body(T0)["instances"]) == ["f/pd/d1"]
    assert live.body(T0)["pools"]["pd/decode"]["n"] == 1
    apply(live, instance("f/pd/d0", T0 - 30), received_s=T0 + 2)
    assert list(live.body(T0)["instances"]) == ["f/pd/d1"]
    apply(live, instance("f/pd/d0", T0 + 3), received_s=T0 + 3)
    assert list(live.body(T0)["instances"]) == ["f/pd/d0", "f/pd/d1"]


@pytest.mark.parametrize("trouble", ["failed", "down", "slow"])
def test_a_reading_that_went_wrong_begins_a_failure(trouble: str) -> None:
    live = state()
    apply(live, instance("f/pd/d0", T0, state=trouble, error="why"), received_s=T0)
    [finding] = [f for f in live.missing(T0 + 1) if f.key.startswith("failing:")]
    assert "why" in finding.effect
    apply(live, instance("f/pd/d0", T0 + 1), received_s=T0 + 1)
    assert not [f for f in live.missing(T0 + 2) if f.key.startswith("failing:")]


def large(n: int = MOST_ROWS + 100) -> FleetState:
    """A fleet of `n` agents of an instance each, the later the busier."""
    live = state()
    for i in range(n):
        told = instance(f"f/pd/d{i:04}", T0, signals={"requests_running": float(i)})
        live.apply_batch(batch(f"agent-{i:04}", told, sent_at_s=T0), received_s=T0)
    return live


def test_a_fleet_that_fits_a_frame_is_told_of_whole_whatever_a_page_shows() -> None:
    live = large(MOST_ROWS)
    body = live.body(T0, Scope(("f/pd/d0000",), ("agent-0000",)))
    assert (len(body["instances"]), len(body["agents"])) == (MOST_ROWS, MOST_ROWS)
    assert not body["partial"]


def test_of_a_large_fleet_a_frame_tells_who_is_in_trouble_and_who_is_busiest_and_counts_all() -> (
    None
):
    live = large()
    now_s = T0 + STALE_AFTER_S + 1
    for i in range(2, MOST_ROWS + 100):
        told = instance(f"f/pd/d{i:04}", now_s, signals={"requests_running": float(i)})
        if i == 2:
            told = instance("f/pd/d0002", now_s, state="failed", error="HTTP 500")
        sent = batch(f"agent-{i:04}", told, sent_at_s=now_s + 60.0 * (i == 7))
        live.apply_batch(sent, received_s=now_s)
    body = live.body(now_s)
    assert body["partial"]
    assert {"f/pd/d0000", "f/pd/d0001", "f/pd/d0002", "f/pd/d0399"} < body["instances"].keys()
    assert "f/pd/d0003" not in body["instances"]
    assert len(body["instances"]) < MOST_ROWS / 2
    assert body["agents"].keys() == {"agent-0000", "agent-0001", "agent-0007"}
    assert body["counts"] == {
        "instances": 400, "agents": 400, "agents_silent": 2, "agents_silent_since_s": T0,
    }  # fmt: skip
    pool = body["pools"]["pd/decode"]
    assert (pool["n"], pool["n_fresh"]) == (400, 397)


def test_of_a_large_fleet_a_page_is_told_of_what_it_shows() -> None:
    live = large()
    unasked = live.body(T0)
    scope = Scope(("f/pd/d0005", "f/pd/nobody"), ("agent-0005", "nobody"))
    asked = live.body(T0, scope)
    assert asked["instances"].keys() == unasked["instances"].keys() | {"f/pd/d0005"}
    assert asked["instances"]["f/pd/d0005"]["running"] == 5.0
    assert asked["agents"] == {"agent-0005": {"received_s": T0, "skew_s": 0.0}}


def test_a_frame_of_a_fleet_where_nothing_works_is_no_larger() -> None:
    live = large()
    body = live.body(T0 + STALE_AFTER_S + 1)
    assert (len(body["instances"]), len(body["agents"])) == (70, 50)
    assert body["counts"]["agents_silent"] == 400


def test_who_left_leaves_its_pool() -> None:
    live = state()
    apply(live, instance("f/pd/d0", T0), instance("f/pd/d1", T0))
    apply(live, instance("f/pd/d0", T0 + 1, role="prefill"), received_s=T0 + FORGET_S)
    live.forget(T0 + FORGET_S + 1)
    assert list(live.body(T0 + FORGET_S + 1)["pools"]) == ["pd/prefill"]
