"""Runs of a few steps beside a folder of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import forge
from forge import train

TEXT = "The sea is calm. " * 60
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128}
TOKENS = torch.arange(24).view(2, 12)


def trained(folder: Path, run: Path, *options: str) -> None:
    """Some steps large enough that adapters do something."""
    words = [f"model.path={folder}", f"run.dir={run}", "train.max_steps=3"]
    words += ["model=hf", "data=text", f"data.path={run.with_suffix('.txt')}", "run.device=cpu"]
    words += ["train.seq_len=16", "train.batch_size=2", "train.global_batch_size=2"]
    words += ["optimizer=adamw", "optimizer.lr=0.03", "precision=fp32"]
    words += ["eval.enabled=false", "data.val_fraction=0"]
    run.with_suffix(".txt").write_text(TEXT)
    assert train.main([*words, *options]) == 0


def logits(run: Path) -> torch.Tensor:
    return forge.load(run).model(TOKENS).detach()
