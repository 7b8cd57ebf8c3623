"""Sums over whole rows of a batch, of which a rank may have a part."""

from __future__ import annotations

from typing import Any

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
