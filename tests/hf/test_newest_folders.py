"""Gemma 4 and GLM-5 as they are published: keys and prefixes that transformers does not write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import imported
from safetensors.torch import load_file, save_file
from tiny_families import VOCAB, peer

from forge.families import folder as folders
from forge.families.shards import FolderError


def saved(case: str, place: Path, **changed: Any) -> tuple[Any, dict[str, Any]]:
    """A model of transformers, saved, and its config.json with changed keys."""
    model = peer(case)
    model.save_pretrained(place)
    config = json.loads((place / "config.json").read_text()) | changed
    (place / "config.json").write_text(json.dumps(config))
    return model, config


def test_a_whole_gemma_4_is_read_as_its_text(tmp_path: Path) -> None:
    """Its language model has a prefix, readers of old keys keep theirs, layers without keys of
    their own have some in the files.
    """
    model, text = saved("gemma 4, small", tmp_path)
    heads = text.pop("per_layer_config")["2"]["head_dim"]
    text |= {"global_head_dim": heads, "num_global_key_value_heads": None}
    whole = {"model_type": "gemma4", "text_config": text, "vision_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    (file,) = tmp_path.glob("*.safetensors")
    tensors = load_file(file)
    read = {f"model.language_model.{n.removeprefix('model.')}": x for n, x in tensors.items()}
    beside = {"model.vision_tower.x": torch.ones(3)}
    beside["model.language_model.layers.5.self_attn.k_proj.weight"] = torch.ones(32, 32)
    save_file(read | beside, file, metadata={"format": "pt"})
    folder = folders.read_folder(tmp_path)
    assert folders.weight_faults(folder, folder.section) == []
    tokens = torch.randint(VOCAB, (2, 30), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected, found = model(tokens).logits, imported(tmp_path).eval()(tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a table of other rows": (
        "gemma 4, small",
        {"vocab_size_per_layer_input": 100},
        "vocab_size_per_layer_input=100: forge has 260 rows there",
    ),
    "keys of no layer": (
        "gemma 4, small",
        {"num_kv_shared_layers": 5},
        "num_kv_shared_layers=5: no earlier layer has their keys",
    ),
    "heads of a layer alone": (
        "gemma 4",
        {"per_layer_config": {"2": {"head_dim": 16}, "5": {"head_dim": 8}}},
        "per_layer_config: it says more than equal heads of full layers",
    ),
    "layers that share an indexer": (
        "glm 5",
        {"indexer_types": ["full", "shared", "full", "shared"]},
        "indexer_types: in forge each layer has an indexer of its own",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_piece_computes_is_refused(name: str, tmp_path: Path) -> None:
    case, changed, message = WRONG[name]
    saved(case, tmp_path, **changed)
    with pytest.raises(FolderError) as caught:
        folders.read_folder(tmp_path)
    assert message in str(caught.value)
