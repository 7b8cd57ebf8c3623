"""Tensors in a folder: torch.distributed.checkpoint (DCP) with forge's storage, raw bytes and an
index in JSON, tensors.json.

DCP's file system storage pickles the index, and loading a foreign checkpoint may then run any
code. DCP's Hugging Face storage (safetensors) has no checksums, and no index to reveal a rank's
missing file; see docs/runs.md.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from io import BufferedWriter
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from forge.config.regular import open_regular, read_json
from forge.rundir.tensor_sums import BLOCK, INDEX
from forge.tensors.threads import pool
from forge.training.checkpoints.damage import DamagedBytes
from forge.training.checkpoints.replicas import Replicas

FORMAT = 2
THREADS = 4  # of a rank, for writing or reading files
FILE_BYTES = 1 << 26  # enough for a separate file and thread
# By name; a quantized tensor has a scale besides the bytes, and cannot be saved.
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")
}


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, [offsets, offsets + sizes): row-major, little-endian, from byte `start` of
    `file`. crc32: of each BLOCK of the bytes; the last block may be shorter.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    crc32: tuple[int, ...]


def save_tensors(
    tensors: Mapping[str, Tensor],
    folder: Path,
    *,
    copies: Mapping[str, Tensor] | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Save tensors, DTensors among them, into a new folder; called by all ranks of the group.

    copies: by name, written in place of this rank's shards. Raises OSError, and ValueError in one
    line.
    """
    planner = _CopyPlanner(copies) if copies is not None else None
    with _cause():
        state_dict_saver.save(
            dict(tensors), storage_writer=TensorWriter(folder), planner=planner, process_group=group
        )


def load_tensors(
    tensors: dict[str, Tensor],
    folder: Path,
    *,
    group: dist.ProcessGroup | None = None,
    replicas: Replicas | None = None,
    alone: bool = False,
) -> None:
    """Load into tensors, in place, from any saved layout; a rank reads only its own boxes.

    replicas: the first reads, and sends to the others. alone: called without the other ranks.
    Raises OSError, and ValueError in one line; DamagedBytes for a wrong checksum.
    """
    # Several threads may not copy to an Apple GPU at once.
    threads = 1 if any(tensor.device.type == "mps" for tensor in tensors.values()) else THREADS
    reader = _TensorReader(folder, threads)
    read = tensors if replicas is None or replicas.first else {}
    with _cause():  # a rank's fault is raised on all
        state_dict_loader.load(read, storage_reader=reader, process_group=group, no_dist=alone)
    if replicas is not None:
        replicas.send(tensors.values())


