"""Streams pass byte for byte, except for the one event the client did not ask for."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.gate.prompt import parse_body
from routing.gate.sse import MAX_HELD_BYTES, Usage, UsageFilter, WholeAnswer, ask_for_usage

TEXT = b'data: {"choices":[{"text":"say \\"usage\\" please"}],"usage":null}\n\n'
ONLY_USAGE = (
    b'data: {"choices": [], "usage": {"prompt_tokens": 7, '
    b'"prompt_tokens_details": {"cached_tokens": 3}}}\n\n'
)
CONTINUOUS = b'data: {"choices":[{"text":"x"}],"usage":{"prompt_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"
COMMENT = b': keep-alive, "usage"\n\n'


def passed(stream: bytes, cuts: list[int], *, strip: bool) -> tuple[bytes, Usage | None]:
    events = UsageFilter(strip=strip)
    out = b""
    edges = [0, *sorted(c % (len(stream) + 1) for c in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        out += events.feed(stream[start:end])
    return out + events.flush(), events.usage


CASES = [
    # name, stream, what the client sees when the gate asked
    ("plain", TEXT + ONLY_USAGE + DONE, TEXT + DONE),
    ("carriage returns", (TEXT + ONLY_USAGE + DONE).replace(b"\n", b"\r\n"), (TEXT + DONE).replace(b"\n", b"\r\n")),
    ("comments and event names", COMMENT + b"event: x\n" + TEXT + b"event: y\nid: 1\n" + ONLY_USAGE, COMMENT + b"event: x\n" + TEXT),
    ("usage beside text stays", CONTINUOUS + DONE, CONTINUOUS + DONE),
    ("no JSON stays", b'data: "usage" {{\n\n' + DONE, b'data: "usage" {{\n\n' + DONE),
    ("an unfinished end stays", TEXT + b'data: {"choices": [], "usage": {}}', TEXT + b'data: {"choices": [], "usage": {}}'),
    ("an error event stays", b'data: {"error": {"message": "no"}}\n\n', b'data: {"error": {"message": "no"}}\n\n'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "stream", "want"), CASES, ids=[c[0] for c in CASES])
@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
def test_only_the_extra_event_is_taken_out(
    name: str, stream: bytes, want: bytes, step: int
) -> None:
    cuts = list(range(step, len(stream), step))
    assert passed(stream, cuts, strip=True)[0] == want
    assert passed(stream, cuts, strip=False)[0] == stream


@given(cuts=st.lists(st.integers(0, 10**6), max_size=12))
def test_however_the_stream_is_cut(cuts: list[int]) -> None:
    stream = TEXT + COMMENT + ONLY_USAGE + DONE
    assert passed(stream, cuts, strip=True) == (TEXT + COMMENT + DONE, Usage(7, 3))
    assert passed(stream, cuts, strip=False) == (stream, Usage(7, 3))


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_bytes_that_are_no_events_pass(pieces: list[bytes]) -> None:
    for strip in (True, False):
        events = UsageFilter(strip=strip)
        assert b"".join([*map(events.feed, pieces), events.flush()]) == b"".join(pieces)


def test_complete_events_are_never_held_back() -> None:
    events = UsageFilter(strip=True)
    assert events.feed(TEXT + b"data: {") == TEXT
    assert UsageFilter(strip=False).feed(b"data: {") == b"data: {"


def test_an_endless_event_is_not_collected() -> None:
    events = UsageFilter(strip=True)
    piece = b"x" * (MAX_HELD_BYTES // 2 + 1)
    assert events.feed(piece) == b""
    assert events.feed(piece) == piece + piece


USAGES = [
    # name, usage object, want
    ("with cache", {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}, Usage(9, 4)),
    ("zero cached is a fact", {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}, Usage(9, 0)),
    ("cached not told", {"prompt_tokens": 9}, Usage(9, None)),
    ("details null", {"prompt_tokens": 9, "prompt_tokens_details": None}, Usage(9, None)),
    ("cached null", {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, Usage(9, None)),
    ("more cached than there is", {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 10}}, Usage(9, None)),
    ("negative", {"prompt_tokens": -9}, None),
    ("absurd", {"prompt_tokens": 1 << 50}, None),
    ("empty", {}, None),
    ("no object", 7, None),
    ("null", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "usage", "want"), USAGES, ids=[c[0] for c in USAGES])
def test_usage_of_whole_answers(name: str, usage: Any, want: Usage | None) -> None:
    body = json.dumps({"choices": [{"text": "a"}], "usage": usage}).encode()
    answer = WholeAnswer()
    assert b"".join([answer.feed(body[:9]), answer.feed(body[9:]), answer.flush()]) == body
    assert answer.usage == want


ASKED = [
    # name, the client's body, the body sent on (None: unchanged)
    ("not asked", b' {"stream":true, "top_p":0.10}', b' {"stream_options":{"include_usage":true},"stream":true, "top_p":0.10}'),
    ("asked in another field", b'{"x":{"stream_options":{}}}', b'{"stream_options":{"include_usage":true},"x":{"stream_options":{}}}'),
    ("null", b'{"stream_options":null}', b'{"stream_options":{"include_usage":true}}'),
    ("refused by the client", b'{"stream_options":{"include_usage":false,"x":[1, 2]}}', b'{"stream_options":{"include_usage":true,"x":[1, 2]}}'),
    ("asked by the client", b'{"stream_options":{"include_usage":true}}', None),
    ("nonsense is the engine's to refuse", b'{"stream_options":7}', None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "want"), ASKED, ids=[c[0] for c in ASKED])
def test_asking_for_usage_keeps_every_other_byte(
    name: str, body: bytes, want: bytes | None
) -> None:
    assert ask_for_usage(body, parse_body(body)) == want
