"""The routing rule at its edges."""

from __future__ import annotations

import pytest

from routing.core.rule import side
from routing.core.types import ClusterPlan


def of(mode, threshold=None) -> ClusterPlan:
    return ClusterPlan(mode, threshold, 3, 5)


# what, plan, uncached tokens, side
EDGES = [
    ("t - 1", of("threshold", 4000), 3999, "local"),
    ("t", of("threshold", 4000), 4000, "local"),
    ("t + 1", of("threshold", 4000), 4001, "remote"),
    ("zero sends one token", of("threshold", 0), 1, "remote"),
    ("zero keeps nothing to compute", of("threshold", 0), 0, "local"),
    ("shorter than a block", of("threshold", 0), 7, "remote"),
    ("shorter than a block, below t", of("threshold", 8), 7, "local"),
    ("always local", of("always_local"), 10**6, "local"),
    ("always remote", of("always_remote"), 1, "remote"),
    ("always remote, nothing to compute", of("always_remote"), 0, "remote"),
]


@pytest.mark.parametrize(("what", "plan", "uncached", "wanted"), EDGES, ids=lambda v: str(v)[:30])
def test_the_boundary(what, plan, uncached, wanted) -> None:
    """S-36: L = t - 1, t, t + 1; t = 0; L below one block."""
    assert side(uncached, plan) == wanted


@pytest.mark.parametrize(
    ("total", "cached", "wanted"),
    [(10_000, 8_000, "local"), (60_000, 59_000, "local"), (60_000, 0, "remote")],
)
def test_what_is_cached_does_not_count(total, cached, wanted) -> None:
    """S-37: the rule reads uncached tokens, not prompt length."""
    assert side(total - cached, of("threshold", 4000)) == wanted


def test_null_is_not_zero() -> None:
    with pytest.raises(ValueError, match="null is not 0"):
        side(100, of("threshold", None))
