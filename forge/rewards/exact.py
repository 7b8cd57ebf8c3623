"""Rewards by comparison: with an answer of the row, as text or number, or with a pattern."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from forge.rewards.completion import Completion, Reward, completion_text
from forge.tasks.generation import Matching, matching_faults

NUMBER = re.compile(
    r"(?:(?<!\d)[-+])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)


class Exact(Reward):
    """1 where a completion equals the row's `answer`, or one of a list of answers.

    regex, take, ignore_case, ignore_punctuation, ignore: what counts, as in tasks of texts.
    correct, wrong: the rewards. A pattern may take forever: it runs in a process of its own.
    """

    def __init__(
        self,
        regex: str | None = None,
        take: str = "first",
        ignore_case: bool = False,
        ignore_punctuation: bool = False,
        ignore: Sequence[str] = (),
        correct: float = 1.0,
        wrong: float = 0.0,
    ) -> None:
        options = {"regex": regex, "take": take, "ignore_case": ignore_case}
        options |= {"ignore_punctuation": ignore_punctuation, "ignore": ignore}
        self.option_faults = list(matching_faults(options))
        self.matching = Matching(**({} if self.option_faults else options))
        self.correct, self.wrong = correct, wrong
        self.isolated = bool(regex or ignore)

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from self.option_faults

    def __call__(self, completions: Sequence[Completion], answer: Sequence[Any]) -> list[float]:
        return [
            self.correct if self._equal(completion_text(text), right) else self.wrong
            for text, right in zip(completions, answer, strict=True)
        ]

    def _equal(self, text: str, right: Any) -> bool:
        answers = right if isinstance(right, list | tuple) else [right]
        return self.matching.equal(text, [str(answer) for answer in answers])


class Numeric(Reward):
    """1 where a number of the completion equals that of the row's `answer`; None for an answer
    without a number.

    take: the first or last number of a text; behind: only the text after the last of these marks,
    where it has one (GSM8K: "####"); needs_mark: a text without it has no number. Numbers may have
    commas: 1,234.5. tolerance: largest difference; relative: largest difference by the size of the
    answer.
    """

    def __init__(
        self,
        take: str = "last",
        behind: str = "####",
        needs_mark: bool = False,
        tolerance: float = 0.0,
        relative: float = 0.0,
        correct: float = 1.0,
        wrong: float = 0.0,
    ) -> None:
        self.take, self.behind, self.needs_mark = take, behind, needs_mark
        self.tolerance, self.relative = tolerance, relative
        self.correct, self.wrong = correct, wrong

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from matching_faults({"take": self.take})
        if self.tolerance < 0 or self.relative < 0:
            yield "a tolerance is at least 0.", "tolerance=0"

    def number(self, text: str) -> float | None:
        """The number of a text that counts; None where it has none."""
        if self.behind:
            _, mark, text = text.rpartition(self.behind)
            if self.needs_mark and not mark:
                return None
        numbers = NUMBER.findall(text)
        value = numbers[-1 if self.take == "last" else 0] if numbers else None
        return None if value is None else float(value.replace(",", ""))

    def __call__(
        self, completions: Sequence[Completion], answer: Sequence[Any]
    ) -> list[float | None]:
        rewards: list[float | None] = []
        for completion, right in zip(completions, answer, strict=True):
            expected, number = self.number(str(right)), self.number(completion_text(completion))
            if expected is None:
                rewards.append(None)
                continue
            equal = number is not None and math.isclose(
                number, expected, rel_tol=self.relative, abs_tol=self.tolerance
            )
            rewards.append(self.correct if equal else self.wrong)
        return rewards


class Regex(Reward):
    """1 where a pattern of Python's re matches a completion: anywhere, or with whole=true all of
    it.
    """

    isolated = True  # a pattern may take forever, and no thread could stop it

    def __init__(
        self, pattern: str, whole: bool = False, match: float = 1.0, otherwise: float = 0.0
    ) -> None:
        self.pattern, self.whole = pattern, whole
        self.match, self.otherwise = match, otherwise

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from matching_faults({"regex": self.pattern})

    def __call__(self, completions: Sequence[Completion]) -> list[float]:
        pattern = re.compile(self.pattern, re.DOTALL)
        matches = pattern.fullmatch if self.whole else pattern.search
        return [
            self.match if matches(completion_text(text)) else self.otherwise for text in completions
        ]
