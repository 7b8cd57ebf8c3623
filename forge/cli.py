"""What the verbs share: arguments in any order, composing, resolving, and a refusal that exits with
code 2.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.compose.composition import Composition, compose
from forge.compose.trust import in_project, where_trusted
from forge.config.numbers import aligned
from forge.config.places import address_fault, is_remote
from forge.config.problems import (
    COMMAND_LINE,
    REFUSED,
    ConfigError,
    Problem,
    closest,
    did_you_mean,
    refusal,
)

if TYPE_CHECKING:
    from forge.resolve.resolve import Resolution

INTERRUPTED = 130
NARROWEST, GAP = 16, 2  # characters of a cut column, and between columns
BIDI = "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"  # they show text in another order
CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{BIDI}]")


class Parser(argparse.ArgumentParser):
    """A parser of a verb's flags; its help ends with examples."""

    def __init__(self, prog: str, description: str, **options: Any) -> None:
        options = {"allow_abbrev": False, **options}
        super().__init__(prog=f"python -m {prog}", description=description, **options)
        self.register("type", Path, _path)
        self.verb = prog.split()[0].removeprefix("forge.")

    def format_help(self) -> str:
        return f"{super().format_help()}\n{self.examples()}\n"

    def examples(self) -> str:
        """The examples in the docstring of the verb."""
        from forge import verbs  # imported late: needed by help texts alone

        verb = verbs.find_verb(self.verb)
        return "\n".join(["examples:", *(f"  {line}" for line in (verb.examples if verb else ()))])


def parser(prog: str, description: str, *, takes: str = "OVERRIDE") -> Parser:
    """A parser of overrides and the search path; verbs add their own flags. takes: name of the
    words in the help.
    """
    result = Parser(prog, description, add_help=False)
    add = result.add_argument
    add("overrides", nargs="*", metavar=takes, help="group=option, or key=value")
    folders = "also take groups and options from DIR"
    path = {"action": "append", "default": [], "metavar": "DIR", "help": folders}
    add("-cd", "--config-dir", "-cp", "--config-path", **path)
    name = "a config of DIR in place of conf/config.yaml, which stands in its defaults as `config`"
    add("-cn", "--config-name", metavar="NAME", help=name)
    help_text = "this text; `--help GROUP` shows the options of one group"
    add("-h", "--help", action="store_true", help=help_text)
    return result


