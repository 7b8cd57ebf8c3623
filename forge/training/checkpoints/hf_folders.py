"""Forge checkpoints from Hugging Face folders, and Hugging Face folders from checkpoints."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forge.config.adapters.adapter import is_added
from forge.config.eval import TRAINED
from forge.config.model.decoder import Decoder
from forge.config.numbers import counted
from forge.config.problems import listed
from forge.config.root import Config
from forge.config.tokenizers.chat_template import BadTemplate
from forge.config.tokenizers.tokenizer_stated import GENERATION, GENERATION_NAME, TEMPLATE
from forge.data.tokenizers.render import stated_ends, turn_end_ids
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.families import folder as folders
from forge.families.family import Family
from forge.families.keys import QUANTIZATION
from forge.families.shards import FolderError
from forge.hf.card import card
from forge.hf.quantized import quantization_config, write_quantized
from forge.hf.read import DTYPES, read_tensor
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
    source: Path, config: Config, tokenizer: Tokenizer, checkpoints: Path, run_id: str
) -> Path:
    """Convert a folder's weights to the checkpoint step_0, in the stored format; returns the path.

    Only a few tensors at a time are in memory. Raises FolderError, and OSError if writing fails.
    """
    section = config.decoder
    assert section is not None
    folder = folders.read_folder(source)
    if faults := folders.weight_faults(folder, section):
        raise FolderError(f"{source} does not fit this model: {listed(faults)}", FIX)
    rows, files = folders.stored_rows(folder, section)
    with torch.device("meta"):
        state = make_model(section).state_dict()
    by_name = {row.ours.name: row for row in rows}
    kinds = {name: DTYPES[files[row.names[0]].dtype] for name, row in by_name.items()}
    like = {
        name: torch.empty_like(values, dtype=kinds.get(name, values.dtype))
        for name, values in state.items()
    }

    def value(key: str) -> Tensor:
        name = key.removeprefix(PREFIX)
        if name not in by_name:  # a buffer absent from the family
            return torch.zeros(like[name].shape, dtype=like[name].dtype)
        return read_tensor(by_name[name], files)

    checkpointer = Checkpointer(checkpoints, config, tokenizer, run_id)
    meta = {"reason": IMPORTED, "metrics": {}, "best_by": config.eval.metric}
    meta |= {"higher_is_better": False, "train": {}, "from": str(source)}
    meta["data"] = {"train": None, "tokenizer": tokenizer.fingerprint}
    try:
        checkpointer.save_weights(0, like, _Values(value), meta)
    finally:
        checkpointer.close()
    return checkpoints / "step_0"


FIX = "leave out what changes the model's shape"


class _Values(Mapping[str, Tensor]):
    """Tensors read on access."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def __getitem__(self, key: str) -> Tensor:
        return self._read(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def choose_family(section: Decoder, name: str | None) -> Family:
    """The first family able to express a section, or the named family if able.

    Raises ValueError naming the options without an equivalent in the family.
    """
    families = folders.all_families()
    if name is not None and name not in [candidate.model_type for candidate in families]:
        names = ", ".join(candidate.model_type for candidate in families)
        raise ValueError(f"--family {name}: there is no such family, but {names}")
    tried = {
        candidate: candidate.unsaid(section)
        for candidate in families
        if name in (None, candidate.model_type)
    }
    for candidate, unsaid in tried.items():
        if not unsaid:
            return candidate
    nearest = min(
        tried, key=lambda candidate: (not candidate.is_near(section), len(tried[candidate]))
    )
    subject = "no family of Hugging Face" if name is None else "this family"
    unsaid = listed(tried[nearest])
    near = f"{nearest.model_type}, which cannot say {unsaid}"
    if name is None:
        raise ValueError(f"{subject} can say this model; the nearest is {near}")
    raise ValueError(f"--family {near}")


def export_folder(
    path: Path,
    config: Config,
    out: Path,
    *,
    family: str | None,
    dtype: str | None,
    shard_bytes: int,
    weights: str = TRAINED,
    quantize: str | None = None,
) -> str:
    """Write the weights of a checkpoint, of any layout, as a folder for transformers.

    Returns a summary in words. out: a new folder. weights: trained, or ema, their moving mean.
    quantize: a format of `forge.hf.quantized`. Raises ValueError for a model outside all families.
    """
    if (section := config.decoder) is None:
        message = f"model._target_={config.model._target_} is no decoder of forge"
        raise ValueError(f"{message}, and only these have families; --format safetensors")
    chosen = choose_family(section, family)
    merged = Merged(path, config, weights)
    rows = chosen.rows(section)
    names = {row.ours.name for row in rows}
    for name in [n for n in merged.stored if n not in names and not is_added(n)]:
        _check_buffer(name, merged[name], chosen)
    number = export_dtype(config, path, dtype)
    content = _config_json(chosen, section, Tokenizer.load(path / TOKENIZER), number)
    out.mkdir(parents=True)
    write: Any = write_weights
    if quantize is not None:
        write = partial(write_quantized, how=quantize)
        content[QUANTIZATION] = quantization_config(quantize)
    files = write(out, rows, merged.__getitem__, dtype=number, shard_bytes=shard_bytes)
    _write(out / folders.CONFIG, content)
    _write_tokenizer(path, config, out)
    word = str(number).removeprefix("torch.") + (f" and {quantize}" if quantize else "")
    (out / "README.md").write_text(card(Saved(path), config, chosen, word), encoding="utf-8")
    step = Saved(path).step
    return f"{chosen.architecture} of step {step} in {word}, {counted(len(files), 'file')}"


def _write_tokenizer(path: Path, config: Config, out: Path) -> None:
    """Write the tokenizer of a checkpoint and generation_config.json."""
    tokenizer = Tokenizer.load(path / TOKENIZER)
    generation = generation_of(tokenizer, begun=config.checkpoint.init_from is not None)
    # generation_config.json has the only copy in the folder.
    tokenizer.stated.pop(GENERATION, None)
    tokenizer.save(out)
    _write(out / GENERATION_NAME, generation)


def export_dtype(config: Config, path: Path, dtype_name: str | None) -> torch.dtype:
    """Format of the exported weights of a checkpoint; None = checkpoint.export_dtype.

    auto: the format of products in training, or the stored format if not fp32.
    """
    dtype_name = dtype_name or config.checkpoint.export_dtype
    if dtype_name != "auto":
        return getattr(torch, dtype_name)
    stored = tensor_storage.stored_metadata(path / WEIGHTS).items()
    kinds = {meta.properties.dtype for name, meta in stored if name.startswith(PREFIX)}
    half = [dtype for dtype in HALF.values() if dtype in kinds]
    return half[0] if half else HALF.get(config.precision.mixed_precision, torch.float32)


def _config_json(
    family: Family, section: Decoder, tokenizer: Tokenizer, dtype: torch.dtype
) -> dict[str, Any]:
    """Content of config.json."""
    content = {"architectures": [family.architecture], "model_type": family.model_type}
    content |= family.content(section) | {"dtype": str(dtype).removeprefix("torch.")}
    return content | token_ids(tokenizer) | {"use_cache": True}


def token_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """Ids of the tokens at the begin and end of a text."""
    return {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}


def generation_of(tokenizer: Tokenizer, *, begun: bool) -> dict[str, Any]:
    """Content of generation_config.json.

    A text ends with the tokenizer's token, with each token named by the tokenizer's folder, and
    with the end of a turn of the chat template. All else comes from the same folder, if the run has
    `begun` with weights.
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
    """Ids of the end of a turn in the chat template; none for a template without answers."""
    if TEMPLATE not in tokenizer.stated:
        return []
    try:
        return sorted(turn_end_ids(tokenizer))
    except BadTemplate as error:
        log.warning("the chat template ends no turn that can be seen: %s", error)
        return []


def _check_buffer(name: str, values: Tensor, family: Family) -> None:
    """Raise ValueError for a nonzero buffer absent from a family."""
    if bool(values.any()):
        message = f"{name} is not zero, and {family.model_type} has no such tensor"
        raise ValueError(f"{message}; a family that has it: --family deepseek_v3")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
