"""Cache modes and the band in the rule: against the paper's example and a slow reference."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.placement import sides
from routing.core.placement.rule import Prefixes, Route, Rule, Side, Situation, judge, route

TO_LOCAL, TO_REMOTE = "prfaas->pd", "pd->prfaas"
BLOCK = 512


def rule(threshold: int = 19_400, **more: Any) -> Rule:
    return Rule("threshold", threshold, {"prfaas": 1.0}, **more)


def abundant(threshold: int = 19_400, *, moves: dict[str, int] | None = None, **more: Any) -> Rule:
    both = {TO_LOCAL: 0, TO_REMOTE: 0} if moves is None else moves
    return rule(threshold, cache_mode="abundant", moves=both, **more)


def both_hold(total: int, local: int, remote: int) -> Prefixes:
    return Prefixes(total, local, remote, movable_local=local, movable_remote=remote)


def routed(
    given_rule: Rule, prefixes: Prefixes, *, waits_s: Any = None, **more: Any
) -> tuple[Route, int]:
    """The route and what was compared with t."""
    judged = judge(given_rule, prefixes, to_local=TO_LOCAL, to_remote=TO_REMOTE)
    base: dict[str, Any] = {
        "remotes": ["prfaas"],
        "admissible": ["prfaas"],
        "remote_in_flight": 0,
        "local_up": True,
        "waits_s": waits_s or {},
    }
    return route(given_rule, Situation(judged=judged, **(base | more))), judged.uncached_tokens


PAPER = both_hold(30_000, 10_000, 25_000)


def test_the_papers_example() -> None:
    """30K tokens, 10K cached at the PD cluster, 25K at the PrfaaS cluster, t = 19.4K."""
    assert routed(rule(), PAPER) == (Route("remote", "Long"), 20_000)
    assert routed(abundant(), PAPER) == (Route("local", "Short", TO_LOCAL), 5_000)
    judged = judge(rule(), PAPER, to_local=TO_LOCAL, to_remote=TO_REMOTE)
    assert judged.compute_tokens == {"local": 20_000, "remote": 5_000}
    judged = judge(abundant(), PAPER, to_local=TO_LOCAL, to_remote=TO_REMOTE)
    assert judged.compute_tokens == {"local": 5_000, "remote": 5_000}


MOVES = [
    # name, rule, prefixes, want route, want judged
    ("the least worth moving is moved", abundant(moves={TO_LOCAL: 15_000}), PAPER, ("local", "Short", TO_LOCAL), 5_000),
    ("one token less is not", abundant(moves={TO_LOCAL: 15_001}), PAPER, ("remote", "Long"), 20_000),
    ("a link the plan does not name moves nothing", abundant(moves={TO_REMOTE: 0}), PAPER, ("remote", "Long"), 20_000),
    ("scarce ignores moves", rule(moves={TO_LOCAL: 0}), PAPER, ("remote", "Long"), 20_000),
    ("long behind the remote's prefix: nothing has to move", abundant(), both_hold(60_000, 0, 25_000), ("remote", "Long"), 35_000),
    ("long behind local's: local's is moved there", abundant(), both_hold(60_000, 30_000, 0), ("remote", "Long", TO_REMOTE), 30_000),
    ("unless the remote has it", abundant(), both_hold(60_000, 30_000, 30_000), ("remote", "Long"), 30_000),
    ("or it is not worth it: the remote computes more, judged is local's", abundant(moves={TO_REMOTE: 30_001}), both_hold(60_000, 30_000, 0), ("remote", "Long"), 30_000),
    ("short behind local's stays, unmoved", abundant(), both_hold(30_000, 25_000, 10_000), ("local", "Short"), 5_000),
    ("equal prefixes move nothing", abundant(), both_hold(30_000, 20_000, 20_000), ("local", "Short"), 10_000),
    ("a remote that could not send it now", abundant(), Prefixes(30_000, 10_000, 25_000, movable_local=10_000), ("remote", "Long"), 20_000),
    ("local that could not send it now", abundant(), Prefixes(60_000, 30_000, 0), ("remote", "Long"), 30_000),
    ("what is still being prefilled is not moved", abundant(), Prefixes(30_000, 10_000, 25_000, 10_000, 12_000), ("local", "Short", TO_LOCAL), 18_000),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given_rule", "prefixes", "want", "uncached"), MOVES, ids=[c[0] for c in MOVES]
)
def test_moves(
    name: str, given_rule: Rule, prefixes: Prefixes, want: tuple[Any, ...], uncached: int
) -> None:
    assert routed(given_rule, prefixes) == (Route(*want), uncached)


def test_at_the_limit_the_prefix_comes_to_local_all_the_same() -> None:
    chosen, _ = routed(
        abundant(max_remote_in_flight=1), both_hold(60_000, 0, 30_000), remote_in_flight=1
    )
    assert chosen == Route("local", "RemoteLimit", TO_LOCAL)


def test_modes_without_a_threshold() -> None:
    weights, moves = {"prfaas": 1.0}, {TO_LOCAL: 0, TO_REMOTE: 0}
    local = Rule("always_local", None, weights, cache_mode="abundant", moves=moves)
    remote = Rule("always_remote", None, weights, cache_mode="abundant", moves=moves)
    assert routed(local, PAPER)[0] == Route("local", "AlwaysLocal"), "the link may be broken"
    assert routed(remote, PAPER)[0] == Route("remote", "AlwaysRemote")
    assert routed(remote, both_hold(30_000, 25_000, 0))[0].link == TO_REMOTE
    assert route(remote, Situation(None, ["prfaas"], ["prfaas"], 0, True)).link is None


def reference(
    t: int, cache_mode: str, moves: dict[str, int], held: Prefixes
) -> tuple[str, int, str | None]:
    """The contract once more, slowly: (side, what was compared with t, link)."""
    candidates = {"local": held.local}
    if cache_mode == "abundant":
        gain = held.movable_remote - held.local
        if TO_LOCAL in moves and gain >= max(1, moves[TO_LOCAL]):
            candidates["remote"] = held.movable_remote
    longest = max(candidates.values())
    side = "local" if held.total - longest in range(t + 1) else "remote"
    link = None
    if side == "local" and longest > held.local:
        link = TO_LOCAL
    if side == "remote" and cache_mode == "abundant" and TO_REMOTE in moves:
        gain = held.movable_local - held.remote
        if gain > 0 and gain >= moves[TO_REMOTE]:
            link = TO_REMOTE
    return side, held.total - longest, link


LENGTHS = (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK, 3 * BLOCK + 7)
THRESHOLDS = (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK, 2 * BLOCK + 1)
LEAST = (None, 0, 1, BLOCK, 2 * BLOCK)


@pytest.mark.parametrize("cache_mode", ["scarce", "abundant"])
def test_the_rule_against_the_reference_on_a_grid(cache_mode: Any) -> None:
    """S-36 in both modes: t - 1, t, t + 1, 0, below one block, prefixes on either side."""
    sides = set()
    for total, to_local, to_remote in itertools.product(LENGTHS, LEAST, LEAST):
        moves = {TO_LOCAL: to_local, TO_REMOTE: to_remote}
        given_moves = {link: least for link, least in moves.items() if least is not None}
        holds = [n for n in range(0, total + 1, BLOCK)]
        for local, remote in itertools.product(holds, holds):
            held = both_hold(total, local, remote)
            near = {total - local + d for d in (-1, 0, 1)} | {
                total - remote + d for d in (-1, 0, 1)
            }
            for t in sorted(t for t in {*THRESHOLDS, *near} if t >= 0):
                given_rule = rule(t, cache_mode=cache_mode, moves=given_moves)
                chosen, uncached = routed(given_rule, held)
                want = reference(t, cache_mode, given_moves, held)
                assert (chosen.side, uncached, chosen.link) == want, (given_rule, held)
                sides.add((chosen.side, chosen.link))
    moved = {("local", TO_LOCAL), ("remote", TO_REMOTE)}
    assert sides >= {("local", None), ("remote", None)} | (
        moved if cache_mode == "abundant" else set()
    )


tokens = st.integers(0, 200_000)


@given(
    total=tokens,
    shares=st.tuples(*[st.floats(0, 1)] * 4),
    t=tokens,
    moves=st.dictionaries(st.sampled_from([TO_LOCAL, TO_REMOTE, "x->pd"]), tokens),
    cache_mode=st.sampled_from(["scarce", "abundant"]),
)
def test_the_rule_against_the_reference_anywhere(
    total: int, shares: tuple[float, ...], t: int, moves: dict[str, int], cache_mode: Any
) -> None:
    local, remote = int(total * shares[0]), int(total * shares[1])
    held = Prefixes(total, local, remote, int(local * shares[2]), int(remote * shares[3]))
    chosen, uncached = routed(rule(t, cache_mode=cache_mode, moves=moves), held)
    assert (chosen.side, uncached, chosen.link) == reference(t, cache_mode, moves, held)
    judged = judge(
        rule(t, cache_mode=cache_mode, moves=moves), held, to_local=TO_LOCAL, to_remote=TO_REMOTE
    )
    assert all(0 <= left <= total for left in judged.compute_tokens.values())
    assert judged.compute_tokens["local"] == uncached


def waits(local: float | None, remote: float | None) -> dict[Side, float | None]:
    return {"local": local, "remote": remote}


BAND = [
    # name, uncached, waits, want; t = 1000, band 500..2000
    ("at t_low t decides", 500, waits(9.0, 1.0), ("local", "Short")),
    ("above t_low the wait decides", 501, waits(9.0, 1.0), ("remote", "BandRemote")),
    ("at t_high it still does", 2000, waits(1.0, 9.0), ("local", "BandLocal")),
    ("above t_high t decides", 2001, waits(1.0, 9.0), ("remote", "Long")),
    ("where t and wait agree the reason is the wait", 600, waits(1.0, 9.0), ("local", "BandLocal")),
    ("a tie is t's, below", 1000, waits(2.0, 2.0), ("local", "Short")),
    ("a tie is t's, above", 1001, waits(2.0, 2.0), ("remote", "Long")),
    ("nothing measured is t's", 1001, waits(None, None), ("remote", "Long")),
    ("one side not measured is t's", 1001, waits(1.0, None), ("remote", "Long")),
    ("nor the other", 600, waits(None, 1.0), ("local", "Short")),
    ("no waits at all is t's", 600, {}, ("local", "Short")),
    ("a wait of 0 is measured", 1500, waits(0.0, 1.0), ("local", "BandLocal")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "uncached", "waits_s", "want"), BAND, ids=[c[0] for c in BAND])
def test_inside_the_band_the_smaller_wait_decides(
    name: str, uncached: int, waits_s: Any, want: tuple[Any, ...]
) -> None:
    given_rule = rule(1000, band=(500, 2000))
    assert routed(given_rule, both_hold(uncached, 0, 0), waits_s=waits_s)[0] == Route(*want)


def test_the_band_overrules_no_obstacle() -> None:
    given_rule = rule(1000, band=(500, 2000), max_remote_in_flight=1)
    prompt, remote_is_free = both_hold(600, 0, 0), waits(9.0, 1.0)

    def reason(**more: Any) -> str:
        return routed(given_rule, prompt, waits_s=remote_is_free, **more)[0].reason

    assert reason() == sides.BAND_REMOTE
    assert reason(remote_in_flight=1) == sides.REMOTE_LIMIT
    assert reason(admissible=[]) == sides.REMOTE_DOWN
    assert reason(remotes=[], admissible=[]) == sides.NO_REMOTE
    chosen, _ = routed(given_rule, prompt, waits_s=waits(1.0, 9.0), local_up=False)
    assert chosen == Route("remote", sides.LOCAL_DOWN)


def test_a_band_of_one_point_or_none_holds_nothing() -> None:
    for band in (None, (1000, 1000), (0, 0)):
        given_rule = rule(1000, band=band)
        assert not any(given_rule.in_band(n) for n in (0, 999, 1000, 1001))


def test_in_the_band_the_prefix_goes_where_the_wait_sends_the_request() -> None:
    given_rule = abundant(1000, band=(500, 2000))
    held = both_hold(3000, 0, 2000)
    assert routed(given_rule, held, waits_s=waits(1.0, 9.0))[0].link == TO_LOCAL
    assert routed(given_rule, held, waits_s=waits(9.0, 1.0))[0] == Route("remote", "BandRemote")
