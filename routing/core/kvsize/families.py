"""What one layer of each family of models keeps, and which model types belong to which family.

Bits of a token's KV in one layer, b bits a value:

    GQA, MHA        kv_heads (head_dim + v_head_dim) b
    MLA             (kv_lora_rank + qk_rope_head_dim) b           one latent, shared by all heads
    sparse indexer  8 index_head_dim + 32 ceil(index_head_dim / 128)     fp8 key, fp32 scales (vLLM)

Values of a linear layer's state, recurrent and convolution (the last k - 1 inputs):

    GDN         value_heads key_dim value_dim     2 key_heads key_dim + value_heads value_dim
    KDA         heads dim^2                       3 heads dim
    Lightning   heads head_dim^2                  none
    Mamba2      heads head_dim state              heads head_dim + 2 groups state
    Mamba1      expand hidden state               expand hidden
    short conv  none                              hidden
                                                  each times k - 1

Shapes are those of vLLM's KV cache specs and transformers' cache layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from routing.core.kvsize import layers
from routing.core.kvsize.config import Config
from routing.core.kvsize.layers import Kind, Rule

INDEX_BLOCK = 128  # values an fp8 scale covers in the indexer's cache, vLLM
INDEX_KEY_BITS, INDEX_SCALE_BITS = 8, 32


@dataclass(frozen=True)
class State:
    """Values of one layer's fixed state: `recurrent`, and the `conv` window beside it."""

    recurrent: int
    conv: int


# (config, kind, layer, bits of a value) -> bits a token; layers count from 0.
Kv = Callable[[Config, Kind, int, int], int]


@dataclass(frozen=True)
class Family:
    """How a model type is read.

    `defaults` are what its class fills in where published configs leave a field out, and
    `state_bits` what its engines keep the recurrent state in where the config does not say.
    """

    rule: Rule
    kv: Kv
    state: Callable[[Config], State] | None = None
    defaults: Mapping[str, int] = field(default_factory=dict)
    state_bits: int = 32


def _kv_heads(config: Config, *keys: str) -> int:
    """Heads of K and V. An explicit null means one for each query head; an absence nothing."""
    for key in keys:
        if config.has(key):
            return config.count(key)
    if any(key in config.data for key in keys):
        return config.count("num_attention_heads")
    return config.count(*keys)


def _head_dim(config: Config) -> int:
    """The stated head_dim, else hidden_size / num_attention_heads where that is whole."""
    for key in ("head_dim", "attention_head_dim"):
        if config.has(key) or key in config.defaults:
            return config.count(key)
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if hidden % heads:
        raise config.error("head_dim", f"is missing, and {hidden} / {heads} is not whole")
    return hidden // heads


def gqa(config: Config, kind: Kind, layer: int, bits: int) -> int:
    return _kv_heads(config, "num_key_value_heads") * 2 * _head_dim(config) * bits


def gqa_stated(config: Config, kind: Kind, layer: int, bits: int) -> int:
    """GQA of classes whose head_dim is not hidden_size / num_attention_heads: it must stand."""
    heads = _kv_heads(config, "num_key_value_heads")
    return heads * 2 * config.count("head_dim", "attention_head_dim") * bits


def mha(config: Config, kind: Kind, layer: int, bits: int) -> int:
    """Older models without a field for KV heads."""
    return config.count("num_attention_heads") * 2 * _head_dim(config) * bits


def gqa_mimo(config: Config, kind: Kind, layer: int, bits: int) -> int:
    """K and V of different sizes; sliding layers have their own heads, twice as many by class."""
    if kind == "full":
        heads = _kv_heads(config, "num_key_value_heads")
        return heads * (config.count("head_dim") + config.count("v_head_dim")) * bits
    if config.has("swa_num_key_value_heads"):
        heads = config.count("swa_num_key_value_heads")
    else:
        heads = 2 * config.count("num_key_value_heads")
    k_dim = config.count("swa_head_dim", "head_dim")
    return heads * (k_dim + config.count("swa_v_head_dim", "v_head_dim")) * bits


def gqa_step(config: Config, kind: Kind, layer: int, bits: int) -> int:
    """Step-3.x: groups instead of KV heads, others in sliding layers."""
    table = config
    if kind == "sliding" and config.has("attention_other_setting"):
        table = config.table("attention_other_setting")
    groups = _kv_heads(table, "num_attention_groups", "num_key_value_heads")
    return groups * 2 * table.count("head_dim") * bits


