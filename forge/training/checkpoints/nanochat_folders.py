"""Forge checkpoints from checkpoints of nanochat, and back."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from forge.config.model.decoder import Decoder
from forge.config.root import Config
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.families import nanochat
from forge.hf.nanochat import from_nanochat, read_weights, to_nanochat
from forge.rundir.checkpoints import Saved
from forge.training.checkpoints.checkpoint import Checkpointer
from forge.training.checkpoints.hf_folders import IMPORTED, PREFIX, export_dtype
from forge.training.checkpoints.merging import Merged


def import_checkpoint(
    source: nanochat.Checkpoint,
    config: Config,
    tokenizer: Tokenizer,
    checkpoints: Path,
    run_id: str,
) -> Path:
    """Convert nanochat's weights to the checkpoint step_0; returns the path.

    Raises FolderError for misfitting weights, and OSError if writing fails.
    """
    section = config.decoder
    assert section is not None
    ours = from_nanochat(read_weights(source.weights), section, source.weights)
    checkpointer = Checkpointer(checkpoints, config, tokenizer, run_id)
    meta = {"reason": IMPORTED, "metrics": {}, "best_by": config.eval.metric}
    meta |= {"higher_is_better": False, "train": {}, "from": str(source.weights)}
    meta["data"] = {"train": None, "tokenizer": tokenizer.fingerprint}
    like = {name: torch.empty_like(values, device="meta") for name, values in ours.items()}
    prefixed = {f"{PREFIX}{name}": values for name, values in ours.items()}
    try:
        checkpointer.save_weights(0, like, prefixed, meta)
    finally:
        checkpointer.close()
    return checkpoints / "step_0"


def export_checkpoint(
    path: Path, config: Config, preset: Decoder, out: Path, *, dtype: str | None
) -> str:
    """Write the weights of a checkpoint as nanochat does; returns a summary in words.

    preset: `model=nanochat` of the same sizes. out: a new folder. Raises ValueError for another
    model.
    """
    section = config.decoder
    assert section is not None
    if found := nanochat.differences(section, preset):
        said = ", ".join(map(str, found))
        raise ValueError(f"--format nanochat: nanochat has no {said}; --format safetensors")
    step, number = Saved(path).step, export_dtype(config, path, dtype)
    weights = Merged(path, config)
    state = to_nanochat(weights.__getitem__, section, number)
    out.mkdir(parents=True)
    torch.save(state, out / f"model_{step:06d}.pt")
    meta = {"step": step, "model_config": nanochat.model_config(section), "user_config": {}}
    text = json.dumps(meta, indent=2) + "\n"
    (out / f"meta_{step:06d}.json").write_text(text, encoding="utf-8")
    word = str(number).removeprefix("torch.")
    return f"{len(state)} tensors of step {step} in {word}, as nanochat names them"
