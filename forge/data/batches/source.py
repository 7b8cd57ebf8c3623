"""The contract between the training loop and the source of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from forge.data.batches.micro_batches import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One rank's share of an update. n_tokens, n_targets, n_places: sums over all ranks of tokens
    of text, of counting targets, and of the places of all rows computed by the model. means: other
    values of the step to report, by name.
    """

    batches: list[Batch]
    n_tokens: int
    n_targets: int
    n_places: int
    means: dict[str, float] = field(default_factory=dict)


class StepSource(Iterator[Step]):
    """An endless iterator of steps for one rank.

    samples: sequences handed out so far, over all ranks. sources: names of a mixture's sources.
    streams: whether ranks have positions of their own. waited: seconds of waiting for steps; a
    caller may reset to 0. parts: seconds by name of parts of `waited` that are no waiting for data.
    """

    samples: int = 0
    waited: float = 0.0
    parts: Mapping[str, float] = {}
    sources: tuple[str, ...] = ("",)
    streams: bool = False

    @property
    def epoch(self) -> float | None:
        """Passes over the training split so far; None for a split of unknown length."""
        return None

    def realised(self) -> dict[str, int]:
        """Numbers of samples handed out so far by source of a mixture."""
        return {}

    def tokens_of(self, name: str) -> float:
        """Tokens of a sample of a source, on average."""
        return 0.0

    def range_of_last(self, steps: int) -> tuple[int, int]:
        """The first and the last sample of the last steps handed out."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """This rank's position."""
        return {"samples": self.samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the samples of `state`, on any number of ranks."""
        self.samples = state["samples"]

    def close(self) -> None:
        """Release processes; the next step starts new ones."""
