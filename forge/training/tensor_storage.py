"""Tensors in a folder: torch.distributed.checkpoint with a storage of our own, raw bytes and an
index in JSON.

DCP's own file system storage pickles its index, and loading a foreign checkpoint may then run any
code. Its Hugging Face storage (safetensors) has no checksums, and no index that shows that the file
of a rank is missing; see docs/run_directory.md.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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

from forge.training import tensor_index
from forge.training.tensor_index import DTYPES, Chunk, Entries, Entry

THREADS = 4
"""Threads of a rank that write or read files."""
FILE_BYTES = 1 << 26
"""Bytes that are worth a file and a thread of their own."""


def save(
    tensors: Mapping[str, Tensor],
    folder: Path,
    *,
    copies: Mapping[str, Tensor] | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Save tensors, DTensors among them, into a new folder; all ranks of the group call it.

    copies: by name what is written in place of what this rank holds of each tensor. Raises OSError,
    and ValueError in one line.
    """
    planner = _CopyPlanner(copies) if copies is not None else None
    with _cause():
        state_dict_saver.save(
            dict(tensors), storage_writer=TensorWriter(folder), planner=planner, process_group=group
        )


def load(
    tensors: dict[str, Tensor], folder: Path, *, group: dist.ProcessGroup | None = None
) -> None:
    """Load into tensors, in place, whatever ranks and layout saved them; a rank reads no more than
    it holds.

    Raises OSError, and ValueError in one line, also where a checksum does not match.
    """
    with _cause():
        state_dict_loader.load(tensors, storage_reader=TensorReader(folder), process_group=group)


