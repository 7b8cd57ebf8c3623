"""Entries of `eval.tasks` to tasks: the schema of an entry, and its faults before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forge.build import build
from forge.config.data.reading import KIND as DATA_KIND
from forge.config.eval import Eval
from forge.config.problems import ConfigError, closest, did_you_mean
from forge.tasks.jsonl import CHOICE, KINDS, kind_of
from forge.tasks.task import Task

KIND, TARGET, TEXT = "kind", "_target_", "text"
TEXTS = "forge.evaluation.texts.Texts"
OF_TOKENS = (".npy", ".bin")
SUFFIXES = (".jsonl", ".txt", ".parquet", *OF_TOKENS)
OF_TEXTS = (TARGET, KIND, "weigh_by")
"""Keys of a text beside options of data."""
Entry = Mapping[str, Any]


def tasks_of(section: Eval) -> dict[str, Any]:
    """The entries of `eval.tasks`, and the text of `eval.data` by the name of its file."""
    entries = dict(section.tasks)
    if section.data:
        entries.setdefault(name_of(section.data), text_entry(section.data))
    return entries


def name_of(path: str) -> str:
    """A name for metrics from the name of a file."""
    stem = Path(path).stem or "text"
    return "".join(sign if sign.isalnum() or sign in "_-" else "_" for sign in stem)


def text_entry(path: str) -> dict[str, Any]:
    """The entry of a text to score: token shards, those of forge.prepare too, or files of text."""
    indices = (os.path.join(path, *part, "index.json") for part in ((), ("val",)))
    tokens = Path(path).suffix in OF_TOKENS or any(map(os.path.isfile, indices))
    return {KIND: TEXT, "path": path} | ({DATA_KIND: "shards"} if tokens else {})


def is_text(entry: Entry) -> bool:
    """Whether an entry is a text to score: read as data of the run, not as a task."""
    return entry.get(TARGET) == TEXTS or (TARGET not in entry and entry.get(KIND) == TEXT)


def completed(entry: Entry) -> dict[str, Any]:
    """An entry with its `_target_`: that of its kind, by default of the rows of its file."""
    if TARGET in entry:
        return dict(entry)
    plain = {name: value for name, value in entry.items() if name != KIND}
    if is_text(entry):
        return {TARGET: TEXTS, **plain}
    kind = entry.get(KIND) or kind_of(str(entry.get("path", "")))
    target = KINDS.get(kind, KINDS[CHOICE])
    return {TARGET: f"{target.__module__}.{target.__qualname__}", **plain}


def built(name: str, entry: Entry, *, trust: Sequence[str] = ()) -> Task:
    """The task of an entry. Raises ConfigError for one that cannot be built."""
    return build(completed(entry), path=f"eval.tasks.{name}", trust=trust)


def faults(name: str, entry: Any, *, trust: Sequence[str] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield (key, what is wrong, what to do) of an entry that is no text, without running it."""
    key = f"eval.tasks.{name}"
    if not isinstance(entry, Mapping):
        yield f"{key}={entry}", "a task has options, and this is a value.", f"+{key}.path=my.jsonl"
        return
    kind = entry.get(KIND)
    if TARGET not in entry and kind is not None and kind not in (*KINDS, TEXT):
        near = did_you_mean([f"{key}.{KIND}={each}" for each in closest(str(kind), [*KINDS, TEXT])])
        hint = near or f"one of {', '.join((*KINDS, TEXT))}"
        yield f"{key}.{KIND}={kind}", "there is no such kind of task.", hint
        return
    if TARGET not in entry and not entry.get("path"):
        yield key, "it names neither a file nor a task.", f"+{key}.path=my.jsonl"
        return
    try:
        task = built(name, entry, trust=trust)
    except ConfigError as error:
        for problem in error.problems:
            yield problem.key, problem.what, problem.fix
        return
    for what, fix in task.faults():
        yield key, what, fix


def entry_of(word: str) -> tuple[str, dict[str, Any]] | None:
    """The name and entry of a file of rows or of a text named alone; None for any other word."""
    path = os.path.abspath(os.path.expanduser(word))
    if not os.path.exists(path) and Path(word).suffix not in SUFFIXES:
        return None
    is_rows = Path(path).suffix == ".jsonl" and kind_of(path) != TEXT
    return name_of(word), {"path": path} if is_rows else text_entry(path)
