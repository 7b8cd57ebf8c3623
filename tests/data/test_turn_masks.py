"""Turns that are not to be learnt, in rows that are compared: a response obeys, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import build_section

from forge.config.objectives.preference import ChatLabelled, ChatPreference
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.text.reading import BadFile, Example
from forge.data.tokenizers.tokenizer import byte_ids

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOOLS = [{"type": "function", "function": {"name": "clock", "description": "what time it is"}}]


def user(said: str) -> dict[str, Any]:
    return {"role": "user", "content": said}


def says(said: str, **marks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": said, **marks}


def learnt(path: Path, schema: Any, rows: list[Any], **options: Any) -> list[list[list[str]]]:
    """Of each example, and each response of it, the texts that are learnt."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    how: dict[str, Any] = {"chat_template": TEMPLATE, "train_on": "responses"} | options
    corpus = build_section(schema(path=str(path), **how), path="data")
    tokenizer, found = byte_ids(Bytes(), text=None), []  # type: ignore[arg-type]
    for example in corpus.documents():
        assert isinstance(example, Example)
        found.append([])
        for one in corpus.render(example.documents, tokenizer):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], one.counted, [0]]).astype(int)))
            ids = one.tokens.tolist()
            texts = [tokenizer.decode(ids[a:b]) for a, b in edges.reshape(-1, 2).tolist()]
            spelled = (text.replace(tokenizer.eos_token, "") for text in texts)
            found[-1].append([text.replace("<assistant>", "") for text in spelled])
    return found


@pytest.mark.parametrize("mark", [{"train": False}, {"weight": 0}])
@pytest.mark.parametrize("whole", [True, False])
def test_of_preferences_in_each_response(tmp_path, mark, whole):
    asked = [user("hi?"), says("first", **mark), user("and?")]
    sides = {
        "chosen": [says("good one"), user("more?"), says("better")],
        "rejected": [says("bad one", **mark), user("more?"), says("worse")],
    }
    row: dict[str, Any] = {"prompt": asked, **sides}
    if whole:
        row = {name: [*asked, *side] for name, side in sides.items()}
    path = tmp_path / "a.jsonl"
    assert learnt(path, ChatPreference, [row]) == [[["good one", "better"], ["worse"]]]
    last = learnt(path, ChatPreference, [row], train_on="last_response")
    assert last == [[["better"], ["worse"]]]
    sides["rejected"][-1] |= mark
    with pytest.raises(BadFile, match="line 1 has no turn of the assistant to learn from"):
        learnt(path, ChatPreference, [{"prompt": asked, **sides}], train_on="last_response")


@pytest.mark.parametrize("mark", [{"train": False}, {"weight": 0}])
def test_of_labelled_rows_each_answer_keeps_its_own_beside_another_prompt(tmp_path, mark):
    """The second response of an example is the answer to another prompt, of another length."""
    rows = [
        {"prompt": [user("one?")], "completion": [says("a", **mark), user("u"), says("b")]},
        {
            "prompt": [user("two?"), says("c"), user("so?")],
            "completion": [says("d"), user("v"), says("e")],
        },
    ]
    rows = [row | {"label": True} for row in rows]
    found = learnt(tmp_path / "a.jsonl", ChatLabelled, rows)
    assert sorted(found) == [[["b"], ["d", "e"]], [["c", "d", "e"], ["c", "b"]]]


def test_the_tools_of_a_preference_are_there_or_it_is_refused(tmp_path):
    for row in (
        {"chosen": [user("hi?"), says("good")], "rejected": [user("hi?"), says("bad")]},
        {"prompt": "hi?", "chosen": "good", "rejected": "bad"},
    ):
        with pytest.raises(BadFile, match=r"the chat template drops the tools in .*line 1"):
            learnt(tmp_path / "a.jsonl", ChatPreference, [row | {"tools": TOOLS}])
