"""What of a process must stand in for values that a fake GPU does not compute."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CALLS: Counter[str] = Counter()
"""Calls of kernels that are replaced here, and so launch nothing."""
LIBRARY = torch.library.Library("aten", "IMPL")


def install(ranks: int, delta_kernels: bool = False) -> None:
    """Replace cuDNN's attention, the drawing of initial weights, the choice of experts, and the
    product by which a start checks the device.

    ranks: with several, this process is rank 0, alone. delta_kernels: flash-linear-attention runs.
    """
    _replace_cudnn()
    _leave_weights()
    _choose_experts_in_turn()
    _pass_health_check()
    if delta_kernels:
        _let_delta_kernels_run()
    if ranks > 1:
        _join_alone(ranks)
        _send_equal_numbers()
        _name_reports()


def _replace_cudnn() -> None:
    """Register shapes for cuDNN's attention: cuDNN itself asks the device for plans. The choice
    between cuDNN and other kernels is torch's.
    """
    name = "_scaled_dot_product_cudnn_attention"
    LIBRARY.impl(name, _cudnn, "CUDA", allow_override=True)
    LIBRARY.impl(f"{name}_backward", _cudnn_backward, "CUDA", allow_override=True)


def _cudnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    with_logsumexp: bool,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """q: [batch, heads, seq, dim], as the results of aten's operator."""
    CALLS["cudnn_attention"] += 1
    batch, heads, seq, _ = q.shape
    # cuDNN's output lies in memory as q does.
    shape, order = (*q.shape[:3], v.shape[-1]), sorted(range(4), key=q.stride, reverse=True)
    out = q.new_empty([shape[dim] for dim in order]).permute([order.index(d) for d in range(4)])
    logsumexp = q.new_empty((batch, heads, seq, 1) if with_logsumexp else 0, dtype=torch.float32)
    seed = q.new_empty((), dtype=torch.int64)
    return out, logsumexp, None, None, seq, k.shape[2], seed, torch.empty_like(seed), None


def _cudnn_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any):
    CALLS["cudnn_attention_backward"] += 1
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _pass_health_check() -> None:
    """Find no fault in a device that computes nothing."""
    from forge.training.health import at_start

    at_start.device_fault = lambda device: ""


def _let_delta_kernels_run() -> None:
    """Lift what refuses flash-linear-attention on Hopper with torch 2.11's Triton, a fault of
    values; and take the first configuration of each of its kernels: no time can be measured.
    """
    from fla.ops.common import chunk_o  # pyright: ignore[reportMissingImports]
    from triton.runtime.autotuner import Autotuner  # pyright: ignore[reportMissingImports]

    from forge.models import gated_delta_net

    chunk_o.TRITON_ABOVE_3_7_1 = True
    gated_delta_net.kernels_lack = lambda hopper=False: ""
    Autotuner._bench = lambda self, *arguments, config, **options: [0.0] * 3


def _leave_weights() -> None:
    """Draw no initial values: nothing reads them."""
    from forge.models.init import Initial

    Initial._draw = lambda self, block, out: out  # type: ignore[method-assign]


def _choose_experts_in_turn() -> None:
    """Deal tokens to experts in turn: scores are not computed."""
    from forge.models.router import Router

    def choose(router: Router, scores: Tensor) -> Tensor:
        section = router.section
        chosen = torch.arange(len(scores) * section.top_k, device=scores.device)
        return chosen.view(len(scores), -1) % section.num_experts

    Router._choose = choose  # type: ignore[method-assign]


def _join_alone(size: int) -> None:
    """Make this process rank 0 of `size`, with NCCL's process group and nobody to meet."""
    import torch.distributed.distributed_c10d as c10d

    from forge.parallel import ranks
    from forge.parallel.mesh import make_mesh
    from forge.training import build_session

    c10d._store_based_barrier = lambda *arguments, **options: None  # type: ignore[assignment]

    def join(config: Any, device: torch.device, rendezvous: Any = None) -> ranks.Ranks:
        store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("nccl", rank=0, world_size=size, store=store)
        mesh = make_mesh(config.parallel, "cuda")
        limit = timedelta(seconds=config.parallel.train_timeout_sec)
        return ranks.Ranks(rank=0, size=size, mesh=mesh, device=device, train_timeout=limit)

    build_session.join_ranks = join


def _send_equal_numbers() -> None:
    """Exchange as many rows with each rank of experts: the numbers that ranks tell are not
    computed. The read of them stays, which waits for the device.
    """
    from forge.parallel.expert import OverRanks
    from forge.parallel.overlap.expert_parts import RowsInParts

    whole, in_parts = OverRanks.run_experts, RowsInParts.run_experts

    def run(self: OverRanks, x: Tensor, counts: Tensor) -> Tensor:
        rows = [len(x) // self.over_ep.size()] * self.over_ep.size()
        with _reading([rows, rows]):
            return whole(self, x, counts)

    def run_in_parts(self: RowsInParts, x: Tensor, counts: Tensor) -> Tensor:
        parts, ranks = self.overlap_degree, self.over_ep.size()
        rows = [[len(x) // parts // ranks] * ranks] * parts
        with _reading([rows, rows]):
            return in_parts(self, x, counts)

    OverRanks.run_experts = run  # type: ignore[method-assign]
    RowsInParts.run_experts = run_in_parts  # type: ignore[method-assign]


def _name_reports() -> None:
    """Give a first stage the names of the last stage's sums, which tells them in step 1."""
    from forge.parallel.pipeline import Pipeline

    reports = Pipeline._reports

    def named(pipeline: Pipeline) -> Any:
        pipeline._reported = pipeline._reported or (torch.float32, {"ce": torch.float32})
        return reports(pipeline)

    Pipeline._reports = named  # type: ignore[method-assign]


@contextlib.contextmanager
def _reading(values: list[Any]) -> Iterator[None]:
    """Let Tensor.tolist wait as ever, and return `values`."""
    read = Tensor.tolist

    def tolist(tensor: Tensor) -> Any:
        read(tensor)
        return values

    Tensor.tolist = tolist  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.tolist = read  # type: ignore[method-assign]
