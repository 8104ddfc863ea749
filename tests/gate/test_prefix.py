"""The prefix index: what matches, what is bounded, what an engine's report corrects."""

from __future__ import annotations

import random

import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.gate.prefix import Chain, Match, PrefixIndex, chain_of

BLOCK = 8


def chain(*words: str, salt: bytes = b"s") -> Chain:
    """A chain whose blocks are the given words, one block each."""
    return chain_of("".join(w.ljust(BLOCK) for w in words).encode(), salt=salt, block_bytes=BLOCK)


def served(index: PrefixIndex, *chains: Chain, cached_blocks: float | None = None) -> Match:
    """One request from dispatch to its end; what was claimed for it."""
    ticket = index.dispatch(chains)
    index.prefilled(ticket)
    if cached_blocks is not None:
        index.learn(ticket, cached_blocks=cached_blocks)
    return ticket.match


def test_a_chain_has_one_key_per_full_block_and_names_whole_prefixes() -> None:
    one, two = chain("a", "b", "c"), chain("a", "x", "c")
    assert len(one) == 3
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert one[2] != two[2], "same block behind another prefix is another key"
    assert chain("a")[0] != chain("a", salt=b"other model")[0]
    assert chain_of(b"x" * (BLOCK - 1), salt=b"s", block_bytes=BLOCK) == ()
    assert len(chain_of(b"x" * (2 * BLOCK + 1), salt=b"s", block_bytes=BLOCK)) == 2


def test_keys_do_not_depend_on_the_process() -> None:
    assert chain("a")[0] == xxhash.xxh3_64_digest(b"s" + b"a".ljust(BLOCK))


def test_what_was_sent_matches_up_to_the_first_difference() -> None:
    index = PrefixIndex(None)
    assert served(index, chain("a", "b", "c")) == Match(0, 0)
    assert index.match((chain("a", "b", "x"),)) == Match(2, 2)
    assert index.match((chain("x", "b", "c"),)) == Match(0, 0)
    assert index.match((chain("a"), chain("a", "b"))) == Match(3, 3), "a batch adds up"


def test_a_running_prefill_is_claimed_but_not_settled() -> None:
    index = PrefixIndex(None)
    first = index.dispatch((chain("a", "b"),))
    assert index.match((chain("a", "b", "c"),)) == Match(2, 0)
    index.prefilled(first)
    index.prefilled(first)
    assert index.match((chain("a", "b", "c"),)) == Match(2, 2)


def test_what_was_there_stays_settled_while_it_is_part_of_a_running_prefill() -> None:
    """Instructions that all prompts begin with are part of some prefill at any time."""
    index = PrefixIndex(None)
    served(index, chain("a", "b"))
    other = index.dispatch((chain("a", "x"),))
    assert index.match((chain("a", "b", "c"),)) == Match(2, 2)
    assert index.match((chain("a", "x"),)) == Match(2, 1)
    same = index.dispatch((chain("a", "x", "y"),))
    index.prefilled(other)
    index.abandon(same)
    assert index.match((chain("a", "x"),)) == Match(2, 2)


def test_an_abandoned_request_leaves_only_what_was_there_before() -> None:
    index = PrefixIndex(None)
    served(index, chain("a"))
    index.abandon(index.dispatch((chain("a", "b"),)))
    assert index.match((chain("a", "b"),)) == Match(1, 1)
    kept = index.dispatch((chain("a", "b"),))
    index.abandon(index.dispatch((chain("a", "b"),)))
    index.prefilled(kept)
    index.abandon(kept)
    assert index.match((chain("a", "b"),)) == Match(2, 2), "another request had it too"


def test_capacity_zero_holds_nothing_and_none_holds_all() -> None:
    nothing, everything = PrefixIndex(0), PrefixIndex(None)
    for i in range(500):
        served(nothing, chain(str(i)))
        served(everything, chain(str(i)))
    assert len(nothing) == 0
    assert len(everything) == 500
    assert nothing.match((chain("1"),)) == Match(0, 0)


def test_the_least_recently_used_leaves_first_and_tails_before_heads() -> None:
    index = PrefixIndex(4)
    served(index, chain("a", "b", "c"))
    served(index, chain("x", "y"))
    assert index.match((chain("a", "b", "c"),)) == Match(2, 2)
    served(index, chain("a"))
    served(index, chain("z", "w"))
    assert index.match((chain("a", "b"),)).n_blocks == 1
    assert index.match((chain("x", "y"),)).n_blocks == 1


