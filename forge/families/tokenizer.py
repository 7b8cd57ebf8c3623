"""What the tokenizer files of a folder say of how texts begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.config.regular import read_json
from forge.config.tokenizers.tokenizer_files import FILE_NAME, put_around
from forge.config.tokenizers.tokenizer_stated import CONFIG_NAME


def begins_documents(folder: Path) -> bool:
    """Whether its texts begin with a token of their own: as tokenizer_config.json says, else as
    tokenizer.json adds one.
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
