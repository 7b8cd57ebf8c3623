"""Every option of every variant, alone, with odd values: each is refused or taken, none crashes."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from itertools import cycle

import pytest

from forge import check
from forge.compose.engine import Library
from forge.compose.help import options_below, titles
from forge.compose.many import Composer
from forge.config import schemas
from forge.config.problems import ConfigError
from forge.resolve.resolve import resolve

ODD = ("-1", "[x]", *("x", "0", "null", '""', "[]", "{}", "nan", "1e400", "9" * 25, "true", "0.5"))


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
    """The exception that is raised in place of a refusal; empty where there is none."""
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


def test_an_odd_value_of_an_option_is_refused_or_taken() -> None:
    """Of every 16th option one of the values, each in turn."""
    compose, keys = Composer(), list(options())
    assert len(keys) > 400
    each = [(*before, f"{key}={ODD[n % len(ODD)]}") for n, (*before, key) in enumerate(keys[::16])]
    assert list(filter(None, (crash(compose, words) for words in each))) == []


@pytest.mark.nightly
def test_two_odd_values_of_every_option_are_refused_or_taken() -> None:
    """Each option takes the next two values of the list; all values of all take half an hour."""
    compose, odd = Composer(), cycle(ODD)
    each = [(*before, f"{key}={next(odd)}") for *before, key in options() for _ in range(2)]
    assert list(filter(None, (crash(compose, words) for words in each))) == []
