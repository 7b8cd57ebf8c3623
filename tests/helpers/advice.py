"""What can be typed of a piece of advice."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

OVERRIDE = re.compile(r"(\+?[a-z_]+[\w.]*=.+|~[a-z_]+[\w.]*)")
OWN = re.compile(
    r"\.\.\.|[=/\[]my[./]|[=:]mypkg\.Mine|corpus/|START|LOW|\(a, b\)|\bgroup=|\bkey=|-m\b"
)
"""What stands for something of the user's own, or is no single run."""


def alternatives(fix: str, told: Sequence[str] = (), option: str = "") -> list[list[str]]:
    """What was told, as each alternative of a fix has it: 'a=1 b=2, or c=3' adds two, or another.

    'leave it out' takes away what was told of the option; 'did you mean a.b?', without a value,
    gives it to that option instead.
    """
    others = [text for text in told if text.lstrip("+").partition("=")[0] != option]
    found = []
    for part in _parts(fix):
        words, text = [word for word in part if OVERRIDE.fullmatch(word)], " ".join(part)
        if words and not OWN.search(text):
            found.append([*told, *words])
        elif text.startswith("leave it out"):
            found.append(others)
        elif text.startswith("did you mean ") and not words and told:
            value = next(text for text in told if text not in others).partition("=")[2]
            found.append([*others, f"{part[-1]}={value}"])
    return found


def _parts(fix: str) -> list[list[str]]:
    """The words of each alternative, as a shell has them."""
    try:
        words = shlex.split(re.sub(r"\?( \(.*\))?$", "", fix))
    except ValueError:  # an apostrophe
        words = fix.split()
    parts: list[list[str]] = [[]]
    for word in words:
        if word != "or":
            parts[-1].append(word.rstrip(",;:"))
        if word == "or" or word[-1:] in (",", ";"):
            parts.append([])
    return parts
