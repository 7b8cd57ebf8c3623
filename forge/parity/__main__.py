"""`python -m forge.parity a="..." b="..." [overrides]`: do two layouts compute the same numbers?

Examples:
    python -m forge.parity a="parallel=single" b="parallel=tp2"
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forge import cli
from forge.config.changes import changes
from forge.config.numbers import counted
from forge.config.problems import (
    COMMAND_LINE,
    ENVIRONMENT,
    ConfigError,
    Problem,
    refusal,
    shown,
)
from forge.launch.local import processes
from forge.planning.launcher_environment import launcher_environment
from forge.planning.world import check_startable
from forge.resolve.resolve import Resolution
from forge.rundir import files, saved_config
from forge.rundir.saved_config import CONFIG

EQUAL, DIFFERENT = 0, 1
SIDES = ("a", "b")
DTYPES = ("float64", "float32")
BATCH = "train.global_batch_"
SAME = ("seed", "data", "tokenizer", "train.seq_len", f"{BATCH}size", f"{BATCH}tokens")
"""Options equal on both sides; otherwise the sides read different batches."""


@dataclass(kw_only=True)
class Words:
    """The words of the command line; common: overrides of both sides."""

    sides: dict[str, list[str]]
    common: list[str]
    steps: int = 5
    dtype: str = "float64"
    lr: float = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when both sides are equal, 1 when not or one failed, 2 when refused."""
    description = (
        "Train the same model twice, a few steps of plain SGD on the same batches, and compare "
        "weights, losses and gradients."
    )
    arguments = cli.parser("forge.parity", description, takes="WORD")
    arguments.epilog = (
        'words: a="overrides" b="overrides" of the two sides; steps=5 dtype=float64 (or float32) '
        "lr=0.1; overrides of both"
    )
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.print_text(arguments.format_help())
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    launcher = launcher_environment()
    if launcher is not None and launcher.size > 1:
        if launcher.rank > 0:
            return cli.REFUSED  # rank 0 says why
        message, hint = "forge.parity starts the ranks of both sides itself.", "no torchrun or srun"
        raise refusal(f"{launcher.source}={launcher.size}", message, hint, ENVIRONMENT)
    cli.enter(options)
    words = parse_words(options.overrides)
    sides = resolve_sides(words, options.config_dir)
    for name, side in sides.items():
        check_startable(side.world)
        world, text = side.world, shlex.join(words.sides[name]) or "as it is"
        ranks = f"{counted(world.size, 'rank')} on {world.device}"
        print(f"{name}: {text}   ({ranks}, from {world.source})")
    config = sides["a"].config
    settings = f"{words.steps} steps of SGD with lr={words.lr:g} in {words.dtype}"
    batch = f"{config.train.global_batch_size} sequences of {config.train.seq_len} tokens"
    print(f"both: {settings}, {batch} a step, seed {config.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="forge_parity_") as folder:
        for name, side in sides.items():
            side_folder = Path(folder) / name
            side_folder.mkdir()
            saved_config.save_config(side.config, side_folder / CONFIG)
            settings = {"steps": words.steps, "dtype": words.dtype, "lr": words.lr}
            files.write_json(side_folder / "parity.json", settings)
            code = processes.start(side_folder, side.world.size, module="forge.parity.worker")
            if code:
                print(f"{name} failed; nothing was compared", file=sys.stderr)
                return code
        return _compare(Path(folder), sides["a"], words.dtype)


def _compare(folder: Path, side: Resolution, dtype: str) -> int:
    import torch

    from forge.parity.side import Record
    from forge.parity.verdict import BOUNDS, compare_records, may_vanish, verdict_table

    bounds = BOUNDS[getattr(torch, dtype)]
    a, b = (Record.load(folder / name) for name in SIDES)
    verdict = compare_records(a, b, bounds, may_vanish=may_vanish(side.config))
    print(f"\n{verdict_table(verdict, bounds)}")
    return EQUAL if verdict.equal else DIFFERENT


def parse_words(words: Sequence[str]) -> Words:
    """Parse the command line. Raises ConfigError: a side is missing or given twice, or a value is
    invalid.
    """
    values: dict[str, str] = {}
    common: list[str] = []
    problems: list[Problem] = []

    def add(key: str, what: str, fix: str) -> None:
        problems.append(Problem(key, what, fix, where=COMMAND_LINE))

    for word in words:
        key, sign, value = word.partition("=")
        if key not in (*SIDES, "steps", "dtype", "lr") or not sign:
            common.append(word)
        elif key in values:
            add(word, f"{key} is given twice.", f"one {key}=...")
        else:
            values[key] = value
    result = Words(sides=_overrides_by_side(values, add), common=common)
    for key, kind, bound in (("steps", int, 1), ("lr", float, 1e-12)):
        if key not in values:
            continue
        try:
            number = kind(values[key])
        except ValueError:
            number = math.nan
        if not bound <= number < math.inf:
            default = f"{key}={getattr(result, key):g}"
            add(f"{key}={values[key]}", f"{key} is a positive number.", default)
        setattr(result, key, number)
    result.dtype = values.get("dtype", result.dtype)
    if result.dtype not in DTYPES:
        add(f"dtype={result.dtype}", f"dtype is {' or '.join(DTYPES)}.", f"dtype={DTYPES[0]}")
    if problems:
        raise ConfigError(problems)
    return result


def _overrides_by_side(
    values: Mapping[str, str], add: Callable[[str, str, str], None]
) -> dict[str, list[str]]:
    """The overrides of each side. add: takes each problem, as key, message and hint."""
    sides = {}
    for side in SIDES:
        if side not in values:
            message = f"the overrides of side {side} are missing."
            add(f"{side}=", message, 'a="parallel=single" b="parallel.tp=2"')
        text = values.get(side, "")
        try:
            sides[side] = shlex.split(text)
        except ValueError as error:
            message = f"its quotes do not match: {error}."
            add(f"{side}={text}", message, f'{side}="key=value key=value"')
    return sides


def resolve_sides(words: Words, config_dirs: Sequence[str] = ()) -> dict[str, Resolution]:
    """Both sides, with the same global batch. Raises ConfigError with the problems of both."""
    sides = _sides(words, config_dirs)
    sizes = {side.config.train.global_batch_size or 1 for side in sides.values()}
    typed = (*words.common, *words.sides["a"], *words.sides["b"])
    if len(sizes) > 1 and not any(text.startswith(BATCH) for text in typed):
        sides = _sides(words, config_dirs, f"{BATCH}size={math.lcm(*sizes)}")
    problems = list(_different_batches(sides["a"], sides["b"]))
    for name, side in sides.items():
        if (number_format := side.config.precision.mixed_precision) != "fp32":
            key = f"precision.mixed_precision={number_format}"
            message = "parity is of sums in float64 or float32."
            problems.append(Problem(key, message, "precision=fp32", where=f"side {name}"))
        if (number_format := side.config.precision.param_dtype) != "fp32":
            key, hint = f"precision.param_dtype={number_format}", "precision.param_dtype=fp32"
            message = "parity is of weights in float64 or float32."
            problems.append(Problem(key, message, hint, where=f"side {name}"))
    if problems:
        raise ConfigError(problems)
    return sides


def _sides(words: Words, config_dirs: Sequence[str], *more: str) -> dict[str, Resolution]:
    sides, problems = {}, []
    for name, side_overrides in words.sides.items():
        texts = [*words.common, *side_overrides]
        precision = (
            [] if any(text.startswith("precision") for text in texts) else ["precision=fp32"]
        )
        try:
            sides[name] = cli.resolved([*precision, *texts, *more], config_dirs)[1]
        except ConfigError as error:
            for problem in error.problems:
                where = f"side {name}; {problem.where}" if problem.where else f"side {name}"
                problems.append(dataclasses.replace(problem, where=where))
    if problems:
        raise ConfigError(problems)
    return sides


def _different_batches(a: Resolution, b: Resolution) -> Iterator[Problem]:
    for change in changes(a.config, b.config):
        key = change.key
        if not change.free and any(
            key == option or key.startswith(f"{option}.") for option in SAME
        ):
            values = f"{shown(change.before)} in a and {shown(change.after)} in b"
            message = f"{key} is {values}, so that they read different batches."
            yield Problem(key, message, f"give {key} once, outside of a and b", where="a and b")


if __name__ == "__main__":
    sys.exit(main())
