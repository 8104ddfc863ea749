"""KV sizes from configs: each kind of layer by its arithmetic, and errors instead of guesses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from hypothesis import given
from hypothesis import strategies as st

from routing.core.kvsize.size import KvSizeError, LayerCounts, size_of
from routing.core.model.kvcache import KvModel, KvWindow

CONFIGS = Path(__file__).parents[2] / "../shared/data/configs"
MIB = 2**20


def gqa(model_type: str = "llama", layers: int = 4, **more):
    """4 layers of 2 KV heads of 64: 2 x 2 x 64 x 2 B = 512 B a token and layer."""
    facts = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    return {"model_type": model_type, "num_hidden_layers": layers, **facts, **more}


def mla(model_type: str = "deepseek_v3", layers: int = 4, **more):
    """(32 + 16) x 2 B = 96 B a token and layer."""
    facts = {"kv_lora_rank": 32, "qk_rope_head_dim": 16, "num_attention_heads": 8}
    return {"model_type": model_type, "num_hidden_layers": layers, **facts, **more}


GDN = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 16},
}
# 4 x 8 x 16 fp32 + (2 x 2 x 8 + 4 x 16) x 3 bf16
GDN_BYTES = 4 * 8 * 16 * 4 + 96 * 3 * 2
MAMBA2 = {
    **{"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 2},
    **{"mamba_d_conv": 4, "mamba_expand": 2, "hidden_size": 16},
}
# 4 x 8 x 16 fp32 + (4 x 8 + 2 x 2 x 16) x 3 bf16
MAMBA2_BYTES = 4 * 8 * 16 * 4 + 96 * 3 * 2
NEMOTRON = {
    **{"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2},
    "conv_kernel": 4,
}
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
NO_OP = {"attention": {"no_op": True, "n_heads_in_group": None}}

# id, config, bytes a token, state bytes, windows, layers (full, sliding, linear)
SIZES = [
    ("GQA", gqa(), 2048, 0, (), (4, 0, 0)),
    (
        "head_dim from the hidden size",
        {**gqa(head_dim=None), "hidden_size": 512},
        *(2048, 0, (), (4, 0, 0)),
    ),
    ("MHA, said by a null", gqa(num_key_value_heads=None), 8192, 0, (), (4, 0, 0)),
    ("MHA, without a field", gqa("gpt_neox", num_key_value_heads=None), 8192, 0, (), (4, 0, 0)),
    ("by architecture alone", {**gqa(), "model_type": None, "architectures": ["Qwen3ForCausalLM"]},
     *(2048, 0, (), (4, 0, 0))),
    ("MLA", mla(), 384, 0, (), (4, 0, 0)),
    ("MLA with an indexer", mla("deepseek_v32", index_head_dim=128), 384 + 4 * 132, 0, (),
     (4, 0, 0)),
    ("layers that share an index",
     mla("glm_moe_dsa", index_head_dim=128, indexer_types=["full", "shared", "shared", "full"]),
     *(384 + 2 * 132, 0, (), (4, 0, 0))),
    ("an index every second layer",
     mla("glm_moe_dsa", index_head_dim=128, index_topk_freq=2, index_skip_topk_offset=2),
     *(384 + 3 * 132, 0, (), (4, 0, 0))),
    ("two attentions a layer", {**mla("longcat_flash"), "num_layers": 2}, 384, 0, (), (4, 0, 0)),
    ("MLA in a multimodal model",
     {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"],
      "text_config": mla("kimi_k2", architectures=["DeepseekV3ForCausalLM"])},
     *(384, 0, (), (4, 0, 0))),
    ("all layers slide", gqa("mistral", sliding_window=100, max_position_embeddings=1000), 0, 0,
     ((100, 2048),), (0, 4, 0)),
    ("no window", gqa("mistral", sliding_window=None), 2048, 0, (), (4, 0, 0)),
    ("the window of the class", gqa("mistral"), 0, 0, ((4096, 2048),), (0, 4, 0)),
    ("a window no prompt fills", gqa("phi3", sliding_window=1000, max_position_embeddings=1000),
     *(2048, 0, (), (4, 0, 0))),
    ("a window switched off", gqa("qwen2", sliding_window=100, use_sliding_window=False,
                                  max_window_layers=1), 2048, 0, (), (4, 0, 0)),
    ("a window from layer 1 on", gqa("qwen2", sliding_window=100, use_sliding_window=True,
                                     max_window_layers=1), 512, 0, ((100, 1536),), (1, 3, 0)),
    ("every second layer slides", gqa("gpt_oss", sliding_window=128), 1024, 0, ((128, 1024),),
     (2, 2, 0)),
    ("five slide, one is full", gqa("gemma3_text", layers=7, sliding_window=16), 512, 0,
     ((16, 3072),), (1, 6, 0)),
    ("what Gemma 3's small files leave out",
     {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "sliding_window": 16,
                                              "num_hidden_layers": 6}},
     *(4096, 0, ((16, 5 * 4096),), (1, 5, 0))),
    ("a pattern of letters", gqa("exaone4", sliding_window=16, sliding_window_pattern="LLLG"),
     *(512, 0, ((16, 1536),), (1, 3, 0))),
    ("layers that read others' caches",
     gqa("gemma3n_text", sliding_window=16, layer_types=[SLIDING, FULL, SLIDING, FULL],
         num_kv_shared_layers=2), 512, 0, ((16, 512),), (1, 1, 0)),
    ("caches shared in pairs", gqa("hunyuan", use_cla=True, cla_share_factor=2), 1024, 0, (),
     (2, 0, 0)),
    ("full layers of another shape",
     gqa("gemma4_text", sliding_window=16, layer_types=[SLIDING] * 3 + [FULL],
         global_head_dim=128, num_global_key_value_heads=1, attention_k_eq_v=True),
     *(512, 0, ((16, 1536),), (1, 3, 0))),
    ("the same, told layer by layer",
     gqa("gemma4_text", sliding_window=16, layer_types=[SLIDING] * 3 + [FULL],
         per_layer_config={"03": {"head_dim": 128, "num_key_value_heads": 4}}),
     *(2048, 0, ((16, 1536),), (1, 3, 0))),
    ("chunks", gqa("llama4_text", attention_chunk_size=64), 512, 0, ((64, 1536),), (1, 3, 0)),
    ("chunks, listed", gqa("llama4_text", attention_chunk_size=64, no_rope_layers=[1, 0, 0, 1]),
     *(1024, 0, ((64, 1024),), (2, 2, 0))),
    ("K and V of two sizes",
     gqa("mimo_v2_flash", v_head_dim=32, sliding_window=128, hybrid_layer_pattern=[0, 1, 1, 1],
         swa_num_key_value_heads=4, swa_head_dim=64, swa_v_head_dim=32),
     *(2 * 96 * 2, 0, ((128, 3 * 4 * 96 * 2),), (1, 3, 0))),
    ("groups, and others in sliding layers",
     gqa("step3p5", num_key_value_heads=None, num_attention_groups=2, sliding_window=32,
         num_nextn_predict_layers=1, layer_types=[FULL, SLIDING, SLIDING, SLIDING, FULL],
         attention_other_setting={"num_attention_groups": 1, "head_dim": 64}),
     *(512, 0, ((32, 768),), (1, 3, 0))),
    ("blocks without attention",
     gqa("nemotron-nas", num_key_value_heads=None, block_configs=[
         {"attention": {"no_op": False, "n_heads_in_group": 4}}, NO_OP, NO_OP,
         {"attention": {"no_op": False, "n_heads_in_group": 8}}]),
     *(512 + 256, 0, (), (2, 0, 0))),
    ("GDN, every fourth is full", gqa("qwen3_next", full_attention_interval=4, **GDN), 512,
     3 * GDN_BYTES, (), (1, 0, 3)),
    ("GDN, listed and nested",
     {"model_type": "qwen3_5", "text_config": gqa("qwen3_5_text", layer_types=[LINEAR, FULL] * 2,
                                                  mamba_ssm_dtype="bfloat16", **GDN)},
     *(1024, 2 * (GDN_BYTES - 4 * 8 * 16 * 2), (), (2, 0, 2))),
    ("KDA, layers counted from 1",
     mla("kimi_linear", linear_attn_config={
         "kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 2, "head_dim": 8,
         "short_conv_kernel_size": 4}),
     *(96, 3 * (2 * 64 * 4 + 3 * 16 * 3 * 2), (), (1, 0, 3))),
    ("KDA by its class's names",
     mla("kimi_linear", layer_types=[LINEAR] * 3 + [FULL], linear_num_heads=2, linear_head_dim=8,
         linear_conv_kernel_dim=4),
     *(96, 3 * (2 * 64 * 4 + 3 * 16 * 3 * 2), (), (1, 0, 3))),
    ("Lightning in groups, the rest is full",
     gqa("bailing_moe_linear", layers=5, layer_group_size=2), 3 * 512, 2 * 8 * 64 * 64 * 4, (),
     (3, 0, 2)),
    ("Lightning with MLA", mla("bailing_moe_v2_5", layer_group_size=4, head_dim=64), 96,
     3 * 8 * 64 * 64 * 4, (), (1, 0, 3)),
    ("Lightning by a list of types", gqa("minimax_m1", attn_type_list=[0, 0, 0, 1]), 512,
     3 * 8 * 64 * 64 * 4, (), (1, 0, 3)),
    ("Mamba2 by a pattern", gqa("nemotron_h", layers=5, hybrid_override_pattern="M*-ME",
                                mamba_ssm_cache_dtype="float32", **NEMOTRON),
     *(512, 2 * MAMBA2_BYTES, (), (1, 0, 2))),
    ("Mamba2 state in 16 bits", gqa("nemotron_h", layers=2, hybrid_override_pattern="M*",
                                    **NEMOTRON), 512, MAMBA2_BYTES - 4 * 8 * 16 * 2, (), (1, 0, 1)),
    ("Mamba2 by indices", gqa("bamba", attn_layer_indices=[2], **MAMBA2), 512, 3 * MAMBA2_BYTES,
     (), (1, 0, 3)),
    ("Mamba2 by old names of layers", gqa("granitemoehybrid", **{**MAMBA2, "mamba_d_head": "auto"},
                                          layer_types=["mamba"] * 3 + ["attention"]),
     *(512, 3 * MAMBA2_BYTES, (), (1, 0, 3))),
    ("attention and Mamba2 in every layer", gqa("falcon_h1", **MAMBA2), 2048, 4 * MAMBA2_BYTES,
     (), (4, 0, 4)),
    ("Mamba2 everywhere, attention beside some",
     {**gqa("zamba2", head_dim=None), "attention_head_dim": 64, "n_mamba_heads": 4,
      "mamba_headdim": 8, "mamba_d_state": 16, "mamba_ngroups": 2, "mamba_d_conv": 4,
      "layers_block_type": ["mamba", "mamba", "hybrid", "mamba"]},
     *(512, 4 * MAMBA2_BYTES, (), (1, 0, 4))),
    ("Mamba1 with a period and an offset",
     gqa("jamba", attn_layer_period=4, attn_layer_offset=0, mamba_d_state=16, mamba_d_conv=4,
         mamba_expand=2, hidden_size=32),
     *(512, 3 * (64 * 16 * 4 + 64 * 3 * 2), (), (1, 0, 3))),
    ("Mamba1 alone", {"model_type": "falcon_mamba", "num_hidden_layers": 2, "state_size": 16,
                      "conv_kernel": 4, "intermediate_size": 64},
     *(0, 2 * (64 * 16 * 4 + 64 * 3 * 2), (), (0, 0, 2))),
    ("short convolutions", gqa("lfm2", full_attn_idxs=[1], hidden_size=32, conv_L_cache=3), 512,
     3 * 32 * 2 * 2, (), (1, 0, 3)),
    ("fp8 weights, bf16 cache", gqa(torch_dtype="bfloat16",
                                    quantization_config={"quant_method": "fp8"}),
     *(2048, 0, (), (4, 0, 0))),
    ("an fp8 cache", gqa(torch_dtype="bfloat16", quantization_config={"kv_cache_scheme": "FP8"}),
     *(1024, 0, (), (4, 0, 0))),
    ("an 8-bit cache", gqa(quantization_config={"kv_cache_scheme": {"num_bits": 8}}), 1024, 0, (),
     (4, 0, 0)),
    ("fp32", gqa(dtype="float32"), 4096, 0, (), (4, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "per_token", "state", "windows", "layers"),
    [pytest.param(*row[1:], id=row[0]) for row in SIZES],
)
def test_a_config_is_sized(config, per_token, state, windows, layers) -> None:
    size = size_of(config)
    assert size.bytes_per_token == per_token
    assert size.state_bytes == state
    assert tuple((w.window_tokens, w.bytes_per_token) for w in size.windows) == windows
    assert size.layers == LayerCounts(*layers)


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


# id, config, the field that is named, a word of the message
REFUSED = [
    ("an architecture nobody knows", gqa("mystery"), "model_type", "known architecture"),
    ("compressed KV", gqa("deepseek_v4", compress_ratios=[4]), "model_type", "known architecture"),
    ("a class nobody knows", gqa(architectures=["MysteryForCausalLM"]), "architectures", "known"),
    ("neither named", without(gqa(), "model_type"), "model_type", "missing"),
    ("nested and unknown", {"model_type": "llava", "text_config": gqa("mystery")},
     "text_config.model_type", "known architecture"),
    ("no layers", without(gqa(), "num_hidden_layers"), "num_hidden_layers", "missing"),
    ("no KV heads", without(gqa(), "num_key_value_heads"), "num_key_value_heads", "missing"),
    ("no size of a head", without(gqa("qwen3"), "head_dim"), "head_dim", "missing"),
    ("heads that do not divide", {**gqa(head_dim=None), "hidden_size": 500}, "head_dim", "whole"),
    ("no latent", without(mla(), "kv_lora_rank"), "kv_lora_rank", "missing"),
    ("no indexer", mla("deepseek_v32"), "index_head_dim", "missing"),
    ("no list of layers", gqa("lfm2_moe", layer_types=None), "layer_types", "missing"),
    ("no window", gqa("mixtral", layer_types=[SLIDING] * 4), "sliding_window", "missing"),
    ("no interval", gqa("qwen3_next", **GDN), "full_attention_interval", "missing"),
    ("no state", gqa("qwen3_next", full_attention_interval=4), "linear_num_key_heads", "missing"),
    ("no pattern", gqa("nemotron_h", **NEMOTRON), "hybrid_override_pattern", "missing"),
    ("a text for a number", gqa(head_dim="64"), "head_dim", "whole number"),
    ("a flag for a number", gqa(num_hidden_layers=True), "num_hidden_layers", "whole number"),
    ("zero heads", gqa(num_key_value_heads=0), "num_key_value_heads", "from 1"),
    ("layers beyond reason", gqa(num_hidden_layers=10**8), "num_hidden_layers", "at most"),
    ("a kind of layer nobody knows", gqa(layer_types=[FULL, FULL, FULL, "spiral_attention"]),
     "layer_types[3]", "known kind"),
    ("too few layers listed", gqa(layer_types=[FULL]), "layer_types", "4 layers"),
    ("a linear layer where none can be", gqa(layer_types=[LINEAR] * 4), "layer_types", "linear"),
    ("a layer in both lists",
     mla("kimi_linear", linear_attn_config={"kda_layers": [1, 2, 4], "full_attn_layers": [4]}),
     "linear_attn_config.kda_layers", "once"),
    ("a layer counted from 0",
     mla("kimi_linear", linear_attn_config={"kda_layers": [0, 1, 2], "full_attn_layers": [3]}),
     "linear_attn_config.kda_layers[0]", "counted from 1"),
    ("an odd letter", gqa("nemotron_h", hybrid_override_pattern="M*-X", **NEMOTRON),
     "hybrid_override_pattern", "only"),
    ("a short pattern", gqa("nemotron_h", hybrid_override_pattern="M*", **NEMOTRON),
     "hybrid_override_pattern", "num_hidden_layers"),
    ("an offset beyond the period", gqa("jamba", attn_layer_period=4, attn_layer_offset=4),
     "attn_layer_offset", "0 to 3"),
    ("a window of one block",
     gqa("nemotron-nas", layers=1, block_configs=[
         {"attention": {"n_heads_in_group": 4, "window_length": 64}}]),
     "block_configs[0].attention.window_length", "not known"),
    ("a dtype nobody knows", gqa(torch_dtype="float6"), "torch_dtype", "known dtype"),
    ("a KV scheme nobody knows", gqa(quantization_config={"kv_cache_scheme": "NVFP4"}),
     "quantization_config.kv_cache_scheme", "known scheme"),
    ("every layer shared", gqa("hunyuan", num_kv_shared_layers=4), "num_kv_shared_layers",
     "leaves"),
    ("nothing kept", gqa(layer_types=["mlp"] * 4), "num_hidden_layers", "keeps"),
    ("a kind that is no name", gqa(layer_types=[[]] * 4), "layer_types[0]", "known kind"),
    ("not an object", [1, 2], "config", "object"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "field", "says"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED]
)
def test_what_is_not_known_is_refused_by_field_and_value(config, field, says) -> None:
    with pytest.raises(KvSizeError, match=says) as refused:
        size_of(config)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field} = ")


JUNK = st.sampled_from([None, True, -1, 0, 3, 2.5, 10**30, "", "x", "auto", [], [[]], {}, {"a": 1}])


@given(st.sampled_from([row[1] for row in SIZES]), st.data())
def test_a_broken_config_is_sized_or_refused_and_never_more(config, data) -> None:
    """Whatever one field holds, also below another table: a size, or a KvSizeError."""
    broken = dict(config)
    table = broken
    key = data.draw(st.sampled_from(sorted(table)))
    if isinstance(table[key], dict) and data.draw(st.booleans()):
        table[key] = dict(table[key])
        table = table[key]
        key = data.draw(st.sampled_from(sorted(table)))
    table[key] = data.draw(JUNK)
    try:
        size = size_of(broken)
    except KvSizeError:
        return
    assert size.bytes_per_token >= 0
    assert size.bytes_per_token + size.state_bytes + sum(w.window_tokens for w in size.windows) > 0


def test_a_prompt_fills_windows_up_to_its_length() -> None:
    size = size_of(gqa("gpt_oss", sliding_window=128))
    assert size.window_tokens == 128
    assert [size.kv_bytes(n) for n in (0, 100, 128, 129)] == [
        *(0, 100 * 2048, 128 * 2048, 128 * 2048 + 1024),
    ]


@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.integers(1, 10**5), st.integers(1, 10**6)), max_size=3),
    st.integers(0, 10**6),
    st.integers(0, 10**9),
)
def test_the_curve_is_the_sum_of_its_parts(tokens, windows, per_token, state) -> None:
    """S(N) = state + b N + sum min(N, w) b_w, which never falls with N."""
    model = KvModel(per_token, state, tuple(KvWindow(w, b) for w, b in windows))
    want = state + per_token * tokens + sum(min(tokens, w) * b for w, b in windows)
    assert float(model.kv_bytes(tokens)) == pytest.approx(want, rel=1e-12)
    assert np.all(np.diff(model.kv_bytes(np.sort([0, tokens, *(w for w, _ in windows)]))) >= 0)


def model(model_type: str, layers: int, kv_heads: int, head_dim: int, **more):
    facts = {"num_hidden_layers": layers, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    return {"model_type": model_type, "num_attention_heads": 64, **facts, **more}


def latent(model_type: str, layers: int, **more):
    facts = {"num_hidden_layers": layers, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    return {"model_type": model_type, "num_attention_heads": 64, "head_dim": 128, **facts, **more}


def delta(value_heads: int):
    return {
        **{"linear_num_key_heads": 16, "linear_num_value_heads": value_heads},
        **{"linear_key_head_dim": 128, "linear_value_head_dim": 128},
        **{"linear_conv_kernel_dim": 4, "full_attention_interval": 4},
    }


def mamba2(heads: int, head_dim: int, state: int):
    return {
        **{"mamba_num_heads": heads, "mamba_head_dim": head_dim, "ssm_state_size": state},
        **{"n_groups": 8, "conv_kernel": 4},
    }


KIMI_LAYERS = {
    "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
    "kda_layers": [layer for layer in range(1, 28) if layer % 4 and layer != 27],
    **{"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4},
}
# Models by the sizes of their attention alone, which their papers and model cards tell: id, config,
# full layers, KiB a token, MiB of windows and states. Where a layer stands does not matter here.
MODELS = [
    ("GQA: Llama-3.1-70B", model("llama", 80, 8, 128), 80, "320.00", "0.0"),
    ("GQA: Qwen3-235B-A22B", model("qwen3_moe", 94, 4, 128), 94, "188.00", "0.0"),
    ("MHA: GPT-NeoX-20B", model("gpt_neox", 44, 64, 96), 44, "1056.00", "0.0"),
    ("MLA: DeepSeek-V3", latent("deepseek_v3", 61), 61, "68.62", "0.0"),
    ("MLA and an indexer: DeepSeek-V3.2", latent("deepseek_v32", 61, index_head_dim=128), 61,
     "76.49", "0.0"),
    ("MLA and an indexer: GLM-5", latent("glm_moe_dsa", 78, index_head_dim=128), 78, "97.80",
     "0.0"),
    ("sliding: gpt-oss-120b", model("gpt_oss", 36, 8, 64, sliding_window=128), 18, "36.00", "4.5"),
    ("sliding, 5 to 1: Gemma 3's class",
     model("gemma3_text", 26, 4, 256, sliding_window=4096), 4, "16.00", "352.0"),
    ("GDN in a nested config: Qwen3.5-397B-A17B",
     {"model_type": "qwen3_5_moe",
      "text_config": model("qwen3_5_moe_text", 60, 2, 256, **delta(64))}, 15, "30.00", "183.2"),
    ("GDN: Qwen3-Next-80B-A3B", model("qwen3_next", 48, 2, 256, **delta(32)), 12, "24.00", "73.7"),
    ("KDA, lists counted from 1: Kimi-Linear-48B-A3B",
     latent("kimi_linear", 27, linear_attn_config=KIMI_LAYERS), 7, "7.88", "41.4"),
    ("Lightning and MLA: Ring-2.5-1T", latent("bailing_moe_v2_5", 80, layer_group_size=8), 10,
     "11.25", "280.0"),
    ("Lightning by a list: MiniMax-M1",
     model("minimax_m1", 80, 8, 128, attn_type_list=[*[0] * 7, 1] * 10), 10, "40.00", "280.0"),
    ("Mamba2 by a pattern: Nemotron-3-Nano-30B-A3B",
     model("nemotron_h", 52, 2, 128, hybrid_override_pattern="M" * 23 + "*" * 6 + "E" * 23,
           mamba_ssm_cache_dtype="float32", **mamba2(64, 64, 128)), 6, "6.00", "46.8"),
    ("Mamba2 with a state of 16 bits: Nemotron-H-56B",
     model("nemotron_h", 118, 8, 128, hybrid_override_pattern="M" * 54 + "*" * 10 + "-" * 54,
           **mamba2(256, 64, 256)), 10, "40.00", "438.3"),
    ("Mamba1 with a period: Jamba-v0.1",
     model("jamba", 32, 8, 128, attn_layer_period=8, attn_layer_offset=4, hidden_size=4096,
           mamba_expand=2, mamba_d_state=16, mamba_d_conv=4), 4, "16.00", "15.3"),
    ("attention beside Mamba2: Falcon-H1's class",
     model("falcon_h1", 32, 8, 128, mamba_n_heads=128, mamba_d_head=8, mamba_d_state=256,
           mamba_n_groups=1, mamba_d_conv=4), 32, "128.00", "32.3"),
]  # fmt: skip


def printed(size) -> tuple[int, str, str]:
    """(full layers, KiB a token, MiB of states and full windows), to the digits of INDEX.md."""
    fixed = size.state_bytes + sum(w.window_tokens * w.bytes_per_token for w in size.windows)
    return size.layers.full, f"{size.bytes_per_token / 1024:.2f}", f"{fixed / MIB:.1f}"


@pytest.mark.parametrize(
    ("config", "full", "kib", "fixed_mib"), [pytest.param(*row[1:], id=row[0]) for row in MODELS]
)
def test_a_models_attention_has_its_known_size(config, full, kib, fixed_mib) -> None:
    assert printed(size_of(config)) == (full, kib, fixed_mib)


def index_rows() -> list[list[str]]:
    """The rows of INDEX.md's table: name, file, layers, full, KV, KiB a token, ..., MiB fixed."""
    if not CONFIGS.exists():
        return []
    lines = (CONFIGS / "INDEX.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == 11 and row[1].endswith(".json")]


@pytest.mark.skipif(not CONFIGS.exists(), reason="the folder of model configs is not here")
def test_published_configs_have_the_printed_sizes() -> None:
    rows = index_rows()
    assert len(rows) >= 25
    for name, file, _, full, _, kib, _, _, fixed_mib, *_ in rows:
        size = size_of(json.loads((CONFIGS / file).read_text(encoding="utf-8")))
        assert printed(size) == (int(full), kib, fixed_mib), name


@pytest.mark.skipif(not CONFIGS.exists(), reason="the folder of model configs is not here")
def test_every_published_config_is_sized_or_refused_by_field() -> None:
    refused = {}
    for path in sorted(CONFIGS.glob("*/*.json")):
        try:
            size_of(json.loads(path.read_text(encoding="utf-8")))
        except KvSizeError as exc:
            refused[path.stem] = exc.field
    assert refused == {
        "deepseek-ai--DeepSeek-V3-671B_inference_native": "model_type",  # not a Hugging Face file
        "Lfm2MoeConfig": "layer_types",  # null: the class has no rule
    }


def test_the_command_prints_one_json_object(capsys, tmp_path) -> None:
    path = write(tmp_path, gqa("gpt_oss", sliding_window=128))
    call_command("kvsize", path, "--tokens", "100", "4096", "--json")
    assert json.loads(capsys.readouterr().out) == {
        "bytes_per_token": 1024,
        "state_bytes": 0,
        "layers": {"full": 2, "sliding": 2, "linear": 0},
        "window_tokens": 128,
        "windows": [{"window_tokens": 128, "bytes_per_token": 1024}],
        "sizes": {"100": 204_800, "4096": 4096 * 1024 + 128 * 1024},
    }


def test_the_command_tells_a_person(capsys, tmp_path) -> None:
    call_command("kvsize", write(tmp_path, gqa()), "--tokens", "1024")
    out = capsys.readouterr().out
    assert "2,048 bytes a token (2.00 KiB)" in out
    assert "1,024 tokens: 2,097,152 bytes (2.0 MiB)" in out


BAD_RUNS = [
    ("an unknown architecture", json.dumps(gqa("mystery")), [], "model_type = 'mystery'"),
    ("not JSON", "{", [], "is not JSON"),
    ("not a length", json.dumps(gqa()), ["--tokens", "many"], "--tokens='many'"),
    ("a negative length", json.dumps(gqa()), ["--tokens", "-5"], "--tokens='-5'"),
]


@pytest.mark.parametrize(("case", "text", "more", "says"), BAD_RUNS, ids=lambda v: str(v)[:20])
def test_bad_input_is_one_line_and_exit_2(case, text, more, says, tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(CommandError) as refused:
        call_command("kvsize", str(path), *more)
    assert refused.value.returncode == 2
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_one_line_and_exit_2(tmp_path) -> None:
    with pytest.raises(CommandError, match="No such file") as refused:
        call_command("kvsize", str(tmp_path / "none.json"))
    assert refused.value.returncode == 2


def write(folder, config) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)