def parse(arguments: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse flags and overrides in any order; argparse itself takes only adjacent overrides.

    An unknown flag, as --lr 3e-3, becomes an override, as --lr=3e-3: the composition refuses the
    override together with all other faults.
    """
    option_strings = [flag for action in arguments._actions for flag in action.option_strings]
    words: list[str] = []
    for word in sys.argv[1:] if argv is None else argv:
        last = words[-1] if words else ""
        is_unknown = last.startswith("--") and last not in option_strings
        if is_unknown and "=" not in last + word and not word.startswith("-"):
            words[-1] = f"{last}={word}"
        else:
            words.append(word)
    options, unparsed = arguments.parse_known_intermixed_args(words)
    for word in unparsed:
        is_long = word.startswith("--")
        flags = [flag[2:] for flag in option_strings if flag.startswith("--")]
        near = closest(word.lstrip("-").partition("=")[0], flags) if is_long else []
        meant = [f"--{flag}" for flag in near]
        if meant or not is_long or not hasattr(options, "overrides"):
            hint = f"; {did_you_mean(meant)}" if meant else ""
            arguments.error(f"unrecognized arguments: {word}{hint}")
    if unparsed:
        options.overrides = sorted([*options.overrides, *unparsed], key=words.index)
    if getattr(options, "config_name", None):
        options.overrides = [f"hydra.job.config_name={options.config_name}", *options.overrides]
    return options


def local_path(name: str, text: str) -> Path:
    """A local file or folder named on the command line. Raises ConfigError."""
    if fault := address_fault("", text):
        message, hint = fault
        raise refusal(f"{name} {text}", message, hint, COMMAND_LINE)
    return Path(text)


def run_or_address(text: str) -> Path | str:
    """A path of this machine, or the address of a remote store as a text."""
    return text if is_remote(text) else _path(text)


def _path(text: str) -> Path:
    if fault := address_fault("", text):
        raise argparse.ArgumentTypeError(f"{text}: {fault[0][:-1]}; give {fault[1]}")
    return Path(text)


def resolved(
    overrides: Sequence[str], config_dirs: Sequence[str] = (), *, world_size: int | None = None
) -> tuple[Composition, Resolution]:
    """Compose and resolve. Raises ConfigError with all problems of both, in typed order."""
    from forge.resolve.resolve import resolve

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


def resolve_single_run(
    overrides: Sequence[str], config_dirs: Sequence[str] = ()
) -> tuple[Composition, Resolution]:
    """`resolved` for a typed single run, with a warning where the run's files have values of a
    sweep, ignored by a single run. Raises ConfigError.
    """
    composition, resolution = resolved(overrides, config_dirs)
    sweep, params = resolution.config.sweep.ablation, resolution.config.sweeper.params
    values = [f"the arms {', '.join(sweep.arms)}"] if sweep.arms else []
    values += [f"values of {', '.join(params)}"] if params else []
    if not values:
        return composition, resolution
    chosen = composition.choices.get("experiment")
    key = f"experiment={chosen}" if chosen else "sweep.ablation" if sweep.arms else "sweeper.params"
    message = (
        f"this is a sweep ({' and '.join(values)}), and without -m one run that has none of it."
    )
    hint = f"python -m forge.train -m {key if chosen else '...'}"
    warning = Problem(key, message, hint, where=composition.written_at(key), warning=True)
    return composition, replace(resolution, warnings=(warning, *resolution.warnings))


def enter(options: argparse.Namespace) -> None:
    """Put the overrides of the surrounding project before the typed overrides. Raises ConfigError,
    also for an untrusted project.
    """
    options.overrides = in_project(options.overrides)


def as_typed(problems: Sequence[Problem], overrides: Sequence[str]) -> list[Problem]:
    """Problems in the order of the overrides at fault; problems of the search path, the cause of
    other problems, first.
    """
    keys = [text.lstrip("+~").partition("=")[0] for text in overrides]

    def place(problem: Problem) -> int:
        if problem.option == "hydra.searchpath" or problem.option.startswith("--config-dir "):
            return -1
        return keys.index(problem.option) if problem.option in keys else len(keys)

    return sorted(problems, key=place)


def refuse(verb: Callable[[], int]) -> int:
    """Run a verb; a ConfigError is printed and becomes exit code 2, and Ctrl-C 130."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal of another encoding shows an escape for a missing character.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _check_directory()
        code = verb()
        sys.stdout.flush()
        return code
    except ConfigError as error:
        print(printable(str(error)), file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Or Python complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _check_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        message = "the directory that this was typed in has been removed."
        raise refusal(".", message, "cd to one that is there", COMMAND_LINE) from None


def help(command: str, arguments: Parser, options: argparse.Namespace) -> int:
    """Print the help of a composing verb, or of the groups among the verb's words."""
    from forge.compose.help import help_page

    words, folders = where_trusted(options.overrides), options.config_dir
    return refuse(
        lambda: (
            print(help_page(command, arguments, words, folders, examples=arguments.examples())) or 0
        )
    )


def print_text(text: str) -> int:
    return refuse(lambda: print(text) or 0)


def aligned_lines(cells: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines of cells without empty columns, cut with an ellipsis at the terminal's end."""
    filled = [i for i in range(len(cells[0])) if i == 0 or any(line[i] for line in cells[1:])]
    lines = aligned([[line[i] for i in filled] for line in cells])
    width = terminal_width()
    return lines if width is None else [_cut(line, width) for line in lines]


def fitted(
    cells: Sequence[Sequence[str]], width: int, *, drop: Sequence[str], texts: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Lines of cells no wider than `width`, and the columns dropped for the width.

    drop: headings of droppable columns, the least important first. texts: headings of columns to
    cut at the end; the first column, names, is cut in the middle as the last resort.
    """
    heads = list(cells[0])
    indices = [i for i in range(len(heads)) if i == 0 or any(line[i] for line in cells[1:])]
    longest = {i: max(len(line[i]) for line in cells) for i in indices}
    least = {i: min(n, NARROWEST) if heads[i] in texts else n for i, n in longest.items()}
    least[0] = min(longest[0], max(NARROWEST, width * 3 // 5))
    dropped = []
    for head in drop:
        if sum(least[i] + GAP for i in indices) - GAP <= width:
            break
        if (i := heads.index(head)) in indices:
            indices.remove(i)
            dropped.append(head)
    room = width - sum(least[i] + GAP for i in indices) + GAP
    sizes = {}
    for i in indices:  # spare width goes to names first, then to texts in order
        sizes[i] = min(longest[i], least[i] + max(room, 0))
        room -= sizes[i] - least[i]
    sizes[0] = max(sizes[0] + min(room, 0), NARROWEST)
    rows = [
        [_cut(line[i], sizes[i], in_the_middle=i == 0 or heads[i] not in texts) for i in indices]
        for line in cells
    ]
    return [_cut(line, width) for line in aligned(rows)], dropped


def _cut(text: str, size: int, *, in_the_middle: bool = False) -> str:
    if len(text) <= size:
        return text
    end = (size - 1) // 2 if in_the_middle else 0
    return f"{text[: size - 1 - end]}…{text[len(text) - end :]}"


def terminal_width() -> int | None:
    """Columns of the terminal of stdout; None without a terminal."""
    return shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else None


def printable(text: str) -> str:
    """A text of possibly foreign origin, without characters controlling a terminal or reversing
    the reading order.
    """
    return CONTROL.sub(_code, text)


def _code(sign: re.Match[str]) -> str:
    code = ord(sign[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
