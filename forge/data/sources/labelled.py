"""data=labelled, chat_labelled: responses with a label, each with a mismatched one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from forge.config.objectives.preference import ChatLabelled, Labelled
from forge.data.sources.chats import BadRow, Row, corpus_of
from forge.data.sources.pairs import lines_of
from forge.data.sources.preferences import answered
from forge.data.text.bad_rows import REFUSED, BadRows
from forge.data.text.conversation import Conversation
from forge.data.text.corpus import Corpus, matching
from forge.data.text.reading import BadFile, Document, Example, Pair
from forge.data.text.rows import text_of

LOOK = 'lines like {"prompt": ..., "completion": ..., "label": true}'


class Rated(NamedTuple):
    """A response to a prompt, texts or messages. where: it was read."""

    prompt: Any
    completion: Any
    liked: bool
    where: str


def labelled(section: Labelled) -> Corpus:
    """Two documents for each row of files of JSON lines: the prompt with the response right behind
    it, and with a response to another prompt.

    ValueError, naming data.path: it is empty, or nothing is there.
    """
    names = (section.prompt_field, section.completion_field, section.label_field)
    bad = BadRows.of(section)
    return Corpus(
        name="labelled",
        source=section.path,
        files=matching(section.path),
        reader=":".join(["labelled", *names]),
        read=partial(read_labelled, names=names, bad=bad),
        masked=True,
        together=2,
        bad_rows=bad,
    )


def read_labelled(
    path: Path, *, names: tuple[str, str, str], bad: BadRows = REFUSED
) -> Iterator[Example]:
    """An example a line, from the fields of a JSON object for prompt, response and label; empty
    lines are skipped. BadFile: a row is not as it should be, or all have one prompt.
    """
    return mismatched(_rated(path, *names, bad), Pair)


def _rated(
    path: Path, prompt_field: str, completion_field: str, field: str, bad: BadRows
) -> Iterator[Rated]:
    for where, row in lines_of(path, field, LOOK, bad):
        with bad.row(where):
            read = partial(text_of, where, row, chats="chat_labelled")
            prompt = read(prompt_field, option="data.prompt_field")
            completion = read(completion_field, option="data.completion_field")
            try:
                liked = label_of(row, field)
            except BadRow as error:
                raise BadFile(f"{where}: {error.what}", error.fix) from error
            if not prompt + completion:
                raise BadFile(f"{where}: prompt and response are empty", "Leave that line out")
            yield Rated(prompt, completion, liked, where)


def chat_labelled(section: ChatLabelled) -> Corpus:
    """Two conversations for each row, as a chat template writes them."""
    names = (section.prompt_field, section.completion_field, section.label_field)
    how = ":".join(("chat_labelled", *names))
    convert = partial(of_labelled, names=names)
    return corpus_of(section, how, convert, together=2, regroup=regrouped)


def of_labelled(row: Row, *, names: tuple[str, str, str]) -> Example:
    """What is asked and the whole. names: of the fields of prompt, response and label."""
    said: Any = row.get(names[1])
    whole = answered(row, prompt=names[0], side=names[1])
    turns = 1 if isinstance(said, str) or len(said) == len(whole.messages) else len(said)
    asked = whole.part(0, len(whole.messages) - turns)
    return Example((asked, whole), label_of(row, names[2]))


def regrouped(examples: Iterator[Document]) -> Iterator[Example]:
    """The whole, and what is asked with an answer to something else."""

    def join(asked: Conversation, answer: Conversation) -> Conversation:
        """With the answer's own word on which of its turns are learnt."""
        before = len(asked.messages)
        untrained = (*asked.untrained, *(before + turn for turn in answer.untrained))
        return replace(asked, messages=asked.messages + answer.messages, untrained=untrained)

    def each() -> Iterator[Rated]:
        for example in examples:
            assert isinstance(example, Example)
            asked, whole = example.documents
            assert isinstance(asked, Conversation)
            assert isinstance(whole, Conversation)
            answer = whole.part(len(asked.messages), len(whole.messages))
            yield Rated(asked, answer, bool(example.liked), whole.where)

    return mismatched(each(), join)


def label_of(row: Row, field: str) -> bool:
    found, fields = row.get(field), ", ".join(map(str, row))
    if found not in (True, False):  # 1 and 0 too
        what = f"{field!r} is {found!r}, and neither true nor false"
        what = what if field in row else f"it has no field {field!r} (its fields: {fields})"
        raise BadRow(what, "Name the one that holds the label with data.label_field")
    return bool(found)


def mismatched(rows: Iterable[Rated], join: Callable[[Any, Any], Any]) -> Iterator[Example]:
    """Each row with its prompt before a response to another one: those of the group before, rows of
    one prompt that follow each other; and of the first group to those of the last. BadFile: all
    have one prompt.
    """
    first: list[Rated] = []
    before: list[Rated] = []
    group: list[Rated] = []

    def example(row: Rated, other: Rated) -> Example:
        own = join(row.prompt, row.completion)
        return Example((own, join(row.prompt, other.completion)), row.liked)

    for row in rows:
        if group and not _same(group[0], row):
            before, group = group, []
        group.append(row)
        if before:
            yield example(row, before[(len(group) - 1) % len(before)])
        else:
            first.append(row)
    if first and not before:
        what = f"all rows up to {first[-1].where} have one prompt"
        raise BadFile(what, "Give responses to several prompts: each is read with another one too")
    others = before if first and _same(group[0], first[0]) else group
    for number, row in enumerate(first):
        yield example(row, others[number % len(others)])


def _same(one: Rated, other: Rated) -> bool:
    """Whether they have one prompt."""
    prompts = (one.prompt, other.prompt)
    if isinstance(one.prompt, Conversation):
        return prompts[0].messages == prompts[1].messages
    return prompts[0] == prompts[1]
