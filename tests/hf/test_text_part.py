"""The language model of a folder whose model reads images too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import imported

from forge.families import folder as folders
from forge.families.shards import FolderError

LONGEST = 48
TEXT: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TEXT |= {"max_position_embeddings": LONGEST, "head_dim": 16, "pad_token_id": 0}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "image_size": 28,
}
VISION |= {"num_attention_heads": 2, "patch_size": 14}
IMAGES: dict[str, Any] = {"image_token_index": 100, "boi_token_index": 98, "eoi_token_index": 99}


def gemma3() -> Any:
    text = TEXT | {"num_hidden_layers": 7, "intermediate_size": 48, "sliding_window": 8}
    text |= {"query_pre_attn_scalar": 16}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=VISION, mm_tokens_per_image=4, **IMAGES
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def llama4() -> Any:
    text = TEXT | {"num_hidden_layers": 4, "intermediate_size": 24, "intermediate_size_mlp": 48}
    text |= {"num_local_experts": 4, "num_experts_per_tok": 1, "attention_chunk_size": 8}
    sizes = ("projector_input_dim", "projector_output_dim", "vision_output_dim")
    vision = VISION | dict.fromkeys(sizes, 16)
    config = transformers.Llama4Config(text_config=text, vision_config=vision, **IMAGES)
    return transformers.Llama4ForConditionalGeneration(config)


QWEN: dict[str, Any] = {**TEXT, "num_hidden_layers": 4, "intermediate_size": 48}
QWEN_VISION: dict[str, Any] = {"depth": 1, "hidden_size": 16, "intermediate_size": 32}
QWEN_VISION |= {"num_heads": 2, "out_hidden_size": 32, "patch_size": 14}
TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
QWEN_TOKENS: dict[str, Any] = {name: 97 + number for number, name in enumerate(TOKENS)}


def qwen3_vl() -> Any:
    rotation = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [4, 2, 2]}
    text = QWEN | {"rope_parameters": rotation | {"mrope_interleaved": True}}
    vision = QWEN_VISION | {"deepstack_visual_indexes": [0]}
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS)
    return transformers.Qwen3VLForConditionalGeneration(config)


def qwen2_5_vl() -> Any:
    rotation = {"type": "mrope", "rope_theta": 500.0, "mrope_section": [2, 1, 1]}
    text = {name: value for name, value in QWEN.items() if name != "head_dim"}
    text |= {"rope_parameters": rotation}
    vision = QWEN_VISION | {"window_size": 28}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS)
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def qwen3_5() -> Any:
    text = QWEN | {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
    text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 6}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=QWEN_VISION, **QWEN_TOKENS)
    return transformers.Qwen3_5ForConditionalGeneration(config)


@pytest.mark.parametrize("make", [gemma3, llama4, qwen3_vl, qwen2_5_vl, qwen3_5])
def test_it_computes_what_the_whole_model_does_of_text(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = make().eval()
    for name, parameter in theirs.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    theirs.save_pretrained(tmp_path)
    ours = imported(tmp_path).eval()
    folder = folders.read_folder(tmp_path)
    assert folders.weight_faults(folder, folder.section) == []
    tokens = torch.randint(97, (2, LONGEST))
    with torch.no_grad():
        # Llama 4's whole model of transformers 5.24 asks its text part for images that it has not.
        whole = theirs.language_model if make is llama4 else theirs
        expected = whole(input_ids=tokens).logits
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(tokens), expected, rtol=0, atol=1e-5)


def test_a_model_without_a_known_text_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"model_type": "bert"}}')
    with pytest.raises(FolderError, match="model_type='bert' is no family of forge"):
        folders.read_folder(tmp_path)