def gqa_gemma4(config: Config, kind: Kind, layer: int, bits: int) -> int:
    """Full layers have their own head_dim, and their own KV heads where K and V are one weight
    (both are cached all the same: only K is rotated)."""
    if kind != "full" or config.has("per_layer_config"):
        return gqa_stated(config, kind, layer, bits)
    heads = config.count("num_key_value_heads")
    if config.flag("attention_k_eq_v") and config.has("num_global_key_value_heads"):
        heads = config.count("num_global_key_value_heads")
    return heads * 2 * config.count("global_head_dim") * bits


def gqa_blocks(config: Config, kind: Kind, layer: int, bits: int) -> int:
    """Nemotron's pruned models: each block says how many query heads share one KV head."""
    path = config.at(f"block_configs[{layer}].attention")
    attention = Config(config.items("block_configs")[layer]["attention"], path)
    heads, shared = config.count("num_attention_heads"), attention.count("n_heads_in_group")
    if heads % shared:
        raise attention.error("n_heads_in_group", f"does not divide {heads} heads")
    return heads // shared * 2 * _head_dim(config) * bits


def mla(config: Config, kind: Kind, layer: int, bits: int) -> int:
    """MLA, with the keys of the sparse indexer in layers that run one."""
    latent = (config.count("kv_lora_rank") + config.count("qk_rope_head_dim")) * bits
    return latent + _index_bits(config, layer)


def mla_indexed(config: Config, kind: Kind, layer: int, bits: int) -> int:
    """MLA of classes that always index: a config without the indexer's size is not sized."""
    config.count("index_head_dim")
    return mla(config, kind, layer, bits)


def _index_bits(config: Config, layer: int) -> int:
    if not config.has("index_head_dim") or not _runs_indexer(config, layer):
        return 0
    dim = config.count("index_head_dim")
    return dim * INDEX_KEY_BITS + math.ceil(dim / INDEX_BLOCK) * INDEX_SCALE_BITS


def _runs_indexer(config: Config, layer: int) -> bool:
    """GLM lets layers share the choice of an earlier one: those hold no index keys."""
    for key, full in (("indexer_types", "full"), ("index_topk_pattern", "F")):
        if config.has(key):
            types = config.data[key]
            if not isinstance(types, str | list) or layer >= len(types):
                raise config.error(key, "must say how every layer indexes")
            return bool(types[layer] == full)
    if not config.has("index_topk_freq"):
        return True
    offset = config.count("index_skip_topk_offset") if config.has("index_skip_topk_offset") else 2
    return max(layer - offset + 1, 0) % config.count("index_topk_freq") == 0


# One quantity, the names it goes by: Bamba and Granite, Nemotron-H, Zamba2, Mamba itself.
_MAMBA_NAMES = {
    "heads": ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads"),
    "head_dim": ("mamba_d_head", "mamba_head_dim", "mamba_headdim"),
    "groups": ("mamba_n_groups", "n_groups", "mamba_ngroups"),
    "state": ("mamba_d_state", "ssm_state_size", "state_size"),
    "kernel": ("mamba_d_conv", "conv_kernel"),
}


def _named(config: Config, quantity: str) -> int:
    return config.count(*_MAMBA_NAMES[quantity])


def gdn(config: Config) -> State:
    """Gated DeltaNet."""
    keys = config.count("linear_num_key_heads") * config.count("linear_key_head_dim")
    values = config.count("linear_num_value_heads") * config.count("linear_value_head_dim")
    kernel = config.count("linear_conv_kernel_dim")
    return State(values * config.count("linear_key_head_dim"), (2 * keys + values) * (kernel - 1))


def kda(config: Config) -> State:
    """Kimi Delta Attention; the checkpoint keeps its sizes in a table of their own."""
    table = config.table("linear_attn_config") if config.has("linear_attn_config") else config
    heads = table.count("linear_num_heads", "num_heads", "num_attention_heads")
    dim = table.count("linear_head_dim", "head_dim")
    kernel = table.count("linear_conv_kernel_dim", "short_conv_kernel_size")
    return State(heads * dim * dim, 3 * heads * dim * (kernel - 1))


