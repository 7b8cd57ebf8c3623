"""Weights of a folder in few bits, as torchao stores them for transformers and vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from forge.config.model.tensors import EXPERT, MATRIX
from forge.families.shards import INDEX, SINGLE
from forge.families.table import Row
from forge.hf.write import Piece, Read, cached_reader, stored_pieces, theirs
from forge.tensors.torchao_adapter import weight_only

GROUP = 32
"""Weights of a row with one scale in int4."""
OFF = {"include_input_output_embeddings": False, "untie_embedding_weights": False}
Parts = tuple[dict[str, Tensor], str]
"""The tensors stored for a weight by their names, and its entry in the metadata."""


def check_quantizable(rows: Sequence[Row], how: str) -> None:
    """Raise ValueError for a model with weights that the format or its readers do not take."""
    if any(row.ours.role == EXPERT for row in rows):
        message = "transformers stacks experts when it reads them, and no quantised weights"
        raise ValueError(f"--quantize {how}: {message}; it is of models without experts")
    matrices = [row for row in rows if _is_chosen(row)]
    if not matrices:
        raise ValueError(f"--quantize {how}: this family has no linear layers of transformers")
    multiple = {"nvfp4": 16, "int4": GROUP}.get(how, 1)
    for row in matrices:
        if row.ours.shape[1] % multiple:
            width = f"{row.theirs.name} has rows of {row.ours.shape[1]}"
            raise ValueError(f"--quantize {how}: {width}, and the format has groups of {multiple}")


def _is_chosen(row: Row) -> bool:
    """Whether a stored tensor is the weight of a linear layer in transformers, without the head."""
    is_matrix = row.ours.role == MATRIX and len(row.ours.shape) == 2
    return is_matrix and not row.theirs.transposed and row.theirs.name.endswith(".weight")


def quantization_config(how: str) -> dict[str, Any]:
    """The quantization_config of config.json."""
    if how == "int4":
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
        group = {"targets": ["Linear"], "weights": weights | {"symmetric": True, "dynamic": False}}
        config = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
        config |= {"quantization_status": "compressed", "ignore": ["lm_head"]}
        return config | {"config_groups": {"group_0": group}}
    quant_type = {"default": weight_only(how).as_dict}
    return {
        "quant_method": "torchao",
        "quant_type": quant_type,
        "modules_to_not_convert": None,
    } | OFF


def write_quantized(
    folder: Path, rows: Sequence[Row], read: Read, *, dtype: torch.dtype, shard_bytes: int, how: str
) -> list[str]:
    """Write forge's tensors with the matrices of linear layers in a format of --quantize.

    dtype: of all else, and of the values in products. A file of at most shard_bytes is in memory.
    Raises ValueError as `check_quantizable`.
    """
    check_quantizable(rows, how)
    cached = cached_reader(read)
    pieces = stored_pieces(rows, dtype)
    encode = _int4 if how == "int4" else _by_torchao(how)
    every_name = json.dumps([piece.name for piece in pieces])
    file_of: dict[str, int] = {}
    files: list[Path] = []
    total = 0
    for tensors, entries in _in_files(_encoded(pieces, cached, encode), shard_bytes):
        # Readers merge the metadata of all files, and the last list of names counts.
        metadata = {"format": "pt"} | ({} if how == "int4" else entries)
        metadata |= {} if how == "int4" else {"tensor_names": every_name}
        files.append(folder / f"{len(files)}.partial")
        save_file(tensors, files[-1], metadata=metadata)
        file_of |= dict.fromkeys(tensors, len(files) - 1)
        total += sum(values.nbytes for values in tensors.values())
    return _named(folder, files, file_of, total)


def _named(folder: Path, files: Sequence[Path], file_of: dict[str, int], total: int) -> list[str]:
    """Give the files their final names, and write the index of several."""
    count = len(files)
    names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    names = [SINGLE] if count == 1 else names
    for file, name in zip(files, names, strict=True):
        file.rename(folder / name)
    if count > 1:
        places = {name: names[number] for name, number in sorted(file_of.items())}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return names


def _encoded(
    pieces: Sequence[Piece], read: Read, encode: Callable[[str, Tensor], Parts]
) -> Iterator[tuple[str, Parts]]:
    for piece in pieces:
        values = theirs(piece, read).to(piece.dtype).contiguous()
        if all(_is_chosen(row) for row in piece.rows):
            yield piece.name, encode(piece.name, values)
        else:
            yield piece.name, ({piece.name: values}, json.dumps({"_type": "Tensor"}))


def _in_files(
    encoded: Iterator[tuple[str, Parts]], shard_bytes: int
) -> Iterator[tuple[dict[str, Tensor], dict[str, str]]]:
    tensors: dict[str, Tensor] = {}
    entries: dict[str, str] = {}
    size = 0
    for name, (parts, entry) in encoded:
        added = sum(values.nbytes for values in parts.values())
        if tensors and size + added > shard_bytes:
            yield tensors, entries
            tensors, entries, size = {}, {}, 0
        tensors |= parts
        entries[name] = entry
        size += added
    yield tensors, entries


def _by_torchao(how: str) -> Callable[[str, Tensor], Parts]:
    quantize = weight_only(how).quantize

    def encode(name: str, values: Tensor) -> Parts:
        linear = nn.Linear(values.shape[1], values.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(values, requires_grad=False)
        tensors, metadata = quantize(linear, name)
        return tensors, metadata[name]

    return encode


def _int4(name: str, values: Tensor) -> Parts:
    """Integers of -8 to 7 in groups, eight in a word: `pack-quantized` of compressed-tensors."""
    stem = name.removesuffix(".weight")
    rows, columns = values.shape
    groups = values.float().view(rows, -1, GROUP)
    scales = (groups.abs().amax(-1) / 7.5).to(values.dtype)
    scales[scales == 0] = 1
    codes = (groups / scales.float()[..., None]).round().clamp(-8, 7).to(torch.int32) + 8
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    words = (codes.view(rows, -1, 8) << shifts).sum(-1, dtype=torch.int32)
    tensors = {f"{stem}.weight_packed": words, f"{stem}.weight_scale": scales}
    return tensors | {f"{stem}.weight_shape": torch.tensor([rows, columns])}, ""
