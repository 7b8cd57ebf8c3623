"""The trained model of a run, for verbs that only read it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from forge.build import build
from forge.config.root import Config
from forge.data.tokenizer import Tokenizer
from forge.models.decoder import Decoder
from forge.parallel.materialize import allocate, check_buffers
from forge.parallel.modules import FORMATS, HALF
from forge.rundir import checkpoints
from forge.training import restore
from forge.training.device import set_up

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Trained:
    """A model with its weights on its device, the tokenizer and the checkpoint they are from."""

    config: Config
    model: nn.Module
    tokenizer: Tokenizer
    device: torch.device
    path: Path
    step: int


def load_run(run: Path, *, trust: Sequence[str] = (), fp32: bool = False) -> Trained:
    """Load the newest usable checkpoint of a run directory, or the step_N directory that is given.

    Its weights are in the format that they were multiplied in, or in the fp32 that is stored. A run
    that was trained on a GPU is read in fp32 where there is none. trust: prefixes of modules
    outside of forge that the model may be built from. Raises ValueError when there is no
    checkpoint, it does not fit, or it needs code that is not trusted.
    """
    found, skipped = checkpoints.find(run)
    for one, fault in skipped:
        log.warning("%s is passed over: %s", one.path, fault)
    config = _for_this_machine(restore.config_of(found.path, trust=trust))
    device = set_up(config)
    with torch.device("meta"):
        model = build(config.model, path="model", trust=trust)
    allocate(model, device)
    model.reset_buffers()
    restore.load(found.path, model=model)
    check_buffers(model)
    if not fp32:
        _in_half(model, config)
    return Trained(
        config=config,
        model=model.eval(),
        tokenizer=_tokenizer(found.path / checkpoints.TOKENIZER),
        device=device,
        path=found.path,
        step=found.meta["step"],
    )


def _in_half(model: nn.Module, config: Config) -> None:
    """Weights in the 16 bits that they were multiplied in, where they were."""
    dtype = HALF.get(config.precision.mixed_precision)
    if dtype is not None:
        for parameter in model.parameters():
            parameter.data = parameter.to(dtype)
        if isinstance(model, Decoder):
            model.residual_dtype = FORMATS[config.precision.residual_dtype]


def _tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.load(path)
    except Exception as error:  # the tokenizers library raises a bare Exception
        reason = next(iter(str(error).splitlines()), "no details")
        raise checkpoints.CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {reason}); take another checkpoint"
        ) from error


def _for_this_machine(config: Config) -> Config:
    if config.run.device != "cuda" or torch.cuda.is_available():
        return config
    return replace(
        config,
        run=replace(config.run, device="cpu"),
        precision=replace(config.precision, mixed_precision="fp32", residual_dtype="fp32"),
    )
