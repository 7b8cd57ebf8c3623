"""Tensors kept by name for backward: the operations with a name, and the holders of results until
the second run of a block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import traceback
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from forge.config.recompute import CONTEXT, INPUT, OFFLOAD
from forge.parallel.host_memory import InHost, OnDevice, Run
from forge.parallel.tensor import Layer

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

ATTENTION = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.higher_order.flex_attention,
}
"""Kernels whose FLOPs grow with seq^2, and their output with seq."""
PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten._scaled_mm.default,
    aten._grouped_mm.default,
    aten._scaled_grouped_mm.default,
    torch.ops.forge.looped_mm.default,
    # The end of a layer under tensor parallelism, with and without sequence parallel.
    c10d.reduce_scatter_tensor.default,
    c10d.all_reduce.default,
    # Scales of 8-bit products.
    aten.amax.default,
}
"""Operations named after their module; outside of named modules kept only with `everything`."""
IN_MODULES = {
    # Experts of equal rows. The math kernel of attention uses it too.
    aten.bmm.default,
    # The choice of experts: another choice in the second run would send other rows.
    aten.topk.default,
}
"""Operations named after their module; outside of named modules never kept."""
NOBODYS = ""
"""The name of results that nothing reads in the second run."""
KEY = "forge_keeps"


def named(name: str) -> AbstractContextManager[Any]:
    """Name the results computed inside; a compiler keeps the name in its graph."""
    return traceback.annotate({KEY: name})


class Named(nn.Module):
    """Mixin of a module whose products have a name."""

    kept_as: str

    def forward(self, *args: Any) -> Any:
        with named(self.kept_as):
            return super().forward(*args)


class NamedProducts(nn.Module):
    """Mixin of a layer whose first matrices are joined: their product has one name."""

    made_as: str

    def input_products(self, x: Tensor) -> list[Tensor]:
        with named(self.made_as):
            return super().input_products(x)  # type: ignore[misc]


class NamedExperts(nn.Module):
    """Mixin of experts with a name for each matrix's products."""

    kept_as: Mapping[str, str]

    def expert(self, x: Tensor, product: Callable[[Tensor, str], Tensor]) -> Tensor:
        def named_product(rows: Tensor, matrix: str) -> Tensor:
            with named(self.kept_as[matrix]):
                return product(rows, matrix)

        return super().expert(x, named_product)  # type: ignore[misc]


class RecomputedAdapter(nn.Module):
    """Mixin of a layer with an adapter: its cheap products run again, never kept."""

    def inner(self, *args: Any) -> Tensor:
        with named(NOBODYS):
            return super().inner(*args)  # type: ignore[misc]

    def lengthened(self, *args: Any) -> Tensor:
        with named(NOBODYS):
            return super().lengthened(*args)  # type: ignore[misc]


class NamedSum(Layer):
    """Mixin of a layer under tensor parallelism: the sum over ranks has the name."""

    sum_kept_as: str

    def leave(self, y: Tensor) -> Tensor:
        with named(self.sum_kept_as):
            return super().leave(y)


class Places:
    """The places of results of operations, by name.

    everything: costly operations without a name too.
    """

    def __init__(self, places: Mapping[str, str], *, everything: bool) -> None:
        self.places, self.everything = dict(places), everything
        self.offloads = any(p == OFFLOAD for name, p in places.items() if name != INPUT)
        # a plain function, as the compiler wants it
        self.compiled_contexts = lambda: self.traced_contexts()

    def place(self, operation: Any) -> str | None:
        """device, offload, or None for an operation to run again."""
        if operation in ATTENTION:
            return self.places.get(CONTEXT)
        if operation in PRODUCTS or operation in IN_MODULES:
            name = traceback.current_meta.get("custom", {}).get(KEY)
            if name is None and self.everything and operation in PRODUCTS:
                return "device"
            return None if name is None else self.places.get(name)
        return None

    def contexts(self, run: Run | None = None) -> tuple[TorchDispatchMode, TorchDispatchMode]:
        """Dispatch modes for the two runs of a block; run: holds the tensors in host memory."""
        saved_results: deque[tuple[Any, Any]] = deque()
        return _RecordMode(self, saved_results, run), _ReplayMode(self, saved_results, run)

    def traced_contexts(self) -> tuple[Any, Any]:
        """Contexts for the two runs of a block under a compiler's trace."""
        return create_selective_checkpoint_contexts(self._policy)

    def _policy(self, context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        saved = self.place(operation) is not None
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


class _Mode(TorchDispatchMode):
    """Dispatch mode for each operation of a run, below an unchanged autograd."""

    supports_higher_order_operators = True

    def __init__(self, places: Places, kept: deque[tuple[Any, Any]], run: Run | None) -> None:
        super().__init__()
        self.places, self.kept, self.run = places, kept, run

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class _RecordMode(_Mode):
    """The first run: keeps results with a place."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (destination := self.places.place(func)) is not None:
            hold = self.run.hold if destination == OFFLOAD and self.run else OnDevice
            self.kept.append((func, tree_map_only(Tensor, hold, result)))
        return result


class _ReplayMode(_Mode):
    """The second run, of the same operations in the same order: returns the kept results."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.places.place(func) is None:
            return func(*args, **(kwargs or {}))
        operation, result = self.kept.popleft()
        assert operation is func, (
            f"{func} in place of {operation}: the second run of a block is another"
        )
        return tree_map_only((OnDevice, InHost), lambda held: held.take(), result)
