"""Reading with a pipeline, without gradients: states pass from stage to stage, logits to all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forge.models.cache import KVCache
from forge.models.head import Head
from forge.planning.stages import owner


@dataclass(frozen=True, kw_only=True)
class Line:
    """The stages of a pipeline from the view of a rank.

    group: the ranks of this pipeline. between: type of hidden states between stages; after: of the
    last stage's output.
    """

    group: dist.ProcessGroup
    rank: int
    size: int
    num_stages: int
    schedule: str
    device: torch.device
    between: torch.dtype
    after: torch.dtype

    @property
    def last(self) -> int:
        return self.num_stages - 1

    def owner(self, stage: int) -> int:
        return owner(stage, self.size, self.schedule)

    def gives(self, stage: int) -> torch.dtype:
        return self.after if stage == self.last else self.between

    def has(self, stage: int) -> bool:
        """Whether this rank has a stage; False for numbers outside of the pipeline."""
        return 0 <= stage < self.num_stages and self.owner(stage) == self.rank


@torch.no_grad()
def pass_through(
    line: Line,
    parts: dict[int, nn.Module],
    tokens: Tensor,
    shape: tuple[int, ...],
    caches: dict[int, KVCache] | None,
    beside: dict[str, Tensor],
) -> Tensor | None:
    """Tokens through all stages; the last stage's hidden states on its rank. A collective.

    shape: of hidden states between stages. beside: fields that every stage reads.
    """
    x = tokens
    for stage, part in parts.items():
        if stage > 0 and not line.has(stage - 1):
            x = torch.empty(shape, dtype=line.between, device=line.device)
            dist.recv(x, group=line.group, group_src=line.owner(stage - 1))
        options: dict[str, Any] = dict(beside)
        if caches is not None:
            options["cache"] = caches[stage]
        # Messages between ranks take contiguous memory.
        x = part.hidden(x, **options).to(line.gives(stage)).contiguous()  # type: ignore[operator]
        if stage < line.last and not line.has(stage + 1):
            dist.send(x, group=line.group, group_dst=line.owner(stage + 1))
    return x if line.has(line.last) else None


class SharedHead(Head):
    """The head of the last stage with logits on all ranks: all sample the same token."""

    def __init__(self, line: Line, head: Head | None, vocab_size: int) -> None:
        self.line, self.head, self.vocab_size = line, head, vocab_size

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [..., dim], read on the last stage -> fp32 [..., vocab] on all ranks."""
        shape = (*hidden.shape[:-1], self.vocab_size)
        with torch.no_grad():
            if self.head is not None:
                values = self.head.logits(hidden).float().contiguous()
            else:
                values = torch.empty(shape, dtype=torch.float32, device=self.line.device)
            # Other ranks know shape and format beforehand: always fp32.
            dist.broadcast(values, group=self.line.group, group_src=self.line.owner(self.line.last))
        return values