def stored(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Sizes and dtypes by name, without reading tensors. Raises OSError and ValueError."""
    return _metadata(tensor_index.read(folder))


class TensorWriter(StorageWriter):
    """Each rank writes some files at once and syncs them to the disk; then the coordinator writes
    the index.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """The folder is fixed."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for item in plan.items:
            name, data = item.index.fqn, item.tensor_data
            if data is None:
                raise ValueError(f"{name!r} is no tensor, and only tensors are saved")
            layout, dtype = data.properties.layout, data.properties.dtype
            if layout != torch.strided or dtype not in DTYPES.values():
                what = f"{name!r} is a {layout} tensor of {dtype}"
                raise ValueError(f"{what}, and only dense, unquantized ones are saved")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

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

        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(write, enumerate(_in_files(plan.items))))
        return _done(list(chain.from_iterable(results)))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        chunks = {
            (result.index.fqn, result.storage_data.offsets): result.storage_data
            for of_rank in results
            for result in of_rank
        }
        entries: Entries = {}
        for name, what in metadata.state_dict_metadata.items():
            assert isinstance(what, TensorStorageMetadata)
            own = tuple(chunks[name, tuple(chunk.offsets)] for chunk in what.chunks)
            entries[name] = Entry(what.properties.dtype, tuple(what.size), own)
        with _naming(self.folder / tensor_index.INDEX):
            tensor_index.write(self.folder, entries)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class _CopyPlanner(DefaultSavePlanner):
    """Plans by the tensors of a run, and has copies of them written, which no update changes."""

    def __init__(self, copies: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.copies = copies

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self.copies[index.fqn]


class TensorReader(StorageReader):
    """Reads what TensorWriter wrote, each block checked against its checksum.

    An index that cannot be read is reported by set_up_storage_reader: what read_metadata raises,
    DCP logs with a traceback and turns into an AssertionError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: Entries = {}
        self._fault: Exception | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """The folder is fixed."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        try:
            self._entries = tensor_index.read(self.folder)
        except (OSError, ValueError) as error:
            self._fault = error
        return Metadata({**_metadata(self._entries)})

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
        chunks = {
            (name, chunk.offsets): chunk
            for name, entry in self._entries.items()
            for chunk in entry.chunks
        }

        def read(item: ReadItem) -> None:
            name = item.storage_index.fqn
            chunk = chunks[name, tuple(item.storage_index.offset or ())]
            path = self.folder / chunk.file
            with _naming(path):
                content = _read(path, name, self._entries[name], chunk, item)
            target = planner.resolve_tensor(item).detach()
            assert target.shape == content.shape, item
            target.copy_(content)
            planner.commit_tensor(item, target)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(read, plan.items))
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _metadata(entries: Entries) -> dict[str, TensorStorageMetadata]:
    """An index in the terms of DCP."""
    return {
        name: TensorStorageMetadata(
            properties=TensorProperties(dtype=entry.dtype),
            size=torch.Size(entry.size),
            chunks=[
                ChunkStorageMetadata(offsets=torch.Size(c.offsets), sizes=torch.Size(c.sizes))
                for c in entry.chunks
            ],
        )
        for name, entry in entries.items()
    }


def _in_files(items: list[WriteItem]) -> list[list[WriteItem]]:
    """The items for each file of a rank: as many files, of about equal size, as are worth it."""
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
        what = f"{item.index.fqn!r} is a {type(data).__name__}"
        raise ValueError(f"{what}, and only plain tensors are saved; save those it is made of")
    dense = data.resolve_conj().resolve_neg().contiguous()
    # A single element counts as contiguous whatever its stride, and with another than 1 it has no
    # view as bytes.
    flat = dense.as_strided((dense.numel(),), (1,))
    content, start, sums = flat.view(torch.uint8).numpy().data, file.tell(), []
    for block in tensor_index.blocks(content.nbytes):
        sums.append(zlib.crc32(content[block]))
        file.write(content[block])
    box, name = item.tensor_data.chunk, Path(file.name).name
    chunk = Chunk(tuple(box.offsets), tuple(box.sizes), name, start, tuple(sums))
    return WriteResult(index=item.index, size_in_bytes=content.nbytes, storage_data=chunk)


def _read(path: Path, name: str, entry: Entry, chunk: Chunk, item: ReadItem) -> Tensor:
    """The box of a chunk that an item asks for, [*item.lengths], on the CPU; of the chunk only the
    blocks with its rows are read.
    """
    nbytes = entry.nbytes(chunk)
    if not chunk.sizes:
        content = _bytes(path, name, chunk, nbytes, slice(0, nbytes))
        return content.view(entry.dtype).reshape(())
    row = nbytes // max(chunk.sizes[0], 1)
    first, count = item.storage_offsets[0], item.lengths[0]
    content = _bytes(path, name, chunk, nbytes, slice(first * row, (first + count) * row))
    rows = content.view(entry.dtype).reshape(count, *chunk.sizes[1:])
    inside = zip(item.storage_offsets[1:], item.lengths[1:], strict=True)
    return rows[(slice(None), *(slice(offset, offset + length) for offset, length in inside))]


def _bytes(path: Path, name: str, chunk: Chunk, nbytes: int, span: slice) -> Tensor:
    """Some of a chunk's bytes; the blocks that they lie in are read and checked."""
    blocks = [
        (block, crc32)
        for block, crc32 in zip(tensor_index.blocks(nbytes), chunk.crc32, strict=True)
        if block.start < span.stop and span.start < block.stop
    ]
    if not blocks:
        return torch.empty(0, dtype=torch.uint8)
    begin = blocks[0][0].start
    content = torch.empty(blocks[-1][0].stop - begin, dtype=torch.uint8)
    buffer = content.numpy().data
    with path.open("rb") as file:
        file.seek(chunk.start + begin)
        for block, crc32 in blocks:
            part = buffer[block.start - begin : block.stop - begin]
            if file.readinto(part) < len(part):
                raise ValueError(f"{path} is torn: bytes of {name!r} are missing")
            if zlib.crc32(part) != crc32:
                what = f"the bytes of {name!r} are not those that were saved"
                raise ValueError(f"{path} is damaged: {what}")
    return content[span.start - begin : span.stop - begin]


@contextmanager
def _cause() -> Iterator[None]:
    """Raise what made a save or a load fail, of the first rank that failed, in place of DCP's
    CheckpointException, which is no Exception.

    What is no OSError, interrupt or lack of memory becomes a ValueError in one line.
    """
    # DCP works without a process group, and shall not warn in each thread that there is none.
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
        kind = "" if isinstance(cause, ValueError) else f"{type(cause).__name__}: "
        raise ValueError(f"{kind}{reason}") from error


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """An OSError of a write or a read does not say of which file."""
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
