"""data=pairs: prompts and responses; only the responses are learnt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from forge.config.data.text import Pairs
from forge.data.text.bad_rows import REFUSED, BadRows
from forge.data.text.corpus import Corpus, matching
from forge.data.text.reading import BadFile, Pair, kind, open_bytes, readable
from forge.data.text.rows import row_of_line, text_of

LOOK = 'lines like {"prompt": ..., "response": ...}'


def pairs(section: Pairs) -> Corpus:
    """A document for each row of files of JSON lines: the prompt, and the response right behind.

    ValueError, naming data.path: the option is empty, or no file matches.
    """
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


def read_pairs(
    path: Path, *, prompt_field: str, response_field: str, bad: BadRows = REFUSED
) -> Iterator[Pair]:
    """A pair a line, from two fields of a JSON object; empty lines are skipped."""
    for where, row in lines_of(path, response_field, LOOK, bad):
        with bad.row(where):
            prompt = text_of(where, row, prompt_field, option="data.prompt_field")
            response = text_of(where, row, response_field, option="data.response_field")
            yield Pair(prompt, response)


def lines_of(
    path: Path, field: str, look: str, bad: BadRows = REFUSED
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, JSON object) for each line but empty ones. look: example of the lines
    expected, with a field named `field`.
    """
    bad.begin(path)
    if kind(path) not in ("jsonl", "json"):
        raise BadFile(f"{path} is not named as JSON lines", f"Give files named .jsonl of {look}")
    with readable(path), open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                row = None
                with bad.row(where := f"{path} line {number}"):
                    row = row_of_line(where, line, field)
                if row is not None:
                    yield where, row
