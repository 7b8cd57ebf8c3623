"""What the verbs share: arguments in any order, composing, resolving, and a refusal that exits with
2.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Sequence

from forge.compose.composition import Composition, compose
from forge.config.problems import COMMAND_LINE, ConfigError, Problem, closest, did_you_mean
from forge.resolve.resolve import Resolution, resolve

__all__ = [
    "COMMAND_LINE",
    "REFUSED",
    "as_typed",
    "parse",
    "parser",
    "printable",
    "refuse",
    "resolved",
    "show",
]
REFUSED, INTERRUPTED = 2, 130
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def parser(prog: str, description: str, *, takes: str = "OVERRIDE") -> argparse.ArgumentParser:
    """A parser of overrides and the search path; verbs add their own flags. takes: what the help
    calls the words it is given.
    """
    result = argparse.ArgumentParser(
        prog=f"python -m {prog}", description=description, add_help=False, allow_abbrev=False
    )
    result.add_argument("overrides", nargs="*", metavar=takes, help="group=option, or key=value")
    result.add_argument(
        "-cd",
        "--config-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="also take groups and options from DIR",
    )
    result.add_argument(
        "-h",
        "--help",
        action="store_true",
        help="this text; `--help GROUP` shows the options of one group",
    )
    return result


def parse(arguments: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags and overrides in any order; argparse itself wants the overrides in one piece.

    What has dashes and is no flag, as --lr 3e-3, is among the overrides, as --lr=3e-3: whoever
    composes them refuses it beside all else.
    """
    words = _joined(arguments, sys.argv[1:] if argv is None else argv)
    options, others = arguments.parse_known_intermixed_args(words)
    flags = [flag.lstrip("-") for flag in _flags(arguments) if flag.startswith("--")]
    for word in others:
        meant = closest(word.lstrip("-").partition("=")[0], flags) if word.startswith("--") else []
        if meant or not word.startswith("--") or not hasattr(options, "overrides"):
            said = did_you_mean([f"--{flag}" for flag in meant])
            arguments.error(f"unrecognized arguments: {word}" + (f"; {said}" if said else ""))
    if others:
        options.overrides = sorted([*options.overrides, *others], key=words.index)
    return options


def _joined(arguments: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The words, with = between one that has dashes and is no flag and the value behind it."""
    joined: list[str] = []
    for word in words:
        last = joined[-1] if joined else ""
        if (
            last.startswith("--")
            and "=" not in last + word
            and last not in _flags(arguments)
            and not word.startswith("-")
        ):
            joined[-1] = f"{last}={word}"
        else:
            joined.append(word)
    return joined


def _flags(arguments: argparse.ArgumentParser) -> list[str]:
    return [flag for action in arguments._actions for flag in action.option_strings]


def resolved(
    overrides: Sequence[str], config_dirs: Sequence[str] = (), *, world_size: int | None = None
) -> tuple[Composition, Resolution]:
    """Compose and resolve. Raises ConfigError with all problems of both, in the order they were
    typed.
    """
    composition = compose(overrides, config_dirs=config_dirs)
    try:
        resolution = resolve(
            composition.typed(),
            known=tuple(composition.problems),
            origin=composition.origin,
            world_size=world_size,
        )
    except ConfigError as error:
        raise ConfigError(as_typed(error.problems, composition.overrides)) from None
    return composition, resolution


def refuse(verb: Callable[[], int]) -> int:
    """Run a verb; a ConfigError is printed and becomes exit code 2, and Ctrl-C 130."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a terminal of another encoding shows an escape for what it lacks
    try:
        _somewhere()
        code = verb()
        sys.stdout.flush()
        return code
    except ConfigError as error:
        print(printable(str(error)), file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python complains when it flushes at exit
        return 0


def printable(text: str) -> str:
    """A text that may be of a file of somebody else, without signs that command a terminal."""
    return CONTROL.sub(lambda sign: f"\\x{ord(sign[0]):02x}", text)


def _somewhere() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        what = "the directory that this was typed in has been removed."
        raise ConfigError(
            [Problem(key=".", what=what, fix="cd to one that is there", where=COMMAND_LINE)]
        ) from None


def show(text: str) -> int:
    """Print a text; whoever reads it may stop early."""
    return refuse(lambda: print(text) or 0)


def as_typed(problems: Sequence[Problem], overrides: Sequence[str]) -> list[Problem]:
    """Problems in the order of the overrides that they are of; those of the search path, which
    others come of, first.
    """
    keys = [text.lstrip("+~").partition("=")[0] for text in overrides]

    def place(problem: Problem) -> int:
        if problem.option == "hydra.searchpath" or problem.option.startswith("--config-dir "):
            return -1
        return keys.index(problem.option) if problem.option in keys else len(keys)

    return sorted(problems, key=place)
