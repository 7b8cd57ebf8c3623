"""The result of an objective: sums over target tokens, never means."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(kw_only=True)
class Losses:
    """Sums of a micro-batch; the caller divides by the global number of target tokens.

    total: scalar with a graph, to be minimised. sums: detached scalars by name, to be reported.
    """

    total: Tensor
    sums: dict[str, Tensor]