def test_a_prompt_longer_than_the_cache_keeps_its_head() -> None:
    index = PrefixIndex(2)
    served(index, chain("a", "b", "c", "d"))
    assert index.match((chain("a", "b", "c", "d"),)) == Match(2, 2)


def test_fewer_cached_than_claimed_forgets_other_continuations_but_not_this_prompt() -> None:
    index = PrefixIndex(None)
    served(index, chain("a", "b", "c", "left"))
    served(index, chain("a", "b", "c", "right"))
    served(index, chain("a", "side"))
    assert served(index, chain("a", "b", "c", "left"), cached_blocks=1) == Match(4, 4)
    assert index.match((chain("a", "b", "c", "left"),)).n_blocks == 4, "computed again just now"
    assert index.match((chain("a", "b", "c", "right"),)).n_blocks == 3, (
        "it was behind what was gone"
    )
    assert index.match((chain("a", "side"),)).n_blocks == 2, "it was not"
    served(index, chain("a", "b", "c", "right"))
    assert index.match((chain("a", "b", "c", "right"),)).n_blocks == 4


def test_a_forgotten_continuation_sent_again_and_abandoned_stays_forgotten() -> None:
    index = PrefixIndex(None)
    served(index, chain("a", "left"))
    served(index, chain("a", "right"))
    served(index, chain("a", "left"), cached_blocks=0)
    index.abandon(index.dispatch((chain("a", "right"),)))
    assert index.match((chain("a", "right"),)).n_blocks == 1


def test_nothing_comes_back_behind_a_block_that_was_computed_anew() -> None:
    index = PrefixIndex(None)
    served(index, chain("a", "left"))
    served(index, chain("a", "right", "far"))
    served(index, chain("a", "left"), cached_blocks=0)
    served(index, chain("a", "right"))
    assert index.match((chain("a", "right", "far"),)).n_blocks == 2
    index.abandon(index.dispatch((chain("a", "right", "far"),)))
    assert index.match((chain("a", "right", "far"),)).n_blocks == 2


def test_within_one_block_counts_as_confirmed() -> None:
    index = PrefixIndex(None)
    served(index, chain("a", "b", "c"))
    served(index, chain("a", "b", "d"))
    served(index, chain("a", "b", "c"), cached_blocks=2.1)
    assert index.credit == 1.0
    assert index.match((chain("a", "b", "d"),)).n_blocks == 3


def test_a_claim_on_a_running_prefill_proves_nothing() -> None:
    index = PrefixIndex(None)
    running = index.dispatch((chain("a", "b"),))
    served(index, chain("a", "b", "c"), cached_blocks=0)
    index.prefilled(running)
    assert index.credit == 1.0
    assert index.match((chain("a", "b"),)) == Match(2, 2)


def test_more_cached_than_claimed_is_no_reason_for_anything() -> None:
    index = PrefixIndex(None)
    served(index, chain("a", "b"), cached_blocks=2)
    served(index, chain("a", "b"), cached_blocks=99)
    assert index.credit == 1.0


def test_credit_falls_when_engines_do_not_hold_what_was_claimed_and_recovers() -> None:
    index = PrefixIndex(None)
    prompt = chain(*"abcdefgh")
    served(index, prompt)
    for _ in range(200):
        served(index, prompt, cached_blocks=0)
    assert index.credit < 0.05
    for _ in range(200):
        served(index, prompt, cached_blocks=8)
    assert index.credit > 0.95


def test_a_batch_teaches_nothing() -> None:
    index = PrefixIndex(None)
    served(index, chain("a", "b"))
    ticket = index.dispatch((chain("a", "b"), chain("a", "b")))
    index.prefilled(ticket)
    index.learn(ticket, cached_blocks=0)
    assert index.credit == 1.0


