"""Rules on a run of forge whose weights another one begins with."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from forge.config.changes import changes, permitted
from forge.config.checkpoint import Checkpoint
from forge.config.hf.folder import is_folder, listed
from forge.config.model import Decoder
from forge.config.problems import literal
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.tokenizer import BPE, Bytes
from forge.config.tokenizer_files import FILE_NAME, typed
from forge.resolve.rules.run_directory import has_saved_since
from forge.rundir import checkpoints, saved_config

INIT_FROM = "checkpoint.init_from"
READS = (INIT_FROM, "checkpoint.dir", "run.dir", "run.allow_change", "tokenizer", "data")


@rule("checkpoint.vocabulary", *READS)
def vocabulary(config: Config) -> Findings:
    """The weights of a run in checkpoint.init_from go with its tokenizer, and with no other."""
    found = _base(config)
    if found is None or not _is_other_tokenizer(found[1], config):
        return
    path, its = found[0], found[1].tokenizer
    what = f"{path} was trained with another tokenizer, so its token ids mean something else here."
    own = typed(path / checkpoints.TOKENIZER / FILE_NAME, its.add_bos, its.add_eos)
    yield "tokenizer", what, f"its own, {own}; run.allow_change=[tokenizer]"


@rule("checkpoint.base", *READS, "checkpoint.exclude_from_loading", "model")
def base(config: Config, model: Decoder, checkpoint: Checkpoint) -> Findings:
    """The weights of a run in checkpoint.init_from fit the model."""
    found = _base(config)
    if found is None or _is_other_tokenizer(found[1], config):
        return  # of which the size of the vocabulary follows
    path, before = found
    if not isinstance(before.model, Decoder):
        return
    prefixes = tuple(checkpoint.exclude_from_loading)
    theirs, ours = _shapes(before.model, prefixes), _shapes(model, prefixes)
    faults = [f"{name} is missing there" for name in ours if name not in theirs]
    faults += [f"{name} is missing here" for name in theirs if name not in ours]
    for name, shape in ours.items():
        if theirs.get(name, shape) != shape:
            faults.append(f"{name} is {theirs[name]} there and {shape} here")
    if faults:
        back = " ".join(_changed(before, config, ours, prefixes)) or "the model it was trained with"
        what = f"{path} does not fit this model: {listed(faults)}."
        yield INIT_FROM, what, f"{back}, or checkpoint.exclude_from_loading"


def _is_other_tokenizer(before: Config, config: Config) -> bool:
    """Whether a tokenizer is made here that is none of theirs, or is of other text."""
    ours, allowed = config.tokenizer, config.run.allow_change
    if not isinstance(ours, BPE | Bytes) or permitted("tokenizer", allowed):
        return False
    other_text = isinstance(ours, BPE) and before.data.variant != config.data.variant
    return other_text or any(permitted(one.key, ["tokenizer"]) for one in changes(before, config))


def _base(config: Config) -> tuple[Path, Config] | None:
    """The checkpoint of a run that this one begins with and its config, where they can be read."""
    start = config.checkpoint.init_from
    if start is None or not Path(start).is_dir() or is_folder(start):
        return None
    if has_saved_since(config, "init_from"):
        return None
    try:
        path = checkpoints.find(Path(start))[0].path
        return path, saved_config.load(path / saved_config.CONFIG, trust=config.run.trust)
    except Exception:  # the run says what is wrong when it begins: it may not be there yet
        return None


def _shapes(model: Decoder, excluded: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    found = {one.name: one.shape for one in model.tensors()}
    return {name: shape for name, shape in found.items() if not name.startswith(excluded)}


def _changed(
    before: Config, config: Config, ours: dict[str, tuple[int, ...]], excluded: tuple[str, ...]
) -> list[str]:
    """The options of the model, as they were, each of which changes a tensor."""
    found = []
    for change in changes(before, config):
        *parents, name = change.key.split(".")
        if parents[:1] != ["model"]:
            continue
        model: Any = config.model.clone()
        model.thaw()
        setattr(functools.reduce(getattr, parents[1:], model), name, change.before)
        try:
            same = _shapes(model, excluded) == ours
        except (ValueError, ArithmeticError, LookupError):  # it only goes with another one
            same = False
        if not same:
            found.append(f"{change.key}={literal(change.before)}")
    return found
