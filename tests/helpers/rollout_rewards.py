"""Rewards of the tests of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def signs(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """The share of capital letters and digits."""
    signs = [sum(sign.isupper() or sign.isdigit() for sign in text) for text in completions]
    return [count / max(len(text), 1) for count, text in zip(signs, completions, strict=True)]
