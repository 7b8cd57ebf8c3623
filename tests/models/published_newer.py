"""What config.json of published models says: Gemma 4, GLM-5, Qwen3.5 and hybrid models."""

from __future__ import annotations

from typing import Any

Content = dict[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"


def _shape(*shape: int) -> Content:
    """Layers, width, heads, heads of keys, feed-forward width, vocabulary, longest sequence."""
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
    names += ("intermediate_size", "vocab_size", "max_position_embeddings")
    return dict(zip(names, shape, strict=True))


def _gemma4(*shape: int, period: int = 6, window: int = 1024, **more: Any) -> Content:
    rope = {
        FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    }
    kinds = [FULL if (n + 1) % period == 0 else SLIDING for n in range(shape[0])]
    options = {"model_type": "gemma4_text", "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
    options |= {"hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": 30.0}
    options |= {"head_dim": 256, "global_head_dim": 512, "sliding_window": window}
    options |= {"vocab_size_per_layer_input": 262144, "use_bidirectional_attention": None}
    return options | _shape(*shape) | {"rope_parameters": rope, "layer_types": kinds} | more


LARGE: Content = {"attention_k_eq_v": True, "hidden_size_per_layer_input": 0}
LARGE |= {"num_kv_shared_layers": 0, "use_bidirectional_attention": "vision"}
SMALL: Content = {"hidden_size_per_layer_input": 256, "attention_k_eq_v": False, "window": 512}
GLM5: Content = {"model_type": "glm_moe_dsa", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
GLM5 |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "head_dim": 64}
GLM5 |= {"index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "n_shared_experts": 1}
GLM5 |= {"indexer_rope_interleave": True, "first_k_dense_replace": 3, "moe_layer_freq": 1}
GLM5 |= {"kv_lora_rank": 512, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256}
GLM5 |= {"qk_rope_head_dim": 64, "moe_intermediate_size": 2048, "n_routed_experts": 256}
GLM5 |= {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "norm_topk_prob": True}
GLM5 |= {"routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}

GLM52: Content = {"rope_parameters": {"rope_type": "default", "rope_theta": 8e6}, "head_dim": 192}
GLM52 |= {"index_topk_freq": 4, "index_skip_topk_offset": 3, "index_topk_pattern": None}


def _qwen35(*shape: int, heads: int, **more: Any) -> Content:
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    mixer = {"linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4}
    mixer |= {"linear_num_value_heads": heads, "linear_value_head_dim": 128}
    common = {"model_type": "qwen3_5_text", "head_dim": 256, "rms_norm_eps": 1e-6}
    common |= {"hidden_act": "silu", "tie_word_embeddings": False, "full_attention_interval": 4}
    return common | _shape(*shape) | mixer | {"rope_parameters": rope} | more


def _of_experts(experts: int, chosen: int, width: int) -> Content:
    moe = {"model_type": "qwen3_5_moe_text", "num_experts": experts}
    moe |= {"num_experts_per_tok": chosen, "shared_expert_intermediate_size": width}
    return moe | {"moe_intermediate_size": width}


def _lfm2(*shape: int, full: tuple[int, ...] = (2, 5, 8, 10, 12, 14), **more: Any) -> Content:
    content = {"model_type": "lfm2", "norm_eps": 1e-5, "rope_theta": 1e6, "conv_L_cache": 3}
    content |= {"conv_bias": False, "tie_embedding": True, "block_multiple_of": 256}
    content |= {"block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True}
    content |= _shape(*shape, 65536, 128000)
    return content | {"full_attn_idxs": list(full)} | more


def _granite(*shape: int, mamba: int, scaling: float, scale: float, **more: Any) -> Content:
    kinds = ["attention" if n % 10 == 5 else "mamba" for n in range(40)]
    content = {"model_type": "granitemoehybrid", "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    content |= {"embedding_multiplier": 12, "residual_multiplier": 0.22, "mamba_d_head": 64}
    content |= {"attention_multiplier": scale, "logits_scaling": scaling, "mamba_n_heads": mamba}
    content |= {"mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2}
    content |= {"mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False}
    content |= {"position_embedding_type": "nope", "layer_types": kinds, "hidden_act": "silu"}
    return content | _shape(40, *shape, 100352, 131072) | more


def _experts(experts: int, chosen: int, shared: int) -> Content:
    chosen_by = {"num_local_experts": experts, "num_experts_per_tok": chosen}
    return chosen_by | {"shared_intermediate_size": shared}


def _nemotron(pattern: str, *shape: int, mamba: int, **more: Any) -> Content:
    content = {"model_type": "nemotron_h", "hybrid_override_pattern": pattern, "n_groups": 8}
    content |= {"mamba_num_heads": mamba, "mamba_head_dim": 64, "ssm_state_size": 128}
    content |= {"conv_kernel": 4, "chunk_size": 128, "head_dim": 128, "mlp_hidden_act": "relu2"}
    content |= {
        "use_bias": False,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
        "use_conv_bias": True,
    }
    return content | _shape(len(pattern), *shape, 131072, 8192) | more


def _pattern(*lengths: int) -> str:
    """Mamba-2 layers and feed-forward layers in turns; attention after the Mamba-2 layer of each
    run but the last.
    """
    runs = ["M-" * (length - 1) + "M*-" for length in lengths[:-1]]
    return "".join(runs) + "M-" * lengths[-1]


PRUNED = f"{_pattern(9, 10, 5, 5, 7)}--MM---M-M*-{_pattern(5)}"
BAMBA: Content = {"model_type": "bamba", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
BAMBA |= {"attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_head": 64}
BAMBA |= {"mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2}
BAMBA |= {"mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False}
BAMBA |= {"hidden_act": "silu", "rope_theta": 1e4, "attention_bias": False}
OF_BILLIONS = {"full": (2, 5, 9, 13, 17, 21, 24, 27), "block_auto_adjust_ff_dim": False}
NEWER: dict[str, Content] = {
    "gemma4_31b": _gemma4(
        60, 5376, 32, 16, 21504, 262144, 262144, num_global_key_value_heads=4, **LARGE
    ),
    "gemma4_12b": _gemma4(
        *(48, 3840, 16, 8, 15360, 262144, 262144), num_global_key_value_heads=1, **LARGE
    )
    | {"model_type": "gemma4_unified_text"},
    "gemma4_26b_a4b": _gemma4(
        *(30, 2816, 16, 8, 2112, 262144, 262144),
        num_global_key_value_heads=2,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
        **LARGE,
    ),
    "gemma4_e4b": _gemma4(42, 2560, 8, 2, 10240, 262144, 131072, num_kv_shared_layers=18, **SMALL),
    "gemma4_e2b": _gemma4(
        *(35, 1536, 8, 1, 6144, 262144, 131072),
        period=5,
        num_kv_shared_layers=20,
        use_double_wide_mlp=True,
        **SMALL,
    ),
    "glm5_744b": _shape(78, 6144, 64, 64, 12288, 154880, 202752) | GLM5,
    "glm5_2_744b": _shape(78, 6144, 64, 64, 12288, 154880, 1048576) | GLM5 | GLM52,
    "qwen3_5_397b_a17b": _qwen35(60, 4096, 32, 2, 1024, 248320, 262144, heads=64)
    | _of_experts(512, 10, 1024),
    "qwen3_5_35b_a3b": _qwen35(40, 2048, 16, 2, 512, 248320, 262144, heads=32)
    | _of_experts(256, 8, 512),
    "qwen3_5_27b": _qwen35(64, 5120, 24, 4, 17408, 248320, 262144, heads=48),
    "lfm2_350m": _lfm2(16, 1024, 16, 8, 6656),
    "lfm2_700m": _lfm2(16, 1536, 24, 8, 10240),
    "lfm2_1_2b": _lfm2(16, 2048, 32, 8, 12288),
    "lfm2_2_6b": _lfm2(30, 2048, 32, 8, 10752, **OF_BILLIONS),
    "granite4_h_micro": _granite(
        *(2048, 32, 8, 8192), mamba=64, scaling=8, scale=0.015625, **_experts(0, 0, 8192)
    ),
    "granite4_h_tiny": _granite(
        *(1536, 12, 4, 512), mamba=48, scaling=6, scale=0.0078125, **_experts(64, 6, 1024)
    ),
    "granite4_h_small": _granite(
        *(4096, 32, 8, 768), mamba=128, scaling=16, scale=0.0078125, **_experts(72, 10, 1536)
    ),
    "nemotron_h_4b": _nemotron(_pattern(4, 5, 5, 5, 5), 3072, 32, 8, 12288, mamba=112),
    "nemotron_h_8b": _nemotron(_pattern(4, 5, 5, 5, 5), 4096, 32, 8, 21504, mamba=128),
    "nemotron_h_56b": _nemotron(
        _pattern(4, *[5] * 10), 8192, 64, 8, 32768, mamba=256, ssm_state_size=256
    ),
    "nemotron_h_47b": _nemotron(PRUNED, 8192, 64, 8, 30720, mamba=256, ssm_state_size=256),
    "bamba_9b": _shape(32, 4096, 32, 8, 14336, 128256, 4096) | BAMBA,
}
