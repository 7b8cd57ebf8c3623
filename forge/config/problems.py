"""Problems with a configuration: what they say, how they are shown, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong, or a warning: where, what, why and what to do."""

    key: str
    what: str
    fix: str = ""
    where: str = ""
    rule: str = ""
    warning: bool = False

    @property
    def option(self) -> str:
        """The dotted key alone, without the value or the signs of an override."""
        return self.key.lstrip("+~").partition("=")[0].partition("[")[0]

    def render(self, number: int | None = None) -> str:
        """Up to three lines: the key and its origin, what is wrong, what to do."""
        head = f"{number:3d}. " if number is not None else "  "
        pad = " " * len(head)
        origin = f"   [{self.where}]" if self.where else ""
        lines = [f"{head}{self.key}{origin}", f"{pad}{self.what}"]
        if self.fix:
            lines.append(f"{pad}-> {self.fix}")
        return "\n".join(lines)


class ConfigError(ValueError):
    """A configuration that cannot run, with all its problems."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return render(self.problems)


def refusal(key: str, what: str, fix: str = "", where: str = "") -> ConfigError:
    """The error of a single problem."""
    return ConfigError([Problem(key=key, what=what, fix=fix, where=where)])


def render(problems: Sequence[Problem]) -> str:
    """All problems, numbered."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join(
        [
            f"{count}; nothing was started or written.",
            *(p.render(i) for i, p in enumerate(problems, 1)),
        ]
    )


SYNONYMS = {
    "gpu": "cuda",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}


def closest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """The candidates that `name` was probably meant to be, best first."""
    known = list(dict.fromkeys(candidates))
    if (same := SYNONYMS.get(name.lower())) in known:
        return [same]
    return difflib.get_close_matches(name, known, n=limit, cutoff=0.6) or difflib.get_close_matches(
        name.lower(), known, n=limit, cutoff=0.6
    )


def did_you_mean(meant: Sequence[str]) -> str:
    """'did you mean a, b or c?', or nothing."""
    if not meant:
        return ""
    listed = meant[0] if len(meant) == 1 else f"{', '.join(meant[:-1])} or {meant[-1]}"
    return f"did you mean {listed}?"
