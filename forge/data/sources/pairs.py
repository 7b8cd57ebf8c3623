"""data=pairs: prompts and responses; only the responses are learnt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from forge.config.data.text import Dataset, Pairs
from forge.data.sources import hub
from forge.data.sources.hub_stream import RowKind, StreamSource, stream
from forge.data.text.bad_rows import REFUSED, BadRows
from forge.data.text.corpus import Corpus, matching
from forge.data.text.reading import BadFile, Pair, format_by_suffix, open_bytes, refuse_unreadable
from forge.data.text.rows import row_of_line, row_text

PROMPT, RESPONSE = "data.prompt_field", "data.response_field"
LOOK = 'lines like {"prompt": ..., "response": ...}'


def pairs(section: Pairs) -> Corpus | StreamSource:
    """A document for each row of files of JSON lines: the prompt, and the response right after; or
    a stream of rows.

    ValueError, naming data.path: the option is empty, or no file matches.
    """
    if hub.is_streamed(section):
        return _streamed(section)
    fields = {"prompt_field": section.prompt_field, "response_field": section.response_field}
    bad = BadRows.of(section)
    return Corpus(
        name="pairs",
        source=section.path,
        files=matching(section.path),
        reader=f"pairs:{section.prompt_field}:{section.response_field}",
        read=partial(read_pairs, **fields, bad=bad),
        masked=True,
        bad_rows=bad,
    )


def _streamed(section: Pairs) -> StreamSource:
    fields = ((section.prompt_field, PROMPT), (section.response_field, RESPONSE))
    names = {"prompt_field": section.prompt_field, "response_field": section.response_field}
    row_kind = RowKind(
        name=f"pairs:{section.prompt_field}:{section.response_field}",
        convert=partial(_stream_row, **names),
        fields=fields,
        masked=True,
        most_bad=BadRows.of(section).most,
    )
    return stream_of_files(section, row_kind)


def stream_of_files(section: Any, row_kind: RowKind) -> StreamSource:
    """The rows of data.path, read while training. section: a Streams with `path`. ValueError,
    naming data.path or a field: the files cannot be loaded, or lack a column.
    """
    files = Dataset(path=section.path, cache_dir=section.cache_dir)
    return stream(section, hub.load_split(files, parts=section.stream_parts), row_kind)


def _stream_row(
    where: str, row: dict[str, Any], bad: BadRows, *, prompt_field: str, response_field: str
) -> Pair | None:
    with bad.row(where):
        return pair_of(where, row, prompt_field, response_field)
    return None


def pair_of(where: str, row: dict[str, Any], prompt_field: str, response_field: str) -> Pair:
    """The prompt and the response of a row. BadFile: one is missing, or no text."""
    prompt = row_text(where, row, prompt_field, option=PROMPT)
    return Pair(prompt, row_text(where, row, response_field, option=RESPONSE))


def read_pairs(
    path: Path, *, prompt_field: str, response_field: str, bad: BadRows = REFUSED
) -> Iterator[Pair]:
    """A pair a line, from two fields of a JSON object; empty lines are skipped."""
    for where, row in json_lines(path, response_field, LOOK, bad):
        with bad.row(where):
            yield pair_of(where, row, prompt_field, response_field)


def json_lines(
    path: Path, field: str, look: str, bad: BadRows = REFUSED
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, JSON object) for each line but empty ones. look: example of the lines
    expected, with a field named `field`.
    """
    bad.begin(path)
    if format_by_suffix(path) not in ("jsonl", "json"):
        raise BadFile(f"{path} is not named as JSON lines", f"Give files named .jsonl of {look}")
    with refuse_unreadable(path), open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                row = None
                with bad.row(where := f"{path} line {number}"):
                    row = row_of_line(where, line, field)
                if row is not None:
                    yield where, row
