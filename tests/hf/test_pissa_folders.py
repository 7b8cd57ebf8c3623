"""A run that took the largest parts out of its base, as transformers and PEFT read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from llama_folder import write_llama
from peft_runs import SIZES, TOKENS, logits, trained

from forge import export

MORE = ("adapter.ranks={wk:3}", "adapter.rank_stabilized=true")


@pytest.mark.nightly
def test_it_is_read_beside_the_base_as_it_was_and_merged(tmp_path: Path) -> None:
    """The folder of PEFT is a plain one of twice the rank, as its own conversion makes it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder, run = write_llama(tmp_path / "llama", **SIZES), tmp_path / "run"
    trained(folder, run, "adapter=lora", "adapter.init=pissa", "adapter.rank=4", *MORE)
    ours, base = logits(run), AutoModelForCausalLM.from_pretrained(folder)
    assert not torch.allclose(base(TOKENS).logits, ours, atol=1e-2)
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert export.main([str(run), str(out), "--format", "peft"]) == 0
    content = json.loads((out / "adapter_config.json").read_text())
    assert content["r"] == 8
    assert "init_lora_weights" not in content
    theirs = PeftModel.from_pretrained(base, str(out)).eval()
    assert torch.allclose(theirs(TOKENS).logits, ours, atol=1e-5)
    assert export.main([str(run), str(whole), "--format", "hf", "--merge"]) == 0
    merged = AutoModelForCausalLM.from_pretrained(whole).eval()
    assert torch.allclose(merged(TOKENS).logits, ours, atol=1e-5)
