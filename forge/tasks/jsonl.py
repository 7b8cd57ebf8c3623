"""Tasks in a JSONL file of the user's own: a row an item."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from forge.config.regular import read_text
from forge.tasks.choice import Choice
from forge.tasks.continuation import Continuation
from forge.tasks.generation import Generation
from forge.tasks.item import Ask, Item, Pair, Prompt
from forge.tasks.task import Task

CHOICE, CONTINUATION, GENERATION = "choice", "continuation", "generation"
PROGRAM = "program"
Row = Mapping[str, Any]


class Rows:
    """The rows of a file. A row has `prompt`, `answer`, for a multiple choice `choices` too, and
    optionally `id` and `cluster`.

    Raises ValueError, naming the file and the line, for rows that cannot be asked.
    """

    def __init__(self, path: str | None, kind: str) -> None:
        self.path, self.kind = path or "", kind

    def read(self) -> Sequence[Row]:
        rows = _parsed(self.path, Path(self.path).stat().st_mtime_ns)
        for number, row in enumerate(rows, 1):
            if fault := row_fault(row, self.kind):
                raise ValueError(f"{self.path}, line {number}: {fault}")
        return rows

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield the first fault of the file."""
        if not self.path:
            yield "it names no file.", "path=my.jsonl"
            return
        try:
            self.read()
        except OSError as error:
            yield f"{self.path} cannot be read: {error.strerror or error}.", "another path"
        except ValueError as error:
            example = '{"prompt": "2+2=", "choices": ["4", "5"], "answer": 0}'
            yield f"{error}.", f"a row is such as {example}"


@lru_cache(maxsize=64)
def _parsed(path: str, changed: int) -> Sequence[Row]:
    """The rows of a file that was last changed at this time."""
    try:
        lines = read_text(Path(path)).splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: {error.reason} at {error.start}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            raise ValueError(f"{path}, line {number}: it is no JSON") from None
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def row_fault(row: Any, kind: str) -> str:
    """What is wrong with a row for a kind of task; '' = nothing."""
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        return 'it has no text "prompt"'
    if kind == PROGRAM:
        return "" if isinstance(row.get("test"), str) else 'it has no text "test"'
    answer = row.get("answer")
    if answer is None:
        return 'it has no "answer": the right one must be known'
    if kind == CHOICE:
        return _choice_fault(row.get("choices"), answer)
    if kind == CONTINUATION:
        fits = isinstance(answer, str) and answer
        return "" if fits else '"answer" must be a text that is not empty'
    answers = answer if isinstance(answer, list) else [answer]
    fits = bool(answers) and all(isinstance(each, str) for each in answers)
    return "" if fits else '"answer" must be a text, or a list of texts'


def _choice_fault(choices: Any, answer: Any) -> str:
    if not isinstance(choices, list) or not all(isinstance(c, str) and c for c in choices):
        return '"choices" must be a list of texts'
    if len(choices) < 2:
        return f"a choice among {len(choices)} is none: it needs two or more"
    index = isinstance(answer, int) and not isinstance(answer, bool)
    if not (index and 0 <= answer < len(choices)) and answer not in choices:
        return f'"answer" is {answer!r}: it must be a text of "choices", or its number from 0'
    return ""


class _Items:
    """The items of rows, each with its number as its id unless it names one."""

    rows: Rows

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from self.rows.faults()

    def items(self) -> Sequence[Item]:
        made = []
        for number, row in enumerate(self.rows.read()):
            asks, data = self.of_row(row)
            cluster = None if row.get("cluster") is None else str(row["cluster"])
            made.append(Item(id=str(row.get("id", number)), asks=asks, data=data, cluster=cluster))
        return made

    def of_row(self, row: Row) -> tuple[tuple[Ask, ...], dict[str, Any]]:
        raise NotImplementedError


class JSONLChoice(_Items, Choice):
    """Multiple choice from rows of prompt, choices and answer, an index or the text of a choice.

    delimiter: between prompt and choice.
    """

    def __init__(self, path: str | None = None, delimiter: str = " ") -> None:
        self.rows, self.delimiter = Rows(path, CHOICE), delimiter

    def of_row(self, row: Row) -> tuple[tuple[Ask, ...], dict[str, Any]]:
        pairs = tuple(Pair(row["prompt"], self.delimiter + choice) for choice in row["choices"])
        answer, choices = row["answer"], row["choices"]
        gold = answer if isinstance(answer, int) else choices.index(answer)
        return pairs, {"gold": gold}


class JSONLContinuation(_Items, Continuation):
    """A text to continue, and the right continuation, from rows of prompt and answer."""

    def __init__(self, path: str | None = None, delimiter: str = " ") -> None:
        self.rows, self.delimiter = Rows(path, CONTINUATION), delimiter

    def of_row(self, row: Row) -> tuple[tuple[Ask, ...], dict[str, Any]]:
        return (Pair(row["prompt"], self.delimiter + row["answer"]),), {}


class JSONLGeneration(_Items, Generation):
    """A text to continue up to a stop string, compared with the answer of the row, or with each.

    stop, max_tokens, temperature, samples, seed: of `Prompt`. matching: options of `Matching`.
    """

    def __init__(
        self,
        path: str | None = None,
        stop: Sequence[str] = ("\n",),
        max_tokens: int = 256,
        temperature: float = 0.0,
        samples: int = 1,
        seed: int = 0,
        **matching: Any,
    ) -> None:
        super().__init__(**matching)
        self.rows = Rows(path, GENERATION)
        self.options: dict[str, Any] = {"stop": tuple(stop), "max_tokens": max_tokens}
        self.options |= {"temperature": temperature, "samples": samples, "seed": seed}

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from self.matching_faults
        yield from self.rows.faults()

    def of_row(self, row: Row) -> tuple[tuple[Ask, ...], dict[str, Any]]:
        answer = row["answer"]
        answers = answer if isinstance(answer, list) else [answer]
        return (Prompt(text=row["prompt"], **self.options),), {"answers": answers}


KINDS: dict[str, type[Task]] = {
    CHOICE: JSONLChoice,
    CONTINUATION: JSONLContinuation,
    GENERATION: JSONLGeneration,
}


def kind_of(path: str) -> str:
    """The kind of a file by its first row: a choice if there are choices, a text where there is no
    prompt but a text, else a continuation.
    """
    try:
        first = _parsed(path, Path(path).stat().st_mtime_ns)[0]
    except (OSError, ValueError):
        return CHOICE
    if not isinstance(first, dict) or "choices" in first:
        return CHOICE
    return "text" if "text" in first and "prompt" not in first else CONTINUATION
