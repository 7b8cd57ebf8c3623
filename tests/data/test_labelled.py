"""data=labelled: labels reach batches, and each prompt is read with a response to another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data_helpers import build_section

from forge.config.objectives.preference import KTO, ChatLabelled, Labelled
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.batches.examples import plan_examples
from forge.data.batches.loader import eval_batches
from forge.data.preparing.cached import prepare_tokens

# Several responses to a prompt follow each other, and the first prompt comes again.
ROWS = [("a?", "one"), ("a?", "two"), ("b?", "three"), ("c?", "four"), ("c?", ""), ("a?", "six")]
LABELS: list[Any] = [True, False, 1, 0, True, False]
OTHERS = ["four", "", "one", "three", "three", "four"]


def rows(*, chat: bool) -> list[dict[str, Any]]:
    found = []
    for (prompt, completion), label in zip(ROWS, LABELS, strict=True):
        row: dict[str, Any] = {"prompt": prompt, "completion": completion, "label": label}
        if chat and label:
            row["prompt"] = [{"role": "user", "content": prompt}]
            row["completion"] = [{"role": "assistant", "content": completion}]
        found.append(row)
    return found


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_labels_and_mismatched_responses(chat: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(chat=chat)))
    kind = ChatLabelled if chat else Labelled
    section = kind(path=str(path), cache_dir=str(tmp_path), val_fraction=0.0)
    prepared = prepare_tokens(section, Bytes(), build=build_section)
    store, tokenizer = prepared.train, prepared.tokenizer
    objective = build_section(KTO(), path="objective")
    plan = plan_examples(store, seq_len=200, too_long="refuse")
    (batch,) = eval_batches(store, objective, seq_len=200, batch_size=9, plan=plan)
    found = []
    for row in range(0, len(batch["tokens"]), 2):
        said = []
        for tokens, targets in zip(
            batch["tokens"][row : row + 2], batch["targets"][row : row + 2], strict=True
        ):
            counted = targets != -100
            first = int(counted.int().argmax())
            prompt = tokenizer.decode(tokens[: first + 1].tolist())
            said += [prompt.strip(), tokenizer.decode(targets[counted].tolist())]
        liked = batch["liked"][row : row + 2].tolist()
        found.append((said, liked))
    wanted = [
        ((prompt, completion), bool(label), other)
        for (prompt, completion), label, other in zip(ROWS, LABELS, OTHERS, strict=True)
    ]
    assert len(found) == len(wanted)
    for one, label, other in wanted:
        same = [
            liked
            for said, liked in found
            if one[0] in said[0]
            and said[0] == said[2]
            and said[1].strip().startswith(one[1])
            and said[3].strip().startswith(other)
        ]
        assert [label, label] in same, (one, label, other, found)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"label": "good"}, r"line 1: 'label' is 'good', and neither true nor false"),
        ({"label": True}, r"mine\.jsonl line 2 have one prompt. Give responses to several prompts"),
    ],
)
def test_rows_that_say_nothing_are_said(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    line = json.dumps({"prompt": "a?", "completion": "one"} | row) + "\n"
    path.write_text(line * 2)
    section = Labelled(path=str(path), cache_dir=str(tmp_path))
    with pytest.raises(ValueError, match=said):
        prepare_tokens(section, Bytes(), build=build_section)
