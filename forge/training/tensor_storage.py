"""Where torch.distributed.checkpoint writes tensors to and reads them from: raw bytes and an index
in JSON, never a pickle.

Its own file system storage pickles the index, and loading a foreign checkpoint may then run any
code.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BufferedWriter
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
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
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from forge.training import tensor_index
from forge.training.tensor_index import AT_ONCE, DTYPES, INDEX, Chunk, Entries, Entry

T = TypeVar("T")
R = TypeVar("R")


class TensorWriter(StorageWriter):
    """Saves into a folder without an index: files of each rank, written at once, then, by the
    coordinator, the index.

    Every file is on the disk when the save is done. Refuses what is no plain, dense tensor, by
    name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._coordinator = folder, False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.folder = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._coordinator = is_coordinator
        if not kwargs.get("use_collectives", True):
            raise ValueError(
                "ranks that save without collectives would each need an index; save with use_collectives=True"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for item in plan.items:
            _check_storable(item)
        if self._coordinator and (self.folder / INDEX).exists():
            raise FileExistsError(f"{self.folder} holds tensors already; save into another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        parts = _shared_out(plan.items)
        rank = int(plan.storage_data)

        def write(number: int) -> list[WriteResult]:
            path = self.folder / tensor_index.file_name(rank, number)
            with _named(path), path.open("wb") as file:
                results = [_write(file, item, planner) for item in parts[number]]
                file.flush()
                os.fsync(file.fileno())
            return results

        return _done(
            [result for results in _at_once(write, range(len(parts))) for result in results]
        )

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = {
            (r.index.fqn, r.storage_data.offsets): r.storage_data for rank in results for r in rank
        }
        entries: Entries = {}
        for name, what in metadata.state_dict_metadata.items():
            assert isinstance(what, TensorStorageMetadata)
            chunks = tuple(written[name, tuple(chunk.offsets)] for chunk in what.chunks)
            entries[name] = Entry(what.properties.dtype, tuple(what.size), chunks)
        with _named(self.folder / INDEX):
            tensor_index.write(self.folder, entries)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" not in str(checkpoint_id)


class StagedPlanner(DefaultSavePlanner):
    """Plans by the tensors of a run, and has copies of them written, which the run no longer
    changes.
    """

    def __init__(self, copies: dict[str, Tensor]) -> None:
        """copies: by name what this rank holds of each tensor."""
        super().__init__()
        self.copies = copies

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self.copies[index.fqn]


class TensorReader(StorageReader):
    """Loads what TensorWriter saved, each chunk checked against its checksum, into tensors on any
    layout.

    An index that cannot be read is reported by set_up_storage_reader, so that DCP gathers it from
    all ranks with its type: what read_metadata raises, it would log with a trace and turn into an
    AssertionError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: Entries = {}
        self._fault: Exception | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.folder = Path(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._entries, self._fault = {}, None
        try:
            self._entries = tensor_index.read(self.folder)
        except (OSError, ValueError) as error:
            self._fault = error
        return Metadata({**described(self._entries)})

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
            with _named(path):
                wanted = _read(path, name, self._entries[name], chunk, item)
            target = planner.resolve_tensor(item).detach()
            assert target.shape == wanted.shape, item
            target.copy_(wanted)
            planner.commit_tensor(item, target)

        _at_once(read, plan.items)
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return TensorWriter.validate_checkpoint_id(checkpoint_id)


def described(entries: Entries) -> dict[str, TensorStorageMetadata]:
    """An index in the terms of torch.distributed.checkpoint."""
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


def _check_storable(item: WriteItem) -> None:
    name, data = item.index.fqn, item.tensor_data
    if item.type == WriteItemType.BYTE_IO or data is None:
        raise ValueError(
            f"{name!r} is no tensor, and only tensors are saved; keep other values in JSON, or make it a tensor"
        )
    layout, dtype = data.properties.layout, data.properties.dtype
    if layout != torch.strided or dtype not in DTYPES.values():
        raise ValueError(
            f"{name!r} is a {layout} tensor of {dtype}, and only dense, unquantized ones are saved"
        )


def _shared_out(items: Sequence[WriteItem]) -> list[list[WriteItem]]:
    """The items in as many parts as are worth a file each, of about equal size; none where there
    are none.
    """
    sizes = [
        prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize
        for item in items
        if item.tensor_data
    ]
    parts: list[list[WriteItem]] = [
        [] for _ in range(min(AT_ONCE, 1 + sum(sizes) // tensor_index.LEAST, len(items)))
    ]
    filled = [0] * len(parts)
    for size, item in sorted(zip(sizes, items, strict=True), key=lambda pair: -pair[0]):
        smallest = filled.index(min(filled))
        parts[smallest].append(item)
        filled[smallest] += size
    return parts


def _at_once(work: Callable[[T], R], pieces: Iterable[T]) -> list[R]:
    """The work on each piece, in threads; raises what the first one to fail in order raised, when
    none goes on.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, pieces))


