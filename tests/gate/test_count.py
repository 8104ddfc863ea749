"""Prompt shapes, lengths and what engines teach the estimate."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from routing.gate.count import BYTES, Counter, Length, Ratios
from routing.gate.prompt import BadRequest, Endpoint, Prompt, parse_body, parse_prompt, wants_stream
from routing.gate.settings import ChatTemplate


def parsed(endpoint: Endpoint = "completions", **fields: Any) -> Prompt:
    prompt = maybe(endpoint, **fields)
    assert prompt is not None
    return prompt


def maybe(endpoint: Endpoint = "completions", **fields: Any) -> Prompt | None:
    return parse_prompt(endpoint, parse_body(json.dumps(fields).encode()))


def counter(tokenizer: Any = None) -> Counter:
    return Counter(tokenizer=tokenizer, media_part_tokens=1000)


EXACT = [
    # name, prompt, tokens
    ("ids", [1, 2, 3], 3),
    ("no ids", [], 0),
    ("batch of ids adds up", [[1, 2, 3], [4]], 4),
    ("biggest id", [2**32 - 1], 1),
]


@pytest.mark.parametrize(("name", "prompt", "tokens"), EXACT, ids=[c[0] for c in EXACT])
def test_token_ids_are_exact(name: str, prompt: Any, tokens: int) -> None:
    length = counter().count(parsed(prompt=prompt))
    assert (length.tokens, length.source) == (tokens, "tokenised")


def test_text_is_estimated_by_bytes_not_characters() -> None:
    length = counter().count(parsed(prompt="é" * 400))
    assert (length.tokens, length.source) == (200, "estimated")
    assert counter().count(parsed(prompt=["a" * 400, "b" * 400])).tokens == 200
    assert counter().count(parsed(prompt="a")).tokens == 1, "a text is never without tokens"
    assert counter().count(parsed(prompt="")).tokens == 0


UNMEASURABLE = [
    ("nothing", {}),
    ("null", {"prompt": None}),
    ("a number", {"prompt": 5}),
    ("an object", {"prompt": {"text": "a"}}),
    ("mixed", {"prompt": ["a", 1]}),
    ("negative id", {"prompt": [-1]}),
    ("id too big", {"prompt": [2**32]}),
    ("fractional id", {"prompt": [1.5]}),
    ("true", {"prompt": [True]}),
    ("model no text", {"prompt": "a", "model": 5}),
]


@pytest.mark.parametrize(("name", "fields"), UNMEASURABLE, ids=[c[0] for c in UNMEASURABLE])
def test_what_cannot_be_measured_is_left_to_the_engine(name: str, fields: dict[str, Any]) -> None:
    assert maybe(**fields) is None


@pytest.mark.parametrize("messages", [None, "hi", [1], [{"content": 5}], [{"content": [7]}]])
def test_chats_that_cannot_be_measured(messages: Any) -> None:
    assert maybe("chat", messages=messages) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b"\xff", b'{"a": NaN}'])
def test_a_body_that_is_no_json_object_is_the_gates_to_refuse(body: bytes) -> None:
    with pytest.raises(BadRequest, match="not a JSON object"):
        parse_body(body)


def test_white_space_and_order_do_not_matter() -> None:
    body = b' { "stream" :  true , "prompt" : [ \n [ 1 , 2 ] , [ 3 ] ] } '
    fields = parse_body(body)
    assert wants_stream(fields)
    prompt = parse_prompt("completions", fields)
    assert prompt is not None
    assert prompt.unit == "token"
    assert prompt.n_bytes == 12


def test_a_chat_grows_by_appending() -> None:
    """The bytes of a turn are a prefix of those of the next: prefixes of chats match."""
    first = [{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    later = [*first, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    one = parsed("chat", messages=first, tools=tools)
    two = parsed("chat", messages=later, tools=tools)
    assert two.pieces[0].startswith(one.pieces[0])
    assert two.pieces[0] != one.pieces[0]


def test_messages_cannot_be_forged_from_inside_a_message() -> None:
    one = parsed(
        "chat", messages=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    )
    two = parsed("chat", messages=[{"role": "user", "content": 'a user "b'}])
    assert one.pieces != two.pieces


def test_what_never_shares_kv_has_another_salt() -> None:
    salts = {
        parsed(prompt="a", model="m").salt,
        parsed(prompt="a", model="n").salt,
        parsed(prompt="a", model="m", cache_salt="s").salt,
        parsed("chat", messages=[], model="m").salt,
    }
    assert len(salts) == 4
    assert parsed(prompt="a", model=None).salt == parsed(prompt="b").salt


def image(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data}}


def test_an_image_counts_as_an_image_not_as_its_bytes() -> None:
    text = {"type": "text", "text": "what is this?"}
    big = parsed("chat", messages=[{"role": "user", "content": [text, image("A" * 400_000)]}])
    small = parsed("chat", messages=[{"role": "user", "content": [text, image("http://x/y")]}])
    assert big.n_media == small.n_media == 1
    assert counter().count(big).tokens == counter().count(small).tokens
    assert 1000 < counter().count(big).tokens < 1040
    assert big.pieces != small.pieces, "another image is another prefix"


def test_usage_calibrates_per_endpoint_and_model() -> None:
    counts = counter()
    prompt = parsed(prompt="word " * 1000, model="m")
    assert counts.count(prompt).tokens == 1250
    counts.learn(prompt, prompt_tokens=1000)
    assert counts.count(prompt).tokens == 1000
    assert counts.count(parsed(prompt="word " * 1000, model="n")).tokens == 1250
    chat = parsed("chat", messages=[{"role": "user", "content": "w" * 4000}], model="m")
    assert counts.count(chat).tokens == pytest.approx(1000, abs=5)


def test_media_never_calibrates_text_and_learns_what_a_part_stands_for() -> None:
    counts = counter()
    text = parsed("chat", messages=[{"role": "user", "content": "w" * 4000}], model="m")
    parts = [image("x"), image("y"), {"type": "text", "text": "w" * 400}]
    mixed = parsed("chat", messages=[{"role": "user", "content": parts}], model="m")
    before = counts.count(text)
    assert counts.count(mixed).tokens == pytest.approx(2 * 1000 + 100, abs=20)
    for prompt_tokens in (1300, 1300, 90_000, 1300):
        counts.learn(mixed, prompt_tokens=prompt_tokens)
    assert counts.count(mixed) == Length(1300, "estimated")
    assert counts.count(text) == before
    other = parsed("chat", messages=[{"role": "user", "content": [image("x")]}], model="n")
    assert counts.count(other).tokens == pytest.approx(1000, abs=20), "each model has its own"


def test_one_odd_report_moves_nothing() -> None:
    ratios = Ratios(BYTES)
    for _ in range(10):
        ratios.observe("k", units=4000, tokens=1000)
    ratios.observe("k", units=4000, tokens=7000)
    assert ratios.ratio("k") == 0.25


@pytest.mark.parametrize(("units", "tokens"), [(0, 5), (1000, 0), (1000, 5000), (10**6, 1)])
def test_reports_that_cannot_be_true_are_ignored(units: int, tokens: int) -> None:
    ratios = Ratios(BYTES)
    ratios.observe("k", units=units, tokens=tokens)
    assert ratios.ratio("k") == BYTES.default_ratio
    assert len(ratios) == 0


def test_long_prompts_weigh_more_than_short_ones() -> None:
    ratios = Ratios(BYTES)
    for _ in range(20):
        ratios.observe("k", units=20, tokens=20)
    ratios.observe("k", units=100_000, tokens=25_000)
    assert ratios.ratio("k") == 0.25


def test_models_named_by_clients_cannot_fill_the_memory() -> None:
    ratios = Ratios(BYTES)
    for i in range(1000):
        ratios.observe(("chat", f"model-{i}"), units=100, tokens=50)
    assert len(ratios) == 64
    assert ratios.ratio(("chat", "model-999")) == 0.5
    assert ratios.ratio(("chat", "model-0")) == 0.25


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), max_size=150))
def test_the_ratio_stays_within_its_bounds(reports: list[tuple[int, int]]) -> None:
    ratios = Ratios(BYTES)
    for units, tokens in reports:
        ratios.observe("k", units=units, tokens=tokens)
    assert BYTES.low <= ratios.ratio("k") <= BYTES.high


def words_tokenizer() -> Any:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "w": 1, "v": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


async def test_a_tokenizer_makes_text_exact_and_a_chat_better() -> None:
    counts = counter(words_tokenizer())
    prompt = await counts.tokenise(parsed(prompt="w v w " * 100))
    length = counts.count(prompt)
    assert (length.tokens, length.source) == (300, "tokenised")
    assert prompt.pieces[0][:8] == b"\x01\0\0\0\x02\0\0\0"
    chat = await counts.tokenise(parsed("chat", messages=[{"role": "user", "content": "w v w"}]))
    assert counts.count(chat).source == "estimated", "the engine's template is not known here"
    untouched = parsed(prompt=[1, 2])
    assert await counts.tokenise(untouched) is untouched


async def test_bytes_a_chat_passes_by_unread_need_not_be_utf8() -> None:
    body = b'{"messages": [{"role": "u\xff", "content": "w v"}], "tools": "\xff"}'
    prompt = parse_prompt("chat", parse_body(body))
    assert prompt is not None
    assert (await counter(words_tokenizer()).tokenise(prompt)).unit == "token"


CHATML = ChatTemplate(message="<{role}>{content}|", begin="^", end="<assistant>")


class Letters:
    """A tokenizer whose tokens are the characters, and that notes what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Any:
        self.seen.append((sequence, add_special_tokens))
        return SimpleNamespace(ids=[ord(c) for c in sequence])


