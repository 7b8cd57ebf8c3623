"""data=preference, chat_preference, preference_demo: two responses to a prompt, of which one is
preferred.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from forge.config.data.text import PythonSource
from forge.config.objectives.preference import ChatPreference, PreferenceDemo, PreferencePairs
from forge.data.sources.chat_demo import of_file
from forge.data.sources.chats import BadRow, Row, corpus_of, messages_of, turn_of
from forge.data.sources.pairs import lines_of
from forge.data.text.bad_rows import REFUSED, BadRows
from forge.data.text.conversation import Conversation
from forge.data.text.corpus import Corpus, matching, python_source
from forge.data.text.reading import Example, Pair
from forge.data.text.rows import text_of
from forge.data.tokenizers.render import Render

LOOK = 'lines like {"prompt": ..., "chosen": ..., "rejected": ...}'


def preference(section: PreferencePairs) -> Corpus:
    """Two documents for each row of files of JSON lines: the prompt with the chosen response right
    behind it, and with the rejected one.

    ValueError, naming data.path: it is empty, or nothing is there.
    """
    fields = {
        "prompt_field": section.prompt_field,
        "chosen_field": section.chosen_field,
        "rejected_field": section.rejected_field,
    }
    bad = BadRows.of(section)
    return Corpus(
        name="preference",
        source=section.path,
        files=matching(section.path),
        reader=":".join(["preference", *fields.values()]),
        read=partial(read_preferences, **fields, bad=bad),
        masked=True,
        together=2,
        bad_rows=bad,
    )


def read_preferences(
    path: Path,
    *,
    prompt_field: str,
    chosen_field: str,
    rejected_field: str,
    bad: BadRows = REFUSED,
) -> Iterator[Example]:
    """An example a line, from three fields of a JSON object; empty lines are skipped."""
    for where, row in lines_of(path, rejected_field, LOOK, bad):
        with bad.row(where):
            read = partial(text_of, where, row, chats="chat_preference")
            prompt = read(prompt_field, option="data.prompt_field")
            chosen = read(chosen_field, option="data.chosen_field")
            rejected = read(rejected_field, option="data.rejected_field")
            yield Example((Pair(prompt, chosen), Pair(prompt, rejected)))


def chat_preference(section: ChatPreference) -> Corpus:
    """Two conversations for each row, as a chat template writes them."""
    names = (section.prompt_field, section.chosen_field, section.rejected_field)
    how = ":".join(("chat_preference", *names))
    return corpus_of(section, how, partial(of_preference, names=names), together=2)


def of_preference(row: Row, *, names: tuple[str, str, str]) -> Example:
    """names: of the fields of prompt, chosen and rejected."""
    prompt, *sides = names
    return Example(tuple(answered(row, prompt=prompt, side=side) for side in sides))


def answered(row: Row, *, prompt: str, side: str) -> Conversation:
    """The conversation under `side`, behind that under `prompt` where it begins with an answer: a
    whole one begins with somebody else than the assistant. BadRow: there is none, or a whole one
    lacks what is under `prompt`.
    """
    turns = row.get(side)
    turns = [turn_of("assistant", turns)] if isinstance(turns, str) else turns
    if not isinstance(turns, list) or not turns:
        what = f"it has no text and no list under {side!r} (its fields: {', '.join(map(str, row))})"
        raise BadRow(what, 'A side is {"chosen": [{"role": "user", ...}, ...]}, or a text')
    before = [] if row.get(prompt) is None else row[prompt]
    before = [turn_of("user", before)] if isinstance(before, str) else before
    if not isinstance(before, list):
        what = f"what is under {prompt!r} is no text and no list ({type(before).__name__})"
        raise BadRow(what, "Name the prompt with data.prompt_field")
    found = messages_of(turns, row.get("tools"))
    if found.messages[0]["role"] == "assistant":
        found = messages_of([*before, *turns], row.get("tools"))
    elif lost := _lost(before, found):
        what = f"what is under {side!r} begins with a turn of the {found.messages[0]['role']}"
        what += f", and lacks what the {lost} says under {prompt!r}, which it would follow"
        raise BadRow(what, f"Give the answer alone under {side!r}, or data.prompt_field=''")
    if found.messages[-1]["role"] != "assistant" or len(found.messages) == 1:
        what = f"what is under {side!r} is no answer of the assistant to somebody"
        raise BadRow(what, "Give what it answers to under data.prompt_field, or before the answer")
    return found


def _lost(before: list[Any], whole: Conversation) -> str:
    """The role of a message of a prompt that a whole conversation does not say; '' for none."""
    for asked in messages_of(before).messages:
        said = [one.get("content") or "" for one in whole.messages if one["role"] == asked["role"]]
        if not any((asked["content"] or "").strip() in text for text in said):
            return asked["role"]
    return ""


def preference_demo(section: PreferenceDemo) -> Corpus:
    """Of each conversation of data=chat_demo the first answer, and its words in another order."""
    source = python_source(PythonSource())
    return Corpus(
        name="preference_demo",
        source=source.source,
        files=source.files,
        reader=f"preference_demo:{section.train_on}:{section.end_responses}",
        read=read_demo,
        masked=True,
        render=Render.of(section),
        together=2,
    )


def read_demo(path: Path) -> Iterator[Example]:
    """Those of a Python file."""
    for one in of_file(path):
        question, answer = one.messages[:2]
        words = answer["content"].split()
        Random(answer["content"]).shuffle(words)
        damaged = {"role": "assistant", "content": " ".join(words)}
        sides = ((question, answer), (question, damaged))
        yield Example(tuple(Conversation(messages=side, where=one.where) for side in sides))
