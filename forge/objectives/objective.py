"""What an objective is: how batches are made, what is minimised, what an evaluation reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from forge.config.objectives.base import Objective as Section
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.data.batches.samples import Samples
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.models.contract import LanguageModel, beside_tokens
from forge.objectives.losses import Losses

Reads = Callable[[Batch], LanguageModel | None]
"""The model that has read a batch's `tokens`, or does so when it is asked; None on ranks of a
pipeline without the loss.
"""


class Objective:
    """Base of every objective; built from its section with the run's tokenizer, and with the frozen
    models that `section.frozen_models()` names, in eval mode and laid out as the trained one.

    along_sequence: the fields of a batch that are [batch, seq, ...]; with context parallelism each
    rank has its part of these, and the whole of all others. sums, maxima: names of what `evaluate`
    gives, by how it adds up over batches and ranks. compile_backend: of torch.compile, for what of
    the loss it pays; null = nothing is compiled. without_adapter: a model is inside of it what it
    was without its adapter. looks_ahead: whether `looked_ahead` does anything. counts: of sums that
    are no means over targets, by name, the sum that they are divided by. In a loader process there
    are no models.
    """

    along_sequence: tuple[str, ...] = ("tokens", "targets")
    sums: tuple[str, ...] = ()
    maxima: tuple[str, ...] = ()
    compile_backend: str | None = None
    looks_ahead: bool = False
    counts: Mapping[str, str] = MappingProxyType({})
    without_adapter: Callable[[nn.Module], AbstractContextManager[None]]
    section: Any

    def __init__(
        self,
        section: Section,
        *,
        tokenizer: Tokenizer | None = None,
        models: Mapping[str, nn.Module] | None = None,
    ) -> None:
        self.section, self.tokenizer, self.models = section, tokenizer, dict(models or {})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "models": {}}

    @property
    def learnt(self) -> float:
        """Share of the rows of a batch that are learnt from."""
        return self.section.rows / (self.section.rows + self.section.rows_ahead)

    def collate(self, samples: Samples) -> Batch:
        """Fields [batch, ...], as many rows for each sample, with `tokens`, int64 [batch,
        samples.width]; the same from the same samples, in whatever process.
        """
        raise NotImplementedError

    def count(self, samples: Samples) -> int:
        """Targets of these samples, by which the loss of a step is divided. Each rank counts those
        of all ranks by itself, so an objective that knows it of less than their batch says so.
        """
        return int((self.collate(samples)["targets"] != IGNORE_INDEX).sum())

    def looked_ahead(
        self, batches: Sequence[Batch], read: Reads, total: Callable[[Tensor], Tensor]
    ) -> list[Batch]:
        """The micro-batches of a step, or all batches of an evaluation, as they are learnt from or
        evaluated then: with what the loss of each has to know of all. All ranks call it, without
        gradients and in eval mode. total: the sum over ranks with a part of the batch, in place.
        """
        return list(batches)

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        """Sums over the targets of a micro-batch. It may read any tokens with a frozen model, and
        with `model` the batch's `tokens`, once: with pipeline parallelism they are already read.
        """
        raise NotImplementedError

    def evaluate(self, model: LanguageModel, batch: Batch) -> dict[str, Tensor]:
        """The scalars that `sums` and `maxima` name, of one batch; without gradients."""
        raise NotImplementedError

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """The metrics that the section names, from the totals of what `evaluate` has given."""
        raise NotImplementedError


def read(model: LanguageModel, batch: Batch) -> Tensor:
    """What the output head reads of a batch's `tokens`, [batch, seq, dim], with all else that a
    model is given of a batch that has it, see `forge.models.contract.BESIDE_TOKENS`.
    """
    return model.hidden(batch["tokens"], **beside_tokens(batch))