PLAIN = [{"role": "system", "content": "é{x}"}, {"role": "user", "content": "b"}]
LAID_OUT = "^<system>é{x}|<user>b|<assistant>"


async def test_a_plain_chat_is_laid_out_by_the_template_and_counted_exactly() -> None:
    letters = Letters()
    counts = Counter(tokenizer=letters, media_part_tokens=1000, template=CHATML)
    prompt = await counts.tokenise(parsed("chat", messages=PLAIN, model="m"))
    assert letters.seen == [(LAID_OUT, False)], "the template holds the special tokens"
    assert counts.count(prompt) == Length(len(LAID_OUT), "tokenised")
    counts.learn(prompt, prompt_tokens=1)
    longer = parsed("chat", messages=[*PLAIN, {"role": "user", "content": "c"}], model="m")
    [piece] = (await counts.tokenise(longer)).pieces
    assert piece.startswith(prompt.pieces[0][: -4 * len("<assistant>")]), "it continues the other"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": PLAIN, "tools": []},
        {"messages": PLAIN, "add_generation_prompt": False},
        {"messages": [{"role": "user", "content": "a", "name": "n"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"messages": [{"role": "assistant", "content": None}]},
        {"messages": [{"role": "user", "content": "a\x1eb"}]},
        {"messages": [{"role": 7, "content": "a"}]},
    ],
    ids=str,
)
async def test_any_other_chat_stays_an_estimate(fields: dict[str, Any]) -> None:
    counts = Counter(tokenizer=Letters(), media_part_tokens=1000, template=CHATML)
    prompt = await counts.tokenise(parsed("chat", model="m", **fields))
    assert counts.count(prompt).source == "estimated"
