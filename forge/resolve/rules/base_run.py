"""The rule on a base run: a run of forge, with whose weights another run begins."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forge.config.changes import changes, permitted
from forge.config.checkpoint import Checkpoint
from forge.config.field import Section
from forge.config.model.layer import Model
from forge.config.model.tensors import misfits, with_new_rows
from forge.config.problems import listed, literal
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer_files import FILE_NAME, tokenizer_overrides
from forge.resolve.rules.hugging_face import INIT_FROM, READS
from forge.resolve.rules.run_directory import has_saved_since
from forge.rundir import checkpoints, saved_config

Shapes = dict[str, tuple[int, ...]]


@rule("checkpoint.base", *READS, "tokenizer", "data", "run.allow_change")
def base(config: Config, checkpoint: Checkpoint) -> Findings:
    """The weights of a run in checkpoint.init_from fit the model, and go with no other tokenizer
    than its own.
    """
    start = checkpoint.init_from
    if start is None or has_saved_since(config, "init_from"):
        return
    try:
        path = checkpoints.find_checkpoint(Path(start))[0].path
        base_config = saved_config.load_config(path / saved_config.CONFIG, trust=config.run.trust)
    except Exception:  # the base may not exist yet: the run reports a fault when it begins
        return
    if _is_other_tokenizer(base_config, config):  # the size of the vocabulary follows from it
        tokenizer = base_config.tokenizer
        override = tokenizer_overrides(
            path / checkpoints.TOKENIZER / FILE_NAME, tokenizer.add_bos, tokenizer.add_eos
        )
        message = f"{path}: {checkpoints.OTHER_TOKENIZER}."
        yield "tokenizer", message, f"its own, {override}; run.allow_change=[tokenizer]"
    elif base_config.model.has_blocks and config.model.has_blocks:
        excluded = tuple(checkpoint.exclude_from_loading)
        ours = _shapes(config.model, excluded)
        base_shapes = with_new_rows(config.model.tensors(), _shapes(base_config.model, excluded))
        if faults := misfits(ours, base_shapes):
            back = " ".join(_back(base_config, config, ours, excluded))
            message = f"{path} does not fit this model: {listed(list(faults.values()))}."
            hint = f"{back or 'the model it was trained with'}, or checkpoint.exclude_from_loading"
            yield INIT_FROM, message, hint


def _is_other_tokenizer(before: Config, config: Config) -> bool:
    """Whether this run makes a tokenizer with other options, or from other text, than the base."""
    ours, allowed = config.tokenizer, config.run.allow_change
    if not isinstance(ours, BPE | Bytes) or permitted("tokenizer", allowed):
        return False
    other_text = isinstance(ours, BPE) and before.data.variant != config.data.variant
    return other_text or any(
        permitted(change.key, ["tokenizer"]) for change in changes(before, config)
    )


def _shapes(model: Model, excluded: tuple[str, ...]) -> Shapes:
    shapes = {tensor.name: tensor.shape for tensor in model.tensors()}
    return {name: shape for name, shape in shapes.items() if not name.startswith(excluded)}


def _back(before: Config, config: Config, ours: Shapes, excluded: tuple[str, ...]) -> Iterator[str]:
    """Overrides that restore the model options with an effect on shapes to their former values.

    None where a part of the model is another variant: options alone cannot restore a variant.
    """
    keys = [change.key for change in changes(before, config) if permitted(change.key, ["model"])]
    values = {key: functools.reduce(getattr, key.split("."), before) for key in keys}
    if any(isinstance(value, Section) for value in values.values()):
        return
    for key, value in values.items():
        _, *parents, name = key.split(".")
        model: Any = config.model.clone()
        model.thaw()
        setattr(functools.reduce(getattr, parents, model), name, value)
        try:
            fits = _shapes(model, excluded) == ours
        except (ValueError, ArithmeticError, LookupError):  # the value needs another option too
            fits = False
        if not fits:
            yield f"{key}={literal(value)}"
