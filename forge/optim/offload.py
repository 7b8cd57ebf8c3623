"""Optimizer state in the memory of the host, on the device only during the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge.optim.combined import FLAGS
from forge.optim.one_by_one import SequentialUpdates, inner_optimizers
from forge.tensors.local import local
from forge.tensors.masters import master


class Offloaded(torch.optim.Optimizer):
    """An optimizer with moments and masters on the host. Groups and state are the objects of the
    wrapped optimizer.

    A step goes from parameter to parameter. During a parameter's update the state of the next
    parameter comes to the device and the state of the last parameter goes back, on a stream of its
    own, from and to pinned memory. On a CPU the same copies are made, one after another.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__([{"params": group["params"]} for group in optimizer.param_groups], {})
        self.optimizer, self.one_by_one = optimizer, SequentialUpdates(optimizer)
        # By the id of a tensor: the tensor, referenced so that no other gets its id, and its host
        # memory.
        self.hosts: dict[int, tuple[Tensor, Tensor]] = {}
        self.stream: Any = None
        self._share()
        self._return_all()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return getattr(self.optimizer, "_step_supports_amp_scaling", False)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return inner_optimizers(self.optimizer)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters with a gradient."""
        assert closure is None, "forge gives gradients"
        flags = {name: getattr(self, name) for name in FLAGS if hasattr(self, name)}
        parameters = [p for p in self.one_by_one.parameters if p.grad is not None]
        if parameters and parameters[0].is_cuda and self.stream is None:
            self.stream = torch.cuda.Stream()
        coming = self._fetch(parameters[0]) if parameters else None
        for parameter, following in zip(parameters, [*parameters[1:], None], strict=True):
            fetched, coming = coming, self._fetch(following) if following is not None else None
            assert fetched is not None
            self._use(fetched)
            self.one_by_one.step(parameter, flags)
            self._return(parameter)
        self._share()
        return None

    def settle(self) -> None:
        """Wait until all state is on the host, ready to be read."""
        if self.stream is not None:
            self.stream.synchronize()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)
        self._share()
        self.hosts.clear()
        self._return_all()

    def _share(self) -> None:
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state

    @torch.no_grad()
    def _return_all(self) -> None:
        for parameter in self.one_by_one.parameters:
            self._return(parameter)

    def _kept(self, parameter: Tensor) -> Iterator[Tensor]:
        """The offloaded tensors of a parameter: moments and master; counts stay for the kernels."""
        yield from (value for value in self.state.get(parameter, {}).values() if value.ndim)
        if master(parameter) is not parameter:
            yield master(parameter)

    def _fetch(self, parameter: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Begin to copy a parameter's state to the device; returns pairs of tensor and copy."""
        device, copies = local(parameter).device, []
        with torch.cuda.stream(self.stream):
            for value in self._kept(parameter):
                if id(value) in self.hosts:
                    _, host = self.hosts[id(value)]
                    copies.append((value, host.to(device, non_blocking=True, copy=True)))
        return copies

    def _use(self, fetched: list[tuple[Tensor, Tensor]]) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        for value, device_copy in fetched:
            # The copy's memory is of the side stream: not to be reused before this stream is done.
            if self.stream is not None:
                device_copy.record_stream(torch.cuda.current_stream())
            _put(value, device_copy)

    def _return(self, parameter: Tensor) -> None:
        """Begin to copy a parameter's state back; new tensors get memory on the host."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for value in self._kept(parameter):
                shard = local(value)
                if id(value) not in self.hosts:
                    pinned = local(parameter).is_cuda
                    room = torch.empty_like(shard, device="cpu", pin_memory=pinned)
                    self.hosts[id(value)] = value, room
                _, host = self.hosts[id(value)]
                host.copy_(shard, non_blocking=True)
                if self.stream is not None:
                    shard.record_stream(self.stream)
                _put(value, host)


def _put(value: Tensor, content: Tensor) -> None:
    """Replace the content of a tensor in place, even on another device."""
    if isinstance(value, DTensor):
        value._local_tensor = content
    else:
        value.data = content
