"""Gemma 4 and GLM-5 as they are published: keys, prefixes and modules that transformers does not
write.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import imported
from safetensors.torch import load_file, save_file
from tiny_families import CASES, VOCAB, peer

import forge
from forge.families import folder as folders
from forge.families.each.glm.glm_moe_dsa import indexer_types
from forge.families.keys import Keys
from forge.families.shards import FolderError


def saved(case: str, place: Path, **changed: Any) -> tuple[Any, dict[str, Any]]:
    """A model of transformers, saved, and its config.json with changed keys."""
    model = peer(case)
    model.save_pretrained(place)
    config = json.loads((place / "config.json").read_text()) | changed
    (place / "config.json").write_text(json.dumps(config))
    return model, config


@pytest.mark.parametrize("case", ["gemma 4, small", "gemma 4, unified"])
def test_a_whole_gemma_4_is_read_as_its_text(case: str, tmp_path: Path) -> None:
    """Its language model has a prefix, readers of old keys keep theirs, layers without keys of
    their own have some in the files.
    """
    model, text = saved(case, tmp_path)
    heads = text.pop("per_layer_config")["2"]["head_dim"]
    of_full = 1 if text["attention_k_eq_v"] else None
    text |= {"global_head_dim": heads, "num_global_key_value_heads": of_full}
    # A published 12B states also what its class has no layers for.
    text |= {"enable_moe_block": False, "num_experts": None, "vocab_size_per_layer_input": VOCAB}
    kind = text["model_type"].removesuffix("_text")
    whole = {"model_type": kind, "text_config": text, "vision_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    (file,) = tmp_path.glob("*.safetensors")
    tensors = load_file(file)
    read = {f"model.language_model.{n.removeprefix('model.')}": x for n, x in tensors.items()}
    beside = {"model.vision_tower.x": torch.ones(3)}
    if case == "gemma 4, small":
        beside["model.language_model.layers.5.self_attn.k_proj.weight"] = torch.ones(32, 32)
    save_file(read | beside, file, metadata={"format": "pt"})
    folder = folders.read_folder(tmp_path)
    assert folders.weight_faults(folder, folder.section) == []
    tokens = torch.randint(VOCAB, (2, 30), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected, found = model(tokens).logits, imported(tmp_path).eval()(tokens)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


MODULE = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight")


def test_a_module_behind_shared_indexers_has_one_of_its_own(tmp_path: Path) -> None:
    """GLM-5.2's, by transformers' layer: the last layers share an indexer, the module does not."""
    types, before = ["full", "full", "shared", "shared", "full"], 4
    config = CASES["glm 5.2"]()
    config.num_hidden_layers, config.indexer_types = len(types), types
    config.mlp_layer_types, config.layer_types = ["dense", *["sparse"] * 4], config.layer_types[:5]
    theirs = peer("glm 5.2", config)
    theirs.save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    tensors, drawn = load_file(file), torch.Generator().manual_seed(5)
    width = config.hidden_size
    shapes = {name: (width, 2 * width) if "proj" in name else (width,) for name in MODULE}
    module = {n: 0.15 * torch.randn(shape, generator=drawn) for n, shape in shapes.items()}
    module = {n: x if "proj" in n else 1 + x for n, x in module.items()}
    save_file(tensors | {f"model.layers.{before}.{n}": x for n, x in module.items()}, file)
    content = json.loads((tmp_path / "config.json").read_text())
    content |= {"num_hidden_layers": before, "num_nextn_predict_layers": 1, "head_dim": 192}
    content |= {"indexer_types": types[:before], "index_share_for_mtp_iteration": True}
    content |= {"layer_types": ["deepseek_sparse_attention"] * before}
    content["mlp_layer_types"] = content["mlp_layer_types"][:before]
    (tmp_path / "config.json").write_text(json.dumps(content))
    ours = imported(tmp_path).eval()
    last, rotary = theirs.model.layers[before], theirs.model.rotary_emb
    config.num_hidden_layers = before
    tokens = torch.randint(VOCAB, (2, 20), generator=torch.Generator().manual_seed(1))
    places = torch.arange(19)[None]
    unseen = torch.full((19, 19), -torch.inf).triu(1)[None, None].expand(2, -1, -1, -1)
    with torch.no_grad():
        states = theirs.model(tokens).last_hidden_state
        embedded, given = theirs.get_input_embeddings()(tokens[:, 1:]), states[:, :-1]
        both = normed(embedded, module["enorm.weight"]), normed(given, module["hnorm.weight"])
        x = torch.cat(both, -1) @ module["eh_proj.weight"].T
        at = {"position_embeddings": rotary(x, places), "position_ids": places}
        expected = normed(
            last(x, attention_mask=unseen, **at)[0], module["shared_head.norm.weight"]
        )
        first, further = (state.detach() for state in ours.hidden_ahead(tokens))
    torch.testing.assert_close(first, states, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(further[:, :-1], expected, rtol=1e-4, atol=2e-5)


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def test_glm_5_2_is_as_large_as_its_published_files() -> None:
    """All elements in the files, less scales and the biases of choice, with the module."""
    options = ["model=glm5_2_744b", "model.mtp_num_layers=1"]
    model: Any = forge.compose(options).model
    assert model.num_params_estimate == 753_329_921_024


def test_letters_and_frequencies_say_the_same_layers() -> None:
    usual = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    read = [
        indexer_types(Keys(content, {}), 11)
        for content in (usual, {"index_topk_pattern": "FFFSSSFSSSF"} | usual)
    ]
    assert read[0] == read[1]
    assert [n for n, indexer in enumerate(read[0]) if indexer == "full"] == [0, 1, 2, 6, 10]


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
    "a first layer that shares an indexer": (
        "glm 5.2",
        {"indexer_types": ["shared", "full", "full", "shared", "full", "shared"]},
        "indexer_types: the first layer shares an indexer, and none is before",
    ),
    "an indexer of another type": (
        "glm 5.2",
        {"indexer_types": ["full", "half", "full", "shared", "full", "shared"]},
        "indexer_types has 'half'",
    ),
    "fewer indexers than layers": (
        "glm 5.2",
        {"indexer_types": ["full", "shared"]},
        "indexer_types has 2 entries for 6 layers",
    ),
    "inputs that the class does not read": (
        "gemma 4, unified",
        {"hidden_size_per_layer_input": 8},
        "hidden_size_per_layer_input=8: the class has no such layers",
    ),
    "experts that the class does not have": (
        "gemma 4, unified",
        {"enable_moe_block": True},
        "enable_moe_block=True: the class has no such layers",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_piece_computes_is_refused(name: str, tmp_path: Path) -> None:
    case, changed, message = WRONG[name]
    saved(case, tmp_path, **changed)
    with pytest.raises(FolderError) as caught:
        folders.read_folder(tmp_path)
    assert message in str(caught.value)