def lightning(config: Config) -> State:
    return State(config.count("num_attention_heads") * _head_dim(config) ** 2, 0)


def mamba1(config: Config) -> State:
    state, kernel = _named(config, "state"), _named(config, "kernel")
    if config.has("intermediate_size") and not config.has("mamba_expand"):
        inner = config.count("intermediate_size")
    else:
        inner = config.count("mamba_expand") * config.count("hidden_size")
    return State(inner * state, inner * (kernel - 1))


def mamba2(config: Config) -> State:
    heads, groups = _named(config, "heads"), _named(config, "groups")
    state, kernel = _named(config, "state"), _named(config, "kernel")
    inner = heads * _mamba2_head_dim(config, heads)
    return State(inner * state, (inner + 2 * groups * state) * (kernel - 1))


def _mamba2_head_dim(config: Config, heads: int) -> int:
    """The stated one; "auto" and null divide the inner width among the heads."""
    for key in _MAMBA_NAMES["head_dim"]:
        if config.has(key) and config.data[key] != "auto":
            return config.count(key)
    if config.has("mamba_d_ssm"):
        inner = config.count("mamba_d_ssm")
    else:
        inner = config.count("mamba_expand", "expand") * config.count("hidden_size")
    if inner % heads:
        raise config.error(_MAMBA_NAMES["head_dim"][0], f"is missing, {inner} / {heads} not whole")
    return inner // heads


def pure_mamba2(config: Config) -> State:
    """Mamba2 without attention calls its own head size `head_dim`."""
    renamed = {"mamba_head_dim": config.data.get("head_dim"), **config.data}
    return mamba2(Config(renamed, config.path, config.defaults))


def short_conv(config: Config) -> State:
    return State(0, config.count("hidden_size") * (config.count("conv_L_cache") - 1))


_full, _gated = layers.every("full"), layers.gated
_alternate = {"sliding_window_pattern": 2}
_local = layers.one_full_in("sliding_window_pattern")
_gemma3 = {
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "sliding_window_pattern": 6,
}
_gemma4 = {"global_head_dim": 512, "sliding_window_pattern": 6}
_llama4 = {"no_rope_layer_interval": 4, "attention_chunk_size": 8192}


def _of(family: Family, *model_types: str) -> dict[str, Family]:
    return dict.fromkeys(model_types, family)


