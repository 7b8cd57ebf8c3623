"""Vectors that scale features, as transformers and PEFT read them, and merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from llama_folder import write_llama
from peft_runs import SIZES, TOKENS, logits, trained

from forge import export


@pytest.mark.nightly
def test_they_are_read_beside_their_base_and_merged(tmp_path: Path) -> None:
    """Biases of keys and values too, which are scaled."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = write_llama(tmp_path / "llama", **SIZES, attention_bias=True)
    run, out, whole = tmp_path / "run", tmp_path / "out", tmp_path / "whole"
    trained(folder, run, "adapter=ia3", "optimizer.lr=0.2")
    ours, base = logits(run), AutoModelForCausalLM.from_pretrained(folder)
    assert not torch.allclose(base(TOKENS).logits, ours, atol=1e-2)
    assert export.main([str(run), str(out), "--format", "peft"]) == 0
    content = json.loads((out / "adapter_config.json").read_text())
    assert content["target_modules"] == ["down_proj", "k_proj", "v_proj"]
    assert content["feedforward_modules"] == ["down_proj"]
    theirs = PeftModel.from_pretrained(base, str(out)).eval()
    assert torch.allclose(theirs(TOKENS).logits, ours, atol=1e-5)
    assert export.main([str(run), str(whole), "--format", "hf", "--merge"]) == 0
    merged = AutoModelForCausalLM.from_pretrained(whole).eval()
    assert torch.allclose(merged(TOKENS).logits, ours, atol=1e-5)
