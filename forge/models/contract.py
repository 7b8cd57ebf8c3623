"""The contract between forge and a model, forge's own or a user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

BESIDE_TOKENS = ("documents", "branches", "noise", "jitter")
"""Fields of a batch taken by `hidden` by name, in runs with documents that share rows, see
`ReadsDocuments`, or with random numbers in training, and noise on embeddings, see
`forge.models.decoder.Decoder.hidden`.
"""
DRAWN = ("noise", "jitter")
"""Fields of shape [batch, seq]; under any layout a rank has the part of its own tokens."""
PARTS = ("max_seq_len", "output_weight", "hidden", "init_std", "reset_buffers")


class LanguageModel(Protocol):
    """Token ids to next-token logits = hidden(tokens) @ output_weight.T.

    Built on the meta device in fp32; `forge.models.init.init_weights` fills the parameters. In 16
    bits only parameters are cast while the model runs: a computation in fp32, for example with a
    table in a buffer, returns the type of its input. Blocks are in a ModuleDict or ModuleList named
    `blocks`, if activation checkpointing and compilation are to find the blocks. Random numbers are
    drawn by `forge.models.dropout` alone.
    """

    max_seq_len: int

    @property
    def output_weight(self) -> Tensor:
        """[vocab, dim]; may be the embedding table."""
        ...

    def hidden(self, tokens: Tensor, /, *args: Any, **beside: Any) -> Tensor:
        """tokens: [batch, seq] -> hidden states for the output head, [batch, seq, dim]; causal.
        beside: the run's fields of `BESIDE_TOKENS`; a model takes by name the fields it reads.
        """
        ...

    def __call__(self, tokens: Tensor, /) -> Tensor:
        """tokens: [batch, seq] -> logits [batch, seq, vocab]."""
        ...

    def init_std(self, name: str) -> float:
        """Standard deviation of the initial values of a parameter of 2 or more dimensions."""
        ...

    def reset_buffers(self) -> None:
        """Give every buffer its first value."""
        ...


@runtime_checkable
class Cached(Protocol):
    """A model with a cache of the tokens already read."""

    def new_cache(self, max_len: int | None = None) -> Any: ...

    def hidden(self, tokens: Tensor, /, *, cache: Any = None) -> Tensor:
        """tokens: [batch, new], after the cached ones -> [batch, new, dim]."""
        ...


@runtime_checkable
class Padded(Cached, Protocol):
    """A cached model that continues rows of different lengths, where `reads_padding`."""

    reads_padding: bool

    def new_cache(self, max_len: int | None = None, padding: Tensor | None = None) -> Any:
        """padding: [batch], number of filler tokens before each row's text. max_len: with the
        filler tokens.
        """
        ...


class ReadsDocuments(Protocol):
    """A model that keeps apart the documents of a shared row, as its section says."""

    def hidden(self, tokens: Tensor, /, *, documents: Tensor | None = None) -> Tensor:
        """documents: [batch, seq], the number of each token's document within the row, never
        falling; of whole rows, also on a rank with only a part of each row.
        """
        ...


def beside_tokens(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The fields of a batch given to a model besides the tokens."""
    return {name: batch[name] for name in BESIDE_TOKENS if name in batch}


class StepReport(NamedTuple):
    """A module's report of a step, over all ranks; scalars on the device, by name.

    sums: over all tokens of the step. means: a value for the step.
    """

    sums: dict[str, Tensor]
    means: dict[str, Tensor]


class InStep(Protocol):
    """A module with a part in each step: any submodule of a model with `end_of_step`."""

    def begin_step(self, scale: Tensor | float) -> None:
        """Begin a step, before the first micro-batch. scale: factor of a loss summed over tokens:
        1 / tokens of the step, times the loss scale.
        """
        ...

    def end_of_step(
        self, done: float, *, skipped: Tensor, total: Callable[[Tensor], Tensor]
    ) -> StepReport:
        """End a step after the update, asynchronously. No two modules report the same name.

        done: share of the run before the step, 0 to 1. skipped: bool, whether the weights were left
        unchanged. total: sums a tensor over all ranks with other tokens or other layers; all ranks
        call `total` alike, a single time for all layers of a kind.
        """
        ...


def check_model(model: object, target: str) -> None:
    """Raises ValueError naming every missing part of a model."""
    key = f"model._target_={target}"
    if not isinstance(model, nn.Module):
        raise ValueError(f"{key} builds a {type(model).__name__}, which is no torch.nn.Module")
    missing = [part for part in PARTS if not hasattr(model, part)]
    if missing:
        lacks = f"{type(model).__name__} lacks {', '.join(missing)}"
        raise ValueError(f"{key}: {lacks}; docs/extending.md says what a model has")
