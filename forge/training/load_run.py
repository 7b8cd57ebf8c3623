"""The trained model of a run, for verbs that only read it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from forge.config import serialize
from forge.config.build import build
from forge.config.root import Config
from forge.data.tokenizer import Tokenizer
from forge.models.decoder import Decoder
from forge.training import checkpoint
from forge.training.device import Autocast, set_up


@dataclass(kw_only=True)
class Trained:
    """A model with its weights on its device, the tokenizer and the checkpoint they are from."""

    config: Config
    model: Decoder
    tokenizer: Tokenizer
    autocast: Autocast
    path: Path
    step: int


def load_run(run: Path) -> Trained:
    """Load the newest checkpoint of a run directory, or the step_N directory that is given.

    A run that was trained on a GPU is read in fp32 where there is none. Raises ValueError when there is no checkpoint, or it
    does not fit.
    """
    path = checkpoint.find(run)
    meta = checkpoint.read_meta(path)
    config = _for_this_machine(serialize.load(path / checkpoint.CONFIG))
    device = set_up(config)
    model = build(config.model, path="model", trust=config.run.trust)
    checkpoint.load(path, model=model)
    tokenizer = Tokenizer.load(path / checkpoint.TOKENIZER)
    return Trained(
        config=config, model=model.to(device).eval(), tokenizer=tokenizer, autocast=Autocast(config, device), path=path, step=meta["step"]
    )


def _for_this_machine(config: Config) -> Config:
    if config.run.device != "cuda" or torch.cuda.is_available():
        return config
    return replace(config, run=replace(config.run, device="cpu"), precision=replace(config.precision, mixed_precision="fp32"))
