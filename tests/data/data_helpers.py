"""Sections built by their targets, and small texts; also for processes that tests start."""

from __future__ import annotations

import importlib
import random
from typing import Any

TEXT = "the a of sea ship whale white captain said and to in was his it man"
WORDS = TEXT.split()


def build_section(section: Any, *, path: str, **runtime: Any) -> Any:
    """The calling convention of components, whatever the place."""
    module, name = section._target_.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(section, **runtime)


def make_prose(n_lines: int, seed: int = 0) -> str:
    """Lines of words, all different."""
    draw = random.Random(seed)
    return "".join(
        f"{i} " + " ".join(draw.choices(WORDS, k=8)) + f" {draw.random()}\n" for i in range(n_lines)
    )
