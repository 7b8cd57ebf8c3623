"""What forge asks of a model, its own or a user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

BESIDE_TOKENS = ("documents", "noise", "jitter")
"""Fields of a batch that `hidden` takes by name, where a run has them: documents that share rows,
see `ReadsDocuments`; what is drawn in training, and how much of it is added to embeddings, see
`forge.models.decoder.Decoder.hidden`.
"""
DRAWN = ("noise", "jitter")
"""Those of them that are [batch, seq]; a rank has its own part of these under any layout."""
PARTS = ("max_seq_len", "output_weight", "hidden", "init_std", "reset_buffers")


class LanguageModel(Protocol):
    """Token ids to next-token logits = hidden(tokens) @ output_weight.T.

    Built on the meta device in fp32; `forge.models.init.init_weights` fills its parameters. In 16
    bits only parameters are cast while it runs: what it computes in fp32, such as with a table in a
    buffer, it returns in the type of its input. Blocks are in a ModuleDict or ModuleList named
    `blocks`, if activation checkpointing and compilation are to find them. Random numbers are drawn
    by `forge.models.dropout` alone.
    """

    max_seq_len: int

    @property
    def output_weight(self) -> Tensor:
        """[vocab, dim]; may be the embedding table."""
        ...

    def hidden(self, tokens: Tensor, /, *args: Any, **beside: Any) -> Tensor:
        """tokens: [batch, seq] -> what the output head reads, [batch, seq, dim]; causal. beside: as
        of `BESIDE_TOKENS`, those that the run has; a model takes by name what it reads.
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
    """A model that can go on from what it has read."""

    def new_cache(self, max_len: int | None = None) -> Any: ...

    def hidden(self, tokens: Tensor, /, *, cache: Any = None) -> Tensor:
        """tokens: [batch, new] -> [batch, new, dim]; the tokens follow those in the cache."""
        ...


@runtime_checkable
class Padded(Cached, Protocol):
    """One that goes on from rows of different lengths, where `reads_padding`."""

    reads_padding: bool

    def new_cache(self, max_len: int | None = None, padding: Tensor | None = None) -> Any:
        """padding: [batch], the tokens before each row's text, which are nobody's. max_len: with
        these.
        """
        ...


class ReadsDocuments(Protocol):
    """A model that keeps documents apart that share a row, as its section says."""

    def hidden(self, tokens: Tensor, /, *, documents: Tensor | None = None) -> Tensor:
        """documents: [batch, seq], the number of each token's document within its row, which never
        falls; of whole rows, also where a rank has only parts of them.
        """
        ...


def beside_tokens(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a model is given of a batch besides its tokens."""
    return {name: batch[name] for name in BESIDE_TOKENS if name in batch}


class StepReport(NamedTuple):
    """What a module says of one step, over all ranks; scalars on the device, by name.

    sums: over all tokens of the step. means: one value a step each.
    """

    sums: dict[str, Tensor]
    means: dict[str, Tensor]


class InStep(Protocol):
    """A module with a part in each step: any inside a model that has `end_of_step`."""

    def begin_step(self, scale: Tensor | float) -> None:
        """Before the first micro-batch. scale: factor of a loss that is a sum over tokens: 1 /
        tokens of the step, times the loss scale.
        """
        ...

    def end_of_step(
        self, done: float, *, skipped: Tensor, total: Callable[[Tensor], Tensor]
    ) -> StepReport:
        """After the update, asynchronous. Names that one module reports no other does.

        done: share of the run that was done before it, 0 to 1. skipped: bool, whether the weights
        were left as they were. total: sums a tensor over all ranks with other tokens or other
        layers, which all call it alike; so that one call does for all layers of a kind.
        """
        ...


def check_model(model: object, target: str) -> None:
    """Raises ValueError naming all that a model lacks."""
    key = f"model._target_={target}"
    if not isinstance(model, nn.Module):
        raise ValueError(f"{key} builds a {type(model).__name__}, which is no torch.nn.Module")
    missing = [part for part in PARTS if not hasattr(model, part)]
    if missing:
        lacks = f"{type(model).__name__} lacks {', '.join(missing)}"
        raise ValueError(f"{key}: {lacks}; docs/extending.md says what a model has")
