"""data=alpaca, sharegpt, chat, formatted: rows to conversations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from forge.config.data.chats import Alpaca, Chat, ChatRows, Formatted, ShareGPT
from forge.data.sources import hub
from forge.data.sources.hub_stream import RowKind, StreamSource, stream
from forge.data.text.bad_rows import REFUSED, BadRows
from forge.data.text.conversation import Conversation
from forge.data.text.corpus import Corpus, matching
from forge.data.text.fingerprint import hash_json
from forge.data.text.messages import SPEAKERS, BadRow, decoded, messages_of, without_nulls
from forge.data.text.reading import BadFile, Document, Example, format_by_suffix
from forge.data.text.rows import rows_of_file
from forge.data.tokenizers.render import Render

RULES = 4
"""Version of the reading of rows; a cache of another version is not used."""
LIST = re.compile(r"\s*\[\s*\{")
SAVED = ("state.json", "dataset_dict.json")
Row = Mapping[str, Any]
Converts = Callable[[Row], "Conversation | Example | None"]
"""Converts a row to a conversation, or to an example of several, without `where`; None leaves the
row out. BadRow: the row is malformed.
"""
Regroups = Callable[[Iterator[Document]], Iterator[Example]]


@dataclass(frozen=True, kw_only=True)
class Table(Corpus):
    """The rows of a table of the `datasets` library. Its one file is a name for messages."""

    table: Any

    @property
    def n_bytes(self) -> int:
        return self.table.data.nbytes

    def fingerprint(self, memo: Path | None = None) -> str:
        """Hash of the conversations, independent of the library's files."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self.reader.encode())
        for document in self.documents():
            liked = document.liked if isinstance(document, Example) else None
            for conversation in (
                document.documents if isinstance(document, Example) else (document,)
            ):
                assert isinstance(conversation, Conversation)
                digest.update(
                    len(conversation.content).to_bytes(8, "little") + conversation.content
                )
            digest.update(b"" if liked is None else bytes([liked]))
        return digest.hexdigest()


def alpaca(section: Alpaca) -> Corpus | StreamSource:
    """Conversations of a user's turn (instruction, an empty line, input) and the output."""
    return streamed_or_whole(section, "alpaca", of_alpaca)


def sharegpt(section: ShareGPT) -> Corpus | StreamSource:
    """Conversations of a list of turns, with roles by speaker."""
    convert = partial(of_sharegpt, field=section.messages_field)
    return streamed_or_whole(section, f"sharegpt:{section.messages_field}", convert)


def chat(section: Chat) -> Corpus | StreamSource:
    """Conversations of a list of messages, or of a prompt and its completion."""
    names = (section.messages_field, section.prompt_field, section.completion_field)
    how = ":".join(("chat", *names))
    return streamed_or_whole(section, how, partial(of_messages, names=names))


def formatted(*, formatting_func: Callable[..., Any], **options: Any) -> Corpus:
    """Conversations made of each row by a user's function. options: other options of the
    section.
    """
    section = Formatted(**options)
    convert = partial(of_function, function=formatting_func)
    return corpus_of(section, f"formatted:{_named(formatting_func)}", convert)


def streamed_or_whole(
    section: Any,
    how: str,
    convert: Converts,
    *,
    together: int = 0,
    regroup: Regroups | None = None,
) -> Corpus | StreamSource:
    """A stream of converted rows, or a corpus of them. section: a Streams and ChatRows. together,
    regroup, ValueError: as for `corpus_of`.
    """
    if not hub.is_streamed(section):
        return corpus_of(section, how, convert, together=together, regroup=regroup)
    row_kind = RowKind(
        name=_reader(section, how),
        convert=partial(_stream_row, convert=convert, leave_out=tuple(section.leave_out)),
        masked=True,
        render=Render.of(section),
        most_bad=BadRows.of(section).most,
        together=together,
        regroup=regroup,
    )
    return stream(section, hub.load_split(section, parts=section.stream_parts), row_kind)


def _stream_row(
    where: str, row: dict[str, Any], bad: BadRows, *, convert: Converts, leave_out: Sequence[str]
) -> Conversation | Example | None:
    for document in _converted(iter([(where, _filled(row))]), convert, leave_out, bad):
        assert isinstance(document, Conversation | Example)
        return document
    return None


def _reader(section: ChatRows, how: str) -> str:
    rules = [section.train_on, section.end_responses, section.leave_out, RULES]
    return f"{how}:{hash_json(rules)}"


