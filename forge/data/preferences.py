"""data=preference: prompts with the response that is preferred and one that is not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from forge.config.preference import PreferencePairs
from forge.data.corpus import Corpus, matching
from forge.data.pairs import lines_of
from forge.data.reading import Example, Pair, readable
from forge.data.rows import text_of

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
    return Corpus(
        name="preference",
        source=section.path,
        files=matching(section.path),
        reader=":".join(["preference", *fields.values()]),
        read=partial(read_preferences, **fields),
        masked=True,
        together=2,
    )


def read_preferences(
    path: Path, *, prompt_field: str, chosen_field: str, rejected_field: str
) -> Iterator[Example]:
    """An example a line, from three fields of a JSON object; empty lines are skipped."""
    for where, row in lines_of(path, rejected_field, LOOK):
        with readable(where):
            prompt = text_of(where, row, prompt_field, option="data.prompt_field")
            chosen = text_of(where, row, chosen_field, option="data.chosen_field")
            rejected = text_of(where, row, rejected_field, option="data.rejected_field")
        yield Example((Pair(prompt, chosen), Pair(prompt, rejected)))
