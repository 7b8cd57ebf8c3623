"""The contract of an objective: batches, the loss to minimise, the report of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from forge.config.objectives.base import Objective as Section
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.data.batches.samples import Samples
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.models.contract import LanguageModel, beside_tokens
from forge.objectives.losses import Losses

Reads = Callable[[Batch], LanguageModel | None]
"""A model that has read a batch's `tokens`, or reads on demand; None on ranks of a pipeline without
the loss.
"""


class LookedAhead(NamedTuple):
    """Batches prepared for the loss. n_targets: targets of the step over all ranks, where the
    preparation changed the number, as rollouts do; None = the number counted by the loader.
    """

    batches: list[Batch]
    n_targets: int | None = None


class Objective:
    """Base of every objective; built from a section with the run's tokenizer, and with the frozen
    models named by `section.frozen_models()`, in eval mode and laid out as the trained model.

    along_sequence: the fields of a batch of shape [batch, seq, ...]; with context parallelism each
    rank has a part of these fields, and the whole of all others. sums, maxima: names of the results
    of `evaluate`, by their reduction over batches and ranks. compile_backend: of torch.compile, for
    the parts of the loss worth compiling; null = nothing is compiled. progress: share of the run
    before this step, 0 to 1. without_adapter: context of a
    model without its adapter. looks_ahead: whether `looked_ahead` does anything. counts: for sums
    that are no means over targets, by name, the sum to divide by. A loader process has no models.
    """

    along_sequence: tuple[str, ...] = ("tokens", "targets")
    sums: tuple[str, ...] = ()
    maxima: tuple[str, ...] = ()
    compile_backend: str | None = None
    progress: float = 0.0
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
        """Share of a batch's rows used for learning."""
        return self.section.rows / (self.section.rows + self.section.rows_ahead)

    def collate(self, samples: Samples) -> Batch:
        """Make the fields [batch, ...], equally many rows for each sample, with `tokens`, int64
        [batch, samples.width]; equal samples give equal batches in every process.
        """
        raise NotImplementedError

    def count(self, samples: Samples) -> int:
        """Number of targets of samples, the divisor of a step's loss. Each rank counts the samples
        of all ranks by itself, so objectives with a cheaper count than by `collate` override this.
        """
        return int((self.collate(samples)["targets"] != IGNORE_INDEX).sum())

    def looked_ahead(
        self, batches: Sequence[Batch], read: Reads, total: Callable[[Tensor], Tensor]
    ) -> LookedAhead:
        """Prepare the micro-batches of a step, or all batches of an evaluation: add the fields of
        each batch that depend on all batches. All ranks call the method, without gradients and in
        eval mode. total: the sum over ranks with a part of the batch, in place.
        """
        return LookedAhead(list(batches))

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        """Sum the loss over the targets of a micro-batch. A frozen model may read any tokens;
        `model` reads only the batch's `tokens`, once: a pipeline has already read the tokens.
        """
        raise NotImplementedError

    def evaluate(self, model: LanguageModel, batch: Batch) -> dict[str, Tensor]:
        """The scalars named by `sums` and `maxima`, of a batch; without gradients."""
        raise NotImplementedError

    def metrics(self, totals: Mapping[str, float]) -> dict[str, float]:
        """The metrics named by the section, from the totals of the results of `evaluate`."""
        raise NotImplementedError


def hidden_of(model: LanguageModel, batch: Batch) -> Tensor:
    """Hidden states of a batch's `tokens` for the output head, [batch, seq, dim]; the model is also
    given the batch's fields of `forge.models.contract.BESIDE_TOKENS`.
    """
    return model.hidden(batch["tokens"], **beside_tokens(batch))
