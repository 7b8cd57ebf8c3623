"""A GGUF file: its metadata, and its tensors by name, decoded to fp32 in ranges of rows.

The file and its number formats are read by the `gguf` library of llama.cpp.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from forge.families.shards import AGAIN, FolderError

INSTALL = "pip install 'forge-lm[gguf]'"
PLAIN = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
"""Formats without quantisation, with their names in safetensors."""


def is_gguf(path: str | Path) -> bool:
    """Whether a path is a GGUF file by its first four bytes."""
    file = Path(path).expanduser()
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return content.read(4) == b"GGUF"


class GGUFFile:
    """A memory-mapped GGUF file. Raises FolderError where it cannot be read."""

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError:
            message = "reading a GGUF file needs the gguf library, which is not installed"
            raise FolderError(message, INSTALL) from None
        self.path, self._gguf = path, gguf
        try:
            reader = gguf.GGUFReader(path)
            self.metadata: dict[str, Any] = {n: f.contents() for n, f in reader.fields.items()}
        except (ValueError, OSError, IndexError, KeyError, TypeError) as error:
            raise FolderError(f"{path} cannot be read as GGUF ({error})", AGAIN) from None
        if (count := int(self.metadata.get("split.count") or 1)) > 1:
            message = f"{path} is one of {count} parts of a model"
            raise FolderError(message, "join them: llama-gguf-split --merge FIRST_PART OUT.gguf")
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    @property
    def architecture(self) -> str:
        """The name of the architecture in llama.cpp."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def names(self) -> list[str]:
        """Names of the stored tensors."""
        return list(self._tensors)

    def dtype(self, name: str) -> str:
        """The safetensors name of a tensor's format; F32 for a quantised tensor."""
        return PLAIN.get(self._tensors[name].tensor_type.name, "F32")

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, slowest dimension first."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def rows(self, name: str, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows [first, last) of a tensor's first dimension, in fp32. Raises FolderError."""
        tensor = self._tensors[name]
        part = tensor.data[first:last]
        if tensor.tensor_type.name == "F32":
            return np.array(part, dtype=np.float32)
        try:
            return self._gguf.quants.dequantize(part, tensor.tensor_type)
        except NotImplementedError:
            message = f"{self.path}: {name} is in {tensor.tensor_type.name}, which is not decoded"
            raise FolderError(message, "a file in F16, Q8_0 or a K-quant of the model") from None

    def tensor_names(self, layers: int) -> Any:
        """The library's map from names of Hugging Face to names of this architecture."""
        by_name = {name: arch for arch, name in self._gguf.MODEL_ARCH_NAMES.items()}
        return self._gguf.get_tensor_name_map(by_name[self.architecture], layers)
