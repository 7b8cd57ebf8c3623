"""Rows spread over the parts of the batch by index, continued, and gathered by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from forge.models.contract import Cached
from forge.models.head import head_of
from forge.models.reading_mode import evaluating
from forge.parallel.fsdp import held_gathered
from forge.parallel.ranks import Ranks

Row = TypeVar("Row")
Text = TypeVar("Text")
Agree = Callable[[Tensor], Tensor]


def continued_in_parts(
    model: Any,
    device: torch.device,
    ranks: Ranks,
    rows: Sequence[Row],
    write: Callable[[Sequence[Row], Agree], list[Text]],
) -> list[Text]:
    """The text of each row, in their order, on all ranks; called by all ranks alike.

    write: continues rows of this rank; it gives every drawn token to its second argument, as
    `DrawOptions` does. Raises FloatingPointError on all ranks where it does on one.
    """
    part, parts = ranks.batch
    if parts == 1:
        return write(rows, ranks.copy_from_main)
    steps = _Steps(model, device, ranks)
    texts: Any
    with evaluating(model), held_gathered(model):
        try:
            texts = write(rows[part::parts], steps.agree)
        except FloatingPointError as error:
            texts = error
        steps.finish()
    gathered: list[Any] = [None] * len(rows)
    for number, written in ranks.of_all((part, texts)):
        if isinstance(written, FloatingPointError):
            raise written
        gathered[number::parts] = written
    return gathered


class _Steps:
    """Equally many forward passes on all ranks, which gather the weights of a layer together.

    A rank whose rows have ended reads a token for nobody until the rows of all ranks have.
    """

    def __init__(self, model: Any, device: torch.device, ranks: Ranks) -> None:
        self.model, self.device, self.ranks = model, device, ranks

    def agree(self, drawn: Tensor) -> Tensor:
        """Tokens of a pass, as the first rank of a tp group drew them."""
        drawn = self.ranks.copy_over_tp(drawn)
        self.ranks.any(True)
        return drawn

    @torch.no_grad()
    def finish(self) -> None:
        """Read on while another rank does."""
        token = torch.zeros((1, 1), dtype=torch.int64, device=self.device)
        going = True
        while going:
            cache = {"cache": self.model.new_cache(1)} if isinstance(self.model, Cached) else {}
            hidden = self.model.hidden(token, **cache)[:, -1]
            head_of(self.model).logits(hidden)
            going = self.ranks.any(False)
