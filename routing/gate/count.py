"""How many tokens a prompt has, before and after the engine tells.

Token ids are exact. Text is exact with a tokenizer file; otherwise tokens = units * ratio, where
units are UTF-8 bytes and the ratio is learned per endpoint and model from `usage.prompt_tokens`.
A chat passes through a template the gate does not have, so its tokenizer count is only a better
unit: tokens = content tokens * ratio, with a ratio near 1. Where the configuration describes the
template, plain chats (roles and texts, nothing else) are laid out by it and exact as well. What an
image or a clip stands for is learned from usage too: what the text does not account for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from routing.gate.prompt import BYTES_PER_ID, Prompt, pack_ids, plain_messages
from routing.gate.settings import ChatTemplate

Source = Literal["tokenised", "usage", "estimated"]

_N_SAMPLES = 64
_MAX_MEDIA_PART_TOKENS = 1e6
_N_KEYS = 64


@dataclass(frozen=True)
class Length:
    """`tokens` of a prompt, and whether they were counted or estimated."""

    tokens: int
    source: Source


@dataclass(frozen=True)
class Unit:
    """What a ratio multiplies. Ratios outside the bounds are taken to be broken usage reports."""

    name: str
    default_ratio: float
    low: float
    high: float


BYTES = Unit("bytes", 0.25, 0.01, 2.0)
CONTENT_TOKENS = Unit("content tokens", 1.0, 0.5, 4.0)


class Ratios:
    """Tokens per unit, per (endpoint, model): the weighted median of the last reports.

    A median, so that one odd prompt moves nothing; weighted by units, because long prompts are the
    ones routed by it and because a template's fixed overhead distorts short ones. Keys come from
    clients, so only the most recently used are kept.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self._samples: OrderedDict[Hashable, deque[tuple[float, int]]] = OrderedDict()
        self._ratios: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def ratio(self, key: Hashable) -> float:
        """Tokens per unit for this key, or the default before any report."""
        return self._ratios.get(key, self.unit.default_ratio)

    def observe(self, key: Hashable, *, units: int, tokens: int) -> None:
        """One engine report. Reports that cannot be true are ignored."""
        if units <= 0 or not self.unit.low <= tokens / units <= self.unit.high:
            return
        samples = self._samples.setdefault(key, deque(maxlen=_N_SAMPLES))
        self._samples.move_to_end(key)
        samples.append((tokens / units, units))
        self._ratios[key] = _weighted_median(samples)
        if len(self._samples) > _N_KEYS:
            oldest, _ = self._samples.popitem(last=False)
            del self._ratios[oldest]


def _weighted_median(samples: deque[tuple[float, int]]) -> float:
    half = sum(weight for _, weight in samples) / 2
    for ratio, weight in sorted(samples):
        half -= weight
        if half <= 0:
            return ratio
    raise ValueError("no samples")


class Encoding(Protocol):
    """What a tokenizer returns."""

    @property
    def ids(self) -> list[int]: ...


class Tokenizer(Protocol):
    """The part of `tokenizers.Tokenizer` that the gate uses."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Encoding: ...


class Counter:
    """Counts prompts and learns from engines. `media_part_tokens` stands for each image or clip
    until engines tell; `template` is how chats are laid out, where that is known."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer | None,
        media_part_tokens: int,
        template: ChatTemplate | None = None,
    ) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._bytes = Ratios(BYTES)
        self._content_tokens = Ratios(CONTENT_TOKENS)
        self._media_tokens = Ratios(
            Unit("media parts", float(media_part_tokens), 1.0, _MAX_MEDIA_PART_TOKENS)
        )

    async def tokenise(self, prompt: Prompt) -> Prompt:
        """The same prompt as token ids when there is a tokenizer, else unchanged."""
        if self._tokenizer is None or prompt.unit == "token" or prompt.n_media:
            return prompt
        messages = plain_messages(prompt) if self._template is not None else None
        if self._template is not None and messages is not None:
            text = _laid_out(self._template, messages)
            ids = await asyncio.to_thread(_encode_text, self._tokenizer, text, special=False)
            return replace(prompt, unit="token", pieces=(ids,), is_laid_out=True)
        # Milliseconds for a long prompt, and it releases the GIL: not on the event loop.
        pieces = await asyncio.to_thread(_encode, self._tokenizer, prompt)
        return replace(prompt, unit="token", pieces=pieces)

    def count(self, prompt: Prompt) -> Length:
        """The length as known at arrival."""
        if prompt.unit == "token" and (prompt.endpoint == "completions" or prompt.is_laid_out):
            return Length(prompt.n_bytes // BYTES_PER_ID, "tokenised")
        tokens = self._text_tokens(prompt)
        if prompt.n_bytes:
            tokens = max(1, tokens)  # so that a threshold of 0 sends every text remote
        if prompt.n_media:
            tokens += round(prompt.n_media * self._media_tokens.ratio(_key(prompt)))
        return Length(tokens, "estimated")

    def learn(self, prompt: Prompt, *, prompt_tokens: int) -> None:
        """What the engine counted for this prompt."""
        key = _key(prompt)
        if prompt.is_laid_out:
            return  # it was exact, and tells nothing of chats that are not
        if prompt.n_media:
            rest = prompt_tokens - self._text_tokens(prompt)
            self._media_tokens.observe(key, units=prompt.n_media, tokens=rest)
        else:
            self._ratios(prompt).observe(key, units=_units(prompt), tokens=prompt_tokens)

    def _text_tokens(self, prompt: Prompt) -> int:
        return round(_units(prompt) * self._ratios(prompt).ratio(_key(prompt)))

    def _ratios(self, prompt: Prompt) -> Ratios:
        return self._bytes if prompt.unit == "byte" else self._content_tokens


def _key(prompt: Prompt) -> tuple[str, str]:
    return prompt.endpoint, prompt.model


def _units(prompt: Prompt) -> int:
    return prompt.n_bytes if prompt.unit == "byte" else prompt.n_bytes // BYTES_PER_ID


def _encode(tokenizer: Tokenizer, prompt: Prompt) -> tuple[bytes, ...]:
    # A completion is tokenised as the engine does it; a chat's special tokens come from a template.
    special = prompt.endpoint == "completions"
    return tuple(
        # What was passed by unread (a role, tools) need not be UTF-8; the engine judges that.
        _encode_text(tokenizer, piece.decode(errors="replace"), special=special)
        for piece in prompt.pieces
    )


def _encode_text(tokenizer: Tokenizer, text: str, *, special: bool) -> bytes:
    return pack_ids(tokenizer.encode(text, add_special_tokens=special).ids)


def _laid_out(template: ChatTemplate, messages: list[tuple[str, str]]) -> str:
    rendered = [template.message.format(role=role, content=text) for role, text in messages]
    return "".join((template.begin, *rendered, template.end))
