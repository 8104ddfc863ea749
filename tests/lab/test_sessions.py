"""Agentic sessions as a trace: nested sub-agents, ids of finer blocks, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from routing.lab.errors import LabError
from routing.lab.traces import SESSION_GAP_S, Row, read_trace


def request(t: float, tokens: int, *runs: list[int]) -> dict[str, Any]:
    return {"t": t, "type": "n", "model": "m", "in": tokens, "out": 7, "hash_runs": list(runs)}


def trace(tmp_path: Path, *sessions: list[dict[str, Any]], block_size: int = 64) -> list[Row]:
    path = tmp_path / "sessions.jsonl"
    lines = [
        json.dumps({"id": f"s{i}", "block_size": block_size, "requests": requests})
        for i, requests in enumerate(sessions)
    ]
    path.write_text("\n".join(lines) + "\n")
    return read_trace(path)


def shared_blocks(a: Row, b: Row) -> int:
    assert a.hash_ids is not None
    assert b.hash_ids is not None
    n = 0
    for one, other in zip(a.hash_ids, b.hash_ids, strict=False):
        if one != other:
            break
        n += 1
    return n


def test_a_prompt_shares_the_blocks_before_its_first_difference(tmp_path: Path) -> None:
    first, longer, branched, same = trace(
        tmp_path,
        [
            request(0, 1100, [1, 17]),
            request(5, 2100, [1, 32]),
            request(9, 2100, [1, 10], [100, 22]),
            request(12, 2100, [1, 10], [100, 22]),
        ],
    )
    assert [len(row.hash_ids or ()) for row in (first, longer)] == [3, 5]
    assert shared_blocks(first, longer) == 2, "the third holds tokens nobody else has"
    assert shared_blocks(longer, branched) == 1
    assert shared_blocks(branched, same) == 5
    # What comes back after a difference is another prefix, whatever its own ids are.
    [a, b] = trace(tmp_path, [request(0, 1024, [1, 16]), request(1, 1024, [50, 8], [9, 8])])
    assert shared_blocks(a, b) == 0
    assert not set(a.hash_ids or ()) & set(b.hash_ids or ())


def test_sessions_begin_one_after_another_and_share_nothing(tmp_path: Path) -> None:
    rows = trace(
        tmp_path,
        [
            request(0, 640, [1, 10]),
            {"t": 3.0, "requests": [request(0.5, 512, [90, 8])]},
            request(SESSION_GAP_S + 5, 640, [1, 10]),
        ],
        [request(1, 640, [1, 10])],
    )
    assert [(row.at_s, row.line) for row in rows] == [
        (0.0, 1),
        (3.5, 1),
        (SESSION_GAP_S + 1, 2),
        (SESSION_GAP_S + 5, 1),
    ]
    first, nested, other, again = rows
    assert shared_blocks(first, again) == 2
    assert shared_blocks(first, other) == 0
    assert shared_blocks(first, nested) == 0
    assert nested.output_tokens == 7


@pytest.mark.parametrize(
    ("session", "why"),
    [
        ({"block_size": 64, "requests": [{"type": "n"}]}, "is not a session"),
        ({"requests": []}, "is not a session"),
        (
            {"block_size": 100, "requests": [request(0, 100, [1, 1])]},
            "block_size: must divide 512 (got 100)",
        ),
        (
            {"block_size": 64, "requests": [request(0, 640, [1, 9])]},
            "hash_runs: 640 tokens fill 10 blocks of 64 (got 9)",
        ),
        ({"block_size": 64, "requests": [request(0, 0)]}, "needs a prompt of 1 token"),
    ],
)
def test_a_bad_session_is_named_by_its_line(
    tmp_path: Path, session: dict[str, Any], why: str
) -> None:
    path = tmp_path / "bad.jsonl"
    good = {"block_size": 64, "requests": [request(0, 64, [1, 1])]}
    path.write_text(f"{json.dumps(good)}\n{json.dumps(session)}\n")
    with pytest.raises(LabError) as caught:
        read_trace(path)
    assert why in str(caught.value)
    assert f"{path}:2" in str(caught.value)
