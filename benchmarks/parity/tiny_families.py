"""A tiny model of transformers' own class for every family, with random weights in fp32."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

VOCAB, LONGEST, WINDOW = 260, 128, 12
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 80}
SIZES |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"max_position_embeddings": LONGEST, "pad_token_id": 0}
SIZES |= {"bos_token_id": None, "eos_token_id": None}
DEFAULT = {"rope_type": "default", "rope_theta": 500.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}
YARN |= {"original_max_position_embeddings": 32}
DEEP_YARN: dict[str, Any] = YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GPT2: dict[str, Any] = {
    "n_positions": LONGEST,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": 80,
}
GPT2 |= {"bos_token_id": None, "eos_token_id": None, "attn_pdrop": 0.0}
DEEP: dict[str, Any] = {
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 6,
}
DEEP |= {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
DEEP |= {"n_shared_experts": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1}
DEEP |= {"q_lora_rank": 12, "num_key_value_heads": 4}
GEMMA: dict[str, Any] = {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 10}
GEMMA4: dict[str, Any] = {"head_dim": 8, "global_head_dim": 16, "sliding_window": WINDOW}
GEMMA4 |= {"num_hidden_layers": 6, "num_global_key_value_heads": 1}
GEMMA4 |= {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2}
GEMMA4 |= {"final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0}
GEMMA4_UNIFIED = {k: v for k, v in GEMMA4.items() if k != "hidden_size_per_layer_input"}
GEMMA4_SMALL = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}
GEMMA4_SMALL |= {"num_kv_shared_layers": 3, "use_double_wide_mlp": True}
GEMMA4_EXPERTS: dict[str, Any] = {"enable_moe_block": True, "attention_k_eq_v": True}
GEMMA4_EXPERTS |= {"num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24}
BY_KIND = {
    "sliding_attention": DEFAULT,
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
}
BY_KIND_YARN = {"sliding_attention": DEFAULT, "full_attention": YARN}
GPT_OSS: dict[str, Any] = {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 3}
GPT_OSS |= {"sliding_window": WINDOW, "swiglu_limit": 0.5}
GPT_OSS |= {"rope_parameters": YARN | {"truncate": False}}
LLAMA4: dict[str, Any] = {"head_dim": 16, "intermediate_size_mlp": 48, "num_local_experts": 6}
LLAMA4 |= {"attention_chunk_size": WINDOW, "floor_scale": 8, "rope_parameters": LLAMA3}
QWEN3_NEXT: dict[str, Any] = {"head_dim": 16, **EXPERTS, "norm_topk_prob": True}
QWEN3_NEXT |= {"shared_expert_intermediate_size": 40, "linear_num_value_heads": 4}
QWEN3_NEXT |= {"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 6}
QWEN3_NEXT |= {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.25}}
GRANITE: dict[str, Any] = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4}
GRANITE |= {"attention_multiplier": 0.2, "logits_scaling": 2.0, "rope_parameters": DEFAULT}
PHI3: dict[str, Any] = {
    "pad_token_id": 0,
    "original_max_position_embeddings": LONGEST,
    "num_key_value_heads": 2,
}
LONGROPE: dict[str, Any] = DEFAULT | {"rope_type": "longrope", "factor": 4.0}
LONGROPE |= {"short_factor": [1.3, 1.1, 1.2], "long_factor": [1.3, 1.1, 1.2]}
LONGROPE |= {"partial_rotary_factor": 0.75, "original_max_position_embeddings": LONGEST}
ALPHA: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 500.0, "alpha": 30.0, "factor": 1.0}
HALF: dict[str, Any] = {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5}}
SHARED: dict[str, Any] = EXPERTS | {"shared_expert_intermediate_size": 40}
ROUTED: dict[str, Any] = {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2}
ROUTED |= {"moe_intermediate_size": 24, "routed_scaling_factor": 1.5, "norm_topk_prob": True}
ROUTED |= {"first_k_dense_replace": 1, "head_dim": 16}
LITE = {name: value for name, value in DEEP.items() if name != "first_k_dense_replace"}
LITE |= {"n_group": 4, "topk_group": 2}
QWEN3_5: dict[str, Any] = {k: v for k, v in QWEN3_NEXT.items() if k != "norm_topk_prob"}
DENSE_3_5 = {k: v for k, v in QWEN3_5.items() if k not in SHARED}
# In three delta nets in a row the gradients of decays cancel to the rounding of fp32.
DENSE_3_5 |= {"layer_types": ["linear_attention", "full_attention"] * 2}
MINIMAX: dict[str, Any] = HALF | {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 3}
INDEXING = ".indexer."
# Where ReLU stops all heads scores are equal, and transformers chooses any of those keys.
INDEXER = {"index_topk": 6, "index_head_dim": 16, "index_n_heads": 16}
MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_n_groups": 2}
MAMBA |= {"mamba_chunk_size": 7, "mamba_d_head": 8}
LAYERS = {"layer_types": ["linear_attention", "full_attention"] * 2}
HYBRID: dict[str, Any] = MAMBA | GRANITE | LAYERS | {"shared_intermediate_size": 40}
NEMOTRON: dict[str, Any] = {"head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 6}
NEMOTRON |= {"ssm_state_size": 12, "n_groups": 2, "chunk_size": 7, "n_routed_experts": 6}
NEMOTRON |= {"moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40}
Config = Callable[[], transformers.PreTrainedConfig]


def _of(name: str, **options: Any) -> Config:
    # A copy: a class may add to a rotation that other families have too.
    return lambda: getattr(transformers, name)(**copy.deepcopy(SIZES | options))


CASES: dict[str, Config] = {
    "llama": _of("LlamaConfig", rope_parameters=DEFAULT, tie_word_embeddings=False),
    "llama 3.1": _of("LlamaConfig", rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True),
    "llama 3.2": _of("LlamaConfig", rope_parameters=LLAMA3, head_dim=16, tie_word_embeddings=True),
    "mistral": _of("MistralConfig", rope_parameters=DEFAULT, sliding_window=WINDOW),
    "qwen2.5": _of("Qwen2Config", rope_parameters=YARN),
    "qwen2, windows": _of(
        "Qwen2Config", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    ),
    "qwen3": _of("Qwen3Config", head_dim=16, tie_word_embeddings=True),
    "mixtral": _of("MixtralConfig", num_local_experts=6, sliding_window=None),
    "qwen3 moe": _of("Qwen3MoeConfig", head_dim=16, norm_topk_prob=True, **EXPERTS),
    "qwen3 moe, every second": _of(
        "Qwen3MoeConfig", head_dim=8, decoder_sparse_step=2, norm_topk_prob=False, **EXPERTS
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCAB, **GPT2),
    "deepseek 2": _of(
        "DeepseekV2Config", rope_parameters=DEEP_YARN, **(DEEP | {"q_lora_rank": None})
    ),
    "deepseek 2, groups": _of(
        "DeepseekV2Config", topk_method="group_limited_greedy", n_group=4, topk_group=2, **DEEP
    ),
    "deepseek 3": _of(
        "DeepseekV3Config", rope_parameters=DEEP_YARN, **DEEP, n_group=4, topk_group=2
    ),
    "deepseek 3.2": _of(
        "DeepseekV32Config",
        rope_parameters=DEEP_YARN,
        **(DEEP | INDEXER),
        n_group=4,
        topk_group=2,
    ),
    "glm 5": _of("GlmMoeDsaConfig", rope_parameters=DEFAULT, **(DEEP | INDEXER)),
    "glm 5.2": _of(
        "GlmMoeDsaConfig",
        rope_parameters=DEFAULT,
        **(DEEP | INDEXER | {"num_hidden_layers": 6}),
        index_topk_freq=3,
        index_skip_topk_offset=2,
    ),
    "gemma": _of("GemmaConfig", head_dim=16, num_key_value_heads=1),
    "gemma 2": _of(
        "Gemma2Config", **GEMMA, attn_logit_softcapping=5.0, final_logit_softcapping=30.0
    ),
    "gemma 3": _of("Gemma3TextConfig", **GEMMA, num_hidden_layers=7, rope_parameters=BY_KIND),
    "gemma 4": _of("Gemma4TextConfig", **GEMMA4, attention_k_eq_v=True),
    "gemma 4, small": _of("Gemma4TextConfig", **(GEMMA4 | GEMMA4_SMALL)),
    "gemma 4, unified": _of("Gemma4UnifiedTextConfig", **GEMMA4_UNIFIED, attention_k_eq_v=True),
    "gemma 4, experts": _of("Gemma4TextConfig", **GEMMA4, **GEMMA4_EXPERTS),
    "olmo 2": _of("Olmo2Config", rope_parameters=DEFAULT),
    "olmo 3": _of("Olmo3Config", sliding_window=WINDOW, rope_parameters=BY_KIND_YARN),
    "gpt-oss": _of("GptOssConfig", **GPT_OSS),
    "llama 4": _of("Llama4TextConfig", **LLAMA4),
    "llama 4, every second": _of(
        "Llama4TextConfig", **(LLAMA4 | {"interleave_moe_layer_step": 2, "use_qk_norm": False})
    ),
    "qwen3-next": _of("Qwen3NextConfig", **QWEN3_NEXT),
    "kimi k2": _of("DeepseekV3Config", rope_parameters=DEEP_YARN, **DEEP, n_group=1, topk_group=1),
    "granite": _of("GraniteConfig", **GRANITE),
    "granite moe": _of("GraniteMoeConfig", num_local_experts=6, num_experts_per_tok=3, **GRANITE),
    "smollm 3": _of("SmolLM3Config", rope_parameters=DEFAULT),
    "seed-oss": _of("SeedOssConfig", rope_parameters=DEFAULT, head_dim=16),
    "arcee": _of("ArceeConfig", rope_parameters=YARN),
    "helium": _of("HeliumConfig", rope_parameters=DEFAULT, head_dim=8),
    "ernie 4.5": _of("Ernie4_5Config", rope_parameters=DEFAULT, head_dim=16),
    "phi 3": _of("Phi3Config", rope_parameters=DEFAULT, sliding_window=WINDOW, **PHI3),
    "phi 4 mini": _of("Phi3Config", rope_parameters=LONGROPE, tie_word_embeddings=True, **PHI3),
    "exaone 4": _of("Exaone4Config", rope_parameters=LLAMA3, sliding_window=WINDOW),
    "exaone 4, no windows": _of(
        "Exaone4Config", sliding_window=None, layer_types=["full_attention"] * 4
    ),
    "hunyuan": _of("HunYuanDenseV1Config", rope_parameters=ALPHA, head_dim=16),
    "starcoder 2": _of("Starcoder2Config", rope_parameters=DEFAULT, sliding_window=WINDOW),
    "olmoe": _of("OlmoeConfig", num_experts=6, num_experts_per_tok=2, rope_parameters=DEFAULT),
    "qwen2 moe": _of("Qwen2MoeConfig", rope_parameters=DEFAULT, **SHARED),
    "qwen2 moe, windows": _of(
        "Qwen2MoeConfig", use_sliding_window=True, sliding_window=WINDOW, **SHARED
    ),
    "dots1": _of("Dots1Config", rope_parameters=DEFAULT, **ROUTED),
    "glm 4": _of("Glm4Config", head_dim=16, **HALF),
    "glm 4.5": _of("Glm4MoeConfig", use_qk_norm=True, attention_bias=True, **HALF, **ROUTED),
    "glm 4.7 flash": _of("Glm4MoeLiteConfig", rope_parameters=DEEP_YARN, **LITE),
    "minimax m2": _of("MiniMaxM2Config", **MINIMAX),
    "qwen3.5": _of("Qwen3_5TextConfig", **DENSE_3_5),
    "qwen3.5 moe": _of("Qwen3_5MoeTextConfig", **QWEN3_5),
    "lfm2": _of("Lfm2Config", full_attn_idxs=[2], block_multiple_of=8),
    "lfm2, biases": _of(
        "Lfm2Config", full_attn_idxs=[1], conv_bias=True, block_auto_adjust_ff_dim=False
    ),
    "granite 4": _of(
        "GraniteMoeHybridConfig", num_local_experts=6, num_experts_per_tok=3, **HYBRID
    ),
    "granite 4, dense": _of(
        "GraniteMoeHybridConfig",
        num_local_experts=0,
        position_embedding_type="rope",
        **HYBRID,
    ),
    "bamba": _of("BambaConfig", attn_layer_indices=[1], **MAMBA),
    "bamba, biases": _of(
        "BambaConfig",
        attn_layer_indices=[2],
        mamba_proj_bias=True,
        attention_bias=True,
        mlp_bias=True,
        **(MAMBA | {"mamba_n_groups": 1, "mamba_conv_bias": False}),
    ),
    "nemotron-h": _of(
        "NemotronHConfig",
        hybrid_override_pattern="M-*-M-",
        num_hidden_layers=6,
        mlp_bias=True,
        **NEMOTRON,
    ),
    "nemotron 3": _of(
        "NemotronHConfig",
        hybrid_override_pattern="MEM*E",
        num_hidden_layers=5,
        routed_scaling_factor=2.5,
        **NEMOTRON,
    ),
}
"""By the name of a case; families have several where they have several shapes."""
DELTA: tuple[str, ...] = ("qwen3-next", "qwen3.5", "qwen3.5 moe")
UNDIVIDED: tuple[str, ...] = (
    *("gemma 4", "gemma 4, small", "gemma 4, unified", "gemma 4, experts"),
)
DEVIATION: dict[str, float] = dict.fromkeys(DELTA, 0.075)
DEVIATION |= dict.fromkeys(UNDIVIDED, 0.1)
SLACK: dict[str, float] = dict.fromkeys((*DELTA, *UNDIVIDED), 4.0)
"""Of matrices, 0.15 elsewhere, and factor of bounds, 1 elsewhere: queries and keys of length 1 and
norms of each head multiply the rounding of fp32, in ours and transformers' alike: each is 2.6e-5
from fp64 in logits. Gemma 4 divides no scores by the root of the width of heads: transformers' is
1.4e-5 from fp64, ours 1.9e-5, and how they round depends on the CPU.
"""


def peer(case: str, config: Any = None) -> Any:
    """The model of a case, eager, its norms near but not at their first values."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = config or CASES[case]()
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = DEVIATION.get(case, 0.15) * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + drawn if parameter.dim() == 1 else drawn)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5, generator=generator)
    return model


def gradients_as_weights(model: nn.Module) -> None:
    """Put its gradients in the place of its weights, so that they are saved under its names.

    An indexer of transformers runs without gradients.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if INDEXING in name:
                parameter.zero_()
                continue
            assert parameter.grad is not None
            parameter.copy_(parameter.grad)
