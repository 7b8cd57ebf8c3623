"""Counting the bytes of the collectives that this process really starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0


def _group(group: Any) -> dist.ProcessGroup:
    """The group behind an operator's argument: a name, or an object of C++."""
    by_name: Any = getattr(dist.distributed_c10d, "_resolve_process_group")  # noqa: B009
    return by_name(group) if isinstance(group, str) else dist.ProcessGroup.unbox(group)


def _ring(total: int, group: Any) -> int:
    # In a ring each rank sends all parts but its own.
    size = _group(group).size()
    return total * (size - 1) // size


def _to_others(x: Tensor, splits: list[int], group: str) -> int:
    """Bytes of an all-to-all sent to other ranks."""
    kept_rows = splits[_group(group).rank()]
    return _bytes(x) - kept_rows * (_bytes(x) // len(x) if len(x) else 0)


# By operator: the kind, and the bytes sent by a rank. Arguments are (output, input, group, ...)
# with c10d's own operators, and (input, ..., group) with the functional operators.
OPERATORS: Mapping[str, tuple[str, Callable[[tuple[Any, ...]], int]]] = {
    "c10d._allgather_base_": ("all-gather", lambda a: _ring(_bytes(a[0]), a[2])),
    "c10d._reduce_scatter_base_": ("reduce-scatter", lambda a: _ring(_bytes(a[1]), a[2])),
    "c10d.allreduce_": ("all-reduce", lambda a: 2 * _ring(_bytes(a[0]), a[1])),
    "c10d.send": ("send", lambda a: _bytes(a[0])),
    "_c10d_functional.all_gather_into_tensor": (
        "all-gather",
        lambda a: _ring(_bytes(a[0]) * a[1], a[2]),
    ),
    "_c10d_functional.reduce_scatter_tensor": (
        "reduce-scatter",
        lambda a: _ring(_bytes(a[0]), a[3]),
    ),
    "_c10d_functional.all_reduce": ("all-reduce", lambda a: 2 * _ring(_bytes(a[0]), a[2])),
    "_c10d_functional.all_to_all_single": ("all-to-all", lambda a: _to_others(a[0], a[2], a[3])),
}
NOTHING_SENT = {
    "_c10d_functional.wait_tensor",
    "_c10d_functional._wrap_tensor_autograd",
    "c10d.recv_",
    "c10d.barrier",
}


class TrafficCounter(TorchDispatchMode):
    """Adds up the bytes sent by this rank, by kind of collective.

    An unknown operator is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = str(func.overloadpacket)
        if name in OPERATORS:
            assert not kwargs, (name, kwargs)
            kind, count = OPERATORS[name]
            self.sent[kind] += count(args)
        elif name.startswith(("c10d.", "_c10d_functional")) and name not in NOTHING_SENT:
            raise AssertionError(f"{name} is not counted")
        return func(*args, **(kwargs or {}))
