"""Host copies of tensors under save while training continues, in one buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forge.tensors.local import local
from forge.tensors.threads import pool

ALIGNED = 64  # bytes; a view in another dtype needs an aligned offset


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Host copies of this rank's shards.

    done: the copies by name. copied: recorded after a GPU's last write, for pinned memory.
    """

    done: Future[dict[str, Tensor]]
    copied: torch.cuda.Event | None = None

    def wait_to_write(self) -> None:
        """Wait until copied tensors may change; on a GPU only later queued work waits.

        Raises failures of the copy.
        """
        if self.copied is not None:
            self.copied.wait()
        else:
            self.done.result()


class Staging:
    """Copies tensors in a separate thread, into one buffer reused from save to save.

    pinned: page-locked memory, for writes by the GPU without the thread. The buffer is pinned as
    one tensor, since torch's own allocator of pinned memory rounds each tensor up to a power of
    two.
    """

    def __init__(self, *, pinned: bool) -> None:
        self.pinned = pinned
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._thread = pool(1, name="staging")
        self._reserved: Future[None] | None = None
        self._stream: torch.cuda.Stream | None = None

    def reserve(self, tensors: Iterable[Tensor]) -> None:
        """Begin to allocate and pin room for copies of tensors, in the thread.

        To pin tens of GB takes many seconds: page by page the memory is first made.
        """
        self._reserved = self._thread.submit(self._allocate, sum(map(_size, tensors)))

    def copy(self, tensors: Mapping[str, Tensor]) -> Copies:
        """Begin to copy, over the copies of an earlier call."""
        owned = {name: local(tensor.detach()) for name, tensor in tensors.items()}
        device = next((tensor.device for tensor in owned.values() if tensor.is_cuda), None)
        room = self._room(owned)
        if device is None:
            return Copies(done=self._thread.submit(_copy, owned, room))
        stream = self._stream = self._stream or torch.cuda.Stream(device)
        # The copies follow the update still queued on the current stream.
        stream.wait_stream(torch.cuda.current_stream(device))
        if not self.pinned:
            return Copies(done=self._thread.submit(_copy, owned, room, stream))
        with torch.cuda.stream(stream):
            for name, tensor in owned.items():
                room[name].copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record(stream)
        return Copies(done=self._thread.submit(lambda: copied.synchronize() or room), copied=copied)

    def close(self) -> None:
        """Free the buffer once the thread is done."""
        self._thread.shutdown()
        self._release()

    def _room(self, owned: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._reserved is not None:
            self._reserved.result()
            self._reserved = None
        ranges, end = {}, 0
        for name, tensor in owned.items():
            ranges[name] = slice(end, end + tensor.nbytes)
            end += _size(tensor)
        if end > len(self._buffer):
            self._release()
            self._allocate(end)
        return {
            name: self._buffer[ranges[name]].view(tensor.dtype).view(tensor.shape)
            for name, tensor in owned.items()
        }

    def _allocate(self, size: int) -> None:
        self._buffer = torch.empty(size, dtype=torch.uint8)
        if self.pinned and size:  # raises RuntimeError where the system lets less memory be locked
            try:
                _check(_cudart().cudaHostRegister(self._buffer.data_ptr(), size, 0))
            except RuntimeError:
                self._buffer = torch.empty(0, dtype=torch.uint8)  # not registered
                raise

    def _release(self) -> None:
        if self.pinned and len(self._buffer):
            torch.cuda.synchronize()  # copies into the buffer may be running
            _check(_cudart().cudaHostUnregister(self._buffer.data_ptr()))
        self._buffer = torch.empty(0, dtype=torch.uint8)


def _size(tensor: Tensor) -> int:
    """Bytes of this rank's shard in the buffer."""
    return -(-local(tensor).nbytes // ALIGNED) * ALIGNED


def _copy(
    owned: Mapping[str, Tensor], room: dict[str, Tensor], stream: torch.cuda.Stream | None = None
) -> dict[str, Tensor]:
    with torch.cuda.stream(stream):  # no effect for None
        for name, tensor in owned.items():
            room[name].copy_(tensor)
    return room


def _check(status: Any) -> None:
    torch.cuda.check_error(int(status))


def _cudart() -> Any:
    return torch.cuda.cudart()
