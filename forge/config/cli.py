"""What the verbs share: arguments in any order, composing, resolving, and a refusal that exits with 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from forge.config.compose import Composition, compose
from forge.config.errors import ConfigError, Problem, render
from forge.config.origin import origin
from forge.config.resolve import Resolution, resolve

REFUSED = 2


def parser(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser of overrides and the search path; verbs add their own flags."""
    result = argparse.ArgumentParser(prog=f"python -m {prog}", description=description, add_help=False, allow_abbrev=False)
    result.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="group=option, or key=value")
    result.add_argument("-cd", "--config-dir", action="append", default=[], metavar="DIR", help="also take groups and options from DIR")
    result.add_argument("-h", "--help", action="store_true", help="this text; `--help GROUP` shows the options of one group")
    return result


def parse(arguments: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags and overrides in any order; argparse itself wants the overrides in one piece."""
    return arguments.parse_intermixed_args(list(sys.argv[1:] if argv is None else argv))


def resolved(overrides: Sequence[str], config_dirs: Sequence[str] = (), *, world_size: int | None = None) -> tuple[Composition, Resolution]:
    """Compose and resolve. Raises ConfigError with all problems of both, in the order they were typed."""
    composition = compose(overrides, config_dirs=config_dirs)
    try:
        resolution = resolve(
            composition.typed(),
            known=tuple(composition.problems),
            origin=lambda key: origin(composition, key),
            world_size=world_size,
        )
    except ConfigError as error:
        raise ConfigError(_as_typed(error.problems, composition.overrides)) from None
    return composition, resolution


def refuse(verb: Callable[[], int]) -> int:
    """Run a verb; a ConfigError is printed and becomes exit code 2."""
    try:
        code = verb()
        sys.stdout.flush()
        return code
    except ConfigError as error:
        print(render(error.problems), file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        return 0


def show(text: str) -> int:
    """Print a text; whoever reads it may stop early."""
    return refuse(lambda: print(text) or 0)


def _as_typed(problems: Sequence[Problem], overrides: Sequence[str]) -> list[Problem]:
    keys = [text.lstrip("+~").partition("=")[0] for text in overrides]

    def place(problem: Problem) -> int:
        return keys.index(problem.option) if problem.option in keys else len(keys)

    return sorted(problems, key=place)
