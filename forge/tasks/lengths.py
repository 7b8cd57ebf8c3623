"""The questions of a task that are longer than the model, without encoding all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nlargest
from typing import Any, NamedTuple, Protocol

from forge.build import build
from forge.config.problems import ConfigError
from forge.tasks.declared import built
from forge.tasks.in_context import InContextTasks
from forge.tasks.item import Item, Pair, Prompt, spread

LOOKED_AT = 8
"""Questions of a task that are encoded: those with the most bytes."""
FORGE = "forge."


class Encodes(Protocol):
    """The part of a tokenizer that lengths need."""

    begin_id: int | None

    def encode(self, text: str) -> list[int]: ...


class Question(NamedTuple):
    """The text of a question with its answer. spare: 1 where the last token is not read."""

    item: str
    text: str
    spare: int


@dataclass(frozen=True)
class _Entry:
    """An entry of `eval.tasks`; equal to another with equal options and an unchanged file."""

    key: str
    name: str = field(compare=False)
    entry: Mapping[str, Any] = field(compare=False)
    trust: Sequence[str] = field(compare=False)
    most: int = field(compare=False)


def longest_questions(
    name: str, entry: Mapping[str, Any], trust: Sequence[str], most: int
) -> Sequence[Question]:
    """The questions of an entry with the most bytes; of tasks of the user's own, and of tasks whose
    prompts are always cut, none. most: items of the task; 0 = all.
    """
    path = str(entry.get("path", ""))
    changed = os.stat(path).st_mtime_ns if os.path.isfile(path) else 0
    key = repr((name, sorted(entry.items(), key=repr), most, changed))
    return _longest(_Entry(key, name, entry, tuple(trust), most))


@lru_cache(maxsize=64)  # the points of a sweep ask for the same tasks
def _longest(of: _Entry) -> Sequence[Question]:
    try:
        task = built(of.name, of.entry, trust=of.trust)
        if not type(task).__module__.startswith(FORGE) or isinstance(task, InContextTasks):
            return ()
        items = spread(task.items(), of.most)
    except (ValueError, OSError, ConfigError):
        return ()  # said by the rule of tasks
    return nlargest(LOOKED_AT, _questions(items), key=lambda each: len(each.text.encode()))


def _questions(items: Sequence[Item]) -> Iterator[Question]:
    for item in items:
        for ask in item.asks:
            if isinstance(ask, Pair):
                yield Question(item.id, ask.context + ask.continuation, 1)
            elif isinstance(ask, Prompt):
                yield Question(item.id, ask.text, -1)  # there must be room for a token


@dataclass(frozen=True)
class _Section:
    """A tokenizer section; equal to another with equal options."""

    key: str
    section: Any = field(compare=False)
    trust: Sequence[str] = field(compare=False)


def encoder_of(section: Any, trust: Sequence[str]) -> Encodes | None:
    """The tokenizer of a section that needs no text to be made; None where it cannot be read."""
    return _encoder(_Section(repr(section), section, tuple(trust)))


@lru_cache(maxsize=4)
def _encoder(of: _Section) -> Encodes | None:
    try:
        return build(of.section, path="tokenizer", trust=of.trust, text=None)
    except (ValueError, OSError, ImportError):
        return None  # said by the rules of tokenizers


def too_long_question(
    questions: Sequence[Question], tokenizer: Encodes, longest: int
) -> tuple[Question, int] | None:
    """The question with the most tokens to read, and their number; None if the model reads all."""
    begin = int(tokenizer.begin_id is not None)
    sizes = [(begin + len(tokenizer.encode(each.text)) - each.spare, each) for each in questions]
    size, question = max(sizes, key=lambda pair: pair[0], default=(0, None))
    return (question, size) if question is not None and size > longest else None
