"""What of a prompt a prefix cache holds: by blocks, and for linear layers by snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from routing.lab.cache import LinearState, PrefixCache
from tests.lab.small import BLOCK_TOKENS, prompt


def cache(linear_state: LinearState = "none", **options: Any) -> PrefixCache:
    return PrefixCache(
        block_tokens=BLOCK_TOKENS,
        linear_state=linear_state,
        **{"capacity_tokens": None, **options},
    )


@pytest.mark.parametrize(
    ("linear_state", "n_tokens", "want"),
    [
        pytest.param("none", 10, 8, id="a shorter prompt shares its full blocks"),
        pytest.param("exact", 10, 0, id="no state was kept inside the longer prompt"),
        pytest.param("none", 60, 40, id="a longer prompt continues"),
        pytest.param("exact", 60, 40, id="a longer prompt continues where the state was kept"),
        pytest.param("none", 42, 40, id="the same prompt"),
        pytest.param("exact", 42, 40, id="the same prompt has the same last full block"),
        pytest.param("none", 40, 36, id="the last token is computed"),
        pytest.param("exact", 40, 0, id="the last token is computed and its state is too late"),
    ],
)
def test_what_a_prompt_of_42_tokens_leaves_for_others(
    linear_state: LinearState, n_tokens: int, want: int
) -> None:
    held = cache(linear_state)
    held.insert(prompt(42))
    assert held.cached_tokens(prompt(n_tokens)) == want


def test_the_deepest_snapshot_on_the_matching_prefix_counts() -> None:
    held = cache("exact")
    for n in (12, 24, 48):
        held.insert(prompt(n))
    assert held.held_tokens(prompt(40)) == 24
    assert held.held_tokens(prompt(60)) == 48
    assert held.held_tokens(prompt(60), 47) == 24
    assert held.held_tokens(prompt(60), 23) == 12
    assert held.held_kv_tokens(prompt(40)) == 40
    assert held.held_tokens(prompt(60, first=1)) == 0


def test_a_later_prompt_does_not_lose_the_snapshots_on_its_way() -> None:
    held = cache("exact")
    held.insert(prompt(12))
    held.insert(prompt(48))
    assert held.held_tokens(prompt(20)) == 12


def test_a_prefix_alone_can_be_inserted() -> None:
    held = cache("exact")
    held.insert(prompt(48), 16)
    assert (held.held_tokens(prompt(48)), len(held)) == (16, 4)


def test_a_snapshot_goes_with_its_block_and_no_more_are_kept_than_blocks() -> None:
    """Room for 10 blocks. The second prompt takes 6: of the first one's 8 the last 4 go, and with
    them its snapshot; the blocks that stay lead to none."""
    held = cache("exact", capacity_tokens=40)
    held.insert(prompt(32))
    held.insert(prompt(24, first=1000))
    assert len(held) == 10
    assert held.held_kv_tokens(prompt(33)) == 16
    assert held.held_tokens(prompt(33)) == 0
    assert held.held_tokens(prompt(25, first=1000)) == 24


def test_a_prompt_longer_than_the_cache_leaves_its_beginning() -> None:
    held = {kind: cache(kind, capacity_tokens=16) for kind in ("none", "exact")}  # type: ignore[arg-type]
    for kind in held.values():
        kind.insert(prompt(40))
    assert held["none"].held_tokens(prompt(40)) == 16
    assert held["exact"].held_tokens(prompt(40)) == 0


def test_a_cleared_cache_holds_nothing() -> None:
    held = cache("exact")
    held.insert(prompt(12))
    held.clear()
    assert held.held_tokens(prompt(20)) == 0