def test_clear_forgets_and_requests_still_running_do_no_harm() -> None:
    index = PrefixIndex(None)
    ticket = index.dispatch((chain("a"),))
    index.clear()
    index.prefilled(ticket)
    index.learn(ticket, cached_blocks=0)
    index.abandon(ticket)
    assert len(index) == 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.integers(0, 12) | st.none(),
    exact_state=st.booleans(),
)
def test_bounded_and_never_a_claim_without_the_whole_prefix(
    seed: int, capacity: int | None, exact_state: bool
) -> None:
    """Whatever the traffic, whatever engines report."""
    rng = random.Random(seed)
    index = PrefixIndex(capacity, exact_state=exact_state)
    chains = {chain(*(rng.choice("abc") for _ in range(rng.randint(1, 6)))) for _ in range(12)}
    ordered = sorted(chains)
    tickets = []
    for _ in range(60):
        step = rng.random()
        if step < 0.45:
            tickets.append(index.dispatch((rng.choice(ordered),)))
        elif step < 0.5:
            index.adopt(rng.choice(ordered), state_at_end=rng.random() < 0.5)
        elif step < 0.55:
            index.lost(rng.choice(ordered), n_held=rng.randint(0, 6))
        elif tickets:
            ticket = tickets.pop(rng.randrange(len(tickets)))
            if step < 0.7:
                index.abandon(ticket)
            else:
                index.prefilled(ticket)
                index.learn(ticket, cached_blocks=rng.randint(0, 6))
        assert capacity is None or len(index) <= capacity
        assert 0.0 <= index.credit <= 1.0
        for each in ordered:
            match = index.match((each,))
            n_leading = next((i for i, key in enumerate(each) if key not in index), len(each))
            assert match.n_settled <= match.n_blocks <= n_leading


@settings(max_examples=60, deadline=None)
@given(prompts=st.lists(st.text(alphabet="ab", min_size=0, max_size=8), min_size=1, max_size=25))
def test_unbounded_it_finds_exactly_the_longest_shared_prefix(prompts: list[str]) -> None:
    """Against the definition: the longest common prefix, in blocks, with anything sent before."""
    index = PrefixIndex(None)
    before: list[str] = []
    for prompt in prompts:
        want = max((_common(prompt, other) for other in before), default=0)
        assert served(index, chain(*prompt)).n_blocks == want
        before.append(prompt)


def _common(one: str, two: str) -> int:
    n = 0
    while n < min(len(one), len(two)) and one[n] == two[n]:
        n += 1
    return n


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=40),
    capacity=st.integers(1, 8),
)
def test_a_prefix_outlives_its_continuations(prompts: list[str], capacity: int) -> None:
    index = PrefixIndex(capacity)
    for prompt in prompts:
        served(index, chain(*prompt))
        assert index.match((chain(*prompt),)).n_blocks == min(len(prompt), capacity)
        for other in prompts:
            present = [key in index for key in chain(*other)]
            assert present == sorted(present, reverse=True)


def test_what_other_gates_tell_is_held_like_ones_own() -> None:
    index = PrefixIndex(3)
    index.adopt(chain("a", "b"), state_at_end=False)
    assert index.match((chain("a", "b", "c"),)) == Match(2, 2)
    index.adopt(chain("x", "y", "z", "w"), state_at_end=False)
    assert index.match((chain("x", "y", "z", "w"),)) == Match(3, 3), "no more than the cache holds"
    assert index.match((chain("a", "b"),)) == Match(0, 0)
    index.adopt((), state_at_end=True)
    PrefixIndex(0).adopt(chain("a"), state_at_end=True)


def test_a_request_abandoned_does_not_take_along_what_another_gate_told() -> None:
    index = PrefixIndex(None)
    ticket = index.dispatch((chain("a", "b"),))
    index.adopt(chain("a"), state_at_end=False)
    index.abandon(ticket)
    assert index.match((chain("a", "b"),)) == Match(1, 1)


def test_what_was_stored_is_told_once_and_only_if_it_was() -> None:
    told: list[Chain] = []
    index = PrefixIndex(3)
    index.on_stored = told.append
    ticket = index.dispatch((chain("a", "b"), (), chain("x")))
    assert told == []
    index.prefilled(ticket)
    index.prefilled(ticket)
    assert told == [chain("a", "b"), chain("x")]
    index.abandon(index.dispatch((chain("c"),)))
    index.adopt(chain("d"), state_at_end=False)
    gone = index.dispatch((chain("e"),))
    index.clear()
    index.prefilled(gone)
    assert told == [chain("a", "b"), chain("x")]


def test_lost_is_everything_behind_what_is_still_held() -> None:
    index = PrefixIndex(None)
    served(index, chain("a", "b", "c"))
    served(index, chain("a", "b", "d"))
    served(index, chain("a", "x"))
    index.lost(chain("a", "b", "c"), n_held=1)
    assert index.match((chain("a", "b", "c"),)) == Match(1, 1)
    assert index.match((chain("a", "b", "d"),)) == Match(1, 1)
    assert index.match((chain("a", "x"),)) == Match(2, 2)
    served(index, chain("a", "b"))
    assert index.match((chain("a", "b", "d"),)) == Match(2, 2), "it went with its prefix"


