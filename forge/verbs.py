"""The verbs of forge: what each does, and examples of its use, as its module says them.

A verb is a module, `forge/NAME.py` or `forge/NAME/__main__.py`, whose docstring begins with
"`python -m forge.NAME", says after a colon what it does, and has examples in indented lines below
the word Examples.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
MAIN = "__main__.py"
FIRST = re.compile(r"`python -m forge\.(\w+.*?)`:\s(.*)", re.DOTALL)
ORDER = (
    *("train", "check", "explain", "resume", "status", "report", "scaling", "runs", "compare"),
    "generate",
    "chat",
    "serve",
    *(
        "evaluate",
        "import",
        "export",
        "parity",
        "bench",
        "plan",
        "coords",
        "prepare",
        "preview",
        "checkpoints",
        "cancel",
        "clean",
        "doctor",
        "new",
    ),
)
"""In which they are listed; others come behind them."""


class Verb(NamedTuple):
    """A verb's module, usage, purpose and example commands."""

    module: str
    usage: str
    what: str
    examples: tuple[str, ...]


def verbs() -> dict[str, Verb]:
    """Every verb by its name, read without importing it."""
    names = {f.stem for f in HERE.glob("*.py")} | {f.parent.name for f in HERE.glob(f"*/{MAIN}")}
    order = {name: rank for rank, name in enumerate(ORDER)}
    names = sorted(names, key=lambda name: (order.get(name, len(order)), name))
    return {name: verb for name in names if (verb := find_verb(name))}


def find_verb(name: str) -> Verb | None:
    """A verb by its name; None for a module without an example, such as a worker."""
    is_folder = (HERE / name / MAIN).is_file()
    text = (HERE / name / MAIN if is_folder else HERE / f"{name}.py").read_text(encoding="utf-8")
    is_one = text.startswith('"""`python -m forge.')
    doc = ast.get_docstring(ast.parse(text)) if is_one else None
    first = FIRST.match(doc.partition("\n\n")[0]) if doc else None
    examples = [line.strip() for line in (doc or "").splitlines() if line.startswith("    ")]
    if first is None or not examples:
        return None
    module = f"forge.{name}.__main__" if is_folder else f"forge.{name}"
    return Verb(module, first[1], " ".join(first[2].split()), tuple(examples))


def overview(known: Mapping[str, Verb]) -> str:
    """The text printed by `python -m forge`."""
    listed = [f"  {name:<12} {verb.what}" for name, verb in known.items()]
    head = ["forge VERB [words]     or     python -m forge.VERB [words]", ""]
    tail = [
        "",
        "  forge VERB --help          its flags, and examples",
        "  forge train --help GROUP   the options of a group",
        '  eval "$(forge completion bash)"    complete with the tab key; also zsh and fish',
    ]
    return "\n".join([*head, *listed, *tail])
