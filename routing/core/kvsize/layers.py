"""Which layers of a model keep what: `full` KV, a `sliding` or `chunked` window of it, a `linear`
state, both at once (`hybrid`), or nothing (`none`: feed-forward blocks, layers that read another
layer's cache).

A list in the config is believed; otherwise the rule of the model's class, as published with its
weights, says it. Rules take a config and answer one kind a layer, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from routing.core.kvsize.config import Config, KvSizeError

Kind = Literal["full", "sliding", "chunked", "linear", "hybrid", "none"]
Rule = Callable[[Config], list[Kind]]

MAX_LAYERS = 10_000  # the deepest published models have some 130

# Names in `layer_types` and `layers_block_type`, old and new.
_NAMED: dict[str, Kind] = {
    "full_attention": "full",
    "attention": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "conv": "linear",
    "hybrid": "hybrid",
    "moe": "none",
    "mlp": "none",
}
# Characters of Nemotron-H's `hybrid_override_pattern`: Mamba2, attention, MLP, experts.
_PATTERN: dict[str, Kind] = {"M": "linear", "*": "full", "-": "none", "E": "none"}


def layer_kinds(config: Config, rule: Rule) -> list[Kind]:
    """One kind a layer: as the config lists them, else as `rule` says, less shared caches."""
    for key in ("layer_types", "layers_block_type"):
        if config.has(key):
            kinds = _listed(config, key)
            break
    else:
        kinds = rule(config)
    return _without_shared(config, kinds)


def _listed(config: Config, key: str) -> list[Kind]:
    kinds: list[Kind] = []
    for i, name in enumerate(config.items(key)):
        if not isinstance(name, str) or name not in _NAMED:
            known = ", ".join(_NAMED)
            message = f"is not a known kind of layer (known: {known})"
            raise KvSizeError(f"{config.at(key)}[{i}]", name, message)
        kinds.append(_NAMED[name])
    if config.has("num_hidden_layers"):
        n = _n_layers(config)
        # Step-3.x lists its draft layers behind the model's own.
        if config.data.get("num_nextn_predict_layers") and len(kinds) > n:
            kinds = kinds[: max(n, len(kinds) - config.count("num_nextn_predict_layers"))]
        if len(kinds) != n:
            message = f"must list num_hidden_layers = {n} layers, not {len(kinds)}"
            raise KvSizeError(config.at(key), len(kinds), message)
    return kinds


def _without_shared(config: Config, kinds: list[Kind]) -> list[Kind]:
    """Gemma's last layers read an earlier layer's cache; Hunyuan's share one by groups."""
    n = len(kinds)
    owner = [True] * n
    if config.data.get("num_kv_shared_layers"):
        first = n - config.count("num_kv_shared_layers")
        if first < 1:
            raise config.error("num_kv_shared_layers", f"leaves no layer of {n} to share from")
        owner = [i < first for i in range(n)]
    if config.flag("use_cla"):
        group = config.count("cla_share_factor")
        owner = [i % group == 0 for i in range(n)]
    return [kind if owner[i] else "none" for i, kind in enumerate(kinds)]


def _n_layers(config: Config, key: str = "num_hidden_layers") -> int:
    n = config.count(key)
    if n > MAX_LAYERS:
        raise config.error(key, f"must be at most {MAX_LAYERS}")
    return n


def every(kind: Kind, key: str = "num_hidden_layers", *, times: int = 1) -> Rule:
    """All layers alike; `times` caches a layer (LongCat has two attentions in each)."""
    return lambda config: [kind] * (times * _n_layers(config, key))


def windowed(config: Config) -> list[Kind]:
    """All layers slide where `sliding_window` is set; one that no prompt can fill is none."""
    return ["sliding" if _slides(config) else "full"] * _n_layers(config)


def gated(config: Config) -> list[Kind]:
    """Qwen: only with `use_sliding_window`, and only from layer `max_window_layers` on."""
    n = _n_layers(config)
    if not config.flag("use_sliding_window") or not _slides(config):
        return ["full"] * n
    first = config.count("max_window_layers")
    return ["full" if i < first else "sliding" for i in range(n)]


def _slides(config: Config) -> bool:
    stated = "sliding_window" in config.data  # a null says no, an absence what the class says
    if not config.has("sliding_window") and (stated or "sliding_window" not in config.defaults):
        return False
    window = config.count("sliding_window")
    longest = config.data.get("max_position_embeddings")
    return longest is None or window < config.count("max_position_embeddings")


def one_full_in(key: str) -> Rule:
    """Every `key`-th layer is full, the others slide; all full without a window.

    `key` may hold a pattern such as LLLG instead, repeated: L slides, G is full.
    """

    def rule(config: Config) -> list[Kind]:
        n = _n_layers(config)
        if not _slides(config):
            return ["full"] * n
        pattern = config.data.get(key)
        if isinstance(pattern, str):
            if not pattern or set(pattern) - set("LG"):
                raise config.error(key, "must be a number or a pattern of L and G")
            return ["full" if pattern[i % len(pattern)] == "G" else "sliding" for i in range(n)]
        period = config.count(key)
        return ["sliding" if (i + 1) % period else "full" for i in range(n)]

    return rule


