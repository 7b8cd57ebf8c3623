"""Rewards for answers between tags, as `<reasoning>...</reasoning><answer>42</answer>`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forge.rewards.completion import Completion, Reward, completion_text

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
NEAR, WIDE = 0.1, 0.2  # relative differences of a guess


class Tagged(Reward):
    """Base of rewards for two texts between tags: nothing but space before the first tag and after
    the last one.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self.tags = tuple(tags)

    def faults(self) -> Iterator[tuple[str, str]]:
        if len(self.tags) != 4 or not all(self.tags):
            yield f"{len(self.tags)} tags; they are those around two texts.", f"tags={list(TAGS)}"

    def answer_in(self, text: str) -> str | None:
        """The text between the last two tags; None for another format."""
        first, second, third, fourth = self.tags
        text = text.strip()
        if not (text.startswith(first) and text.endswith(fourth)):
            return None
        reasoning_end = text.find(second, len(first) + 1)
        start = text.find(third, reasoning_end + len(second)) if reasoning_end >= 0 else -1
        answer = text[start + len(third) : len(text) - len(fourth)] if start >= 0 else ""
        return answer or None


class Format(Tagged):
    """`exact` for a completion of the format; and for each tag `partial` where it stands there
    once, else `penalty`. The numbers are MaxText's for GSM8K.
    """

    def __init__(
        self,
        tags: Sequence[str] = TAGS,
        exact: float = 3.0,
        partial: float = 0.5,
        penalty: float = -0.5,
    ) -> None:
        super().__init__(tags)
        self.exact, self.partial, self.penalty = exact, partial, penalty

    def __call__(self, completions: Sequence[Completion]) -> list[float]:
        return [self._format(completion_text(completion)) for completion in completions]

    def _format(self, text: str) -> float:
        of_tags = sum(self.partial if text.count(t) == 1 else self.penalty for t in self.tags)
        return of_tags + (0.0 if self.answer_in(text) is None else self.exact)


class TaggedAnswer(Tagged):
    """Rewards for the text between the last two tags against the row's `answer`, and 0 without
    them: `exact` where equal, `space` where equal but for space around it, `near` and `wide` for a
    number within 10 and 20 percent, `wrong` for any other number, `unread` for no number. The
    numbers are MaxText's for GSM8K.
    """

    def __init__(
        self,
        tags: Sequence[str] = TAGS,
        exact: float = 5.0,
        space: float = 1.5,
        near: float = 0.5,
        wide: float = 0.25,
        wrong: float = -1.0,
        unread: float = -0.5,
        behind: str = "####",
    ) -> None:
        super().__init__(tags)
        self.exact, self.space, self.near, self.wide = exact, space, near, wide
        self.wrong, self.unread, self.behind = wrong, unread, behind

    def __call__(self, completions: Sequence[Completion], answer: Sequence[Any]) -> list[float]:
        pairs = zip(completions, answer, strict=True)
        return [
            self._reward(self.answer_in(completion_text(text)), self._right(a)) for text, a in pairs
        ]

    def _right(self, answer: Any) -> str:
        """The answer of a row, after GSM8K's mark."""
        text = str(answer)
        marked = self.behind and self.behind in text
        return text.rpartition(self.behind)[2].strip() if marked else text

    def _reward(self, guess: str | None, answer: str) -> float:
        if guess is None:
            return 0.0
        if guess == answer:
            return self.exact
        if guess.strip() == answer.strip():
            return self.space
        try:
            ratio = float(guess.replace(",", "")) / float(answer.replace(",", ""))
        except (ValueError, ZeroDivisionError):
            return self.unread
        distance = abs(ratio - 1)
        return self.near if distance <= NEAR else self.wide if distance <= WIDE else self.wrong
