"""What config.json of published models says, by preset: all that a model computes hangs on."""

from __future__ import annotations

from typing import Any

from published_newer import NEWER

Content = dict[str, Any]


def _shape(
    layers: int, dim: int, heads: int, kv_heads: int, ffn: int, vocab: int, seq: int
) -> Content:
    return {
        "num_hidden_layers": layers,
        "hidden_size": dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": seq,
    }


def _llama(*shape: int, theta: float, **more: Any) -> Content:
    common = {"model_type": "llama", "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    return common | _shape(*shape) | {"rope_theta": theta, "tie_word_embeddings": False} | more


def _llama31(factor: float) -> Content:
    lengths = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    lengths |= {"original_max_position_embeddings": 8192}
    return {"rope_type": "llama3", "factor": factor, **lengths}


def _qwen25(*shape: int, eps: float = 1e-6, tied: bool = False) -> Content:
    common = {"model_type": "qwen2", "hidden_act": "silu", "rope_theta": 1e6}
    common |= {"use_sliding_window": False, "rms_norm_eps": eps, "tie_word_embeddings": tied}
    return common | _shape(*shape)


def _qwen3(*shape: int, tied: bool = False, **more: Any) -> Content:
    common = {"model_type": "qwen3", "hidden_act": "silu", "rope_theta": 1e6, "head_dim": 128}
    common |= {"rms_norm_eps": 1e-6, "tie_word_embeddings": tied, "attention_bias": False}
    return common | _shape(*shape) | more


def _qwen3_moe(*shape: int, experts: int, width: int, **more: Any) -> Content:
    moe = {"model_type": "qwen3_moe", "num_experts": experts, "moe_intermediate_size": width}
    moe |= {"num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1}
    return _qwen3(*shape) | moe | {"mlp_only_layers": []} | more


def _gemma(kind: str, *shape: int, head_dim: int = 256, **more: Any) -> Content:
    common = {"model_type": kind, "rms_norm_eps": 1e-6, "head_dim": head_dim}
    common |= {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh"}
    return common | _shape(*shape) | ({"rope_theta": 1e4} if kind != "gemma3_text" else {}) | more


def _gemma2(*shape: int, scalar: int = 256, **more: Any) -> Content:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return _gemma(
        "gemma2", *shape, **caps, query_pre_attn_scalar=scalar, sliding_window=4096, **more
    )


def _gemma3(*shape: int, scalar: int = 256, window: int = 1024, **more: Any) -> Content:
    stretched: Content = {"rope_type": "linear", "factor": 8.0}
    rope: Content = {
        "full_attention": {
            "rope_theta": 1e6,
            **({"rope_type": "default"} if window == 512 else stretched),
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(shape[0])]
    options = {"query_pre_attn_scalar": scalar, "sliding_window": window, "layer_types": kinds}
    return _gemma("gemma3_text", *shape, **options, rope_parameters=rope, **more)


def _gpt_oss(layers: int, experts: int) -> Content:
    shape = _shape(layers, 2880, 64, 8, 2880, 201088, 131072)
    rope = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
    rope |= {"truncate": False, "original_max_position_embeddings": 4096}
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    return {
        "model_type": "gpt_oss",
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": kinds,
        "swiglu_limit": 7.0,
        "rope_theta": 150000.0,
        "rope_scaling": rope,
        "tie_word_embeddings": False,
        **shape,
    }


def _olmo(kind: str, *shape: int, **more: Any) -> Content:
    common = {"model_type": kind, "rms_norm_eps": 1e-6, "rope_theta": 500000.0}
    return common | {"tie_word_embeddings": False, "attention_bias": False} | _shape(*shape) | more


def _olmo3(*shape: int) -> Content:
    yarn = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0}
    yarn |= {"original_max_position_embeddings": 8192, "attention_factor": 1.2079441541679836}
    kinds = ["full_attention" if i % 4 == 3 else "sliding_attention" for i in range(shape[0])]
    return _olmo("olmo3", *shape, rope_scaling=yarn, layer_types=kinds, sliding_window=4096)


def _deepseek(kind: str, layers: int, dim: int, heads: int, ffn: int, **more: Any) -> Content:
    vocab = 102400 if kind == "deepseek_v2" else 129280
    shape = _shape(layers, dim, heads, heads, ffn, vocab, 163840)
    yarn = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1}
    mscale = 0.707 if kind == "deepseek_v2" else 1.0
    yarn |= {"original_max_position_embeddings": 4096, "mscale": mscale, "mscale_all_dim": mscale}
    widths = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    widths |= {"v_head_dim": 128, "q_lora_rank": 1536, "rms_norm_eps": 1e-6}
    common = {"model_type": kind, "rope_theta": 10000, "rope_scaling": yarn}
    return common | shape | widths | {"tie_word_embeddings": False} | more


def _v2(experts: int, width: int, **more: Any) -> Content:
    moe = {"n_routed_experts": experts, "moe_intermediate_size": width, "n_shared_experts": 2}
    moe |= {"num_experts_per_tok": 6, "first_k_dense_replace": 1, "norm_topk_prob": False}
    return moe | {"scoring_func": "softmax", "moe_layer_freq": 1} | more


def _v3(experts: int, dense: int, scale: float, **more: Any) -> Content:
    moe = {"n_routed_experts": experts, "moe_intermediate_size": 2048, "n_shared_experts": 1}
    moe |= {"num_experts_per_tok": 8, "first_k_dense_replace": dense, "norm_topk_prob": True}
    moe |= {"routed_scaling_factor": scale, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    return moe | {"moe_layer_freq": 1} | more


def _llama4(experts: int, step: int, *, norm: bool, rope: Content | None) -> Content:
    shape = _shape(48, 5120, 40, 8, 8192, 202048, 262144)
    return {
        "model_type": "llama4_text",
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "intermediate_size_mlp": 16384,
        "num_local_experts": experts,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": step,
        "use_qk_norm": norm,
        "attention_chunk_size": 8192,
        "attn_temperature_tuning": True,
        "rope_theta": 500000.0,
        "rope_scaling": rope,
        "tie_word_embeddings": False,
        **shape,
    }


def _gpt(layers: int, dim: int, heads: int, vocab: int, seq: int) -> Content:
    shape = {"n_layer": layers, "n_embd": dim, "n_head": heads, "vocab_size": vocab}
    return {"model_type": "gpt2", "n_positions": seq, "activation_function": "gelu_new", **shape}


KIMI = {"type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}
KIMI |= {"original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}
SCOUT = {"rope_type": "llama3", "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0}
SCOUT |= {"original_max_position_embeddings": 8192}
V2_GROUPS = {"n_group": 8, "topk_group": 3, "topk_method": "group_limited_greedy"}
SMOL3: Content = {"model_type": "smollm3", "tie_word_embeddings": True}
SMOL3 |= {"no_rope_layers": [1, 1, 1, 0] * 9, "use_sliding_window": False}
OLMOE: Content = {"num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False}
OLMOE |= {"clip_qkv": None, "attention_bias": False}
SMOL = {"theta": 100000.0, "tie_word_embeddings": True}
PUBLISHED: dict[str, Content] = {
    "llama7b": _llama(32, 4096, 32, 32, 11008, 32000, 4096, theta=1e4),
    "llama13b": _llama(40, 5120, 40, 40, 13824, 32000, 4096, theta=1e4),
    "llama70b": _llama(80, 8192, 64, 8, 28672, 32000, 4096, theta=1e4),
    "llama3_8b": _llama(32, 4096, 32, 8, 14336, 128256, 8192, theta=5e5),
    "llama3_70b": _llama(80, 8192, 64, 8, 28672, 128256, 8192, theta=5e5),
    "smollm2_135m": _llama(30, 576, 9, 3, 1536, 49152, 8192, **SMOL),
    "smollm2_360m": _llama(32, 960, 15, 5, 2560, 49152, 8192, **SMOL),
    "smollm2_1_7b": _llama(
        24, 2048, 32, 32, 8192, 49152, 8192, theta=130000.0, tie_word_embeddings=True
    ),
    "mistral_7b": _llama(32, 4096, 32, 8, 14336, 32000, 32768, theta=1e6)
    | {"model_type": "mistral", "sliding_window": None},
    "mixtral_8x7b": _llama(32, 4096, 32, 8, 14336, 32000, 32768, theta=1e6)
    | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    "mixtral_8x22b": _llama(56, 6144, 48, 8, 16384, 32768, 65536, theta=1e6)
    | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_5_0_5b": _qwen25(24, 896, 14, 2, 4864, 151936, 32768, tied=True),
    "qwen2_5_1_5b": _qwen25(28, 1536, 12, 2, 8960, 151936, 32768, tied=True),
    "qwen2_5_3b": _qwen25(36, 2048, 16, 2, 11008, 151936, 32768, tied=True),
    "qwen2_5_7b": _qwen25(28, 3584, 28, 4, 18944, 152064, 131072),
    "qwen2_5_14b": _qwen25(48, 5120, 40, 8, 13824, 152064, 131072, eps=1e-5),
    "qwen2_5_32b": _qwen25(64, 5120, 40, 8, 27648, 152064, 131072, eps=1e-5),
    "qwen2_5_72b": _qwen25(80, 8192, 64, 8, 29568, 152064, 131072, eps=1e-5),
    "qwen3_0_6b": _qwen3(28, 1024, 16, 8, 3072, 151936, 40960, tied=True),
    "qwen3_1_7b": _qwen3(28, 2048, 16, 8, 6144, 151936, 40960, tied=True),
    "qwen3_4b": _qwen3(36, 2560, 32, 8, 9728, 151936, 40960, tied=True),
    "qwen3_8b": _qwen3(36, 4096, 32, 8, 12288, 151936, 40960),
    "qwen3_14b": _qwen3(40, 5120, 40, 8, 17408, 151936, 40960),
    "qwen3_32b": _qwen3(64, 5120, 64, 8, 25600, 151936, 40960),
    "qwen3_30b_a3b": _qwen3_moe(48, 2048, 32, 4, 6144, 151936, 40960, experts=128, width=768),
    "qwen3_235b_a22b": _qwen3_moe(94, 4096, 64, 4, 12288, 151936, 40960, experts=128, width=1536),
    "qwen3_480b_a35b": _qwen3_moe(
        *(62, 6144, 96, 8, 8192, 151936, 262144), experts=160, width=2560, rope_theta=1e7
    ),
    "gemma_2b": _gemma("gemma", 18, 2048, 8, 1, 16384, 256000, 8192),
    "gemma_7b": _gemma("gemma", 28, 3072, 16, 16, 24576, 256000, 8192),
    "gemma2_2b": _gemma2(26, 2304, 8, 4, 9216, 256000, 8192),
    "gemma2_9b": _gemma2(42, 3584, 16, 8, 14336, 256000, 8192),
    "gemma2_27b": _gemma2(46, 4608, 32, 16, 36864, 256000, 8192, head_dim=128, scalar=144),
    "gemma3_1b": _gemma3(26, 1152, 4, 1, 6912, 262144, 32768, window=512),
    "gemma3_4b": _gemma3(34, 2560, 8, 4, 10240, 262208, 131072),
    "gemma3_12b": _gemma3(48, 3840, 16, 8, 15360, 262208, 131072),
    "gemma3_27b": _gemma3(62, 5376, 32, 16, 21504, 262208, 131072, head_dim=128, scalar=168),
    "gpt_oss_20b": _gpt_oss(24, 32),
    "gpt_oss_120b": _gpt_oss(36, 128),
    "smollm3_3b": _llama(
        36, 2048, 16, 4, 11008, 128256, 65536, theta=5e6, **SMOL3 | {"rms_norm_eps": 1e-6}
    ),
    "phi4_14b": _llama(40, 5120, 40, 10, 17920, 100352, 16384, theta=250_000.0, model_type="phi3"),
    "olmoe_7b_a1b": _llama(
        16, 2048, 16, 16, 1024, 50304, 4096, theta=1e4, model_type="olmoe", **OLMOE
    ),
    "olmo2_7b": _olmo("olmo2", 32, 4096, 32, 32, 11008, 100352, 4096),
    "olmo2_13b": _olmo("olmo2", 40, 5120, 40, 40, 13824, 100352, 4096),
    "olmo2_32b": _olmo("olmo2", 64, 5120, 40, 8, 27648, 100352, 4096),
    "olmo3_7b": _olmo3(32, 4096, 32, 32, 11008, 100278, 65536),
    "olmo3_32b": _olmo3(64, 5120, 40, 8, 27648, 100278, 65536),
    "deepseek2_16b": _deepseek("deepseek_v2", 27, 2048, 16, 10944)
    | _v2(64, 1408, topk_method="greedy", routed_scaling_factor=1.0, q_lora_rank=None),
    "deepseek2_236b": _deepseek("deepseek_v2", 60, 5120, 128, 12288)
    | _v2(160, 1536, routed_scaling_factor=16.0, **V2_GROUPS),
    "deepseek3_671b": _deepseek("deepseek_v3", 61, 7168, 128, 18432)
    | _v3(256, 3, 2.5, n_group=8, topk_group=4),
    "deepseek3_2_671b": _deepseek("deepseek_v32", 61, 7168, 128, 18432)
    | _v3(256, 3, 2.5, n_group=8, topk_group=4)
    | {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64},
    "kimi_k2": _deepseek("deepseek_v3", 61, 7168, 64, 18432)
    | _v3(384, 1, 2.827, n_group=1, topk_group=1)
    | {"vocab_size": 163840, "max_position_embeddings": 131072}
    | {"rope_theta": 50000.0, "rope_scaling": KIMI},
    "llama4_scout": _llama4(16, 1, norm=True, rope=SCOUT),
    "llama4_maverick": _llama4(128, 2, norm=False, rope=None),
    "qwen3_next_80b_a3b": _qwen3_moe(
        *(48, 2048, 16, 2, 5120, 151936, 262144), experts=512, width=512, rope_theta=1e7
    )
    | {"model_type": "qwen3_next", "num_experts_per_tok": 10, "full_attention_interval": 4}
    | {"head_dim": 256, "partial_rotary_factor": 0.25, "shared_expert_intermediate_size": 512}
    | {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
    | {"linear_key_head_dim": 128, "linear_value_head_dim": 128},
    "gpt2": _gpt(12, 768, 12, 50257, 1024),
    "gpt3_6b": _gpt(48, 3072, 12, 32768, 2048),
    "gpt3_22b": _gpt(48, 6144, 24, 32768, 2048),
    "gpt3_175b": _gpt(96, 12288, 96, 50257, 2048),
}
for _size, _factor, _from in (("1_8b", 8.0, "8b"), ("1_70b", 8.0, "70b"), ("3_70b", 8.0, "70b")):
    _longer = {"max_position_embeddings": 131072, "rope_scaling": _llama31(_factor)}
    PUBLISHED[f"llama3_{_size}"] = PUBLISHED[f"llama3_{_from}"] | _longer
_long = {"theta": 5e5, "rope_scaling": _llama31(8.0)}
PUBLISHED["llama3_1_405b"] = _llama(126, 16384, 128, 8, 53248, 128256, 131072, **_long)
PUBLISHED["llama3_405b"] = PUBLISHED["llama3_1_405b"]
_small = {"theta": 5e5, "rope_scaling": _llama31(32.0), "tie_word_embeddings": True}
PUBLISHED["llama3_2_1b"] = _llama(16, 2048, 32, 8, 8192, 128256, 131072, head_dim=64, **_small)
PUBLISHED["llama3_2_3b"] = _llama(28, 3072, 24, 8, 8192, 128256, 131072, head_dim=128, **_small)
PUBLISHED |= NEWER
