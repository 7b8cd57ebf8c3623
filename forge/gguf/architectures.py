"""The config.json of a GGUF file's metadata, by architecture.

Metadata keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what each architecture
does to tensors is in llama.cpp's convert_hf_to_gguf.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge.families.shards import FolderError
from forge.gguf.reader import GGUFFile

ROPE_FACTORS = "rope_freqs.weight"
HEAD, TABLE = "output.weight", "token_embd.weight"
Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How llama.cpp stores a family.

    extra: config.json keys beside those of every family. pairs: whether rotated pairs of queries
    and keys are adjacent in the file. norm_offset: added to the weights of norms in the file.
    """

    extra: Callable[[Metadata, Config], Config]
    pairs: bool = False
    norm_offset: float = 0.0


class Metadata:
    """The keys of one architecture; keys that nobody reads are faults."""

    def __init__(self, file: GGUFFile) -> None:
        self._prefix = f"{file.architecture}."
        self._unread = {
            key.removeprefix(self._prefix): value
            for key, value in file.metadata.items()
            if key.startswith(self._prefix)
        }
        self.file, self.faults = file, list[str]()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key; without a default the key must be there."""
        if key not in self._unread and default is None:
            self.faults.append(f"it lacks {self._prefix}{key}")
            return 1
        return self._unread.pop(key, default)

    def finish(self) -> None:
        """Raise FolderError for missing and unknown keys."""
        self.faults += [f"{self._prefix}{key} is not known" for key in self._unread]
        if self.faults:
            message = f"{self.file.path}: {'; '.join(self.faults)}"
            hint = "a model without it: what forge does not compute is not left out silently"
            raise FolderError(message, hint)


def config_of(file: GGUFFile) -> tuple[Architecture, Config]:
    """The architecture of a file and its config.json. Raises FolderError."""
    architecture = ARCHITECTURES.get(file.architecture)
    if architecture is None:
        message = f"{file.path} is of the architecture {file.architecture!r}, which is not read"
        raise FolderError(message, f"a model of one that is: {', '.join(ARCHITECTURES)}")
    metadata = Metadata(file)
    config = _common(metadata)
    config |= architecture.extra(metadata, config)
    metadata.finish()
    return architecture, config


def _common(metadata: Metadata) -> Config:
    file = metadata.file
    heads = int(metadata.take("attention.head_count"))
    kv_heads = metadata.take("attention.head_count_kv", heads)
    if isinstance(kv_heads, list):
        if len(set(kv_heads)) > 1:
            metadata.faults.append("its layers differ in attention.head_count_kv")
        kv_heads = kv_heads[0]
    dim = int(metadata.take("embedding_length"))
    head_dim = int(metadata.take("attention.key_length", dim // heads))
    if int(metadata.take("attention.value_length", head_dim)) != head_dim:
        metadata.faults.append("attention.key_length and value_length differ")
    if int(metadata.take("rope.dimension_count", head_dim)) != head_dim:
        metadata.faults.append("rope.dimension_count: a part of a head is rotated")
    metadata.take("vocab_size", 0)
    config = {
        "hidden_size": dim,
        "num_hidden_layers": int(metadata.take("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(kv_heads),
        "head_dim": head_dim,
        "intermediate_size": int(metadata.take("feed_forward_length")),
        "max_position_embeddings": int(metadata.take("context_length")),
        "rms_norm_eps": _decimal(metadata.take("attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(metadata.take("rope.freq_base", 10000.0)),
        "vocab_size": file.shape(TABLE)[0] if TABLE in file.names else 0,
        "tie_word_embeddings": HEAD not in file.names,
        "hidden_act": "silu",
    }
    return config | _rope(metadata, config)


def _decimal(value: float) -> float:
    """The shortest decimal of a number stored in fp32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope(metadata: Metadata, config: Config) -> Config:
    kind = str(metadata.take("rope.scaling.type", "none"))
    factor = float(metadata.take("rope.scaling.factor", 1.0))
    original = int(metadata.take("rope.scaling.original_context_length", 0))
    metadata.take("rope.scaling.finetuned", False)
    if ROPE_FACTORS in metadata.file.names:
        return {"rope_scaling": _llama3(metadata, config)}
    if kind == "none":
        return {}
    scaling: Config = {"rope_type": kind, "factor": factor}
    if kind == "yarn" and original:
        return {"rope_scaling": scaling | {"original_max_position_embeddings": original}}
    if kind == "linear":
        return {"rope_scaling": scaling}
    metadata.faults.append(f"rope.scaling.type={kind} is not read")
    return {}


