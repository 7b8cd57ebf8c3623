"""Activations in host memory until the backward pass needs them.

On a GPU copies run on separate streams, to and from pinned memory: a block's tensors to the host
while the next blocks compute, and back while the following block goes backward. On a CPU the copies
are plain.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch import Tensor

SMALLEST = 1 << 16
"""Bytes of a tensor for which a copy is worth while."""


class OnDevice:
    """A tensor kept on its device."""

    def __init__(self, tensor: Tensor) -> None:
        # a change in place of either tensor raises the version of both
        with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
            self.tensor = tensor.detach()
        self.version = tensor._version

    def take(self) -> Tensor:
        assert self.tensor._version == self.version, "a tensor that is kept was changed in place"
        return self.tensor


class Run:
    """Tensors in host memory of one run of a block, or of a layer of the block.

    before: the previous run.
    """

    def __init__(self, block: int, before: Run | None) -> None:
        self.block, self.held = block, list[weakref.ref[InHost]]()
        self.before = None if before is None else weakref.ref(before)

    def hold(self, tensor: Tensor) -> InHost:
        host_copy = InHost(tensor, self)
        self.held.append(weakref.ref(host_copy))
        return host_copy

    def fetch(self) -> None:
        """Start copies of all tensors not on the way back yet, and of the block before."""
        run: Run | None = self
        while run is not None and run.block >= self.block - 1:
            for reference in run.held:
                if (held := reference()) is not None:
                    held.fetch()
            run = run.before() if run.before is not None else None


class InHost:
    """A tensor in host memory; `take` returns the tensor on its device."""

    def __init__(self, tensor: Tensor, run: Run) -> None:
        self.run, self.device, self.coming = run, tensor.device, None
        self.streams = _streams(tensor.device) if tensor.is_cuda else None
        tensor = tensor.detach()
        geometry = tensor.size(), tensor.stride()
        pinned = tensor.is_cuda
        self.host = torch.empty_strided(*geometry, dtype=tensor.dtype, pin_memory=pinned)
        if self.streams is None:
            self.host.copy_(tensor)
            return
        # The copy starts after the kernel that computes the tensor.
        out = self.streams[0]
        out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(out):
            self.host.copy_(tensor, non_blocking=True)
            self.there = out.record_event()
        # The allocator may reuse the memory only when the copy has ended.
        tensor.record_stream(out)

    def fetch(self) -> None:
        """Start the copy back, unless the copy has begun."""
        if self.streams is None or self.coming is not None:
            return
        back = self.streams[1]
        back.wait_event(self.there)
        with torch.cuda.stream(back):
            host = self.host
            device_copy = torch.empty_strided(
                host.size(), host.stride(), dtype=host.dtype, device=self.device
            )
            device_copy.copy_(host, non_blocking=True)
            self.coming = device_copy, back.record_event()

    def take(self) -> Tensor:
        """The tensor on its device; a second call copies again."""
        if self.streams is None:
            return self.host if self.device.type == "cpu" else self.host.to(self.device)
        self.run.fetch()
        assert self.coming is not None
        (device_copy, arrived), self.coming = self.coming, None
        current = torch.cuda.current_stream(self.device)
        # Allocated on the copy stream, the memory is used on the current stream from now on.
        current.wait_event(arrived)
        device_copy.record_stream(current)
        return device_copy


class Host:
    """Runs of the blocks of a model, in the order of their forward passes."""

    def __init__(self, smallest: int = SMALLEST) -> None:
        self.smallest = smallest
        self.last: weakref.ref[Run] | None = None

    def run(self, block: int) -> Run:
        """A new run of a block, counted from 0; the run before is of the same micro-batch."""
        previous = self.last() if self.last else None
        run = Run(block, previous if previous and previous.block <= block else None)
        self.last = weakref.ref(run)
        return run

    def __deepcopy__(self, memo: Any) -> Host:
        return Host(self.smallest)


@functools.cache
def _streams(device: torch.device) -> tuple[Any, Any]:
    """Streams to the host and back."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)
