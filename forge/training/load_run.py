"""The trained model of a run, for verbs that only read it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from forge.config.build import build
from forge.config.root import Config
from forge.data.tokenizer import Tokenizer
from forge.launch import saved
from forge.training import restore
from forge.training.device import Autocast, set_up

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Trained:
    """A model with its weights on its device, the tokenizer and the checkpoint they are from."""

    config: Config
    model: nn.Module
    tokenizer: Tokenizer
    autocast: Autocast
    path: Path
    step: int


def load_run(run: Path, *, trust: Sequence[str] = ()) -> Trained:
    """Load the newest usable checkpoint of a run directory, or the step_N directory that is given.

    A run that was trained on a GPU is read in fp32 where there is none. trust: prefixes of modules outside of forge that the
    model may be built from. Raises ValueError when there is no checkpoint, it does not fit, or it needs code that is not trusted.
    """
    found, skipped = saved.find(run)
    for one, fault in skipped:
        log.warning("%s is passed over: %s", one.path, fault)
    config = _for_this_machine(restore.config_of(found.path, trust=trust))
    device = set_up(config)
    model = build(config.model, path="model", trust=trust)
    restore.load(found.path, model=model)
    return Trained(
        config=config,
        model=model.to(device).eval(),
        tokenizer=_tokenizer(found.path / saved.TOKENIZER),
        autocast=Autocast(config, device),
        path=found.path,
        step=found.meta["step"],
    )


def _tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.load(path)
    except Exception as error:  # the tokenizers library raises a bare Exception
        reason = next(iter(str(error).splitlines()), "no details")
        raise saved.CheckpointError(f"{path} cannot be read ({type(error).__name__}: {reason}); take another checkpoint") from error


def _for_this_machine(config: Config) -> Config:
    if config.run.device != "cuda" or torch.cuda.is_available():
        return config
    return replace(config, run=replace(config.run, device="cpu"), precision=replace(config.precision, mixed_precision="fp32"))
