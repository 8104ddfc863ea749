"""When an upstream counts as down, and how it comes back."""

from __future__ import annotations

from routing.gate.health import Health


def test_one_refused_connection_is_proof_and_one_timeout_is_not() -> None:
    health = Health(now_s=0.0)
    assert not health.failed("slow", refused=False, now_s=1.0)
    assert health.state == "up"
    assert health.failed("slow", refused=False, now_s=2.0)
    assert (health.state, health.since_s, health.error) == ("down", 2.0, "slow")
    other = Health(now_s=0.0)
    assert other.failed("refused", refused=True, now_s=1.0)
    assert not other.admits()
    assert not other.failed("refused", refused=True, now_s=2.0), "already down"
    assert other.since_s == 1.0


def test_failures_must_be_in_a_row() -> None:
    probed, asked = Health(now_s=0.0), Health(now_s=0.0)
    for now_s in range(10):
        for health in (probed, asked):
            health.failed("slow", refused=False, now_s=now_s)
        probed.probe_ok(now_s=now_s)
        asked.request_ok(sent_s=now_s, now_s=now_s)
    assert (probed.state, asked.state) == ("up", "up")


def test_half_open_lets_one_trial_through_at_a_time() -> None:
    health = Health(now_s=0.0)
    health.failed("refused", refused=True, now_s=1.0)
    health.probe_ok(now_s=2.0)
    assert health.state == "half_open"
    assert health.admits()
    health.request_started()
    assert not health.admits()
    health.request_abandoned()
    assert health.admits(), "a client that left proved nothing"
    health.request_started()
    health.request_ok(sent_s=2.0, now_s=3.0)
    assert (health.state, health.error, health.admits()) == ("up", None, True)


def test_what_was_sent_before_it_went_down_does_not_bring_it_back() -> None:
    health = Health(now_s=0.0)
    health.failed("answered 503", refused=True, now_s=5.0)
    health.request_ok(sent_s=4.0, now_s=6.0)
    assert (health.state, health.since_s) == ("down", 5.0)
    health.probe_ok(now_s=7.0)
    health.request_started()
    health.request_ok(sent_s=4.0, now_s=8.0)
    assert health.state == "half_open"
    assert not health.admits(), "the trial is still out"


def test_a_failed_trial_closes_again_at_once() -> None:
    health = Health(now_s=0.0)
    health.failed("refused", refused=True, now_s=1.0)
    health.probe_ok(now_s=2.0)
    health.request_started()
    assert health.failed("broke", refused=False, now_s=3.0)
    assert health.state == "down"


def test_without_traffic_probes_alone_bring_it_back() -> None:
    health = Health(now_s=0.0)
    health.failed("refused", refused=True, now_s=1.0)
    for now_s in (2.0, 3.0, 4.0):
        health.probe_ok(now_s=now_s)
    assert health.state == "up"
