"""Files of token ids written by other programs, read in place: the format and first token of each.

* `.npy` of NumPy, one row of integers (numpy.org/doc/stable/reference/generated/numpy.lib.format);
* `.npy` without NumPy's header, as OLMo-core and dolma write them with np.memmap
  (allenai/OLMo-core, docs/source/guides/data_loading.rst): the type is not stated;
* `.bin` of llm.c, nanochat's elder: 256 int32 beginning with 20240520, version 1 and
  the number of tokens, then uint16 ids; 20240801 and version 7: uint32 ids (karpathy/llm.c,
  dev/data/data_common.py);
* `.bin` of Megatron-LM with its `.idx` (NVIDIA/Megatron-LM, megatron/core/datasets/
  indexed_dataset.py): "MMIDIDX\\0\\0", version 1 in 8 bytes, a code of the type in one, the numbers
  of sequences and documents in 8 each; then lengths, int32, and byte offsets, int64, of the
  sequences, and the sequences that documents begin with, int64;
* any other file of ids, with a type from an index.json of forge, a sidecar or data.dtype.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from forge.config.regular import open_regular, read_json
from forge.data.tokens.shards import COUNTED, INDEX_FILE

LLM_C_HEADER = 1024  # bytes
LLM_C = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
MEGATRON = b"MMIDIDX\0\0"
MEGATRON_HEADER = struct.Struct("<9sQBQQ")
MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
WRITE_AGAIN = "Write or copy it again"


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """`n_tokens` ids of a type from byte `offset` of a file on."""

    path: Path
    dtype: str
    offset: int
    n_tokens: int

    def map(self) -> np.ndarray:
        """[n_tokens], mapped: nothing is read before its use."""
        shape = (self.n_tokens,)
        mapped = np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=shape)
        return np.asarray(mapped)  # slicing np.memmap itself costs a microsecond more


def bad(path: Path, what: str, fix: str) -> ValueError:
    """The error of one file of tokens."""
    return ValueError(f"data.path: {path} {what}. {fix}.")


def token_file(path: Path, dtype: str | None = None) -> TokenFile:
    """Recognise a file of tokens. dtype: the type of its tokens, where neither the file nor a
    neighbour names a type.

    ValueError: the file is empty, torn, of an unknown type or not one row of integers.
    """
    try:
        size = path.stat().st_size
        with open_regular(path) as file:
            head = file.read(LLM_C_HEADER)
    except OSError as error:
        fault = f"cannot be read ({error.strerror or error})"
        raise bad(path, fault, "Check that you may read it") from error
    if not size:
        raise bad(path, "is empty", "Leave it out, or write it again")
    numbers = np.frombuffer(head[: len(head) // 4 * 4], "<i4")
    index = path.with_suffix(".idx")
    if head.startswith(np.lib.format.MAGIC_PREFIX):
        tokens = _numpy(path)
    elif len(numbers) > 2 and numbers[0] in [magic for magic, _ in LLM_C]:
        tokens = _llm_c(path, numbers)
    elif index.is_file():
        tokens = _megatron(path, index)
    else:
        stated, expected = _told(path)
        if stated is None and dtype is None:
            hint = f'Say it: data.dtype=uint16, or {{"dtype": "uint16"}} in {path.name}.json'
            raise bad(path, "does not say what type its tokens have, nor does a file beside", hint)
        tokens = _bare(path, stated or dtype or "", size, expected)
    if dtype is not None and np.dtype(tokens.dtype) != np.dtype(dtype):
        fault = f"has tokens of {np.dtype(tokens.dtype)}, and data.dtype={dtype}"
        raise bad(path, fault, "Leave data.dtype out: the file, or one beside it, says it")
    expected = tokens.offset + tokens.n_tokens * np.dtype(tokens.dtype).itemsize
    if size != expected:
        fault = f"has {size:,} bytes instead of the {expected:,} of {tokens.n_tokens:,} tokens"
        raise bad(path, fault, WRITE_AGAIN)
    if not tokens.n_tokens:
        raise bad(path, "has no tokens", "Leave it out, or write it again")
    return tokens


def _numpy(path: Path) -> TokenFile:
    try:
        with open_regular(path) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            offset = file.tell()
    # NumPy reads the header as Python, whose parser has errors of its own.
    except (ValueError, EOFError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise bad(path, f"has a broken NumPy header ({error})", WRITE_AGAIN) from error
    if dtype.kind not in "iu" or len(shape) != 1:
        fault = f"is an array {list(shape)} of {dtype}, and tokens are one row of integers"
        raise bad(path, fault, "Save np.concatenate of the rows, as uint16 or uint32")
    return TokenFile(path=path, dtype=dtype.str, offset=offset, n_tokens=shape[0])


def _llm_c(path: Path, numbers: np.ndarray) -> TokenFile:
    magic, version, n_tokens = numbers[:3].tolist()
    if (magic, version) not in LLM_C or len(numbers) < LLM_C_HEADER // 4:
        fault = f"has the header of an llm.c file, {magic}, but its version is {version}"
        raise bad(path, fault, "Write it with llm.c's write_datafile")
    dtype = LLM_C[magic, version]
    return TokenFile(path=path, dtype=dtype, offset=LLM_C_HEADER, n_tokens=n_tokens)


def _megatron(path: Path, index: Path) -> TokenFile:
    content = np.memmap(index, "u1", mode="r") if index.stat().st_size else np.empty(0, "u1")
    head = content[: MEGATRON_HEADER.size].tobytes()
    if len(head) < MEGATRON_HEADER.size or not head.startswith(MEGATRON):
        fault = "is no index of Megatron's memory-mapped kind"
        raise bad(index, fault, "Leave it and its .bin out")
    _, version, code, sequences, documents = MEGATRON_HEADER.unpack(head)
    if version != 1 or code not in MEGATRON_TYPES:
        fault = f"has version {version} and type {code}, and tokens are integers of version 1"
        raise bad(index, fault, "Preprocess the text again")
    if len(content) < len(head) + 12 * sequences + 8 * documents:
        raise bad(index, f"ends before its {sequences:,} sequences do", WRITE_AGAIN)
    dtype = np.dtype(MEGATRON_TYPES[code])
    starts = len(head) + 4 * sequences
    lengths = content[len(head) : starts].view("<i4").astype(np.int64)
    offsets = content[starts : starts + 8 * sequences].view("<i8")
    if not np.array_equal(offsets, (np.cumsum(lengths) - lengths) * dtype.itemsize):
        fault = "has sequences that do not follow each other in the .bin"
        raise bad(index, fault, "Merge or preprocess it again")
    return TokenFile(path=path, dtype=dtype.str, offset=0, n_tokens=int(lengths.sum()))


def _told(path: Path) -> tuple[str | None, int | None]:
    """The type stated in an index of forge or a sidecar, and the number of tokens where stated."""
    index = _json(path.with_name(INDEX_FILE))
    for shard in index.get("shards", ()):
        if shard["file"] == path.name:
            if path.with_name(COUNTED).is_dir():
                hint = f"Give the directory: data.path={path.parent}"
                raise bad(path, f"has its targets marked in the folder {COUNTED}", hint)
            return index["dtype"], shard["n_tokens"]
    for sidecar in (path.with_name(f"{path.name}.json"), path.with_suffix(".json")):
        if (stated := _json(sidecar).get("dtype")) is not None:
            try:
                kind = np.dtype(stated).kind
            except TypeError:
                kind = ""
            if kind not in ("i", "u"):
                raise bad(sidecar, f"says dtype {stated!r}, and tokens are integers", "Correct it")
            return stated, None
    return None, None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise bad(path, f"cannot be read ({error})", "Correct it") from error
    return content if isinstance(content, dict) else {}


def _bare(path: Path, dtype: str, size: int, expected: int | None) -> TokenFile:
    n_tokens, remainder = divmod(size, np.dtype(dtype).itemsize)
    if remainder:
        fault = f"has {size:,} bytes, which are not whole tokens of {np.dtype(dtype)}"
        raise bad(path, fault, WRITE_AGAIN)
    n_tokens = n_tokens if expected is None else expected
    return TokenFile(path=path, dtype=np.dtype(dtype).str, offset=0, n_tokens=n_tokens)
