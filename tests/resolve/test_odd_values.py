"""Every option of every variant, alone, with odd values: each is refused or taken, none crashes."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator, Sequence

import pytest

from forge import check
from forge.compose.engine import Library
from forge.compose.help import options_below, titles
from forge.compose.many import Composer
from forge.config import schemas
from forge.config.problems import ConfigError
from forge.resolve.resolve import resolve

ODD = (
    "x",
    "-1",
    "0",
    "null",
    '""',
    "[]",
    "[x]",
    "{}",
    "nan",
    "1e400",
    "9" * 25,
    "true",
    "1",
    "0.5",
)


def options() -> Iterator[tuple[str, ...]]:
    """The overrides in front of each option, and its key."""
    library = Library()
    for field in schemas.root_options():
        yield (field.name,)
    for group in library.groups():
        for choice, schema, _ in titles(group):
            chosen = () if not choice or choice in ("model=hf", "data=hf") else (choice,)
            for name, _ in options_below(schema):
                yield (*chosen, f"{group}.{name}")


def crash(compose: Composer, words: Sequence[str]) -> str:
    """What is raised in place of a refusal; empty where nothing is."""
    try:
        composition, config = compose(words)
        resolution = resolve(config, known=tuple(composition.problems))
        check.report(composition, resolution)
    except ConfigError as error:
        str(error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{' '.join(words)}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
    return ""
