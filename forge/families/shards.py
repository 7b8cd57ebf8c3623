"""The safetensors files of a folder, read by their headers without torch.

https://huggingface.co/docs/safetensors has the format: 8 bytes of length, a header in JSON, bytes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from forge.config.regular import open_regular, parse_json, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PLAIN = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Number formats of plain weights, with their bytes."""
BYTES = PLAIN | {"BOOL": 1, "I8": 1, "U8": 1, "I16": 2, "I32": 4, "I64": 8}
BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
"""Number formats of files; those beside the plain ones are parts of quantised weights."""
LONGEST_HEADER = 100_000_000
COMPARED_AT_ONCE = 1 << 22  # bytes
AGAIN = "download it again"


class FolderError(ValueError):
    """An unreadable folder: the folder, the reason and a remedy."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what, self.fix = f"{what}.", fix

    def __reduce__(self) -> tuple[type[FolderError], tuple[str, str]]:
        return FolderError, (self.what.removesuffix("."), self.fix)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A tensor in a file. start: the offset of its first byte in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * BYTES[self.dtype]


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Return every tensor of a folder by its name. Raises FolderError."""
    return dict(_stored(folder, stamp(folder)))


def stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of the files, different after every change."""
    files = [*folder.glob("*.safetensors"), *folder.glob(INDEX)]
    stats = [(file.name, file.stat()) for file in sorted(files)]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


@functools.lru_cache(maxsize=4)  # a rule, the ranks' loader and the points of a sweep ask
def _stored(folder: Path, stamped: Any) -> dict[str, Stored]:
    index = folder / INDEX
    if not index.is_file():
        return _header(_only_file(folder))
    try:
        files_by_name = read_json(index)["weight_map"]
        files = list(dict.fromkeys(map(str, files_by_name.values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FolderError(f"{index} cannot be read ({error})", AGAIN) from None
    tensors: dict[str, Stored] = {}
    for name in files:
        if Path(name).name != name:
            message = f"{index}: {name!r} is no name of a file in the folder"
            raise FolderError(message, AGAIN)
        if not (folder / name).is_file():
            missing = [n for n in files if not (folder / n).is_file()]
            message = f"{folder}: {len(missing)} of {len(files)} shards are missing"
            raise FolderError(f"{message}, such as {missing[0]}", "download them")
        tensors |= _header(folder / name)
    if lost := [name for name in files_by_name if name not in tensors]:
        message = f"{folder / files_by_name[lost[0]]} has no tensor {lost[0]}, which {INDEX} names"
        raise FolderError(message, "download the folder again")
    return {name: tensors[name] for name in files_by_name}


def _only_file(folder: Path) -> Path:
    if (folder / SINGLE).is_file():
        return folder / SINGLE
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        message = f"{folder} has {len(files)} .safetensors files and no {INDEX}"
        raise FolderError(message, "download it, or join the files")
    if other := sorted([*folder.glob("*.bin"), *folder.glob("*.pth"), *folder.glob("*.pt")]):
        message = f"{folder} has its weights in {other[0].name}: a pickle, which may run any code"
        hint = "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER) of transformers"
        raise FolderError(message, f"write it as safetensors: {hint}")
    raise FolderError(f"{folder} has no .safetensors file", "give a folder with weights")


def _header(path: Path) -> dict[str, Stored]:
    """Return the tensors of one file."""
    try:
        size = path.stat().st_size
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, LONGEST_HEADER):
                raise FolderError(f"{path} is torn: it ends in its header", AGAIN)
            content = parse_json(file.read(length))
    except (OSError, ValueError) as error:
        if isinstance(error, FolderError):
            raise
        raise FolderError(f"{path} cannot be read as safetensors ({error})", AGAIN) from None
    tensors: dict[str, Stored] = {}
    try:
        for name, entry in content.items():
            if name == "__metadata__":
                continue
            (begin, end), shape = entry["data_offsets"], tuple(map(int, entry["shape"]))
            dtype = entry["dtype"]
            if dtype not in BYTES:
                message = f"{path}: {name} is in {dtype}, and forge reads {', '.join(BYTES)}"
                raise FolderError(message, "give the folder of the model before quantisation")
            tensor = Stored(file=path, dtype=dtype, shape=shape, start=8 + length + begin)
            if end - begin != tensor.nbytes:
                message = f"{path}: {name} has {end - begin} bytes, not {tensor.nbytes}"
                raise FolderError(message, AGAIN)
            if 8 + length + end > size:
                lost = 8 + length + end - size
                message = f"{path} is torn: {lost:,} bytes of {name} are missing"
                raise FolderError(message, AGAIN)
            tensors[name] = tensor
    except (KeyError, TypeError, AttributeError) as error:
        raise FolderError(f"{path} has a damaged header ({error})", AGAIN) from None
    return tensors


def same_bytes(one: Stored, other: Stored) -> bool:
    """Whether two tensors of one shape and format have the same values, bit for bit."""
    with open_regular(one.file) as first, open_regular(other.file) as second:
        first.seek(one.start)
        second.seek(other.start)
        remaining = one.nbytes
        while remaining > 0:
            size = min(remaining, COMPARED_AT_ONCE)
            if first.read(size) != second.read(size):
                return False
            remaining -= size
    return True
