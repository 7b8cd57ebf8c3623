"""Counts what would make the CPU wait for a GPU, on a machine that has none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

READ = {
    aten._local_scalar_dense,  # item, bool, int, float, an index, an if
    aten.equal,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
    torch.ops.forge.looped_mm,  # reads its counts
    torch.ops.forge.looped_mm_of_rows,
}
"""Operators whose result the host needs, or the size of it."""
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
TO_HOST = {Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__}
FROM_HOST = {torch.tensor, torch.as_tensor, torch.from_numpy}
"""Copies from memory that is not pinned, which the host waits for."""


class Waits:
    """While it is entered, `found` counts waits by what makes them."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self._operators, self._functions = _Operators(self.found), _Functions(self.found)

    def __enter__(self) -> Waits:
        self._operators.__enter__()
        self._functions.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._functions.__exit__(*error)
        self._operators.__exit__(*error)


class _Operators(TorchDispatchMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket
        by_mask = name in INDEXING and any(
            one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]
        )
        open_end = name is aten.repeat_interleave and kwargs.get("output_size") is None
        if name in READ or by_mask or open_end:
            self.found[str(func)] += 1
        return func(*args, **kwargs)


class _Functions(TorchFunctionMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in TO_HOST or (func in FROM_HOST and not isinstance(args[0], Tensor)):
            self.found[func.__name__] += 1
        return func(*args, **kwargs)