def stored_metadata(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Sizes and dtypes by name, without reading tensors.

    Raises OSError, and DamagedBytes for a damaged index or another format.
    """
    return _read_index(folder).state_dict_metadata  # type: ignore[return-value]


class _Folder:
    """A DCP storage in one given folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """The folder is fixed."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class TensorWriter(_Folder, StorageWriter):
    """Each rank writes and syncs some files at once; then the coordinator writes the index."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for item in plan.items:
            name, data = item.index.fqn, item.tensor_data
            if data is None:
                raise ValueError(f"{name!r} is no tensor, and only tensors are saved")
            layout, dtype = data.properties.layout, data.properties.dtype
            if layout != torch.strided or dtype not in DTYPES.values():
                message = f"{name!r} is a {layout} tensor of {dtype}"
                raise ValueError(f"{message}, and only dense, unquantized ones are saved")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        def write(numbered: tuple[int, list[WriteItem]]) -> list[WriteResult]:
            number, items = numbered
            suffix = f".{number}" if number else ""
            path = self.folder / f"rank_{plan.storage_data}{suffix}.bin"
            with _naming(path), path.open("wb") as file:
                results = [_write(file, item, planner) for item in items]
                file.flush()
                os.fsync(file.fileno())
            return results

        with pool(THREADS) as threads:
            results = list(threads.map(write, enumerate(_in_files(plan.items))))
        return _done(list(chain.from_iterable(results)))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, a tensor a line."""
        chunks = {result.index: result.storage_data for result in chain.from_iterable(results)}
        lines = []
        for name, meta in metadata.state_dict_metadata.items():
            assert isinstance(meta, TensorStorageMetadata)
            entry = {
                "dtype": str(meta.properties.dtype).removeprefix("torch."),
                "size": meta.size,
                "chunks": [asdict(chunks[MetadataIndex(name, c.offsets)]) for c in meta.chunks],
            }
            lines.append(f"{json.dumps(name)}: {json.dumps(entry)}")
        text = f'{{"format": {FORMAT}, "tensors": {{\n' + ",\n".join(lines) + "\n}}\n"
        with _naming(self.folder / INDEX):
            (self.folder / INDEX).write_text(text, encoding="ascii")


class _CopyPlanner(DefaultSavePlanner):
    """Plans by a run's tensors, and writes the copies, safe from updates, in their place."""

    def __init__(self, copies: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.copies = copies

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self.copies[index.fqn]


class _TensorReader(_Folder, StorageReader):
    """Reads files of TensorWriter, each block checked against the checksum.

    An unreadable index is reported by set_up_storage_reader: DCP logs errors of read_metadata with
    a traceback and turns them into an AssertionError.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        super().__init__(folder)
        self._threads, self._index = threads, Metadata({})
        self._fault: Exception | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        try:
            self._index = _read_index(self.folder)
        except (OSError, ValueError) as error:
            self._fault = error
        return self._index

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        if self._fault is not None:
            raise self._fault

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        def read(item: ReadItem) -> None:
            name, chunk = item.storage_index.fqn, self._index.storage_data[item.storage_index]
            meta = self._index.state_dict_metadata[name]
            assert isinstance(meta, TensorStorageMetadata)
            path = self.folder / chunk.file
            with _naming(path):
                content = _read(path, name, meta.properties.dtype, chunk, item)
            target = planner.resolve_tensor(item).detach()
            assert target.shape == content.shape, item
            target.copy_(content)
            planner.commit_tensor(item, target)

        with pool(self._threads) as threads:
            list(threads.map(read, plan.items))
        return _done(None)


def _read_index(folder: Path) -> Metadata:
    """Read the index as DCP metadata; storage_data: each Chunk by tensor and offsets."""
    path = folder / INDEX
    try:
        content = read_json(path)
        if (version := content["format"]) != FORMAT:
            raise ValueError(f"it has format {version}, and this version reads format {FORMAT}")
        tensors: dict[str, Any] = {}
        chunks: dict[MetadataIndex, Chunk] = {}
        for name, entry in content["tensors"].items():
            size, boxes = torch.Size(entry["size"]), []
            for raw in entry["chunks"]:
                chunk = Chunk(**raw | {k: tuple(raw[k]) for k in ("offsets", "sizes", "crc32")})
                if not re.fullmatch(r"rank_[0-9]+(\.[0-9]+)?\.bin", chunk.file):
                    raise ValueError(f"{name!r} has the file name {chunk.file!r}")
                offsets = torch.Size(chunk.offsets)
                boxes.append(ChunkStorageMetadata(offsets=offsets, sizes=torch.Size(chunk.sizes)))
                chunks[MetadataIndex(name, offsets)] = chunk
            if sum(prod(box.sizes) for box in boxes) != prod(size):
                raise ValueError(f"the chunks of {name!r} do not fill it")
            properties = TensorProperties(dtype=DTYPES[entry["dtype"]])
            tensors[name] = TensorStorageMetadata(properties=properties, size=size, chunks=boxes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DamagedBytes(f"{path} cannot be used: {reason}") from error
    return Metadata(tensors, storage_data=chunks)


def _in_files(items: list[WriteItem]) -> list[list[WriteItem]]:
    """Divide a rank's items among files of similar size: one per FILE_BYTES, at most THREADS."""
    sizes = []
    for item in items:
        assert item.tensor_data is not None
        dtype = item.tensor_data.properties.dtype
        sizes.append(prod(item.tensor_data.chunk.sizes) * dtype.itemsize)
    count = min(THREADS, 1 + sum(sizes) // FILE_BYTES, len(items))
    files: list[list[WriteItem]] = [[] for _ in range(count)]
    filled = [0] * count
    for size, item in sorted(zip(sizes, items, strict=True), key=lambda pair: -pair[0]):
        smallest = filled.index(min(filled))
        files[smallest].append(item)
        filled[smallest] += size
    return files


def _write(file: BufferedWriter, item: WriteItem, planner: SavePlanner) -> WriteResult:
    assert item.tensor_data is not None
    data = planner.resolve_data(item)
    assert isinstance(data, Tensor)
    data = data.detach().cpu()
    if type(data) is not Tensor:
        message = f"{item.index.fqn!r} is a {type(data).__name__}"
        raise ValueError(f"{message}, and only plain tensors are saved; save those it is made of")
    dense = data.resolve_conj().resolve_neg().contiguous()
    # A single element counts as contiguous with any stride, but only stride 1 allows a
    # view as bytes.
    flat = dense.as_strided((dense.numel(),), (1,))
    content, start, sums = flat.view(torch.uint8).numpy().data, file.tell(), []
    for block in _blocks(content.nbytes):
        sums.append(zlib.crc32(content[block]))
        file.write(content[block])
    box, name = item.tensor_data.chunk, Path(file.name).name
    chunk = Chunk(tuple(box.offsets), tuple(box.sizes), name, start, tuple(sums))
    index = MetadataIndex(item.index.fqn, box.offsets)
    return WriteResult(index=index, size_in_bytes=content.nbytes, storage_data=chunk)


def _read(path: Path, name: str, dtype: torch.dtype, chunk: Chunk, item: ReadItem) -> Tensor:
    """Read an item's box of a chunk, [*item.lengths], on the CPU; only blocks with these rows."""
    nbytes = prod(chunk.sizes) * dtype.itemsize
    if not chunk.sizes:
        return _bytes(path, name, chunk, nbytes, slice(0, nbytes)).view(dtype).reshape(())
    row = nbytes // max(chunk.sizes[0], 1)
    first, count = item.storage_offsets[0], item.lengths[0]
    content = _bytes(path, name, chunk, nbytes, slice(first * row, (first + count) * row))
    rows = content.view(dtype).reshape(count, *chunk.sizes[1:])
    inside = zip(item.storage_offsets[1:], item.lengths[1:], strict=True)
    return rows[(slice(None), *(slice(offset, offset + length) for offset, length in inside))]


def _bytes(path: Path, name: str, chunk: Chunk, nbytes: int, span: slice) -> Tensor:
    """Read a span of a chunk's bytes; reads and checks the blocks around the span."""
    blocks = [
        (block, crc32)
        for block, crc32 in zip(_blocks(nbytes), chunk.crc32, strict=True)
        if block.start < span.stop and span.start < block.stop
    ]
    if not blocks:
        return torch.empty(0, dtype=torch.uint8)
    begin = blocks[0][0].start
    content = torch.empty(blocks[-1][0].stop - begin, dtype=torch.uint8)
    buffer = content.numpy().data
    with open_regular(path) as file:
        file.seek(chunk.start + begin)
        for block, crc32 in blocks:
            part = buffer[block.start - begin : block.stop - begin]
            if file.readinto(part) < len(part):
                raise DamagedBytes(f"{path} is torn: bytes of {name!r} are missing")
            if zlib.crc32(part) != crc32:
                message = f"the bytes of {name!r} are not those that were saved"
                raise DamagedBytes(f"{path} is damaged: {message}")
    return content[span.start - begin : span.stop - begin]


def _blocks(nbytes: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, nbytes)) for start in range(0, nbytes, BLOCK)]


@contextmanager
def _cause() -> Iterator[None]:
    """Raise the first failed rank's error, not DCP's CheckpointException, which is no Exception.

    Any error but OSError, interrupts and lack of memory becomes a ValueError in one line.
    """
    # DCP works without a process group, and must not warn of a missing group in each thread.
    unavailable = "torch.distributed is disabled, unavailable or uninitialized"
    warnings.filterwarnings("ignore", message=unavailable)
    try:
        yield
    except CheckpointException as error:
        cause, _ = error.failures[min(error.failures)]
        as_it_is = OSError | MemoryError | torch.OutOfMemoryError
        if not isinstance(cause, Exception) or isinstance(cause, as_it_is):
            raise cause from error
        reason = " ".join(str(cause).split())
        if isinstance(cause, DamagedBytes):
            raise DamagedBytes(reason) from error
        kind = "" if isinstance(cause, ValueError) else f"{type(cause).__name__}: "
        raise ValueError(f"{kind}{reason}") from error


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the file's path to an OSError of a write or a read without a file name."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
