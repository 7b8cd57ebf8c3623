"""What the files beside a tokenizer say: other tokens, a chat template, and how text is drawn."""

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
"""Keys of a tokenizer_config.json that forge keeps for other readers. In the one that forge writes
generation_config is what the model's folder says of ends of text and of drawing.
"""


def stated_token(path: Path, name: str) -> str | None:
    """What the tokenizer_config.json beside a tokenizer.json says of a token."""
    try:
        stated = read_json(path.with_name(CONFIG_NAME)).get(name)
    except (OSError, ValueError, AttributeError):
        return None
    if isinstance(stated, dict):  # as transformers writes tokens with their properties
        stated = stated.get("content")
    return stated if isinstance(stated, str) else None


def stated_beside(path: Path) -> dict[str, Any]:
    """What the files beside a tokenizer say of chats, of other tokens and of generation."""
    try:
        content = read_json(path.with_name(CONFIG_NAME))
        found = {name: content[name] for name in STATED if content.get(name) is not None}
    except (OSError, ValueError, TypeError, AttributeError):
        found = {}
    with contextlib.suppress(OSError, ValueError):
        found[TEMPLATE] = read_text(path.with_name(TEMPLATE_NAME))
    if GENERATION not in found and (stated := _generation_beside(path)):
        found[GENERATION] = stated
    return found


def _generation_beside(path: Path) -> dict[str, Any]:
    """What generation_config.json says; of what is not there, the tokens of config.json."""
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
