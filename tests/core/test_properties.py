"""What holds for every input: no exception, bounds, steps, known reasons, JSON that comes back."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.core.decide import decide
from routing.core.jsonable import from_jsonable, to_jsonable
from routing.core.reasons import REASONS
from routing.core.scenario.document import parse_scenario
from routing.core.types import (
    Awaited,
    ClusterPlan,
    HeldPlan,
    LengthHistogram,
    LengthShift,
    LinkMemory,
    LinkObservation,
    Memory,
    Observation,
    Params,
    PdObservation,
    Plan,
    PrefillObservation,
    RoleChange,
    Verdict,
)
from tests.core.cases import (
    LINK,
    demo_document,
    demo_scenario,
    exact_histogram,
    pd,
    plan,
    seen,
)

SCENARIO = demo_scenario()
_document = demo_document()
_document["clusters"][1] |= {"control_urls": ["http://s"], "min_prefill": 2, "min_decode": 2}
MOVABLE = parse_scenario(_document)
QUICK = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

finite = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | finite
mild = st.none() | st.floats(-1.0, 1e4)
number = maybe | mild
counts = st.integers(-2, 40)
states = st.sampled_from(["value", "idle", "missing", "failed"])
times = st.none() | st.floats(0.0, 5000.0)

histograms = st.builds(
    LengthHistogram,
    edges=st.lists(finite, max_size=6).map(tuple),
    counts=st.lists(finite, max_size=7).map(tuple),
    n_effective=finite,
    n_seen=finite,
    oldest_s=finite,
) | st.builds(
    LengthHistogram,
    edges=st.lists(st.floats(1.0, 2e5), min_size=3, max_size=3, unique=True).map(sorted).map(tuple),
    counts=st.lists(st.floats(0.0, 1e4), min_size=4, max_size=4).map(tuple),
    n_effective=st.floats(0.0, 1e5),
    n_seen=st.floats(0.0, 1e5),
)
links = st.builds(
    LinkObservation,
    capacity_gbps=number,
    tx_gbps=number,
    state=states,
    retransmit_ratio=number,
    rtt_s=number,
    age_s=number,
)
shifts = st.builds(
    LengthShift,
    span_s=st.sampled_from([30.0, 60.0]),
    n_recent=st.floats(0.0, 1e4),
    mean_recent=st.floats(0.0, 15.0),
    n_before=st.floats(0.0, 1e4),
    mean_before=st.floats(0.0, 15.0),
    sd=st.floats(0.0, 5.0),
)
changes = st.builds(
    RoleChange,
    id=st.integers(1, 3),
    state=st.sampled_from(["running", "done", "expired", "failed", "cancelled"]),
    n_prefill=st.integers(1, 8),
    n_decode=st.integers(1, 8),
    since_s=st.floats(0.0, 5000.0),
    ended_at_s=st.none() | st.floats(0.0, 5000.0),
)
observations = st.builds(
    Observation,
    now_s=st.floats(0.0, 4e9),
    fleet=st.just("prfaas-1t"),
    pd=st.dictionaries(
        st.sampled_from(["pd", "unknown"]),
        st.builds(
            PdObservation,
            demand_rps=number,
            demand_state=states,
            lengths=st.none() | histograms | st.just(exact_histogram()),
            n_prefill=counts,
            n_decode=counts,
            remote_share=number,
            age_s=number,
            movable_ratio=st.none() | st.floats(0.0, 1.0),
            shifts=st.lists(shifts, max_size=2).map(tuple),
            prefill_silent=st.sampled_from([(), ("a",)]),
            decode_silent=st.sampled_from([(), ("b", "c")]),
            role_change=st.none() | changes,
            queue_prefill=number,
            queue_decode=number,
            decode_in_transfer=number,
            decode_kv_usage_ratio=st.none() | st.sampled_from([0.3, 0.97]) | finite,
            preemptions_per_s=number,
            prefill_warming=st.sampled_from([(), ("a", "d")]),
            n_gates=st.none() | st.integers(0, 3),
        ),
    ),
    prefill=st.dictionaries(
        st.sampled_from(["prfaas", "unknown"]),
        st.builds(PrefillObservation, n_prefill=counts, queue_prefill=number, age_s=number),
    ),
    links=st.dictionaries(st.sampled_from([LINK, "a->b"]), links),
)
thresholds = st.integers(0, 200_000)


def cluster(mode: str, threshold: int, n_prefill: int, n_decode: int) -> ClusterPlan:
    return ClusterPlan(
        mode, threshold if mode == "threshold" else None, n_prefill, n_decode, {"prfaas": 1.0}
    )


modes = st.sampled_from(["threshold", "always_local", "always_remote"])
clusters = st.builds(cluster, modes, thresholds, st.integers(0, 9), st.integers(0, 9))
plans = clusters.map(lambda c: Plan("prfaas-1t", 1, 7, {"pd": c}))
memories = st.builds(
    Memory,
    gain_since_s=times,
    last_change_s=times,
    changes_s=st.lists(st.floats(0.0, 5000.0), max_size=4).map(tuple),
    base_rtt_s=st.dictionaries(st.just(LINK), st.floats(0.0, 1.0)),
    links=st.dictionaries(
        st.just(LINK),
        st.builds(
            LinkMemory,
            trouble=st.sampled_from(["none", "congested", "down"]),
            since_s=times,
            clear_since_s=times,
            tx_gbps=st.lists(st.floats(0.0, 200.0), max_size=4).map(tuple),
            plateau_gbps=st.none() | st.floats(0.0, 200.0),
            plateau_at_s=times,
        ),
    ),
    lengths=st.dictionaries(st.just("pd"), st.just(exact_histogram(700))),
    smoothed_at_s=times,
    before_down=st.dictionaries(st.just("pd"), thresholds),
    lengths_since_s=st.dictionaries(st.just("pd"), st.floats(0.0, 5000.0)),
    roles_gain_since_s=times,
    roles_changed_at_s=times,
    roles_failed=st.dictionaries(st.just("pd"), st.integers(0, 2000)),
    roles_ended=st.dictionaries(st.just("pd"), st.integers(1, 3)),
    roles_astray_since_s=st.dictionaries(st.just("pd"), st.floats(0.0, 5000.0)),
    spare_since_s=st.dictionaries(st.just("pd"), st.floats(0.0, 5000.0)),
    scarce_at_s=st.dictionaries(st.just("pd"), st.floats(0.0, 5000.0)),
    awaited=st.dictionaries(
        st.sampled_from(["pd", "gone"]),
        st.builds(Awaited, since_s=st.floats(0.0, 5000.0), before=st.floats(0.0, 1.0)),
    ),
)
holds = st.lists(
    st.builds(
        HeldPlan,
        cluster=st.sampled_from(["pd", None, "unknown"]),
        mode=modes,
        threshold_tokens=st.none() | thresholds,
        owner=st.just("ada"),
        reason=st.just(""),
        expires_at_s=finite,
    ),
    max_size=2,
).map(tuple)
policies = st.builds(
    Params,
    mode=st.sampled_from(["active", "advisory", "paused"]),
    objective=st.sampled_from(["max_headroom", "min_remote"]),
    cache_mode=st.sampled_from(["auto", "scarce", "abundant"]),
    band_ratio=st.sampled_from([0.0, 0.2]),
    max_remote_in_flight=st.none() | st.just(0),
    roles_max_step_ratio=st.sampled_from([0.01, 0.25, 1.0]),
    holds=st.just(()) | holds,
)


def strictly(value: Any) -> Any:
    """Through JSON and back, refusing NaN and Infinity as every door does."""
    return json.loads(json.dumps(to_jsonable(value), allow_nan=False))


@given(observations, plans, memories, policies)
@QUICK
def test_decide_never_raises_and_always_explains(observation, running, memory, params) -> None:
    verdict = decide(observation, running, memory, params, SCENARIO)
    assert verdict.reason in REASONS
    assert verdict.message
    assert verdict.bottleneck.signs
    assert len(verdict.alternatives) <= 8
    assert from_jsonable(Verdict, strictly(verdict)) == verdict
    assert from_jsonable(Memory, strictly(memory)) == memory
    assert from_jsonable(Observation, strictly(observation)) == observation
    if verdict.action == "hold":
        assert verdict.plan == running
    else:
        assert verdict.plan.version == running.version + 1
        advice = params.mode == "advisory"
        last_s = memory.last_change_s if advice else observation.now_s
        assert verdict.memory.last_change_s == last_s
    # Twice the same question, twice the same answer.
    assert decide(observation, running, memory, params, SCENARIO) == verdict


@given(observations, plans, memories, policies)
@QUICK
def test_roles_keep_to_floors_budget_and_steps_on_every_path(
    observation, running, memory, params
) -> None:
    verdict = decide(observation, running, memory, params, MOVABLE)
    assert from_jsonable(Verdict, strictly(verdict)) == verdict
    before, after = running.clusters["pd"], verdict.plan.clusters["pd"]
    if (after.n_prefill, after.n_decode) == (before.n_prefill, before.n_decode):
        return
    seen = observation.pd["pd"]
    observed = (seen.n_prefill, seen.n_decode)
    assert params.mode != "paused"
    assert verdict.reason in ("RoleImbalance", "FloorRestored", "RolesFollowed", "RolesCancelled")
    if verdict.reason in ("RolesFollowed", "RolesCancelled"):
        assert (after.n_prefill, after.n_decode) == observed
        return
    assert after.n_prefill >= 2
    assert after.n_decode >= 2
    assert after.n_prefill + after.n_decode in (sum(observed), before.n_prefill + before.n_decode)
    if verdict.reason == "RoleImbalance":
        most = max(1, int(params.roles_max_step_ratio * sum(observed) + 1e-9))
        assert 1 <= abs(after.n_decode - observed[1]) <= most
        label = verdict.bottlenecks["pd"]
        assert not (label.label == "decode" and label.measured and after.n_prefill > observed[0])
        assert sum(observed) <= 8


@given(observations, plans, memories, policies)
@QUICK
def test_t_keeps_to_its_bounds_and_steps_on_every_path(
    observation, running, memory, params
) -> None:
    verdict = decide(observation, running, memory, params, SCENARIO)
    before, after = running.clusters["pd"], verdict.plan.clusters["pd"]
    assert (after.n_prefill, after.n_decode) == (before.n_prefill, before.n_decode)
    assert (after.threshold_tokens is None) == (after.mode != "threshold")
    if verdict.action == "hold":
        return
    t = after.threshold_tokens
    if t is not None:
        assert params.t_min_tokens <= t <= params.t_max_tokens
    inside = before.mode == "threshold" and (
        params.t_min_tokens <= before.threshold_tokens <= params.t_max_tokens
    )
    # A person's hold and the way back inside the bounds are not steps of the loop.
    if t is not None and inside and verdict.reason not in ("Held", "OutOfBounds"):
        assert before.threshold_tokens / 1.5 <= t <= before.threshold_tokens * 1.5


@given(st.floats(0.05, 50.0), st.floats(0.2, 200.0), st.integers(512, 131_072), st.integers(1, 7))
@QUICK
def test_an_adopted_plan_is_never_predicted_to_be_worse(demand, gbps, t, n_prefill) -> None:
    """Healthy telemetry, any demand, link, t and roles: a step leads uphill."""
    link = LinkObservation(gbps, min(0.5 * gbps, 9.0), "value", 0.0, 0.005, 1.0)
    roles = {"n_prefill": n_prefill, "n_decode": 8 - n_prefill}
    observation = seen(pd=pd(demand_rps=demand, **roles), link=link)
    ready = Memory(gain_since_s=900.0)
    verdict = decide(
        observation, plan(t, **roles), ready, Params(mode="active", band_ratio=0.0), SCENARIO
    )
    if verdict.action == "adopt":
        assert verdict.adopted.headroom >= verdict.current.headroom * (1 - 1e-9)
        assert verdict.best.headroom >= verdict.adopted.headroom * 0.95
        for number_ in (verdict.current.headroom, verdict.adopted.lambda_max_rps):
            assert math.isfinite(number_)
