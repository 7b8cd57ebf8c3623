"""What an objective returns: sums over target tokens, never means."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(kw_only=True)
class Losses:
    """Sums of one micro-batch; the caller divides them by the global number of target tokens.

    total: scalar with a graph, what is minimised. sums: detached scalars by name, to be reported.
    """

    total: Tensor
    sums: dict[str, Tensor]
