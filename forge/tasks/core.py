"""CORE (DCLM, arXiv:2406.11794) on a bundle folder of the user's: its YAML, CSV and JSONL files."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from forge.tasks.in_context import FIELDS, InContext, InContextTasks, Row, in_context_fault

LIST, BASELINES, DATA = "core.yaml", "eval_meta_data.csv", "eval_data"


class Core(InContextTasks):
    """The metric CORE: the mean over the bundle's tasks of their centred accuracies.

    path: a folder with core.yaml, eval_meta_data.csv and eval_data. max_per_task: items of a task,
    the first after the shuffle; 0 = all. Fewer items also change the shots. Shots, delimiters and
    baselines are those of the bundle.
    """

    def __init__(self, path: str | None = None, max_per_task: int = 0) -> None:
        super().__init__(max_per_task)
        self.named, self.path = bool(path), Path(path or "")

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield the first fault of the bundle: one message names every missing file."""
        hint = f"path=BUNDLE, a folder with {LIST}, {BASELINES} and {DATA}"
        if not self.named:
            yield "it names no bundle.", hint
            return
        try:
            missing = [name for name in (LIST, BASELINES) if not (self.path / name).is_file()]
            entries = [] if LIST in missing else self._entries()
            files = [f"{DATA}/{entry['dataset_uri']}" for entry in entries]
            missing += [name for name in dict.fromkeys(files) if not (self.path / name).is_file()]
            if missing:
                names = ", ".join(missing[:5]) + (
                    f" and {len(missing) - 5} more" * (len(missing) > 5)
                )
                yield f"the bundle {self.path} lacks {names}.", hint
                return
            for _ in self.tasks():
                pass
        except (ValueError, OSError) as error:
            yield f"{error}.", hint

    def _entries(self) -> Sequence[dict[str, Any]]:
        """The tasks of core.yaml. Raises ValueError."""
        place = self.path / LIST
        try:
            entries = yaml.safe_load(place.read_text(encoding="utf-8"))["icl_tasks"]
            for entry in entries:
                assert {"label", "dataset_uri"} <= set(entry)
                assert len(entry["num_fewshot"])
        except (yaml.YAMLError, LookupError, TypeError, AssertionError, UnicodeError) as error:
            fault = f"{type(error).__name__}: {error}".splitlines()[0]
            message = "is no list icl_tasks with label, dataset_uri and num_fewshot of each"
            raise ValueError(f"{place} {message} ({fault})") from None
        for entry in entries:
            if entry.get("icl_task_type") not in FIELDS:
                kinds = ", ".join(FIELDS)
                message = f"icl_task_type={entry.get('icl_task_type')} is none of {kinds}"
                raise ValueError(f"{place}, {entry['label']}: {message}")
        return entries

    def _baselines(self) -> dict[str, float]:
        place = self.path / BASELINES
        with place.open(encoding="utf-8", newline="") as file:
            try:
                return {
                    row["Eval Task"]: float(row["Random baseline"]) for row in csv.DictReader(file)
                }
            except (KeyError, ValueError, TypeError) as error:
                message = "needs columns 'Eval Task' and 'Random baseline'"
                raise ValueError(f"{place} {message} ({error})") from None

    def tasks(self) -> Iterator[tuple[InContext, Sequence[Row]]]:
        baselines = self._baselines()
        for entry in self._entries():
            label = entry["label"]
            if label not in baselines:
                raise ValueError(f"{self.path / BASELINES} has no baseline of {label}")
            task = InContext(
                label=label,
                kind=entry["icl_task_type"],
                shots=int(entry["num_fewshot"][0]),
                baseline=baselines[label],
                delimiter=entry.get("continuation_delimiter", " "),
            )
            yield task, self._rows(self.path / DATA / entry["dataset_uri"], task)

    def _rows(self, place: Path, task: InContext) -> Sequence[Row]:
        rows = []
        for number, line in enumerate(place.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except ValueError:
                raise ValueError(f"{place}, line {number}: it is no JSON") from None
            if fault := in_context_fault(rows[-1], task.kind):
                raise ValueError(f"{place}, line {number}: {fault}")
        count = min(self.max_per_task or len(rows), len(rows))
        if count <= task.shots:
            raise ValueError(f"{place} has {count} items, too few for {task.shots} shots and one")
        return rows

    def about(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        names = [LIST, BASELINES, *(f"{DATA}/{entry['dataset_uri']}" for entry in self._entries())]
        for name in dict.fromkeys(names):
            digest.update((self.path / name).read_bytes())
        return {"sha256": digest.hexdigest()}