def _llama3(metadata: Metadata, config: Config) -> Config:
    """Llama 3's parameters of rotary positions, found again by the factors that the file has."""
    stored = metadata.file.rows(ROPE_FACTORS)
    width = config["head_dim"]
    angles = config["rope_theta"] ** (-np.arange(0, width, 2) / width)
    low, high, original = 1.0, 4.0, 8192
    for factor in (8.0, 32.0):
        turns = original * angles / (2 * math.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        factors = 1 / ((1 - smooth) / factor + smooth)
        if stored.shape == factors.shape and np.allclose(stored, factors, rtol=1e-5):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    metadata.faults.append(f"{ROPE_FACTORS} has factors of no Llama that is known")
    return {}


def _llama(metadata: Metadata, config: Config) -> Config:
    experts = int(metadata.take("expert_count", 0))
    per_token = int(metadata.take("expert_used_count", 0))
    if not experts:
        return {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    names = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    return names | {"num_local_experts": experts, "num_experts_per_tok": per_token}


def _qwen2(metadata: Metadata, config: Config) -> Config:
    if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        metadata.faults.append("attention.key_length is not the width over the heads")
    return {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}


def _qwen3(metadata: Metadata, config: Config) -> Config:
    return {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}


def _qwen3_moe(metadata: Metadata, config: Config) -> Config:
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": int(metadata.take("expert_count")),
        "num_experts_per_tok": int(metadata.take("expert_used_count")),
        "moe_intermediate_size": int(metadata.take("expert_feed_forward_length")),
        "norm_topk_prob": bool(metadata.take("expert_weights_norm", True)),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gemma(metadata: Metadata, config: Config) -> Config:
    return {
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
    }


def _gemma2(metadata: Metadata, config: Config) -> Config:
    of_27b = config["num_hidden_layers"] == 46  # as llama.cpp tells it apart
    scalar = config["hidden_size"] // config["num_attention_heads"] if of_27b else None
    return {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": int(metadata.take("attention.sliding_window")),
        "attn_logit_softcapping": _decimal(metadata.take("attn_logit_softcapping")),
        "final_logit_softcapping": _decimal(metadata.take("final_logit_softcapping")),
        "query_pre_attn_scalar": scalar or config["head_dim"],
    }


def _gemma3(metadata: Metadata, config: Config) -> Config:
    of_27b = config["num_hidden_layers"] == 62  # as llama.cpp tells it apart
    scalar = config["hidden_size"] // config["num_attention_heads"] if of_27b else None
    if int(metadata.take("attention.sliding_window_pattern", 6)) != 6:
        metadata.faults.append("attention.sliding_window_pattern is not 6")
    cap = _decimal(metadata.take("final_logit_softcapping", 0.0))
    return {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": int(metadata.take("attention.sliding_window")),
        "rope_local_base_freq": _decimal(metadata.take("rope.freq_base_swa", 10000.0)),
        "query_pre_attn_scalar": scalar or config["head_dim"],
        "final_logit_softcapping": cap or None,
    }


def _phi3(metadata: Metadata, config: Config) -> Config:
    window = int(metadata.take("attention.sliding_window", 0))
    return {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "original_max_position_embeddings": config["max_position_embeddings"],
        "sliding_window": window or None,
        "pad_token_id": None,
    }


def _olmo2(metadata: Metadata, config: Config) -> Config:
    return {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(extra=_llama, pairs=True),
    "qwen2": Architecture(extra=_qwen2),
    "qwen3": Architecture(extra=_qwen3),
    "qwen3moe": Architecture(extra=_qwen3_moe),
    "gemma": Architecture(extra=_gemma, norm_offset=1.0),
    "gemma2": Architecture(extra=_gemma2, norm_offset=1.0),
    "gemma3": Architecture(extra=_gemma3, norm_offset=1.0),
    "phi3": Architecture(extra=_phi3),
    "olmo2": Architecture(extra=_olmo2),
}
