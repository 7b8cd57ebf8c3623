"""Prompts from a file of lines or rows.

A prompt is a line of a .txt, or of a row of a .jsonl the `prompt`, the `text` or the `messages` for
the assistant to answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forge.config.regular import read_text

KINDS = (".txt", ".jsonl")


Prompt = str | list[dict[str, Any]]


def read_prompts(file: Path) -> list[Prompt]:
    """Read the prompts of a file.

    Raises ValueError, naming the file and the line, for an unreadable file or a missing prompt.
    """
    if file.suffix not in KINDS:
        raise ValueError(f"{file}: prompts are in a file {' or '.join(KINDS)}")
    try:
        lines = [line.rstrip("\r") for line in read_text(file).split("\n")]
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no UTF-8 text: {error.reason} at byte {error.start}") from None
    if not lines[-1]:  # after the last line
        lines.pop()
    if not lines:
        raise ValueError(f"{file} is empty; a prompt is a line of it")
    of_line = _of_text if file.suffix == ".txt" else _of_row
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        try:
            prompts.append(of_line(line))
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}") from None
    return prompts


def _of_text(line: str) -> str:
    if not line.strip():
        raise ValueError('it is empty; an empty prompt is {"prompt": ""} in a .jsonl')
    return line


def _of_row(line: str) -> Prompt:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError('it is no JSON; a row is such as {"prompt": "The "}') from None
    row = row if isinstance(row, dict) else {}
    if "messages" in row and "prompt" not in row:
        return _messages(row["messages"])
    prompt = row.get("prompt", row.get("text"))
    if not isinstance(prompt, str):
        raise ValueError('it has no text under "prompt" or "text"')
    return prompt


def _messages(content: Any) -> list[dict[str, Any]]:
    messages = [
        message if isinstance(message, dict) else {}
        for message in (content if isinstance(content, list) else ())
    ]
    texts = [message.get(name) for message in messages for name in ("role", "content")]
    if not messages or not all(isinstance(text, str) for text in texts):
        raise ValueError('its "messages" are no list such as [{"role": "user", "content": "Hi"}]')
    return messages
