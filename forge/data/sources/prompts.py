"""data=prompts: rows with a prompt to answer, and other fields for rewards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b, sha256
from typing import Any

import numpy as np

from forge.config.data.prompts import Prompts, SumsDemo
from forge.data.sources.pairs import json_lines
from forge.data.text.bad_rows import BadRows
from forge.data.text.corpus import matching
from forge.data.text.messages import BadRow, messages_of
from forge.data.text.reading import BadFile
from forge.data.text.rows import row_text
from forge.data.tokenizers.render import encode_prompt
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.store import TokenStore
from forge.data.tokens.tokens import Splits, TokenSource

LOOK = 'lines like {"prompt": ..., "answer": ...}'
HASHES = 1 << 64
Prompt = str | list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PromptRow:
    """A prompt, its tokens, and all fields of the row, for rewards."""

    prompt: Prompt
    ids: tuple[int, ...]
    columns: Mapping[str, Any]


class PromptStore(TokenStore):
    """The rows of one split in memory, in the order of the files; its length is their number."""

    def __init__(self, rows: Sequence[PromptRow]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def fingerprint(self) -> str:
        digest = sha256()
        for row in self.rows:
            digest.update(json.dumps([row.prompt, dict(row.columns)], default=str).encode())
        return digest.hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens of the first prompt: prompts are separate, and no text to read on."""
        return np.array(self.rows[0].ids[: stop - start], dtype=np.int64)


def prompts(section: Prompts) -> TokenSource:
    """The rows of files of JSON lines, in two splits by a hash of the prompt.

    ValueError, naming data.path: the option is empty, or no file matches.
    """
    files = matching(section.path)
    read = partial(read_rows, section, files)
    return TokenSource(
        source=section.path, n_files=len(files), splits=partial(_splits, section.path, read)
    )


def sums_demo(section: SumsDemo) -> TokenSource:
    """All sums of two digits whose answer has one digit."""
    sums = [(f"{a}+{b}=", {"answer": str(a + b)}) for a in range(10) for b in range(10 - a)]
    splits = partial(_splits, "sums_demo", lambda: iter(sums))
    return TokenSource(source="sums of digits", n_files=0, splits=splits)


def _splits(
    source: str,
    read: Callable[[], Iterator[tuple[Prompt, dict[str, Any]]]],
    tokenizer: Tokenizer,
    share: float,
) -> Splits:
    parts: tuple[list[PromptRow], list[PromptRow]] = ([], [])
    for prompt, columns in read():
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
        digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
        row = PromptRow(prompt=prompt, ids=tuple(encode_prompt(tokenizer, prompt)), columns=columns)
        parts[digest < share * HASHES].append(row)
    if not parts[0]:
        raise ValueError(f"data.path = {source}: no row with a prompt to train on.")
    return PromptStore(parts[0]), PromptStore(parts[1])


def read_rows(section: Prompts, files: Sequence[Any]) -> Iterator[tuple[Prompt, dict[str, Any]]]:
    """Yield (prompt, fields of the row) of each line. BadFile: a line has no prompt."""
    bad = BadRows.of(section)
    for path in files:
        for where, row in json_lines(path, section.prompt_field, LOOK, bad):
            with bad.row(where):
                yield _prompt_of(where, row, section), row


def _prompt_of(where: str, row: dict[str, Any], section: Prompts) -> Prompt:
    value = row.get(section.prompt_field)
    if not isinstance(value, list):
        text = row_text(where, row, section.prompt_field, option="data.prompt_field")
        if not section.as_messages:
            return text
        value = [{"role": "user", "content": text}]
    if section.system_prompt is not None:
        value = [{"role": "system", "content": section.system_prompt}, *value]
    try:
        messages = [dict(message) for message in messages_of(value).messages]
    except BadRow as error:
        raise BadFile(f"{where}: {error.what}", error.fix) from error
    if not messages or messages[-1]["role"] == "assistant":
        raise BadFile(f"{where}: the prompt does not end with what is answered", "Mend that row")
    return messages
