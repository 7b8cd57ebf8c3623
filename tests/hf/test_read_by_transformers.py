"""What transformers ignores or reads otherwise in a folder is refused, in and out."""

from __future__ import annotations

import inspect

import pytest
import torch

from forge.config.model.decoder import Decoder
from forge.families.folder import all_families

transformers = pytest.importorskip("transformers")


def test_families_that_turn_parts_of_heads_are_those_whose_class_does():
    for family in all_families():
        module = inspect.getmodule(getattr(transformers, family.architecture))
        obeys = "partial_rotary_factor" in inspect.getsource(module)  # type: ignore[arg-type]
        if family.model_type in ("gemma4_text", "gemma4_unified_text"):
            # By its kind of frequencies, `proportional`.
            assert "ROPE_INIT_FUNCTIONS" in inspect.getsource(module)  # type: ignore[arg-type]
            obeys = True
        if family.model_type == "glm4_moe_lite":
            # Its table is cut, the part of a head that it turns is not: forward fails.
            assert obeys
            assert not family.partial_rotary
            continue
        assert family.partial_rotary == obeys, family.model_type


def test_every_other_family_says_that_it_cannot_turn_parts_of_heads():
    section = Decoder(dim=32, n_layers=2, n_heads=2, partial_rotary_factor=0.5)
    for family in all_families():
        if not family.partial_rotary and family.model_type != "gpt2":
            assert family.unsaid(section), family.model_type
            assert family.unread(section)[0].startswith("model.partial_rotary_factor=0.5 (")


def options(**more):
    pairs = {"rope_short_factor": [1.0, 1.1, 1.2, 1.3], "rope_long_factor": [2.0, 3.0, 4.0, 5.0]}
    return {"dim": 32, "n_layers": 1, "n_heads": 4, "rope_type": "longrope", **pairs, **more}


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_positions_that_depend_on_the_length_of_a_text_are_refused(kind):
    """Up to the original length transformers and forge turn alike, beyond it they do not."""
    lengths = {"original_max_position_embeddings": 64, "rope_factor": 2.0, "rope_type": kind}
    (llama,) = (family for family in all_families() if family.model_type == "llama")
    within, beyond = (Decoder(**options(**lengths, max_seq_len=n)) for n in (64, 128))
    assert llama.unread(within) == []
    (said,) = llama.unread(beyond)
    assert said.startswith(f"model.rope_type={kind} with model.max_seq_len above 64 (")
    even = Decoder(
        **options(**lengths, max_seq_len=128) | {"rope_long_factor": [1.0, 1.1, 1.2, 1.3]}
    )
    assert bool(llama.unread(even)) == (kind == "dynamic")


def test_a_head_beside_a_tied_embedding_is_read_only_where_it_is_the_same(tmp_path):
    from safetensors.torch import load_file, save_file

    from forge.families import folder as folders

    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        tie_word_embeddings=True,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for head, faults in ((tensors["model.embed_tokens.weight"], 0), (torch.randn(64, 32), 1)):
        save_file(tensors | {"lm_head.weight": head.clone()}, file, {"format": "pt"})
        folder = folders.read_folder(tmp_path)
        said = folders.weight_faults(folder, folder.section)
        assert len(said) == faults, said
    assert "lm_head.weight is another than the embedding" in said[0]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert not torch.equal(theirs.lm_head.weight, theirs.model.embed_tokens.weight)