def exact() -> PrefixIndex:
    return PrefixIndex(None, exact_state=True)


def test_a_linear_state_is_found_only_where_a_prompt_ended() -> None:
    index = exact()
    served(index, chain("a", "b", "c"))
    assert index.match((chain("a", "b", "c", "d"),)) == Match(3, 3)
    assert index.match((chain("a", "b", "x"),)) == Match(0, 0), "shared blocks, but no state there"
    assert index.match((chain("a", "b"),)) == Match(0, 0)
    served(index, chain("a"))
    assert index.match((chain("a", "b", "x"),)) == Match(1, 1)
    assert index.match((chain("a", "b", "c"),)) == Match(3, 3), "the deepest counts"
    plain = PrefixIndex(None)
    served(plain, chain("a", "b", "c"))
    assert plain.match((chain("a", "b", "x"),)) == Match(2, 2)


def test_the_state_of_a_running_prefill_is_claimed_but_not_settled() -> None:
    index = exact()
    served(index, chain("a"))
    running = index.dispatch((chain("a", "b"),))
    assert index.match((chain("a", "b", "c"),)) == Match(2, 1)
    index.prefilled(running)
    assert index.match((chain("a", "b", "c"),)) == Match(2, 2)


def test_an_abandoned_request_leaves_no_state() -> None:
    index = exact()
    served(index, chain("a", "b", "c"))
    index.abandon(index.dispatch((chain("a", "b"),)))
    assert index.match((chain("a", "b", "x"),)) == Match(0, 0)
    served(index, chain("a", "b"))
    index.abandon(index.dispatch((chain("a", "b"),)))
    assert index.match((chain("a", "b", "x"),)) == Match(2, 2), "an earlier request left it"


def test_a_prompt_longer_than_the_cache_leaves_no_state_and_tells_nobody() -> None:
    told: list[Chain] = []
    index = PrefixIndex(2, exact_state=True)
    index.on_stored = told.append
    served(index, chain("a", "b", "c"))
    assert index.match((chain("a", "b", "c"),)) == Match(0, 0)
    assert told == []
    served(index, chain("a", "b"))
    assert index.match((chain("a", "b", "c"),)) == Match(2, 2)
    assert told == [chain("a", "b")]


def test_a_state_told_by_another_gate_counts() -> None:
    index = exact()
    index.adopt(chain("a", "b"), state_at_end=False)
    assert index.match((chain("a", "b", "c"),)) == Match(0, 0)
    index.adopt(chain("a", "b"), state_at_end=True)
    assert index.match((chain("a", "b", "c"),)) == Match(2, 2)


def test_a_state_the_engine_did_not_find_is_forgotten_and_its_own_end_is_not() -> None:
    index = exact()
    served(index, chain("a"))
    served(index, chain("a", "b", "c"))
    assert served(index, chain("a", "b", "c", "d"), cached_blocks=1) == Match(3, 3)
    assert index.credit < 1.0
    assert index.match((chain("a", "b", "c", "x"),)) == Match(1, 1), "of the first prompt's only a"
    assert index.match((chain("a", "b", "c", "d", "e"),)) == Match(4, 4)
    assert served(index, chain("a", "b", "c", "d"), cached_blocks=1) == Match(4, 4)
    assert index.match((chain("a", "b", "c", "d"),)) == Match(4, 4), "its end has just been left"


def test_a_block_computed_anew_has_lost_the_state_it_once_ended_with() -> None:
    index = exact()
    served(index, chain("a"))
    served(index, chain("a", "b"))
    served(index, chain("a"), cached_blocks=0)
    served(index, chain("a", "b", "c"))
    assert index.match((chain("a", "b", "x"),)) == Match(1, 1)


@settings(max_examples=60, deadline=None)
@given(prompts=st.lists(st.text(alphabet="ab", min_size=0, max_size=8), min_size=1, max_size=25))
def test_unbounded_and_exact_it_finds_the_longest_earlier_prompt_this_one_continues(
    prompts: list[str],
) -> None:
    """Against the definition of a state per prompt."""
    index = exact()
    before: list[str] = []
    for prompt in prompts:
        want = max((len(p) for p in before if prompt.startswith(p)), default=0)
        assert served(index, chain(*prompt)).n_blocks == want
        before.append(prompt)
