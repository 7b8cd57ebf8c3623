"""Problems with a configuration: their text, their display, and probable corrections."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from forge.config.numbers import counted

REFUSED = 2  # the exit code of a refusal
SHOWN = 5  # of many faults
COMMAND_LINE, ENVIRONMENT = "command line", "environment"  # where a value was given
SYNONYMS = {
    "gpu": "cuda",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}


@dataclass(frozen=True)
class Problem:
    """An error or a warning: key and value, what is wrong, what to do, and the value's origin."""

    key: str
    what: str
    fix: str = ""
    _: KW_ONLY
    where: str = ""
    rule: str = ""
    warning: bool = False

    @property
    def option(self) -> str:
        """The dotted key alone, without the value or the signs of an override."""
        return self.key.lstrip("+~").partition("=")[0].partition("[")[0]

    def render(self, number: int | None = None) -> str:
        """The key and its origin, what is wrong, what to do: up to three lines."""
        head = f"{number:3d}. " if number is not None else "  "
        pad = " " * len(head)
        origin = f"   [{self.where}]" if self.where else ""
        lines = [f"{head}{self.key}{origin}", f"{pad}{self.what}"]
        if self.fix:
            lines.append(f"{pad}-> {self.fix}")
        return "\n".join(lines)


class ConfigError(ValueError):
    """A configuration that cannot run, with its problems."""

    def __init__(self, problems: Problem | Sequence[Problem]):
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return render_problems(self.problems)


def refusal(key: str, message: str, hint: str = "", where: str = "") -> ConfigError:
    """Make the error of a single problem."""
    return ConfigError([Problem(key=key, what=message, fix=hint, where=where)])


def render_problems(problems: Sequence[Problem]) -> str:
    """All problems, numbered."""
    count = counted(len(problems), "problem")
    numbered = [problem.render(i) for i, problem in enumerate(problems, 1)]
    return "\n".join([f"{count}; nothing was started or written.", *numbered])


def closest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """The candidates `name` was probably meant to be, best first."""
    names = list(dict.fromkeys(candidates))
    if (synonym := SYNONYMS.get(name.lower())) in names:
        return [synonym]
    return difflib.get_close_matches(name.lower(), names, n=limit)


def did_you_mean(meant: Sequence[str]) -> str:
    """'did you mean a, b or c?', or nothing."""
    if not meant:
        return ""
    listed = meant[0] if len(meant) == 1 else f"{', '.join(meant[:-1])} or {meant[-1]}"
    return f"did you mean {listed}?"


def listed(faults: Sequence[str]) -> str:
    """The first of many faults, and the number of the others."""
    remainder = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    return "; ".join(faults[:SHOWN]) + remainder


def shown(value: object) -> str:
    """A value as shown in a message."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    return str(value)


def literal(value: Any) -> str:
    """A value in Hydra's grammar, read back by Hydra as the same value."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(literal, value))}]"
    return shown(value)


def quoted(value: str) -> str:
    """A text in Hydra's grammar: in quotes unless it is a plain path."""
    if re.fullmatch(r"[A-Za-z/.][\w.:@%-]*[/:][\w./:@%-]*", value, re.ASCII):
        return value
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"


def typed_override(key: str, value: str) -> str:
    """An override as typed in a shell: in quotes where the value has quotes or spaces."""
    text = f"{key}={value}"
    if not re.search(r"[\s\"']", value):
        return text
    return f'"{text}"' if "'" in value and '"' not in value else f"'{text}'"


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Each dotted key by its last word, or by as many last words as are unique to the key."""
    names: dict[str, str] = {}
    for key in keys:
        words = key.split(".")
        ends = [".".join(words[-n:]) for n in range(1, len(words) + 1)]
        unique = (e for e in ends if sum(f".{other}".endswith(f".{e}") for other in keys) == 1)
        names[key] = next(unique, key)
    return names
