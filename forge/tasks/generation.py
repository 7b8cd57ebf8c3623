"""Generate until a stop string, then compare the text, or what a pattern finds in it."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from forge.tasks.item import Answer, Generated, Item, Judged
from forge.tasks.task import Task

PUNCTUATION = str.maketrans("", "", string.punctuation)


class Matching:
    """Equality of a text with an answer.

    regex: what counts of both is its first group, or the whole match; the last match with
    take=last. ignore_case, ignore_punctuation, ignore: what is taken out of both before.
    """

    def __init__(
        self,
        regex: str | None = None,
        take: str = "first",
        ignore_case: bool = False,
        ignore_punctuation: bool = False,
        ignore: Sequence[str] = (),
    ) -> None:
        self.pattern = re.compile(regex, re.DOTALL) if regex else None
        self.take, self.ignore_case, self.ignore_punctuation = take, ignore_case, ignore_punctuation
        self.ignored = [re.compile(each) for each in ignore]

    def found(self, text: str) -> str | None:
        """The part of a text that counts; None where the pattern finds nothing."""
        if self.pattern is not None:
            matches = list(self.pattern.finditer(text))
            if not matches:
                return None
            match = matches[-1 if self.take == "last" else 0]
            text = match[1] if match.re.groups else match[0]
        for pattern in self.ignored:
            text = pattern.sub("", text)
        text = text.translate(PUNCTUATION) if self.ignore_punctuation else text
        return " ".join((text.lower() if self.ignore_case else text).split())

    def equal(self, text: str, answers: Sequence[str]) -> bool:
        """Whether a text is one of the answers; an answer without a match counts as it is."""
        said = self.found(text)
        wanted = {self.found(answer) for answer in answers} - {None}
        plain = {" ".join(answer.split()) for answer in answers}
        return said is not None and (said in wanted or said in plain)


class Generation(Task):
    """Base of tasks judged by what the model writes. `data["answers"]`: the right answers.

    exact_match: share of an item's samples that equal an answer. Of N samples also pass_at_N,
    whether any does, and maj_at_N, whether the commonest answer does. matching: options of
    `Matching`.
    """

    main = "exact_match"

    def __init__(self, **matching: Any) -> None:
        self.matching_faults = list(matching_faults(matching))
        self.matching = Matching(**({} if self.matching_faults else matching))

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from self.matching_faults

    def judge(self, item: Item, answers: Sequence[Answer]) -> Judged:
        (generated,) = answers
        assert isinstance(generated, Generated)
        right = [self.matching.equal(text, item.data["answers"]) for text in generated.texts]
        found = [self.matching.found(text) for text in generated.texts]
        metrics, count = {"exact_match": sum(right) / len(right)}, len(right)
        if count > 1:
            metrics |= {f"pass_at_{count}": float(any(right))}
            metrics |= {f"maj_at_{count}": float(majority(found, right))}
        return Judged(metrics, detail={"found": found})


def majority(answers: Sequence[str | None], right: Sequence[bool]) -> bool:
    """Whether the commonest answer is right; the earliest of equally common ones counts, and texts
    without an answer have no vote.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    return bool(votes) and right[answers.index(votes.most_common(1)[0][0])]


def matching_faults(options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the faults of the options of `Matching`."""
    patterns = [options.get("regex") or "", *(options.get("ignore") or ())]
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"{pattern!r} is no regular expression: {error}.", "a pattern of Python's re"
    if options.get("take", "first") not in ("first", "last"):
        yield f"take={options['take']} is neither first nor last.", "take=last"