def corpus_of(
    section: ChatRows,
    how: str,
    convert: Converts,
    *,
    together: int = 0,
    regroup: Regroups | None = None,
) -> Corpus:
    """Build a corpus of converted rows. together: number of conversations in a row to compare.
    regroup: transforms the documents of a file. ValueError, naming the key: no file matches, or the
    data set cannot be loaded.
    """
    render = Render.of(section)
    shared: dict[str, Any] = {"name": section.schema_name, "masked": True, "render": render}
    shared["together"] = together
    shared["reader"] = _reader(section, how)
    shared["bad_rows"] = bad = BadRows.of(section)
    how_read: Any = {"leave_out": tuple(section.leave_out), "bad": bad}
    if _is_table(section):
        table = hub.load_split(section)
        source = section.path or section.hf_dataset_name

        def rows(name: Path, bad: BadRows) -> Iterator[tuple[str, Row]]:
            bad.begin(name)
            return ((f"{name} row {number}", row) for number, row in enumerate(table, start=1))

        read = partial(_read, rows=rows, convert=convert, regroup=regroup, **how_read)
        return Table(source=source, files=(Path(source),), read=read, table=table, **shared)
    read = partial(_read, rows=rows_of_file, convert=convert, regroup=regroup, **how_read)
    return Corpus(source=section.path, files=matching(section.path), read=read, **shared)


def _is_table(section: ChatRows) -> bool:
    """Whether the section needs the `datasets` library to load."""
    chosen = (section.hf_dataset_config, section.hf_data_dir, section.hf_data_files)
    if section.hf_dataset_name or any(chosen) or section.hf_dataset_split != "train":
        return True
    return any((Path(section.path) / name).is_file() for name in SAVED)


def _read(
    path: Path,
    *,
    rows: Callable[[Path, BadRows], Iterator[tuple[str, Row]]],
    convert: Converts,
    regroup: Regroups | None = None,
    leave_out: Sequence[str] = (),
    bad: BadRows = REFUSED,
) -> Iterator[Document]:
    """Yield the conversation of each row, unless left out. BadFile: a row is malformed."""
    read = rows(path, bad)
    if rows is not rows_of_file or format_by_suffix(path) == "parquet":  # of columns
        read = ((where, _filled(row)) for where, row in read)
    documents = _converted(read, convert, leave_out, bad)
    yield from regroup(documents) if regroup else documents


def _converted(
    rows: Iterator[tuple[str, Row]], convert: Converts, leave_out: Sequence[str], bad: BadRows
) -> Iterator[Document]:
    for where, row in rows:
        with bad.row(where):
            try:
                document = convert(row)
            except BadRow as error:
                raise BadFile(f"{where}: {error.what}", error.fix) from error
            if document is None:
                continue
            several = document.documents if isinstance(document, Example) else (document,)
            read = tuple(
                replace(
                    conversation, where=where, messages=_without(conversation.messages, leave_out)
                )
                for conversation in several
                if isinstance(conversation, Conversation)
            )
            for conversation in read:
                conversation.content.decode()
            yield document._replace(documents=read) if isinstance(document, Example) else read[0]


def of_alpaca(row: Row) -> Conversation:
    """The system prompt if present, instruction and input; and the output."""
    fields = {name: _text(row, name, needed=name != "input") for name in ("instruction", "input")}
    asked = "\n\n".join(filter(None, fields.values()))
    turns = [turn_of("user", asked), turn_of("assistant", _text(row, "output"))]
    system = _text(row, "system", needed=False)
    return messages_of([turn_of("system", system), *turns] if system else turns)


def of_sharegpt(row: Row, *, field: str) -> Conversation:
    """from: human or user, gpt or assistant, system, tool or function; value: the text of the
    turn.
    """
    turns = []
    for number, turn in enumerate(_list(row, field), start=1):
        if not isinstance(turn, Mapping) or not isinstance(turn.get("value"), str):
            fault = f"turn {number} of field {field!r} has no text under 'value'"
            raise BadRow(
                fault, 'A turn is {"from": "human", "value": "Hello"}; data=chat has roles'
            )
        speaker = SPEAKERS.get(str(turn.get("from")).lower())
        if speaker is None:
            fault = f"turn {number} of field {field!r} is from {turn.get('from')!r}"
            raise BadRow(fault, f"A turn is from one of {', '.join(SPEAKERS)}")
        extra_fields = {k: v for k, v in turn.items() if k not in ("from", "value")}
        turns.append({**turn_of(speaker, turn["value"]), **extra_fields})
    system = _text(row, "system", needed=False)
    if system and turns[0]["role"] != "system":
        turns.insert(0, turn_of("system", system))
    return messages_of(turns, row.get("tools"))