def _write(file: BufferedWriter, item: WriteItem, planner: SavePlanner) -> WriteResult:
    assert item.tensor_data is not None
    data = planner.resolve_data(item)
    assert isinstance(data, Tensor)
    data = data.detach().cpu()
    if type(data) is not Tensor:
        raise ValueError(
            f"{item.index.fqn!r} is a {type(data).__name__}, and only plain tensors are saved; save those it is made of"
        )
    part = item.tensor_data.chunk
    assert data.shape == part.sizes, item
    dense = data.resolve_conj().resolve_neg().contiguous()
    # A single element counts as contiguous whatever its stride, and with another than 1 it has no
    # view as bytes.
    flat = dense.as_strided((dense.numel(),), (1,))
    content, start, sums = flat.view(torch.uint8).numpy().data, file.tell(), []
    for block in tensor_index.blocks(content.nbytes):
        sums.append(zlib.crc32(content[block]))
        file.write(content[block])
    chunk = Chunk(tuple(part.offsets), tuple(part.sizes), Path(file.name).name, start, tuple(sums))
    return WriteResult(index=item.index, size_in_bytes=content.nbytes, storage_data=chunk)


def _read(path: Path, name: str, entry: Entry, chunk: Chunk, item: ReadItem) -> Tensor:
    """The box of a chunk that an item asks for, [*item.lengths], on the CPU; of the chunk only the
    blocks with its rows are read.
    """
    length = entry.length(chunk)
    if not chunk.sizes:
        return _bytes(path, name, chunk, length, slice(0, length)).view(entry.dtype).reshape(())
    row, first, count = length // max(chunk.sizes[0], 1), item.storage_offsets[0], item.lengths[0]
    rows = (
        _bytes(path, name, chunk, length, slice(first * row, (first + count) * row))
        .view(entry.dtype)
        .reshape(count, *chunk.sizes[1:])
    )
    return rows[
        (
            slice(None),
            *(
                slice(o, o + n)
                for o, n in zip(item.storage_offsets[1:], item.lengths[1:], strict=True)
            ),
        )
    ]


def _bytes(path: Path, name: str, chunk: Chunk, length: int, span: slice) -> Tensor:
    """Some bytes of a chunk of that length; the blocks that they lie in are read and checked."""
    blocks = list(zip(tensor_index.blocks(length), chunk.crc32, strict=True))
    blocks = [
        (block, crc32)
        for block, crc32 in blocks
        if block.start < span.stop and span.start < block.stop
    ]
    if not blocks:
        return torch.empty(0, dtype=torch.uint8)
    begin = blocks[0][0].start
    content = torch.empty(blocks[-1][0].stop - begin, dtype=torch.uint8)
    buffer = content.numpy().data
    with path.open("rb") as file:
        missing = chunk.start + length - os.fstat(file.fileno()).st_size
        if missing > 0:
            raise ValueError(f"{path} is torn: {missing} bytes of {name!r} are missing")
        file.seek(chunk.start + begin)
        for block, crc32 in blocks:
            part = buffer[block.start - begin : block.stop - begin]
            file.readinto(part)
            if zlib.crc32(part) != crc32:
                raise ValueError(
                    f"{path} is damaged: the bytes of {name!r} are not those that were saved"
                )
    return content[span.start - begin : span.stop - begin]


@contextmanager
def _named(path: Path) -> Iterator[None]:
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
