"""Base of tools: the model writes a call between two marks, and continues after the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MARKS = ("<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>")


class Tool:
    """An environment that answers calls, until the model ends its text; it gives no reward.

    marks: around a call, and around an answer. A call without an answer gets none, as in nanochat.
    """

    concurrent = True

    def __init__(self, marks: list[str] | tuple[str, ...] = MARKS) -> None:
        self.marks = list(marks)
        self.stop = tuple(self.marks[1:2])

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield (what is wrong, what to do) of a tool that cannot run here."""
        if len(self.marks) != 4 or not all(isinstance(m, str) for m in self.marks):
            yield "marks are four texts: around a call, and around an answer.", _marks(MARKS)
        elif not all(self.marks[:2]) or self.marks[1] in self.marks[0]:
            yield (
                "the mark after a call ends a turn: no part of the mark before it.",
                _marks(MARKS),
            )

    def reset(self, row: Mapping[str, Any]) -> None:
        """A tool remembers nothing."""

    def step(self, text: str) -> tuple[str, bool, float | None]:
        """Answer the call that the text ends with; without a call the text is the last."""
        begin, end, before, behind = self.marks
        call, mark, rest = text.rpartition(end)
        if not mark or rest.strip():
            return "", True, None
        answer = self.answer(call.rpartition(begin)[2]) if begin in call else None
        return "" if answer is None else f"{before}{answer}{behind}", False, None

    def answer(self, call: str) -> str | None:
        """The answer to a call; None = none."""
        raise NotImplementedError


def _marks(marks: tuple[str, ...]) -> str:
    return f'"marks=[{",".join(map(repr, marks))}]"'
