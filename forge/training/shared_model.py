"""A frozen model whose layers are shared by ranks that each have a batch of their own."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

from forge.models.head import Head
from forge.parallel.collectives import gather_equal
from forge.parallel.mesh import Mesh


class SharedModel(nn.Module):
    """A model cut over the tp ranks of a mesh, for ranks that the trained model does not cut.

    The ranks read the rows of all together, and each takes the hidden states of its own. The head
    is gathered whole, since each rank has other tokens. All ranks call `hidden` alike, without
    gradients, with equally many rows.
    """

    def __init__(self, model: Any, mesh: Mesh) -> None:
        super().__init__()
        self.model, self.group = model, mesh.tp.get_group()

    def hidden(self, tokens: Tensor, *, documents: Tensor | None = None) -> Tensor:
        """tokens: [batch, seq] of this rank -> [batch, seq, dim]. A collective."""
        batch, seq = tokens.shape
        longest = torch.tensor([seq], device=tokens.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=self.group)
        more = int(longest) - seq  # after the text, where a causal model reads nothing back
        beside = {}
        if documents is not None:
            beside["documents"] = self._rows_of_all(pad(documents, (0, more), value=LAST))
        hidden = self.model.hidden(self._rows_of_all(pad(tokens, (0, more))), **beside)
        rank = self.group.rank()
        return hidden[rank * batch : (rank + 1) * batch, :seq]

    def _rows_of_all(self, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        parts = [torch.empty_like(rows) for _ in range(self.group.size())]
        dist.all_gather(parts, rows, group=self.group)
        return torch.cat(parts)

    @torch.no_grad()
    def spread_head(self) -> Head:
        """The whole head, on each rank; call it after `hidden`. A collective."""
        head = self.model.spread_head()
        weight = gather_equal(head.weight.contiguous(), 0, self.group, head.vocab_size)
        return Head(weight, multiplier=head.multiplier, cap=head.cap, product=head.product)


LAST = torch.iinfo(torch.int32).max
"""A document's number that is above all others: numbers never fall along a row."""
