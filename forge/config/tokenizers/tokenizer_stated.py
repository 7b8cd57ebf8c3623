"""Files beside a tokenizer: their other tokens, chat template and generation options."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from forge.config.regular import read_json, read_text

CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME, TEMPLATE = "chat_template.jinja", "chat_template"
GENERATION_NAME, GENERATION = "generation_config.json", "generation_config"
TOKENS = ("pad_token", "unk_token", "additional_special_tokens", "extra_special_tokens")
OPTIONS = ("model_max_length", "padding_side", "clean_up_tokenization_spaces")
STATED = (TEMPLATE, GENERATION, *TOKENS, *OPTIONS)
"""Keys of a tokenizer_config.json that forge keeps for other readers. In the file that forge
writes, generation_config has the ends of text and the drawing options of the model's folder.
"""


def stated_token(path: Path, name: str) -> str | None:
    """The token of a name in the tokenizer_config.json beside a tokenizer.json."""
    try:
        stated = read_json(path.with_name(CONFIG_NAME)).get(name)
    except (OSError, ValueError, AttributeError):
        return None
    if isinstance(stated, dict):  # as transformers writes tokens with their properties
        stated = stated.get("content")
    return stated if isinstance(stated, str) else None


def stated_beside(path: Path) -> dict[str, Any]:
    """The statements of the files beside a tokenizer about chats, other tokens and generation."""
    try:
        content = read_json(path.with_name(CONFIG_NAME))
        statements = {name: content[name] for name in STATED if content.get(name) is not None}
    except (OSError, ValueError, TypeError, AttributeError):
        statements = {}
    with contextlib.suppress(OSError, ValueError):
        statements[TEMPLATE] = read_text(path.with_name(TEMPLATE_NAME))
    if GENERATION not in statements and (stated := _generation_beside(path)):
        statements[GENERATION] = stated
    return statements


def _generation_beside(path: Path) -> dict[str, Any]:
    """The content of generation_config.json; for absent keys, the tokens of config.json."""
    content: dict[str, Any] = {}
    for name, keys in (("config.json", ("eos_token_id", "pad_token_id")), (GENERATION_NAME, None)):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stated = read_json(path.with_name(name))
            content |= {
                key: value
                for key, value in stated.items()
                if value is not None and key in (keys or stated)
            }
    return content
