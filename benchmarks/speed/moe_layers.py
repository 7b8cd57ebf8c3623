"""Layers for moe.py and moe_exchange.py to time: their sizes, their inputs, one pass, and turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forge.config.model.decoder import Decoder
from forge.config.model.moe import MoE as MoEConfig
from forge.models.feed_forward import FeedForward
from forge.models.moe import MoE
from forge.models.routing_record import SUMS

Work = Callable[[], object]
WARM_UP = 2
"""Passes that do not count."""

DENSE = "dense"
KERNELS: dict[str, dict[str, Any]] = {
    "grouped": {"kernel": "grouped"},
    "loop": {"kernel": "loop"},
    "capacity 1.25": {"capacity_factor": 1.25},
    "capacity 1": {"capacity_factor": 1.0},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sizes of a layer and its input. sequences: as many scopes for a capacity."""

    tokens: int
    dim: int
    experts: int
    top_k: int
    width: int
    sequences: int

    def __str__(self) -> str:
        return f"{self.tokens:,} x {self.dim:,} | {self.experts} x {self.width:,} | {self.top_k}"

    @property
    def flops(self) -> int:
        """Of the matrices that the tokens meet, forward and backward, routers aside."""
        return 18 * self.tokens * self.dim * self.width * self.top_k


SMALL = [Case(tokens=64, dim=16, experts=4, top_k=2, width=32, sequences=2)]
CPU = [
    Case(tokens=512, dim=128, experts=8, top_k=2, width=256, sequences=2),
    Case(tokens=4096, dim=256, experts=32, top_k=4, width=128, sequences=8),
    Case(tokens=2048, dim=512, experts=16, top_k=3, width=384, sequences=4),
    Case(tokens=1024, dim=1024, experts=8, top_k=2, width=1792, sequences=2),
]
CUDA = [
    Case(tokens=16384, dim=1024, experts=32, top_k=4, width=512, sequences=8),
    Case(tokens=16384, dim=2048, experts=64, top_k=8, width=1024, sequences=4),
    Case(tokens=16384, dim=4096, experts=8, top_k=2, width=14336, sequences=4),
]


def inputs(case: Case, device: torch.device, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """(x, gradient of the output): [sequences, tokens of one, dim]."""
    draw = torch.Generator().manual_seed(seed)
    shape = (case.sequences, case.tokens // case.sequences, case.dim)
    x, grad = (
        torch.randn(shape, generator=draw).to(device, matrix_dtype(device)) for _ in range(2)
    )
    return x.requires_grad_(), grad


def dense(case: Case, device: torch.device) -> nn.Module:
    """A feed-forward layer as wide as the experts of one token together."""
    torch.manual_seed(0)
    return FeedForward(Decoder(dim=case.dim, n_heads=1), case.top_k * case.width).to(
        device, matrix_dtype(device)
    )


def experts(case: Case, kernel: str, device: torch.device) -> MoE:
    """A mixture of experts, in training; its router, its counts and its sums are fp32 and int64 in
    any case.
    """
    torch.manual_seed(0)
    section = MoEConfig(
        num_experts=case.experts, top_k=case.top_k, ffn_hidden_dim=case.width, **KERNELS[kernel]
    )
    layer = MoE(Decoder(dim=case.dim, n_heads=1, moe=section)).to(device)
    layer.experts.to(matrix_dtype(device))
    return layer.train()


def matrix_dtype(device: torch.device) -> torch.dtype:
    """What experts multiply in."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def forward_backward(layer: nn.Module, x: Tensor, y_grad: Tensor) -> None:
    """One pass of a layer, as in a micro-batch."""
    clear(layer)
    x.grad = None
    layer(x).backward(y_grad)


def clear(layer: nn.Module) -> None:
    """Forget gradients."""
    for parameter in layer.parameters():
        parameter.grad = None


def dropped(layer: MoE) -> float:
    """Share of all assignments so far that a capacity dropped."""
    assignments = layer.record.counts.sum().item()
    return layer.record.sums[SUMS.index("dropped")].item() / assignments


def in_turns(
    works: Mapping[str, Work], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of each, `rounds` times in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(WARM_UP + rounds):
        for name, work in works.items():
            seconds[name].append(taken(work, device))
    return {name: counted[WARM_UP:] for name, counted in seconds.items()}


def taken(work: Work, device: torch.device) -> float:
    """Seconds until the device is done."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - begin
