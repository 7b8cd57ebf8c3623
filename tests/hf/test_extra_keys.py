"""Keys of a config.json that forge does not read: a warning, or refused where they may matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.folders import LLAMA, write_folder
from helpers.refusing import problems, resolved

NO_EFFECT: dict[str, Any] = {
    "unsloth_fixed": True,
    "unsloth_version": "2025.1.5",
    "transformers.js_config": {"dtype": {"fp16": "q4"}},
    "transformers_js_version": "3.0",
    "_flash_attn_2_enabled": True,
    "_from_gguf": "x.gguf",
    "use_mrope": False,
    "use_sliding_window": False,
    "use_qk_norm": False,
    "qk_layernorm": False,
    "attn_output_gate": False,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.1,
    "ffn_dropout_rate": 0.1,
    "layer_types": ["full_attention", "full_attention"],
    "max_window_layers": 2,
    "model_max_length": 8192,
    "mlp_only_layers": [],
    "no_rope_layers": [],
    "rope_local_base_freq": None,
    "sliding_window": None,
    "num_local_experts": 0,
    "final_logit_softcapping": None,
    "norm_topk_prob": False,
    "license": "apache-2.0",
    "library_name": "transformers",
    "tags": ["chat"],
    "base_model": "org/base",
    "peft_version": "0.9",
    "head_dim": 16,
}
"""Key and value, in a folder of a Llama."""
CHANGES: dict[str, Any] = {
    "sliding_window": 4096,
    "use_qk_norm": True,
    "num_local_experts": 8,
    "final_logit_softcapping": 30.0,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
    "layer_types": ["full_attention", "sliding_attention"],
    "use_mrope": True,
    "no_rope_layers": [1, 0],
    "hydra_heads": 3,
    "quantization": {"bits": 4},
}


def overrides(folder: Path, **keys: Any) -> list[str]:
    write_folder(folder, **keys)
    return ["tokenizer=bytes", "model=hf", f"model.path={folder}", "train.seq_len=32"]


@pytest.mark.parametrize("key", NO_EFFECT)
def test_a_key_without_effect_is_no_reason_to_refuse(key: str, tmp_path: Path) -> None:
    words = overrides(tmp_path, **{key: NO_EFFECT[key]})
    resolution = resolved(words)
    said = [one for one in resolution.warnings if one.rule == "model.unread_keys"]
    if NO_EFFECT[key] is None or key == "head_dim":
        assert said == []
    else:
        assert f"config.json has {key}, which changes nothing and is not read." in said[0].what
        quiet = resolved([*words, said[0].fix]).warnings
        assert "model.unread_keys" not in {one.rule for one in quiet}
    assert resolution.config.model.dim == LLAMA["hidden_size"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", CHANGES)
def test_a_key_that_may_change_the_model_is_refused(key: str, tmp_path: Path) -> None:
    words = overrides(tmp_path, **{key: CHANGES[key]})
    (problem,) = problems(words)
    assert f"{key}={CHANGES[key]!r} is a key that forge does not know here." in problem.what
    assert f"or model.ignore_keys=[{key}] where it changes nothing" in problem.fix
    taken = resolved([*words, f"model.ignore_keys=[{key}]"])
    assert taken.config.model.dim == LLAMA["hidden_size"]  # type: ignore[attr-defined]


def test_a_model_of_its_own_code_may_read_what_is_switched_off(tmp_path: Path) -> None:
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}, "use_rope": False}
    (problem,) = problems(overrides(tmp_path, **own))
    assert "use_rope=False is a key that forge does not know here." in problem.what


def test_several_keys_are_named_in_one_line_to_paste(tmp_path: Path) -> None:
    words = overrides(tmp_path, hydra_heads=3, logits_scaling=8.0)
    (problem,) = problems(words)
    assert "model.ignore_keys=[hydra_heads, logits_scaling]" in problem.fix
    assert resolved([*words, "model.ignore_keys=[hydra_heads,logits_scaling]"])
