"""The first token of texts, as the tokenizer files of a folder state it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.config.regular import read_json
from forge.config.tokenizers.tokenizer_files import FILE_NAME, put_around
from forge.config.tokenizers.tokenizer_stated import CONFIG_NAME


def begins_documents(folder: Path) -> bool:
    """Whether every text begins with a token of the tokenizer.

    tokenizer_config.json decides; without an entry there, the token added by tokenizer.json.
    """
    stated = _json(folder / CONFIG_NAME).get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    return put_around(_json(folder / FILE_NAME))[0] is not None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
