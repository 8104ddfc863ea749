"""How many bytes of KV cache a model keeps, from its Hugging Face config.

    S_kv(N) = state_bytes + bytes_per_token N + sum over windows of min(N, w) b_w       [bytes]

`bytes_per_token` sums the full-attention layers, `state_bytes` the linear ones, each window the
sliding layers of one width. A field that is missing or an architecture that is not known is an
error: nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from routing.core.kvsize.config import (
    Config,
    KvSizeError,
    kv_bits,
    language_model,
    state_bits,
    value_bits,
)
from routing.core.kvsize.families import Family, family_of
from routing.core.kvsize.layers import Kind, layer_kinds
from routing.core.model.kvcache import KvModel, KvWindow

__all__ = ["KvSize", "KvSizeError", "LayerCounts", "size_of"]

_WINDOW_FIELDS = {
    "sliding": ("sliding_window", "sliding_window_size"),
    "chunked": ("attention_chunk_size",),
}


@dataclass(frozen=True)
class LayerCounts:
    """Layers that keep each kind; one with attention and a state counts as both."""

    full: int
    sliding: int
    linear: int


@dataclass(frozen=True)
class KvSize:
    """What one request keeps: growing, fixed, and capped at a window."""

    bytes_per_token: int
    state_bytes: int
    windows: tuple[KvWindow, ...]
    layers: LayerCounts

    @property
    def window_tokens(self) -> int | None:
        """The widest window, or None without one."""
        return max((window.window_tokens for window in self.windows), default=None)

    def model(self) -> KvModel:
        return KvModel(self.bytes_per_token, self.state_bytes, self.windows)

    def kv_bytes(self, tokens: int) -> int:
        """Bytes that a prompt of `tokens` tokens ships, windows filled up to it."""
        windows = sum(min(tokens, w.window_tokens) * int(w.bytes_per_token) for w in self.windows)
        return self.state_bytes + self.bytes_per_token * tokens + windows


def size_of(config: Mapping[str, Any]) -> KvSize:
    """The size of the model that `config` (a parsed config.json) describes.

    Raises KvSizeError, with field and value, for what is unknown, missing or impossible.
    """
    text, root = language_model(config)
    family = family_of(text, root)
    text = text.under(family.defaults)
    kinds = layer_kinds(text, family.rule)
    if all(kind == "none" for kind in kinds):
        raise KvSizeError(text.at("num_hidden_layers"), len(kinds), "no layer keeps anything")
    bits = kv_bits(text, root)
    full_bits, state, windows = 0, 0, Counter[int]()
    for index, kind in enumerate(kinds):
        layer = text.layer(index)
        if kind in ("full", "hybrid"):
            full_bits += family.kv(layer, "full", index, bits)
        elif kind in _WINDOW_FIELDS:
            width = layer.count(*_WINDOW_FIELDS[kind])
            windows[width] += family.kv(layer, kind, index, bits)
        if kind in ("linear", "hybrid"):
            state += _state_bits(family, layer, root)
    return KvSize(
        bytes_per_token=_bytes(full_bits),
        state_bytes=_bytes(state),
        windows=tuple(KvWindow(w, _bytes(n)) for w, n in sorted(windows.items())),
        layers=_counted(kinds),
    )


def _state_bits(family: Family, layer: Config, root: Config) -> int:
    if family.state is None:
        key = "layer_types" if layer.has("layer_types") else "layers_block_type"
        raise layer.error(key, "lists a linear layer, which this architecture does not have")
    state = family.state(layer)
    recurrent = state.recurrent * state_bits(layer, family.state_bits)
    return recurrent + state.conv * value_bits(layer, root)


def _bytes(bits: int) -> int:
    return -(-bits // 8)  # rounded up: a half byte still takes one


def _counted(kinds: list[Kind]) -> LayerCounts:
    n = Counter(kinds)
    return LayerCounts(
        full=n["full"] + n["hybrid"],
        sliding=n["sliding"] + n["chunked"],
        linear=n["linear"] + n["hybrid"],
    )