FAMILIES: dict[str, Family] = {
    # Full attention in every layer.
    **_of(
        Family(_full, gqa),
        *("llama", "granite", "granitemoe", "granitemoeshared", "glm", "glm4", "exaone"),
        *("internlm2", "internlm3", "olmo", "olmo2", "olmoe", "phi", "stablelm", "cohere"),
        *("ernie4_5", "ernie4_5_moe", "dots1", "arcee", "apertus", "nemotron", "minicpm"),
        *("bailing_moe", "bailing_moe_v2", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe"),
        *("solar", "solar_open", "hyperclovax", "deepseek", "helium", "flex_olmo"),
        *("glm4v_text", "ernie4_5_moe_vl", "ernie4_5_vl_moe_text"),
    ),
    **_of(Family(_full, gqa, defaults={"head_dim": 128}), "glm4_moe", "glm4v_moe_text"),
    **_of(Family(_full, gqa_stated), "gemma", "seed_oss", "minimax_m2", "hy_v3"),
    **_of(Family(_full, mha), "gpt_neox", "opt", "persimmon", "baichuan"),
    "nemotron-nas": Family(layers.blocks, gqa_blocks),
    # Qwen: windows only behind a switch.
    **_of(
        Family(_gated, gqa),
        *("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        *("qwen2_5_omni_text", "qwen3_moe", "smollm3", "mimo"),
    ),
    **_of(
        Family(_gated, gqa_stated),
        *("qwen3", "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text"),
        "qwen3_omni_moe_text",
    ),
    # Sliding windows.
    **_of(
        Family(layers.windowed, gqa),
        *("mixtral", "ministral", "ministral3", "starcoder2"),
        *("phi3", "phi3_v", "phimoe", "phi4mm", "phi4_multimodal"),
    ),
    "mistral": Family(layers.windowed, gqa, defaults={"sliding_window": 4096}),
    **_of(Family(_local, gqa_stated, defaults=_alternate), "gpt_oss", "gemma2", "vaultgemma"),
    **_of(Family(_local, gqa_stated, defaults=_gemma3), "gemma3_text", "gemma3"),
    **_of(Family(layers.only_listed, gqa_stated), "gemma3n_text", "cohere2_moe", "cwm"),
    **_of(Family(_local, gqa_gemma4, defaults=_gemma4), "gemma4_text", "gemma4_unified_text"),
    **_of(Family(_local, gqa), "cohere2", "exaone4", "exaone_moe"),
    **_of(Family(_local, gqa, defaults={"sliding_window_pattern": 4}), "olmo3"),
    "afmoe": Family(layers.one_full_in("global_attn_every_n_layers"), gqa_stated),
    **_of(Family(layers.llama4, gqa, defaults=_llama4), "llama4_text"),
    **_of(Family(layers.mimo, gqa_mimo), "mimo_v2_flash", "mimo_v2"),
    **_of(Family(layers.only_listed, gqa_step), "step3p5", "step3p7"),
    # Multi-head latent attention.
    **_of(
        Family(_full, mla),
        *("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe_lite", "minicpm3"),
        *("deepseek_vl_v2", "sarvam_mla", "youtu", "axk1", "mistral4"),
    ),
    **_of(Family(_full, mla_indexed), "deepseek_v32", "glm_moe_dsa"),
    "longcat_flash": Family(layers.every("full", "num_layers", times=2), mla),
    # Linear layers with full attention in between.
    **_of(
        Family(layers.interval, gqa_stated, gdn),
        *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    ),
    "olmo_hybrid": Family(layers.only_listed, gqa, gdn),
    "kimi_linear": Family(layers.kimi, mla, kda),
    "bailing_hybrid": Family(layers.groups, mla, kda),
    "bailing_moe_v2_5": Family(layers.groups, mla, lightning),
    **_of(Family(layers.groups, gqa, lightning), "bailing_moe_linear", "bailing_moe_linear_v2"),
    **_of(
        Family(layers.attn_type_list, gqa, lightning), "minimax", "minimax_m1", "minimax_text_01"
    ),
    # vLLM keeps Nemotron-H's state in 16 bits where the config has no mamba_ssm_cache_dtype.
    "nemotron_h": Family(layers.pattern, gqa_stated, mamba2, state_bits=16),
    "jamba": Family(layers.period, gqa, mamba1),
    "bamba": Family(layers.indices("attn_layer_indices", null="linear"), gqa, mamba2),
    "granitemoehybrid": Family(layers.only_listed, gqa, mamba2),
    "falcon_h1": Family(layers.every("hybrid"), gqa, mamba2),
    "zamba2": Family(layers.only_listed, gqa_stated, mamba2),
    "lfm2": Family(layers.indices("full_attn_idxs"), gqa, short_conv),
    "lfm2_moe": Family(layers.only_listed, gqa, short_conv),
    **_of(Family(layers.every("linear"), gqa, mamba1), "mamba", "falcon_mamba"),
    "mamba2": Family(layers.every("linear"), gqa, pure_mamba2),
}


# Class names that are not their model type in other letters.
_CLASSES = {
    "decilm": "nemotron-nas",
    "bailingmoelinearv2": "bailing_moe_linear",
    "bailingmoev3": "bailing_hybrid",
    "hunyuanmoev1": "hunyuan_v1_moe",
    "hunyuandensev1": "hunyuan_v1_dense",
    "longcat": "longcat_flash",
    **{re.sub(r"_text$|[_-]", "", name): name for name in FAMILIES},
}
_ROLE = re.compile(r"(Text)?(For[A-Z]|LMHeadModel|CausalLM|Model$).*")


def family_of(text: Config, root: Config) -> Family:
    """The family of a config, by `model_type`, else by `architectures`; both must be known."""
    table = text if text.has("model_type") or text.has("architectures") else root
    by_class = None
    if table.data.get("architectures"):
        name = table.items("architectures")[0]
        by_class = _CLASSES.get(_ROLE.sub("", str(name)).replace("_", "").lower())
        if by_class is None:
            raise table.error("architectures", "is not a known architecture")
    if not table.has("model_type"):
        if by_class is None:
            raise table.error("model_type", "is missing")
        return FAMILIES[by_class]
    model_type = table.data["model_type"]
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise table.error("model_type", "is not a known architecture")
    return FAMILIES[model_type]
