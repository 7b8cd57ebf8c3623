"""The rule on a run of forge whose weights another one begins with."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forge.config.changes import changes, permitted
from forge.config.checkpoint import Checkpoint
from forge.config.field import Section
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import misfits, with_new_rows
from forge.config.problems import listed, literal
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer_files import FILE_NAME, typed
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
        path = checkpoints.find(Path(start))[0].path
        before = saved_config.load(path / saved_config.CONFIG, trust=config.run.trust)
    except Exception:  # the run says what is wrong when it begins: it may not be there yet
        return
    if _is_other_tokenizer(before, config):  # of which the size of the vocabulary follows
        its = before.tokenizer
        own = typed(path / checkpoints.TOKENIZER / FILE_NAME, its.add_bos, its.add_eos)
        what = f"{path}: {checkpoints.OTHER_TOKENIZER}."
        yield "tokenizer", what, f"its own, {own}; run.allow_change=[tokenizer]"
    elif isinstance(before.model, Decoder) and isinstance(config.model, Decoder):
        excluded = tuple(checkpoint.exclude_from_loading)
        ours = _shapes(config.model, excluded)
        theirs = with_new_rows(config.model.tensors(), _shapes(before.model, excluded))
        if faults := misfits(ours, theirs):
            back = " ".join(_back(before, config, ours, excluded))
            what = f"{path} does not fit this model: {listed(list(faults.values()))}."
            fix = f"{back or 'the model it was trained with'}, or checkpoint.exclude_from_loading"
            yield INIT_FROM, what, fix


def _is_other_tokenizer(before: Config, config: Config) -> bool:
    """Whether a tokenizer is made here that is none of theirs, or is of other text."""
    ours, allowed = config.tokenizer, config.run.allow_change
    if not isinstance(ours, BPE | Bytes) or permitted("tokenizer", allowed):
        return False
    other_text = isinstance(ours, BPE) and before.data.variant != config.data.variant
    return other_text or any(permitted(one.key, ["tokenizer"]) for one in changes(before, config))


def _shapes(model: Decoder, excluded: tuple[str, ...]) -> Shapes:
    found = {one.name: one.shape for one in model.tensors()}
    return {name: shape for name, shape in found.items() if not name.startswith(excluded)}


def _back(before: Config, config: Config, ours: Shapes, excluded: tuple[str, ...]) -> Iterator[str]:
    """The options of the model that make other tensors, as they were; none where a part of it is
    another variant, which is more than options.
    """
    found = [one.key for one in changes(before, config) if permitted(one.key, ["model"])]
    values = {key: functools.reduce(getattr, key.split("."), before) for key in found}
    if any(isinstance(value, Section) for value in values.values()):
        return
    for key, value in values.items():
        _, *parents, name = key.split(".")
        model: Any = config.model.clone()
        model.thaw()
        setattr(functools.reduce(getattr, parents, model), name, value)
        try:
            same = _shapes(model, excluded) == ours
        except (ValueError, ArithmeticError, LookupError):  # it only goes with another one
            same = False
        if not same:
            yield f"{key}={literal(value)}"
