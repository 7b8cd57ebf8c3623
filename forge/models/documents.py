"""Documents that share a row: each is read as if it were alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Packed(NamedTuple):
    """positions: of the tokens here in their documents, [batch, seq]. seen: which keys the queries
    here see, bool [batch, 1, queries, keys], by the window of a layer; 0 = no window.
    """

    positions: Tensor
    seen: dict[int, Tensor]


def packed(documents: Tensor, windows: Iterable[int], *, tokens: Tensor, queries: Tensor) -> Packed:
    """documents: [batch, seq], the number of the document of each token of whole rows, which never
    falls. tokens: which of them are here, [n]; queries: which of them attend here, to all keys.
    """
    keys = torch.arange(documents.shape[1], device=documents.device)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    positions = keys - torch.where(begins, keys, 0).cummax(1).values
    behind = queries[:, None] - keys
    seen = (documents[:, queries, None] == documents[:, None]) & (behind >= 0)
    return Packed(
        positions=positions[:, tokens],
        seen={
            window: (seen & (behind < window) if window else seen).unsqueeze(1)
            for window in sorted(set(windows))
        },
    )


def as_scores(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 where a key is seen, else -inf. Attention makes it of a mask of
    booleans, and keeps one for each layer.
    """
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)
