"""The twin's prefix cache: against a model block by block, against the lab's, and by hand."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.lab import cache as lab
from routing.lab.prompt import Prompt, of_ids
from routing.twin.cache import PrefixCache
from tests.twin import mooncake
from tests.twin.naive_cache import Ids, NaiveCache, chained

RUNS = st.tuples(st.sampled_from("ab"), st.integers(1, 7))
TEXTS = st.lists(RUNS, max_size=4).map(lambda runs: "".join(letter * n for letter, n in runs))
"""Prompts of up to 28 blocks, one a letter, that leave each other in the middle of a run."""
CAPACITIES = st.none() | st.integers(0, 40)


def cache(capacity_blocks: int | None = None, *, exact_state: bool = False) -> PrefixCache:
    return PrefixCache(capacity_blocks=capacity_blocks, exact_state=exact_state)


def filled(*texts: str, ids: Ids, capacity_blocks: int | None = None) -> PrefixCache:
    held = cache(capacity_blocks, exact_state=True)
    for text in texts:
        held.insert(chained(text, ids), ready_s=0.0)
    return held


def prompt_of(text: str) -> Prompt:
    """One token a letter, for the lab's cache."""
    return of_ids([ord(letter) for letter in text], block_tokens=1)


@settings(max_examples=400, deadline=None)
@given(
    inserts=st.lists(st.tuples(TEXTS, st.integers(0, 5)), max_size=30),
    asked=st.lists(st.tuples(TEXTS, st.integers(0, 5), st.none() | st.integers(0, 30)), max_size=5),
    capacity=CAPACITIES,
    exact=st.booleans(),
)
def test_it_is_a_cache_of_single_blocks(
    inserts: list[tuple[str, int]],
    asked: list[tuple[str, int, int | None]],
    capacity: int | None,
    exact: bool,
) -> None:
    """After each prompt all that came before are asked for, at a time when some are not ready."""
    held = PrefixCache(capacity_blocks=capacity, exact_state=exact)
    naive = NaiveCache(capacity_blocks=capacity, exact_state=exact)
    ids: Ids = {}
    seen: list[list[int]] = []
    for text, ready_s in inserts:
        blocks = chained(text, ids)
        held.insert(blocks, ready_s=ready_s)
        naive.insert(blocks, ready_s=ready_s)
        seen.append(blocks)
        assert len(held) == len(naive)
        for other in seen:
            for at_s in (ready_s, 5):
                assert held.match(other, at_s=at_s) == naive.match(other, at_s=at_s)
        for text_asked, at_s, most in asked:
            other = chained(text_asked, ids)
            want = naive.match(other, at_s=at_s, most=most)
            assert held.match(other, at_s=at_s, most=most) == want


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(TEXTS, max_size=30), capacity=CAPACITIES, exact=st.booleans())
def test_it_holds_what_the_labs_holds(texts: list[str], capacity: int | None, exact: bool) -> None:
    held = PrefixCache(capacity_blocks=capacity, exact_state=exact)
    theirs = lab.PrefixCache(
        capacity_tokens=capacity, block_tokens=1, linear_state="exact" if exact else "none"
    )
    ids: Ids = {}
    for n, text in enumerate(texts):
        held.insert(chained(text, ids), ready_s=0.0)
        theirs.insert(prompt_of(text))
        assert len(held) == len(theirs)
        for other in texts[: n + 1]:
            prompt = prompt_of(other)
            want = (theirs.held_kv_tokens(prompt), theirs.held_tokens(prompt))
            assert held.match(chained(other, ids), at_s=0.0) == want


def test_a_linear_state_serves_only_prompts_that_have_its_whole_prefix() -> None:
    ids: Ids = {}
    held = filled("aaaa", "aaaabb", ids=ids)
    for text, want in {
        "aaaabbcc": (6, 6),
        "aaaabc": (5, 4),
        "aaa": (3, 0),
        "aaaabb": (6, 6),
        "": (0, 0),
    }.items():
        assert held.match(chained(text, ids), at_s=0.0) == want, text
    assert held.match(chained("aaaabb", ids), at_s=0.0, most=5) == (5, 4), "its last token runs"
    assert held.match(chained("aaaabb", ids), at_s=0.0, most=0) == (0, 0)


def test_eviction_shortens_the_prefix_used_longest_ago_and_takes_its_state() -> None:
    ids: Ids = {}
    held = filled("aaaa", "bbbb", ids=ids, capacity_blocks=8)
    held.insert(chained("cc", ids), ready_s=0.0)
    assert held.match(chained("aaaa", ids), at_s=0.0) == (2, 0)
    assert held.match(chained("bbbb", ids), at_s=0.0) == (4, 4)
    held.insert(chained("aa", ids), ready_s=0.0)
    held.insert(chained("dd", ids), ready_s=0.0)
    assert held.match(chained("aa", ids), at_s=0.0) == (2, 2)
    assert held.match(chained("bbbb", ids), at_s=0.0) == (2, 0), "now it was used longest ago"
    assert len(held) == 8


