"""The text of a completion, and a base of rewards that judge completions alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Completion = str | Sequence[dict[str, Any]]
"""A text, or a conversation's messages."""


def completion_text(completion: Completion) -> str:
    """The text of a completion: of messages the last one's content."""
    if isinstance(completion, str):
        return completion
    return str(completion[-1].get("content") or "") if completion else ""


class Reward:
    """Base of forge's rewards. isolated: whether it runs in processes with a time limit. splits:
    whether the completions of a call may be judged in several calls.
    """

    isolated = False
    splits = True

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield (what is wrong, what to do) of a reward that cannot run here."""
        yield from ()
