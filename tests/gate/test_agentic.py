"""Agentic sessions through the rule and the prefix indexes: long prompts, little to compute.

Each prompt repeats nearly all of the one before it. By its length nearly every request would go
over the link; by what is uncached anywhere hardly any does, and its prefix is moved once.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from routing.core.placement.rule import Prefixes, Rule, Situation, judge, route
from routing.gate.prefix import PrefixIndex
from routing.lab.traces import BLOCK_TOKENS, Row, read_trace

TRACE = Path(__file__).parents[2] / "../shared/data/traces/weka_agentic_sessions_odd.jsonl.gz"
EVERY = 10
"""Of the file's 350 sessions every tenth: 35 sessions, some 2,500 requests."""
THRESHOLD = 19_800
TO_PD, TO_PRFAAS = "prfaas->pd", "pd->prfaas"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    if not TRACE.exists():
        pytest.skip("the trace is not beside this checkout")
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl"
    with gzip.open(TRACE, "rt") as lines:
        path.write_text("".join(line for n, line in enumerate(lines) if n % EVERY == 0))
    return read_trace(path)


def remote_share(rows: list[Row], rule: Rule) -> tuple[float, int]:
    """(share of requests that go remote, tokens moved) with unbounded caches, one by one."""
    local, remote = PrefixIndex(None), PrefixIndex(None)
    n_remote = n_moved = 0
    for row in rows:
        n_full = row.prompt_tokens // BLOCK_TOKENS
        chain = tuple(i.to_bytes(8, "big") for i in (row.hash_ids or ())[:n_full])
        held = {
            side: min(index.match((chain,)).n_blocks * BLOCK_TOKENS, row.prompt_tokens - 1)
            for side, index in (("local", local), ("remote", remote))
        }
        prefixes = Prefixes(
            total=row.prompt_tokens,
            local=held["local"],
            remote=held["remote"],
            movable_local=held["local"],
            movable_remote=held["remote"],
        )
        judged = judge(rule, prefixes, to_local=TO_PD, to_remote=TO_PRFAAS)
        chosen = route(
            rule,
            Situation(
                judged=judged,
                remotes=["prfaas"],
                admissible=["prfaas"],
                remote_in_flight=0,
                local_up=True,
            ),
        )
        index = remote if chosen.side == "remote" else local
        index.prefilled(index.dispatch((chain,)))
        n_remote += chosen.side == "remote"
        if chosen.link == TO_PD:
            n_moved += held["remote"] - held["local"]
    return n_remote / len(rows), n_moved


def rule_of(cache_mode: str, moves: dict[str, int]) -> Rule:
    return Rule(
        mode="threshold",
        threshold_tokens=THRESHOLD,
        remote={"prfaas": 1.0},
        cache_mode=cache_mode,  # type: ignore[arg-type]
        moves=moves,
    )


def test_by_uncached_length_few_go_remote_where_by_length_nearly_all_would(
    rows: list[Row],
) -> None:
    by_length = sum(row.prompt_tokens > THRESHOLD for row in rows) / len(rows)
    abundant, moved = remote_share(rows, rule_of("abundant", {TO_PD: 2048}))
    assert len(rows) > 2000
    assert by_length > 0.9
    assert abundant < 0.06
    assert moved > 0


def test_without_moving_a_session_stays_where_it_began(rows: list[Row]) -> None:
    """Scarce: a prefix that only the other cluster holds counts for nothing here."""
    scarce, moved = remote_share(rows, rule_of("scarce", {}))
    assert scarce > 0.5
    assert moved == 0
