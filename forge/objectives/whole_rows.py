"""Sums over whole rows of a batch, of which a rank may have a part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class WholeRows:
    """Sums over the tokens of rows that a rank reads whole. share: of a row's loss that is this
    rank's; context parallelism has parts of rows, and an attribute `rows` of the model.
    """

    share = 1.0

    def total(self, values: Tensor) -> Tensor:
        """Sum the values of all parts of each row."""
        return values

    def has_last(self, is_target: Tensor, last: Tensor) -> Tensor:
        """Whether this rank has the last target of a row, bool [rows].

        is_target: bool [rows, seq]. last: [rows], the last place with a target of this rank.
        """
        return last >= 0


def whole_rows_of(model: Any) -> WholeRows:
    """How the rows of a model's batches are summed."""
    return getattr(model, "rows", None) or WholeRows()


def sums_over_rows(
    values: Mapping[str, Tensor], counted: Tensor, model: Any
) -> tuple[dict[str, Tensor], Tensor]:
    """Sums over the rows that count, by name, without a graph; and that of `loss`, with a graph.

    values: [rows] each. counted: bool [rows]. All sums without a graph are made by one kernel.
    """
    table = torch.stack([value.detach() for value in values.values()])
    sums, loss = table.where(counted, 0).sum(1), values["loss"].where(counted, 0).sum()
    share = whole_rows_of(model).share
    if share != 1:  # a product is a kernel, forward and backward
        sums, loss = sums * share, loss * share
    return dict(zip(values, sums.unbind(), strict=True)), loss
