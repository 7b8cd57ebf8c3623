"""data=preference, chat_preference, preference_demo: two responses to a prompt, one of
them preferred.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from forge.config.data.text import PythonSource
from forge.config.objectives.preference import ChatPreference, PreferenceDemo, PreferencePairs
from forge.data.sources import hub
from forge.data.sources.chat_demo import of_file
from forge.data.sources.chats import BadRow, Row, messages_of, streamed_or_whole, turn_of
from forge.data.sources.hub_stream import RowKind, StreamSource
from forge.data.sources.pairs import json_lines, stream_of_files
from forge.data.text.bad_rows import REFUSED, BadRows
from forge.data.text.conversation import Conversation
from forge.data.text.corpus import Corpus, matching, python_source
from forge.data.text.reading import Example, Pair
from forge.data.text.rows import row_text
from forge.data.tokenizers.render import Render

LOOK = 'lines like {"prompt": ..., "chosen": ..., "rejected": ...}'


def preference(section: PreferencePairs) -> Corpus | StreamSource:
    """Two documents for each row of files of JSON lines: the prompt with the chosen response right
    after, and with the rejected one; or a stream of rows.

    ValueError, naming data.path: the option is empty, or no file matches.
    """
    fields = {
        "prompt_field": section.prompt_field,
        "chosen_field": section.chosen_field,
        "rejected_field": section.rejected_field,
    }
    bad, reader = BadRows.of(section), ":".join(["preference", *fields.values()])
    if hub.is_streamed(section):
        row_kind = RowKind(
            name=reader,
            convert=partial(_stream_row, **fields),
            fields=tuple((field, f"data.{option}") for option, field in fields.items()),
            masked=True,
            most_bad=bad.most,
            together=2,
        )
        return stream_of_files(section, row_kind)
    return Corpus(
        name="preference",
        source=section.path,
        files=matching(section.path),
        reader=reader,
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
    for where, row in json_lines(path, rejected_field, LOOK, bad):
        with bad.row(where):
            yield of_texts(where, row, prompt_field, chosen_field, rejected_field)


def _stream_row(where: str, row: dict[str, Any], bad: BadRows, **fields: str) -> Example | None:
    with bad.row(where):
        return of_texts(where, row, **fields)
    return None


def of_texts(
    where: str, row: dict[str, Any], prompt_field: str, chosen_field: str, rejected_field: str
) -> Example:
    """The prompt with both responses of a row. BadFile: one is missing, or no text."""
    read = partial(row_text, where, row, chats="chat_preference")
    prompt = read(prompt_field, option="data.prompt_field")
    chosen = read(chosen_field, option="data.chosen_field")
    rejected = read(rejected_field, option="data.rejected_field")
    return Example((Pair(prompt, chosen), Pair(prompt, rejected)))


def chat_preference(section: ChatPreference) -> Corpus | StreamSource:
    """Two conversations for each row, for a chat template to write; or a stream of them."""
    names = (section.prompt_field, section.chosen_field, section.rejected_field)
    reader = ":".join(("chat_preference", *names))
    return streamed_or_whole(section, reader, partial(of_preference, names=names), together=2)


def of_preference(row: Row, *, names: tuple[str, str, str]) -> Example:
    """The example of a row. names: of the fields of prompt, chosen and rejected."""
    prompt, *sides = names
    return Example(tuple(answered(row, prompt=prompt, side=side) for side in sides))


def answered(row: Row, *, prompt: str, side: str) -> Conversation:
    """The conversation under `side`, after the messages under `prompt` where `side` begins with an
    answer; a whole conversation begins with another role. BadRow: no conversation, or a whole one
    lacks messages under `prompt`.
    """
    turns = row.get(side)
    turns = [turn_of("assistant", turns)] if isinstance(turns, str) else turns
    if not isinstance(turns, list) or not turns:
        fault = (
            f"it has no text and no list under {side!r} (its fields: {', '.join(map(str, row))})"
        )
        raise BadRow(fault, 'A side is {"chosen": [{"role": "user", ...}, ...]}, or a text')
    asked = [] if row.get(prompt) is None else row[prompt]
    asked = [turn_of("user", asked)] if isinstance(asked, str) else asked
    if not isinstance(asked, list):
        fault = f"what is under {prompt!r} is no text and no list ({type(asked).__name__})"
        raise BadRow(fault, "Name the prompt with data.prompt_field")
    conversation = messages_of(turns, row.get("tools"))
    if conversation.messages[0]["role"] == "assistant":
        conversation = messages_of([*asked, *turns], row.get("tools"))
    elif lost := _lost(asked, conversation):
        fault = (
            f"what is under {side!r} begins with a turn of the {conversation.messages[0]['role']}"
        )
        fault += f", and lacks what the {lost} says under {prompt!r}, which it would follow"
        raise BadRow(fault, f"Give the answer alone under {side!r}, or data.prompt_field=''")
    if conversation.messages[-1]["role"] != "assistant" or len(conversation.messages) == 1:
        fault = f"what is under {side!r} is no answer of the assistant to somebody"
        raise BadRow(fault, "Give what it answers to under data.prompt_field, or before the answer")
    return conversation


def _lost(before: list[Any], whole: Conversation) -> str:
    """The role of a message of the prompt missing in the whole conversation; '' for none."""
    for asked in messages_of(before).messages:
        contents = [
            message.get("content") or ""
            for message in whole.messages
            if message["role"] == asked["role"]
        ]
        if not any((asked["content"] or "").strip() in text for text in contents):
            return asked["role"]
    return ""


def preference_demo(section: PreferenceDemo) -> Corpus:
    """The first answer of each conversation of data=chat_demo, and the same words in another
    order.
    """
    source = python_source(PythonSource())
    return Corpus(
        name="preference_demo",
        source=source.source,
        files=source.files,
        reader=f"preference_demo:{section.train_on}:{section.end_responses}",
        read=_read_demo,
        masked=True,
        render=Render.of(section),
        together=2,
    )


def _read_demo(path: Path) -> Iterator[Example]:
    """Yield the demo examples of a Python file."""
    for conversation in of_file(path):
        question, answer = conversation.messages[:2]
        words = answer["content"].split()
        Random(answer["content"]).shuffle(words)
        damaged = {"role": "assistant", "content": " ".join(words)}
        sides = ((question, answer), (question, damaged))
        yield Example(
            tuple(Conversation(messages=side, where=conversation.where) for side in sides)
        )
