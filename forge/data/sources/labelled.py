"""data=labelled, chat_labelled: responses with a label, each with a mismatched one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from forge.config.objectives.preference import ChatLabelled, Labelled
from forge.data.sources import hub
from forge.data.sources.chats import BadRow, Row, streamed_or_whole
from forge.data.sources.hub_stream import RowKind, StreamSource
from forge.data.sources.pairs import json_lines, stream_of_files
from forge.data.sources.preferences import answered
from forge.data.text.bad_rows import REFUSED, BadRows
from forge.data.text.conversation import Conversation
from forge.data.text.corpus import Corpus, matching
from forge.data.text.reading import BadFile, Document, Example, Pair
from forge.data.text.rows import row_text

LOOK = 'lines like {"prompt": ..., "completion": ..., "label": true}'


class Rated(NamedTuple):
    """A response to a prompt, texts or messages. where: file and row, for error messages."""

    prompt: Any
    completion: Any
    liked: bool
    where: str


def labelled(section: Labelled) -> Corpus | StreamSource:
    """Two documents for each row of files of JSON lines: the prompt with the response right after,
    and with a response to another prompt; or a stream of rows.

    ValueError, naming data.path: the option is empty, or no file matches.
    """
    names = (section.prompt_field, section.completion_field, section.label_field)
    bad, reader = BadRows.of(section), ":".join(["labelled", *names])
    if hub.is_streamed(section):
        options = ("data.prompt_field", "data.completion_field", "data.label_field")
        row_kind = RowKind(
            name=reader,
            convert=partial(_stream_row, names=names),
            fields=tuple(zip(names, options, strict=True)),
            masked=True,
            most_bad=bad.most,
            together=2,
            regroup=partial(mismatched, join=Pair),
        )
        return stream_of_files(section, row_kind)
    return Corpus(
        name="labelled",
        source=section.path,
        files=matching(section.path),
        reader=reader,
        read=partial(read_labelled, names=names, bad=bad),
        masked=True,
        together=2,
        bad_rows=bad,
    )


def read_labelled(
    path: Path, *, names: tuple[str, str, str], bad: BadRows = REFUSED
) -> Iterator[Example]:
    """An example a line, from the fields of a JSON object for prompt, response and label; empty
    lines are skipped. BadFile: a row is malformed, or all rows have one prompt.
    """

    def each() -> Iterator[Rated]:
        for where, row in json_lines(path, names[-1], LOOK, bad):
            with bad.row(where):
                yield rated(where, row, names)

    return mismatched(each(), Pair)


def _stream_row(
    where: str, row: dict[str, Any], bad: BadRows, *, names: tuple[str, str, str]
) -> Rated | None:
    with bad.row(where):
        return rated(where, row, names)
    return None


def rated(where: str, row: dict[str, Any], names: tuple[str, str, str]) -> Rated:
    """The texts and the label of a row. BadFile: one is missing, or of another type."""
    prompt_field, completion_field, label_field = names
    read = partial(row_text, where, row, chats="chat_labelled")
    prompt = read(prompt_field, option="data.prompt_field")
    completion = read(completion_field, option="data.completion_field")
    try:
        liked = label_of(row, label_field)
    except BadRow as error:
        raise BadFile(f"{where}: {error.what}", error.fix) from error
    if not prompt + completion:
        raise BadFile(f"{where}: prompt and response are empty", "Leave that line out")
    return Rated(prompt, completion, liked, where)


def chat_labelled(section: ChatLabelled) -> Corpus | StreamSource:
    """Two conversations for each row, for a chat template to write; or a stream of them."""
    names = (section.prompt_field, section.completion_field, section.label_field)
    reader = ":".join(("chat_labelled", *names))
    convert = partial(of_labelled, names=names)
    return streamed_or_whole(section, reader, convert, together=2, regroup=regrouped)


def of_labelled(row: Row, *, names: tuple[str, str, str]) -> Example:
    """The prompt, and the whole conversation. names: of the fields of prompt, response and
    label.
    """
    answer: Any = row.get(names[1])
    chat = answered(row, prompt=names[0], side=names[1])
    turns = 1 if isinstance(answer, str) or len(answer) == len(chat.messages) else len(answer)
    asked = chat.part(0, len(chat.messages) - turns)
    return Example((asked, chat), label_of(row, names[2]))


def regrouped(examples: Iterator[Document]) -> Iterator[Example]:
    """Pair each whole conversation with its prompt and an answer to another prompt."""

    def join(asked: Conversation, answer: Conversation) -> Conversation:
        """Join a prompt and an answer, keeping the turns `untrained` in either."""
        start = len(asked.messages)
        untrained = (*asked.untrained, *(start + turn for turn in answer.untrained))
        return replace(asked, messages=asked.messages + answer.messages, untrained=untrained)

    def each() -> Iterator[Rated]:
        for example in examples:
            assert isinstance(example, Example)
            asked, conversation = example.documents
            assert isinstance(asked, Conversation)
            assert isinstance(conversation, Conversation)
            answer = conversation.part(len(asked.messages), len(conversation.messages))
            yield Rated(asked, answer, bool(example.liked), conversation.where)

    return mismatched(each(), join)


def label_of(row: Row, field: str) -> bool:
    label, fields = row.get(field), ", ".join(map(str, row))
    if label not in (True, False):  # 1 and 0 too
        fault = f"{field!r} is {label!r}, and neither true nor false"
        fault = fault if field in row else f"it has no field {field!r} (its fields: {fields})"
        raise BadRow(fault, "Name the one that holds the label with data.label_field")
    return bool(label)


def mismatched(rows: Iterable[Rated], join: Callable[[Any, Any], Any]) -> Iterator[Example]:
    """Join each row's prompt to its own response and to a response of another prompt. Rows of one
    prompt in sequence are a group; the other response comes from the group before, for the first
    group from the last. BadFile: all rows have one prompt.
    """
    first: list[Rated] = []
    previous: list[Rated] = []
    group: list[Rated] = []

    def example(row: Rated, other: Rated) -> Example:
        matched = join(row.prompt, row.completion)
        return Example((matched, join(row.prompt, other.completion)), row.liked)

    for row in rows:
        if group and not _same(group[0], row):
            previous, group = group, []
        group.append(row)
        if previous:
            yield example(row, previous[(len(group) - 1) % len(previous)])
        else:
            first.append(row)
    if first and not previous:
        fault = f"all rows up to {first[-1].where} have one prompt"
        raise BadFile(fault, "Give responses to several prompts: each is read with another one too")
    answers = previous if first and _same(group[0], first[0]) else group
    for number, row in enumerate(first):
        yield example(row, answers[number % len(answers)])


def _same(one: Rated, other: Rated) -> bool:
    """Whether two rows have one prompt."""
    prompts = (one.prompt, other.prompt)
    if isinstance(one.prompt, Conversation):
        return prompts[0].messages == prompts[1].messages
    return prompts[0] == prompts[1]
