"""A plain Hugging Face folder written from a GGUF file, tensor by tensor."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forge.config.problems import listed
from forge.families import folder as folders
from forge.families.shards import FolderError
from forge.families.table import shapes
from forge.gguf.architectures import HEAD, ROPE_FACTORS, TABLE, Architecture, Config, config_of
from forge.gguf.reader import GGUFFile
from forge.gguf.tokenizer import write_tokenizer
from forge.hf.read import DTYPES
from forge.hf.write import Piece, write_pieces

EXPERT = re.compile(r"\.experts\.(\d+)\.")
SHARD_BYTES = 5_000_000_000
NORM = re.compile(r"_norm\.weight$")


def write_folder(file: Path, folder: Path) -> None:
    """Write config.json, weights and tokenizer of a GGUF file into a new folder.

    Quantised tensors are written in fp32: no shorter format holds their decoded values. One tensor
    at a time is in memory. Raises FolderError.
    """
    source = GGUFFile(file)
    architecture, config = config_of(source)
    config["dtype"] = str(DTYPES[source.dtype(TABLE)]).removeprefix("torch.")
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2) + "\n"
    (folder / folders.CONFIG).write_text(text, encoding="utf-8")
    read = folders.read_folder(folder)
    stored_shapes = shapes(read.family.rows(read.section))
    places = _places(source, list(stored_shapes), config)
    pieces = [
        Piece(
            name=name,
            shape=shape,
            dtype=DTYPES[source.dtype(places[name][0])],
            rows=(),
            number=None,
        )
        for name, shape in stored_shapes.items()
    ]
    write_pieces(folder, pieces, _reader(source, architecture, config, places), SHARD_BYTES)
    write_tokenizer(source, folder)


def _places(file: GGUFFile, names: list[str], config: Config) -> dict[str, tuple[str, int | None]]:
    """The stored name, and the number of an expert in a stack, of each Hugging Face name.

    Raises FolderError for tensors that are missing, and for tensors without a use.
    """
    table = file.tensor_names(config["num_hidden_layers"])
    places: dict[str, tuple[str, int | None]] = {}
    for name in names:
        expert = EXPERT.search(name)
        merged = EXPERT.sub(".experts.", name)
        stored = table.get_name(merged, try_suffixes=(".weight", ".bias")) or merged
        places[name] = stored, int(expert[1]) if expert else None
    used = {stored for stored, _ in places.values()}
    missing = [name for name, (stored, _) in places.items() if stored not in file.names]
    spare = [name for name in file.names if name not in used and name != ROPE_FACTORS]
    if missing or spare:
        faults = [f"{name} is missing" for name in missing] + [f"{n} has no use" for n in spare]
        hint = "a model of this architecture without them: no tensor is left out silently"
        raise FolderError(f"{file.path}: {listed(faults)}", hint)
    return places


def _reader(
    file: GGUFFile,
    architecture: Architecture,
    config: Config,
    places: dict[str, tuple[str, int | None]],
) -> Callable[[Piece], Tensor]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}

    def values(piece: Piece) -> Tensor:
        stored, expert = places[piece.name]
        rows = file.rows(stored) if expert is None else file.rows(stored, expert, expert + 1)[0]
        part = stored.split(".")[-2]
        if architecture.pairs and part in heads:
            rows = _halves(rows, heads[part])
        if architecture.norm_offset and stored != HEAD and NORM.search(stored):
            rows = rows - np.float32(architecture.norm_offset)
        if rows.shape != piece.shape:
            message = f"{file.path}: {stored} has the shape {rows.shape}, not {piece.shape}"
            raise FolderError(message, "a complete file of the model")
        return torch.from_numpy(np.ascontiguousarray(rows))

    return values


def _halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys with rotated pairs half a head apart, from adjacent pairs."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
