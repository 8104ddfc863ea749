"""The routing rule: boundaries, the three meanings of 0, null and absent, obstacles, weights."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.placement import sides
from routing.core.placement.rule import (
    Prefixes,
    Route,
    Rule,
    Situation,
    WeightedTurns,
    judge,
    route,
)
from routing.core.types import Mode


def rule(mode: Mode = "threshold", threshold: int | None = 1000, **more: Any) -> Rule:
    return Rule(mode, threshold if mode == "threshold" else None, {"prfaas": 1.0}, **more)


def seen(uncached: int | None, **more: Any) -> Situation:
    base: dict[str, Any] = {
        "remotes": ["prfaas"],
        "admissible": ["prfaas"],
        "remote_in_flight": 0,
        "local_up": True,
    }
    judged = (
        None
        if uncached is None
        else judge(None, Prefixes(uncached, 0, 0), to_local="", to_remote="")
    )
    return Situation(judged=judged, **(base | more))


CLAIMS = [
    # name, rule, situation, want
    ("t-1 stays", rule(), seen(999), ("local", "Short")),
    ("t itself stays: remote iff above", rule(), seen(1000), ("local", "Short")),
    ("t+1 goes", rule(), seen(1001), ("remote", "Long")),
    ("t = 0 is a threshold: one uncached token goes", rule(threshold=0), seen(1), ("remote", "Long")),
    ("t = 0 with everything cached stays", rule(threshold=0), seen(0), ("local", "Short")),
    ("below one block there is no exception", rule(threshold=10), seen(11), ("remote", "Long")),
    ("no plan is not t = 0", None, seen(10**9), ("local", "NoPlan")),
    ("always_local", rule("always_local"), seen(10**9), ("local", "AlwaysLocal")),
    ("always_remote", rule("always_remote"), seen(0), ("remote", "AlwaysRemote")),
    ("always_remote needs no length", rule("always_remote"), seen(None), ("remote", "AlwaysRemote")),
    ("a length nobody knows stays", rule(threshold=0), seen(None), ("local", "Unmeasured")),
    ("no remote in the plan", rule(), seen(5000, remotes=[], admissible=[]), ("local", "NoRemote")),
    ("remote down", rule(), seen(5000, admissible=[]), ("local", "RemoteDown")),
    ("remote down, always_remote", rule("always_remote"), seen(1, admissible=[]), ("local", "RemoteDown")),
    ("below the limit", rule(max_remote_in_flight=2), seen(5000, remote_in_flight=1), ("remote", "Long")),
    ("at the limit", rule(max_remote_in_flight=2), seen(5000, remote_in_flight=2), ("local", "RemoteLimit")),
    ("limit 0 is not no limit", rule(max_remote_in_flight=0), seen(5000), ("local", "RemoteLimit")),
    ("local down: short ones go where they are served", rule(), seen(5, local_up=False), ("remote", "LocalDown")),
    ("local down and remote full: local is tried", rule(max_remote_in_flight=0), seen(5, local_up=False), ("local", "Short")),
    ("both down: local is tried", rule(), seen(5, local_up=False, admissible=[]), ("local", "Short")),
    ("always_local holds even then", rule("always_local"), seen(5, local_up=False), ("local", "AlwaysLocal")),
    ("no plan holds even then", None, seen(5, local_up=False), ("local", "NoPlan")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given_rule", "situation", "want"), CLAIMS, ids=[c[0] for c in CLAIMS]
)
def test_the_rule(
    name: str, given_rule: Rule | None, situation: Situation, want: tuple[str, str]
) -> None:
    """S-36."""
    assert route(given_rule, situation) == Route(*want)  # type: ignore[arg-type]


def test_a_threshold_of_null_is_a_mistake_not_zero() -> None:
    with pytest.raises(ValueError, match="null is not 0"):
        route(Rule("threshold", None, {"prfaas": 1.0}), seen(5000))


@given(t=st.integers(0, 10**6), uncached=st.integers(0, 10**6))
def test_remote_iff_uncached_above_t(t: int, uncached: int) -> None:
    side = route(rule(threshold=t), seen(uncached)).side
    assert (side == "remote") == (uncached > t)


@given(
    mode=st.sampled_from(["always_local", "always_remote", "threshold"]),
    uncached=st.none() | st.integers(0, 10**6),
    up=st.booleans(),
    admissible=st.booleans(),
    known=st.booleans(),
    limit=st.none() | st.integers(0, 3),
    in_flight=st.integers(0, 5),
)
def test_side_and_reason_always_agree(
    mode: Mode,
    uncached: int | None,
    up: bool,
    admissible: bool,
    known: bool,
    limit: int | None,
    in_flight: int,
) -> None:
    got = route(
        rule(mode, max_remote_in_flight=limit),
        seen(
            uncached,
            remotes=["prfaas"] if known else [],
            admissible=["prfaas"] if known and admissible else [],
            remote_in_flight=in_flight,
            local_up=up,
        ),
    )
    assert got.reason in sides.REASONS
    assert (got.side == "remote") == (got.reason in sides.REMOTE_REASONS)
    if got.side == "remote":
        assert known
        assert admissible
        assert limit is None or in_flight < limit


def test_every_reason_explains_itself() -> None:
    assert set(sides.REMOTE_REASONS) < set(sides.REASONS)
    for reason, sentence in sides.REASONS.items():
        assert sentence.startswith("Remote:" if reason in sides.REMOTE_REASONS else "Local:")
        assert sentence.endswith(".")


@given(
    weights=st.dictionaries(
        st.sampled_from("abcd"), st.integers(1, 9).map(float), min_size=1, max_size=4
    ),
    n=st.integers(1, 60),
)
def test_turns_follow_the_weights_at_every_moment(weights: dict[str, float], n: int) -> None:
    turns = WeightedTurns()
    counts: Counter[str] = Counter()
    total = sum(weights.values())
    for i in range(1, n + 1):
        name = turns.next(weights, list(weights))
        assert name is not None
        turns.take(name, weights, list(weights))
        counts[name] += 1
        assert all(abs(counts[w] - i * weights[w] / total) <= len(weights) for w in weights)


def test_turns_skip_who_cannot_and_do_not_burst_on_return() -> None:
    turns, weights = WeightedTurns(), {"a": 1.0, "b": 1.0}
    for _ in range(50):
        turns.take("a", weights, ["a"])
    got = []
    for _ in range(4):
        name = turns.next(weights, ["a", "b"])
        assert name is not None
        turns.take(name, weights, ["a", "b"])
        got.append(name)
    assert sorted(got) == ["a", "a", "b", "b"]
    assert turns.next(weights, []) is None
