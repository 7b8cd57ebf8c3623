"""What forge asks of a model, its own or a user's: an nn.Module with these parts."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

PARTS = ("max_seq_len", "output_weight", "hidden", "init_std", "reset_buffers")


class LanguageModel(Protocol):
    """Token ids to next-token logits, with logits = hidden(tokens) @ output_weight.T.

    It is built on the meta device, in fp32; its parameters are filled by
    `forge.models.init.init_weights`. In 16 bits they are that while the model runs, and nothing
    else is cast: what it computes in fp32, such as with a table in a buffer, it gives back in the
    type of what came in. A model keeps its blocks in a
    ModuleDict or ModuleList named `blocks` where activation checkpointing and compilation are to
    find them. Nothing in it draws random numbers.
    """

    max_seq_len: int

    @property
    def output_weight(self) -> Tensor:
        """Weight of the output head, [vocab, dim]; it may be the embedding table."""
        ...

    def hidden(self, tokens: Tensor, /) -> Tensor:
        """tokens: [batch, seq] -> what the output head reads, [batch, seq, dim]; position i depends
        on tokens 0 to i only.
        """
        ...

    def __call__(self, tokens: Tensor, /) -> Tensor:
        """tokens: [batch, seq] -> logits [batch, seq, vocab]; the objectives that want whole logits
        call it.
        """
        ...

    def init_std(self, name: str) -> float:
        """Standard deviation of the initial values of the parameter `name`, of two or more
        dimensions.
        """
        ...

    def reset_buffers(self) -> None:
        """Give every buffer its first value, after the model was built where nothing has memory."""
        ...


@runtime_checkable
class Cached(Protocol):
    """A model that can go on from what it has read, for faster generation."""

    def new_cache(self, max_len: int | None = None) -> Any:
        """An empty cache for at most `max_len` tokens."""
        ...

    def hidden(self, tokens: Tensor, /, *, cache: Any = None) -> Tensor:
        """tokens: [batch, new] -> [batch, new, dim], the tokens continuing those in the cache."""
        ...


def check_model(model: object, target: str) -> None:
    """Raises ValueError for an object that lacks what every model has, naming all of it."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model._target_={target} builds a {type(model).__name__}, which is no torch.nn.Module"
        )
    missing = [part for part in PARTS if not hasattr(model, part)]
    if missing:
        lacks = f"{type(model).__name__} lacks {', '.join(missing)}"
        raise ValueError(
            f"model._target_={target}: {lacks}; docs/extending.md says what a model has"
        )
