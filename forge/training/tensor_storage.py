"""Where torch.distributed.checkpoint writes tensors to and reads them from: raw bytes and an index in JSON, never a pickle.

Its own file system storage pickles the index, and loading a foreign checkpoint may then run any code.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from forge.training import tensor_index
from forge.training.tensor_index import DTYPES, INDEX, Chunk, Entries, Entry


class TensorWriter(StorageWriter):
    """Saves into a folder without an index: a file a rank, then, by the coordinator, the index.

    Every file is on the disk when the save is done. Refuses what is no plain, dense tensor, by name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._coordinator = folder, False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.folder = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._coordinator = is_coordinator
        if not kwargs.get("use_collectives", True):
            raise ValueError("ranks that save without collectives would each need an index; save with use_collectives=True")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for item in plan.items:
            _check_storable(item)
        if self._coordinator and (self.folder / INDEX).exists():
            raise FileExistsError(f"{self.folder} holds tensors already; save into another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(plan, storage_data=tensor_index.file_name(i)) for i, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if not plan.items:
            return _done([])
        path = self.folder / plan.storage_data
        with _named(path), path.open("wb") as file:
            results = [_write(file, item, planner) for item in plan.items]
            file.flush()
            os.fsync(file.fileno())
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = {(r.index.fqn, r.storage_data.offsets): r.storage_data for rank in results for r in rank}
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


class TensorReader(StorageReader):
    """Loads what TensorWriter saved, each chunk checked against its checksum, into tensors on any layout.

    An index that cannot be read is reported by set_up_storage_reader, so that DCP gathers it from all ranks with its type:
    what read_metadata raises, it would log with a trace and turn into an AssertionError.
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

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._fault is not None:
            raise self._fault

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        chunks = {(name, chunk.offsets): chunk for name, entry in self._entries.items() for chunk in entry.chunks}
        by_file: dict[str, list[tuple[Chunk, ReadItem]]] = {}
        for item in plan.items:
            chunk = chunks[item.storage_index.fqn, tuple(item.storage_index.offset or ())]
            by_file.setdefault(chunk.file, []).append((chunk, item))
        for name, items in by_file.items():
            path = self.folder / name
            with _named(path), path.open("rb") as file:
                for chunk, item in sorted(items, key=lambda pair: pair[0].start):
                    stored = _read(file, path, item.storage_index.fqn, self._entries[item.storage_index.fqn], chunk)
                    wanted = stored[tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths, strict=True))]
                    target = planner.resolve_tensor(item).detach()
                    assert target.shape == wanted.shape, item
                    target.copy_(wanted)
                    planner.commit_tensor(item, target)
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
            chunks=[ChunkStorageMetadata(offsets=torch.Size(c.offsets), sizes=torch.Size(c.sizes)) for c in entry.chunks],
        )
        for name, entry in entries.items()
    }


def _check_storable(item: WriteItem) -> None:
    name, data = item.index.fqn, item.tensor_data
    if item.type == WriteItemType.BYTE_IO or data is None:
        raise ValueError(f"{name!r} is no tensor, and only tensors are saved; keep other values in JSON, or make it a tensor")
    layout, dtype = data.properties.layout, data.properties.dtype
    if layout != torch.strided or dtype not in DTYPES.values():
        raise ValueError(f"{name!r} is a {layout} tensor of {dtype}, and only dense, unquantized ones are saved")


def _write(file: BufferedWriter, item: WriteItem, planner: SavePlanner) -> WriteResult:
    assert item.tensor_data is not None
    data = planner.resolve_data(item)
    assert isinstance(data, Tensor)
    data = data.detach().cpu()
    if type(data) is not Tensor:
        raise ValueError(f"{item.index.fqn!r} is a {type(data).__name__}, and only plain tensors are saved; save those it is made of")
    part = item.tensor_data.chunk
    assert data.shape == part.sizes, item
    dense = data.resolve_conj().resolve_neg().contiguous()
    # A single element counts as contiguous whatever its stride, and with another than 1 it has no view as bytes.
    flat = dense.as_strided((dense.numel(),), (1,))
    content = flat.view(torch.uint8).numpy().data
    chunk = Chunk(tuple(part.offsets), tuple(part.sizes), Path(file.name).name, file.tell(), zlib.crc32(content))
    file.write(content)
    return WriteResult(index=item.index, size_in_bytes=content.nbytes, storage_data=chunk)


def _read(file: BufferedReader, path: Path, name: str, entry: Entry, chunk: Chunk) -> Tensor:
    """The tensor of a chunk, [*chunk.sizes], on the CPU."""
    length = entry.length(chunk)
    missing = chunk.start + length - os.fstat(file.fileno()).st_size
    if missing > 0:
        raise ValueError(f"{path} is torn: {missing} bytes of {name!r} are missing")
    content = torch.empty(length, dtype=torch.uint8)
    file.seek(chunk.start)
    file.readinto(content.numpy().data)
    if zlib.crc32(content.numpy().data) != chunk.crc32:
        raise ValueError(f"{path} is damaged: the bytes of {name!r} are not those that were saved")
    return content.view(entry.dtype).reshape(chunk.sizes)


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
