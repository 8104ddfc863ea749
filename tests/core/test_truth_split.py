"""NoEffect and SplitOffPrediction: the share that t gives, and the one that came (S-36, S-38)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from routing.core.effect import SHOWS_WITHIN_S, Effect
from routing.core.model.lengths import BucketLengths
from routing.core.truth import split
from routing.core.truth.finding import Finding
from routing.core.types import ClusterPlan
from tests.core.test_truth import NOW_S, kind


def effect(**facts: Any) -> Effect:
    known = {"since_s": NOW_S - SHOWS_WITHIN_S, "before": 0.9, "share": 0.9, "expected": 0.6}
    return Effect("pd", **{**known, **facts})


@pytest.mark.parametrize(
    ("what", "seen", "says"),
    [
        ("S-38 unchanged after five minutes", effect(), "bad"),
        ("S-38 a second before", effect(since_s=NOW_S - SHOWS_WITHIN_S + 1.0), "clear"),
        ("half of it came", effect(share=0.75), "clear"),
        ("less than half came", effect(share=0.76), "bad"),
        ("hardly anything was to come", effect(expected=0.86), "clear"),
        ("nobody tells the share", effect(share=None), "unknown"),
        ("nobody tells lengths", effect(expected=None), "unknown"),
        ("nothing was changed", None, "clear"),
    ],
)
def test_s38_no_effect(what: str, seen: Effect | None, says: str) -> None:
    assert kind(split.no_effect("f/pd", seen, NOW_S)) == says


def plan(mode: Any = "threshold", t: int | None = 4000, **facts: Any) -> ClusterPlan:
    return ClusterPlan(mode, t, 3, 5, **facts)


@pytest.mark.parametrize(
    ("what", "rule", "least", "most"),
    [
        ("t", plan(), 0.5, 0.5),
        ("a band", plan(band=(2000, 8000)), 0.25, 0.75),
        ("t = 0 sends all", plan(t=0), 1.0, 1.0),
        ("always local, whatever t was", plan("always_local", None), 0.0, 0.0),
        ("always remote", plan("always_remote", None), 1.0, 1.0),
    ],
)
def test_s36_the_share_that_a_rule_gives(what: str, rule: ClusterPlan, least, most) -> None:
    """A quarter of requests each up to 2,000, 4,000, 8,000 tokens, and above."""
    edges = np.array([1.0, 2000.0, 4000.0, 8000.0, 16_000.0])
    lengths = BucketLengths(edges, np.full(4, 0.25))
    assert split.expected(rule, lengths) == pytest.approx((least, most))


def test_without_lengths_only_a_rule_without_t_is_known() -> None:
    assert split.expected(plan(), None) is None
    assert split.expected(plan("always_remote", None), None) == (1.0, 1.0)


def looks(*shares: float | None, expected=(0.5, 0.5), n: float | None = 600.0) -> list[split.Look]:
    first_s = NOW_S - 30.0 * len(shares)
    return [split.Look(first_s + 30.0 * i, s, expected, n) for i, s in enumerate(shares)]


@pytest.mark.parametrize(
    ("what", "seen", "facts", "says"),
    [
        ("as expected", looks(*[0.5] * 6), {}, "clear"),
        ("far more, each time", looks(*[0.8] * 6), {}, "warn"),
        ("far fewer, each time", looks(*[0.2] * 6), {}, "warn"),
        ("far fewer, and the plan bounds them", looks(*[0.2] * 6), {"limited": True}, "clear"),
        ("far more, and the plan bounds them", looks(*[0.8] * 6), {"limited": True}, "warn"),
        ("once as expected", looks(0.8, 0.8, 0.5, 0.8, 0.8, 0.8), {}, "clear"),
        ("now above, now below", looks(0.8, 0.2, 0.8, 0.2, 0.8, 0.8), {}, "clear"),
        ("within the band", looks(*[0.8] * 6, expected=(0.3, 0.75)), {}, "clear"),
        ("noise of a few requests", looks(*[0.8] * 6, n=20.0), {}, "clear"),
        ("too few looks", looks(*[0.8] * 4), {}, "unknown"),
        ("nobody tells", looks(*[None] * 8), {}, "unknown"),
        ("no lengths", looks(*[0.8] * 8, expected=None), {}, "unknown"),
        ("no requests", looks(*[0.8] * 8, n=0.0), {}, "unknown"),
        ("the link is down", looks(*[0.0] * 8), {"excused": "prfaas->pd is down"}, "clear"),
    ],
)
def test_a_split_off_its_prediction(what, seen, facts, says) -> None:
    found = split.off_prediction("f/pd", seen, **facts)
    assert kind(found) == says
    if isinstance(found, Finding):
        above = (seen[0].share or 0.0) > 0.5
        assert found.sentence.startswith("More" if above else "Fewer")