def llama4(config: Config) -> list[Kind]:
    """Chunks where rotary positions are used, full attention in the layers without."""
    n = _n_layers(config)
    if config.data.get("no_rope_layers"):
        rotary = config.items("no_rope_layers")
        if len(rotary) != n or any(flag not in (0, 1) for flag in rotary):
            raise config.error("no_rope_layers", f"must list 0 or 1 for each of {n} layers")
        return ["chunked" if flag else "full" for flag in rotary]
    period = config.count("no_rope_layer_interval")
    return ["chunked" if (i + 1) % period else "full" for i in range(n)]


def mimo(config: Config) -> list[Kind]:
    """MiMo lists 1 for sliding; its class puts full layers first and then sixth by sixth."""
    n = _n_layers(config)
    if config.has("hybrid_layer_pattern"):
        pattern = config.items("hybrid_layer_pattern")
        if len(pattern) != n or any(flag not in (0, 1) for flag in pattern):
            raise config.error("hybrid_layer_pattern", f"must list 0 or 1 for each of {n} layers")
        return ["sliding" if flag else "full" for flag in pattern]
    return ["full" if i == 0 or (i + 1) % 6 == 0 else "sliding" for i in range(n)]


def blocks(config: Config) -> list[Kind]:
    """Nemotron's pruned models describe every block; a `no_op` attention keeps nothing."""
    kinds: list[Kind] = []
    for i, block in enumerate(config.items("block_configs")):
        path = config.at(f"block_configs[{i}]")
        attention = Config(Config(block, path).data.get("attention"), f"{path}.attention")
        if attention.flag("no_op") or attention.flag("replace_with_linear"):
            kinds.append("none")  # "linear" here is a plain matrix, not an attention
        elif attention.has("window_length"):
            raise attention.error("window_length", "windows of single blocks are not known")
        else:
            kinds.append("full")
    if len(kinds) != _n_layers(config):
        message = f"must list num_hidden_layers blocks, not {len(kinds)}"
        raise KvSizeError(config.at("block_configs"), len(kinds), message)
    return kinds


def interval(config: Config) -> list[Kind]:
    """Qwen3-Next: every `full_attention_interval`-th layer is full, the others linear."""
    period = config.count("full_attention_interval")
    n = _n_layers(config)
    return ["linear" if (i + 1) % period else "full" for i in range(n)]


def groups(config: Config) -> list[Kind]:
    """Ling/Ring: the last layer of each group is full, and what is left of the last group."""
    n, size = _n_layers(config), config.count("layer_group_size")
    return ["full" if (i + 1) % size == 0 or i >= n // size * size else "linear" for i in range(n)]


def kimi(config: Config) -> list[Kind]:
    """Kimi Linear: two lists of layers, counted from 1, that must cover all of them."""
    n = _n_layers(config)
    table = config.table("linear_attn_config")
    full = table.indices("full_attn_layers", n, first=1)
    linear = table.indices("kda_layers", n, first=1)
    if full & linear or len(full) + len(linear) != n:
        raise table.error("kda_layers", f"and full_attn_layers must cover {n} layers once each")
    return ["full" if i in full else "linear" for i in range(n)]


def attn_type_list(config: Config) -> list[Kind]:
    """MiniMax: 1 is softmax attention, 0 is Lightning."""
    n = _n_layers(config)
    types = config.items("attn_type_list")
    if len(types) != n or any(kind not in (0, 1) for kind in types):
        raise config.error("attn_type_list", f"must list 0 or 1 for each of {n} layers")
    return ["full" if kind else "linear" for kind in types]


def pattern(config: Config) -> list[Kind]:
    """Nemotron-H: one character a layer."""
    text = config.data.get("hybrid_override_pattern")
    if not isinstance(text, str) or not text:
        raise config.error("hybrid_override_pattern", "is missing" if text is None else "is empty")
    if set(text) - set(_PATTERN):
        raise config.error("hybrid_override_pattern", f"may hold {' '.join(_PATTERN)} only")
    if config.has("num_hidden_layers") and len(text) != _n_layers(config):
        raise config.error("hybrid_override_pattern", "must have num_hidden_layers characters")
    return [_PATTERN[character] for character in text]


def period(config: Config) -> list[Kind]:
    """Jamba: attention at `attn_layer_offset` of every `attn_layer_period` layers."""
    size = config.count("attn_layer_period")
    offset = config.data.get("attn_layer_offset")
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < size:
        raise config.error("attn_layer_offset", f"must be a whole number from 0 to {size - 1}")
    n = _n_layers(config)
    return ["full" if i % size == offset else "linear" for i in range(n)]


def indices(key: str, *, otherwise: Kind = "linear", null: Kind | None = None) -> Rule:
    """`key` lists the full layers from 0; where it is null, every layer is `null`."""

    def rule(config: Config) -> list[Kind]:
        n = _n_layers(config)
        if null is not None and key in config.data and not config.has(key):
            return [null] * n
        full = config.indices(key, n)
        return ["full" if i in full else otherwise for i in range(n)]

    return rule


def only_listed(config: Config) -> list[Kind]:
    """Models whose class has no rule of its own: the list has to stand in the config."""
    raise config.error("layer_types", "is missing")
