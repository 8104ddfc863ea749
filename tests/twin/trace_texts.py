"""Hand-written trace files that tests share, and the recorded ones beside the project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from routing.twin.traces import Trace, parse_trace

SHARED = Path(__file__).parents[2] / "../shared/data/traces"


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not beside the project")
    return SHARED / name


def parsed(text: str, *, block_tokens: int | None = None) -> Trace:
    return parse_trace(text.splitlines(keepends=True), source="t", block_tokens=block_tokens)


def mooncake(*rows: tuple[int, int, int, list[int]]) -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)


MOONCAKE = mooncake(
    (27_000, 1100, 20, [7, 8, 9]),
    (27_000, 1600, 0, [7, 8, 10, 11]),
    (30_500, 600, 5, [7, 12]),
    (31_000, 511, 5, [7]),
)
EXPORT = (
    '{"at_s": 1700000000.5, "cluster": "pd", "prompt_tokens": 100, "output_tokens": 5}\n'
    '{"at_s": 1700000002, "cluster": "pd2", "uncached_tokens": 50, "output_tokens": 6}\n'
)