def of_messages(row: Row, *, names: tuple[str, str, str]) -> Conversation:
    """Messages as chat templates take them, without nulls. names: of the fields of all messages,
    and of prompt and completion, read where a row has no list of messages.
    """
    field, *halves = names
    sides = [row.get(name) for name in halves]
    if row.get(field) is not None or None in sides:
        return messages_of(_list(row, field), row.get("tools"))
    sides = [_decoded_list(side, name) for side, name in zip(sides, halves, strict=True)]
    if all(isinstance(side, str) for side in sides):
        fault = f"{halves[0]!r} and {halves[1]!r} are texts, which no chat template writes"
        typed = f"data=pairs data.prompt_field={halves[0]} data.response_field={halves[1]}"
        raise BadRow(fault, f"{typed} learns such rows; or give messages, or data=formatted")
    turns = []
    for side, name, role in zip(sides, halves, ("user", "assistant"), strict=True):
        turns.append([turn_of(role, side)] if isinstance(side, str) else side)
        if not isinstance(turns[-1], list) or not turns[-1]:
            fault = f"it has no messages and no text under {name!r} ({type(side).__name__})"
            raise BadRow(fault, 'A row is {"prompt": [{"role": "user", ...}], "completion": [...]}')
    prompt, completion = turns
    return messages_of([*prompt, *completion], row.get("tools"), asked=len(prompt))


def of_function(row: Row, *, function: Callable[..., Any]) -> Conversation | None:
    """Messages returned by a function. Its errors become a BadRow, raised with the row's
    location.
    """
    try:
        messages = function(dict(row))
    except Exception as error:  # any error of the user's function
        fault = f"data.formatting_func raises {type(error).__name__}: {error}"
        raise BadRow(fault, "Mend it, or let it give null for rows to leave out") from error
    if messages is None:
        return None
    if not isinstance(messages, list | tuple):
        fault = (
            f"data.formatting_func gives a value of type {type(messages).__name__}, and no messages"
        )
        raise BadRow(fault, 'It gives a list such as [{"role": "user", "content": "Hello"}, ...]')
    return messages_of(messages)


def _without(messages: Sequence[dict[str, Any]], fields: Sequence[str]) -> tuple[Any, ...]:
    """Messages without `fields`."""
    return tuple({k: v for k, v in message.items() if k not in fields} for message in messages)


def _filled(row: Row) -> Row:
    """A row of columns without inner nulls, stand-ins for fields of other rows."""
    return {name: without_nulls(value) for name, value in row.items()}


def turn_of(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _decoded_list(value: Any, field: str) -> Any:
    """Decode the JSON text of a list; return any other value unchanged."""
    if isinstance(value, str) and LIST.match(value):
        return decoded(value, f"{field!r}", "Messages are a list")
    return value


def _list(row: Row, field: str) -> list[Any]:
    messages = _decoded_list(row.get(field), field)
    if not isinstance(messages, list) or not messages:
        fault = f"it has no list under {field!r} (its fields: {', '.join(map(str, row)) or 'none'})"
        raise BadRow(fault, _other_kind(row))
    return messages


def _other_kind(row: Row) -> str:
    """Advice for a row without messages in the expected field: a choice of data by its fields."""
    if {"chosen", "rejected"} <= set(row):
        return "Two answers are compared with data=chat_preference objective=dpo"
    answers = [name for name in ("response", "completion", "answer") if name in row]
    if isinstance(row.get("prompt"), list) and answers:
        return f"Such messages are read with data=chat data.completion_field={answers[0]}"
    for name, value in row.items():
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(first, Mapping) and "from" in first:
            return f"Such turns are read with data=sharegpt data.messages_field={name}"
        if isinstance(first, Mapping) and "role" in first:
            return f"Such messages are read with data=chat data.messages_field={name}"
    if {"instruction", "output"} <= set(row):
        return "Such rows are read with data=alpaca"
    if "prompt" in row and answers:
        return f"Texts are read with data=pairs data.response_field={answers[0]}"
    return "Name the one that holds the messages with data.messages_field"


def _named(function: Callable[..., Any]) -> str:
    """Hash of a function's name and keywords; a changed body goes unnoticed."""
    inner = function.func if isinstance(function, partial) else function
    keywords = function.keywords if isinstance(function, partial) else {}
    return hash_json([inner.__module__, inner.__qualname__, keywords])


def _text(row: Row, field: str, *, needed: bool = True) -> str:
    text = row.get(field)
    if text is None and not needed:
        return ""
    if not isinstance(text, str):
        fault = f"it has no text under {field!r} (its fields: {', '.join(map(str, row)) or 'none'})"
        raise BadRow(fault, 'A row is {"instruction": "...", "input": "", "output": "..."}')
    return text
