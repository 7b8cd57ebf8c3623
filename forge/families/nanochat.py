"""Checkpoints of nanochat: model_STEP.pt with meta_STEP.json, and the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.config.model.decoder import Decoder
from forge.config.model.tensors import EMBEDDING, HEAD, VALUE_EMBEDDING
from forge.config.regular import NotRegular, read_json
from forge.families.family import Difference, differences_between
from forge.families.shards import AGAIN, FolderError

WEIGHTS = re.compile(r"model_(\d+)\.pt")
ROWS = 64  # tables have a multiple of this many rows, the last ones unused
OPTIONS = {
    "sequence_len": "max_seq_len",
    "vocab_size": "vocab_size",
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "n_kv_head": "n_kv_heads",
    "n_embd": "dim",
    "window_pattern": "window_pattern",
}
"""Keys of its `model_config`, each with the option of the model section."""
OUTSIDE = {
    "transformer.wte.weight": "embedding.weight",
    "smear_gate.weight": "smear.gate",
    "smear_lambda": "smear.scale",
    "backout_lambda": "backout.scale",
    "lm_head.weight": "output.weight",
}
OF_ALL_LAYERS = {"resid_lambdas": "residual_scalar", "x0_lambdas": "x0_scalar"}
"""Vectors with a number for each layer."""
IN_BLOCK = {
    "attention.wq.weight": "transformer.h.{}.attn.c_q.weight",
    "attention.wk.weight": "transformer.h.{}.attn.c_k.weight",
    "attention.wv.weight": "transformer.h.{}.attn.c_v.weight",
    "attention.wo.weight": "transformer.h.{}.attn.c_proj.weight",
    "attention.value_embedding.weight": "value_embeds.{}.weight",
    "attention.value_embedding.gate.weight": "transformer.h.{}.attn.ve_gate.weight",
    "feed_forward.w_up.weight": "transformer.h.{}.mlp.c_fc.weight",
    "feed_forward.w_down.weight": "transformer.h.{}.mlp.c_proj.weight",
}
TURNED = ("attention.wq.weight", "attention.wk.weight")
"""Matrices of heads that nanochat rotates the other way."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint of nanochat. config: its `model_config`."""

    weights: Path
    step: int
    config: dict[str, Any]

    def overrides(self) -> list[str]:
        """Return the overrides that make the model section."""
        options = [f"model.{ours}={self.config[key]}" for key, ours in OPTIONS.items()]
        return ["model=nanochat", "model.pad_vocab_to=1", *options]


@dataclass(frozen=True, kw_only=True)
class Named:
    """A tensor of nanochat. ours: forge's tensors in it, several for the numbers of all layers."""

    name: str
    ours: tuple[str, ...]
    shape: tuple[int, ...]
    is_table: bool
    heads: int = 0  # of a matrix with heads rotated the other way


def find_weights(folder: Path) -> list[tuple[int, Path]]:
    """Return the steps of a folder with the files of weights, the last step last."""
    found = ((WEIGHTS.fullmatch(path.name), path) for path in folder.glob("model_*.pt"))
    return sorted((int(match[1]), path) for match, path in found if match)


def read_checkpoint(place: Path) -> Checkpoint | None:
    """Read the newest checkpoint in a folder, or the one of a file model_STEP.pt; None without
    any. Raises FolderError for an unusable meta_STEP.json.
    """
    match = WEIGHTS.fullmatch(place.name)
    steps = [(int(match[1]), place)] if match and place.is_file() else find_weights(place)
    if not steps:
        return None
    step, weights = steps[-1]
    file = weights.with_name(weights.name.replace("model_", "meta_")).with_suffix(".json")
    try:
        config = read_json(file)["model_config"]
        faults = [f"{key} is missing" for key in OPTIONS if key not in config]
        faults += [f"forge knows no {key}" for key in config if key not in OPTIONS]
    except (OSError, KeyError, TypeError, ValueError, NotRegular) as error:
        message = f"{file} does not describe {weights.name}: {error!r}"
        raise FolderError(message, AGAIN) from None
    if faults:
        hint = "a checkpoint of nanochat since March 2026, with smear and backout"
        raise FolderError(f"{file}, model_config: {', '.join(faults)}", hint)
    return Checkpoint(weights=weights, step=step, config=config)


def model_config(section: Decoder) -> dict[str, Any]:
    """Return nanochat's `model_config` of a section."""
    values = {key: getattr(section, ours) for key, ours in OPTIONS.items()}
    pattern = section.window_pattern or "L"
    return values | {"n_kv_head": section.kv_heads, "window_pattern": pattern}


def named_tensors(section: Decoder) -> Iterator[Named]:
    """Yield nanochat's tensors of a section, of which `differences` must be empty."""
    specs = {spec.name: spec for spec in section.tensors()}
    padded = -(-section.vocab_size // ROWS) * ROWS
    for name, ours in OF_ALL_LAYERS.items():
        of_layers = tuple(f"blocks.{layer}.{ours}" for layer in range(section.n_layers))
        yield Named(name=name, ours=of_layers, shape=(section.n_layers,), is_table=False)
    heads: dict[str, int] = dict(zip(TURNED, (section.n_heads, section.kv_heads), strict=True))
    names = {ours: (name, 0) for name, ours in OUTSIDE.items()}
    for layer in range(section.n_layers):
        for ours, name in IN_BLOCK.items():
            names[f"blocks.{layer}.{ours}"] = name.format(layer), heads.get(ours, 0)
    for ours, (name, turned) in names.items():
        if ours not in specs:
            continue
        spec = specs[ours]
        is_table = spec.role in (EMBEDDING, VALUE_EMBEDDING, HEAD)
        shape = (padded, *spec.shape[1:]) if is_table else spec.shape
        yield Named(name=name, ours=(ours,), shape=shape, is_table=is_table, heads=turned)


def differences(section: Decoder, preset: Decoder) -> list[Difference]:
    """Return the options that nanochat cannot say. preset: `model=nanochat` of the same sizes."""
    return differences_between(section, preset)