def test_a_prompt_longer_than_the_cache_leaves_its_beginning() -> None:
    ids: Ids = {}
    held = filled("bb", "aaaaaaaa", ids=ids, capacity_blocks=5)
    assert held.match(chained("aaaaaaaa", ids), at_s=0.0) == (5, 0)
    assert held.match(chained("bb", ids), at_s=0.0) == (0, 0)


def test_asking_does_not_keep_a_prompt() -> None:
    ids: Ids = {}
    held = filled("aa", "bb", ids=ids, capacity_blocks=4)
    assert held.match(chained("aa", ids), at_s=0.0) == (2, 2)
    held.insert(chained("cc", ids), ready_s=0.0)
    assert held.match(chained("aa", ids), at_s=0.0) == (0, 0)


def test_blocks_count_from_the_end_of_the_first_prefill_that_writes_them() -> None:
    ids: Ids = {}
    held = cache(exact_state=True)
    one, two = chained("aaaa", ids), chained("aaaabb", ids)
    held.insert(one, ready_s=10.0)
    held.insert(two, ready_s=20.0)
    assert held.match(two, at_s=9.9) == (0, 0)
    assert held.match(two, at_s=10.0) == (4, 4)
    assert held.match(two, at_s=20.0) == (6, 6)
    held.insert(chained("aa", ids), ready_s=30.0)
    assert held.match(chained("aa", ids), at_s=10.0) == (2, 0), "the state after it comes later"
    assert held.match(chained("aa", ids), at_s=30.0) == (2, 2)
    held.insert(two, ready_s=5.0)
    assert held.match(two, at_s=5.0) == (6, 6), "another server was done before"


def test_prompts_that_share_nothing_take_room_only() -> None:
    ids: Ids = {}
    held = filled("aaaa", ids=ids, capacity_blocks=10)
    held.insert(range(1000, 1005), ready_s=0.0)
    assert (len(held), held.match(chained("aaaa", ids), at_s=0.0)) == (9, (4, 4))
    held.insert(range(2000, 2004), ready_s=0.0)
    assert (len(held), held.match(chained("aaaa", ids), at_s=0.0)) == (10, (1, 0))
    held.insert((), ready_s=0.0)
    assert len(held) == 10


def test_clear_leaves_nothing() -> None:
    ids: Ids = {}
    held = filled("aaaa", "aabb", ids=ids, capacity_blocks=6)
    held.clear()
    assert (len(held), held.match(chained("aaaa", ids), at_s=0.0)) == (0, (0, 0))
    for text in ("aaaa", "bbbb"):
        held.insert(chained(text, ids), ready_s=0.0)
    assert (len(held), held.match(chained("aaaa", ids), at_s=0.0)) == (6, (2, 0))


@settings(max_examples=100, deadline=None)
@given(
    before=st.lists(TEXTS, max_size=12),
    after=st.lists(TEXTS, max_size=12),
    capacity=st.integers(0, 40),
)
def test_a_copy_goes_its_own_way(before: list[str], after: list[str], capacity: int) -> None:
    ids: Ids = {}
    held = filled(*before, ids=ids, capacity_blocks=capacity)
    held.insert(range(1000, 1003), ready_s=0.0)
    blocks = [chained(text, ids) for text in before + after]
    was = [held.match(each, at_s=0.0) for each in blocks]
    copy = held.copy()
    for text in after:
        copy.insert(chained(text, ids), ready_s=0.0)
    assert [held.match(each, at_s=0.0) for each in blocks] == was
    for text in after:
        held.insert(chained(text, ids), ready_s=0.0)
    held.insert(range(2000, 2003), ready_s=0.0)
    copy.insert(range(2000, 2003), ready_s=0.0)
    assert [copy.match(each, at_s=0.0) for each in blocks] == [
        held.match(each, at_s=0.0) for each in blocks
    ]
    assert len(copy) == len(held)


def test_memory_does_not_grow_with_the_number_of_prompts() -> None:
    """Sessions that grow turn by turn and are left, through a cache of 500 blocks."""
    rng = random.Random(5)
    held, ids = cache(500, exact_state=True), iter(range(10**9))
    sessions: list[list[int]] = [[] for _ in range(8)]

    def serve(n_prompts: int) -> int:
        for _ in range(n_prompts):
            i = rng.randrange(len(sessions))
            kept = sessions[i][: rng.randrange(60)]
            sessions[i] = kept + [next(ids) for _ in range(rng.randrange(1, 12))]
            held.insert(sessions[i], ready_s=0.0)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        early, late = serve(2_000), serve(20_000)
    finally:
        tracemalloc.stop()
    assert len(held) == 500
    assert late < early + 30_000, "bytes: that of 20,000 prompts would be millions"


def test_on_mooncake_a_cache_of_11275_blocks_serves_23_3_percent() -> None:
    if not mooncake.TRACE.exists():
        pytest.skip("the trace is not beside this checkout")
    hits = mooncake.last_half(mooncake.read(mooncake.TRACE), capacity_blocks=11_275)
    assert hits == mooncake.Hits(hit_tokens=15_849_049, tokens=67_915_607)
    assert hits.hit_tokens / hits.tokens == pytest.approx(0.233, abs=5e-4)
