"""Checkpoints of forge made of Hugging Face folders, and folders made of checkpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forge.config.adapters.adapter import is_added
from forge.config.model.decoder import Decoder
from forge.config.problems import listed
from forge.config.root import Config
from forge.config.tokenizers.chat_template import BadTemplate
from forge.config.tokenizers.tokenizer_stated import GENERATION, GENERATION_NAME, TEMPLATE
from forge.data.tokenizers.render import stated_ends, turn_end_ids
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.families import folder as folders
from forge.families.family import Family
from forge.families.shards import FolderError
from forge.hf.card import card
from forge.hf.read import DTYPES, read_whole
from forge.hf.write import write_weights
from forge.models.plain import make_model
from forge.rundir.checkpoints import TOKENIZER, WEIGHTS, Saved
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.checkpoint import Checkpointer
from forge.training.checkpoints.merging import Merged

log = logging.getLogger(__name__)
PREFIX = "model/"
IMPORTED = "imported"
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def import_folder(
    place: Path, config: Config, tokenizer: Tokenizer, checkpoints: Path, run_id: str
) -> Path:
    """Make the checkpoint step_0 of a folder's weights, in their own format; returns its path.

    A few tensors at a time are in memory. Raises FolderError, and OSError where it cannot be
    written.
    """
    section = config.decoder
    assert section is not None
    folder = folders.read(place)
    if found := folders.faults(folder, section):
        raise FolderError(f"{place} does not fit this model: {listed(found)}", FIX)
    rows, files = folders.places(folder, section)
    with torch.device("meta"):
        own = make_model(section).state_dict()
    by_name = {row.ours.name: row for row in rows}
    kinds = {name: DTYPES[files[row.names[0]].dtype] for name, row in by_name.items()}
    like = {
        name: torch.empty_like(values, dtype=kinds.get(name, values.dtype))
        for name, values in own.items()
    }

    def value(key: str) -> Tensor:
        name = key.removeprefix(PREFIX)
        if name not in by_name:  # a buffer that the family has not
            return torch.zeros(like[name].shape, dtype=like[name].dtype)
        return read_whole(by_name[name], files)

    checkpointer = Checkpointer(checkpoints, config, tokenizer, run_id)
    meta = {"reason": IMPORTED, "metrics": {}, "best_by": config.eval.metric}
    meta |= {"higher_is_better": False, "train": {}, "from": str(place)}
    meta["data"] = {"train": None, "tokenizer": tokenizer.fingerprint}
    try:
        checkpointer.save_weights(0, like, _Values(value), meta)
    finally:
        checkpointer.close()
    return checkpoints / "step_0"


FIX = "leave out what changes the model's shape"


class _Values(Mapping[str, Tensor]):
    """Tensors that are read when they are asked for."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def __getitem__(self, key: str) -> Tensor:
        return self._read(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def choose_family(section: Decoder, name: str | None) -> Family:
    """The first family that can say a section, or the one of that name if it can. Raises ValueError
    that names the options which it cannot say.
    """
    known = folders.all_families()
    if name is not None and name not in [one.model_type for one in known]:
        names = ", ".join(one.model_type for one in known)
        raise ValueError(f"--family {name}: there is no such family, but {names}")
    tried = {one: one.unsaid(section) for one in known if name in (None, one.model_type)}
    for one, unsaid in tried.items():
        if not unsaid:
            return one
    nearest = min(tried, key=lambda one: (not one.is_near(section), len(tried[one])))
    what = "no family of Hugging Face" if name is None else "this family"
    unsaid = listed(tried[nearest])
    near = f"{nearest.model_type}, which cannot say {unsaid}"
    if name is None:
        raise ValueError(f"{what} can say this model; the nearest is {near}")
    raise ValueError(f"--family {near}")


def export_folder(
    path: Path,
    config: Config,
    out: Path,
    *,
    family: str | None,
    dtype: str | None,
    shard_bytes: int,
) -> str:
    """Write the weights of a checkpoint, of whatever layout, as a folder that transformers reads;
    returns what was written, in words.

    out: a new folder. Raises ValueError for a model that no family can say.
    """
    section = config.decoder
    if section is None:
        what = f"model._target_={config.model._target_} is no decoder of forge"
        raise ValueError(f"{what}, and only these have families; --format safetensors")
    chosen = choose_family(section, family)
    weights = Merged(path, config)
    rows = chosen.rows(section)
    known = {row.ours.name for row in rows}
    for name in weights.stored:
        if name not in known and not is_added(name):
            _check_buffer(name, weights[name], chosen)
    number = export_dtype(config, path, dtype)
    out.mkdir(parents=True)
    read = weights.__getitem__
    files = write_weights(out, rows, read, dtype=number, shard_bytes=shard_bytes)
    tokenizer = Tokenizer.load(path / TOKENIZER)
    generation = generation_of(tokenizer, begun=config.checkpoint.init_from is not None)
    tokenizer.stated.pop(GENERATION, None)
    tokenizer.save(out)
    _write(out / folders.CONFIG, config_of(chosen, section, tokenizer, number))
    _write(out / GENERATION_NAME, generation)
    word = str(number).removeprefix("torch.")
    (out / "README.md").write_text(card(Saved(path), config, chosen, word), encoding="utf-8")
    count = f"{len(files)} file" + "s" * (len(files) > 1)
    return f"{chosen.architecture} of step {Saved(path).step} in {word}, {count}"


def export_dtype(config: Config, path: Path, wanted: str | None) -> torch.dtype:
    """The format of the exported weights of a checkpoint; None = checkpoint.export_dtype, of which
    auto is that of training: what multiplied, or what they are stored in where that is no fp32.
    """
    wanted = wanted or config.checkpoint.export_dtype
    if wanted != "auto":
        return getattr(torch, wanted)
    stored = tensor_storage.stored(path / WEIGHTS).items()
    kinds = {what.properties.dtype for name, what in stored if name.startswith(PREFIX)}
    half = [dtype for dtype in HALF.values() if dtype in kinds]
    return half[0] if half else HALF.get(config.precision.mixed_precision, torch.float32)


def config_of(
    family: Family, section: Decoder, tokenizer: Tokenizer, dtype: torch.dtype
) -> dict[str, Any]:
    """config.json."""
    content = {"architectures": [family.architecture], "model_type": family.model_type}
    content |= family.content(section) | {"dtype": str(dtype).removeprefix("torch.")}
    return content | token_ids(tokenizer) | {"use_cache": True}


def token_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokens that begin and end a text."""
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}


def generation_of(tokenizer: Tokenizer, *, begun: bool) -> dict[str, Any]:
    """generation_config.json: a text ends with the tokenizer's token, with each that the folder
    named from which the tokenizer is, and with that which ends a turn of the chat template. The
    rest is that folder's, where the run has `begun` with weights.
    """
    stated = dict(tokenizer.stated.get(GENERATION) or {})
    for name in OF_THE_SOURCE:
        stated.pop(name, None)
    pad = stated.pop("pad_token_id", None)
    if pad is None:
        pad = tokenizer.named_id("pad_token")
    ends = list(dict.fromkeys([*stated_ends(tokenizer), tokenizer.eos_id, *_turn_ends(tokenizer)]))
    content = (stated if begun else {}) | token_ids(tokenizer)
    content["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    return content if pad is None else content | {"pad_token_id": pad}


OF_THE_SOURCE = ("_from_model_config", "transformers_version", "bos_token_id", "eos_token_id")


def _turn_ends(tokenizer: Tokenizer) -> list[int]:
    """Of the template that the tokenizer has; none where it writes no question with its answer."""
    if TEMPLATE not in tokenizer.stated:
        return []
    try:
        return sorted(turn_end_ids(tokenizer))
    except BadTemplate as error:
        log.warning("the chat template ends no turn that can be seen: %s", error)
        return []


def _check_buffer(name: str, values: Tensor, family: Family) -> None:
    """A buffer that a family has not must do nothing."""
    if bool(values.any()):
        what = f"{name} is not zero, and {family.model_type} has no such tensor"
        raise ValueError(f"{what}; a family that has it: --family deepseek_v3")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
