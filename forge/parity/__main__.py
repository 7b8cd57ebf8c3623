"""`python -m forge.parity a="..." b="..." [overrides]`: whether two layouts compute the same
numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forge import cli
from forge.config.changes import changes
from forge.config.problems import ENVIRONMENT, ConfigError, Problem, shown
from forge.launch.local import processes
from forge.plan.launcher_environment import launcher_environment
from forge.resolve.resolve import Resolution
from forge.rundir import files, saved_config
from forge.rundir.saved_config import CONFIG

EQUAL, DIFFERENT = 0, 1
SIDES = ("a", "b")
DTYPES = ("float64", "float32")
SAME = (
    "seed",
    "data",
    "tokenizer",
    "train.seq_len",
    "train.global_batch_size",
    "train.global_batch_tokens",
)
"""What both sides must have, or they read something else."""


@dataclass(kw_only=True)
class Words:
    """The command line, taken apart. common: overrides of both sides."""

    sides: dict[str, list[str]]
    common: list[str]
    steps: int = 5
    dtype: str = "float64"
    lr: float = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; exit 0 when both sides are equal, 1 when they are not or one failed, 2 when a
    configuration is refused.
    """
    description = "Train the same model twice, a few steps of plain SGD on the same batches, and compare weights, losses and gradients."
    arguments = cli.parser("forge.parity", description, takes="WORD")
    arguments.epilog = 'words: a="overrides" b="overrides" of the two sides; steps=5 dtype=float64 (or float32) lr=0.1; overrides of both'
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.show(arguments.format_help())
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    found = launcher_environment()
    if found is not None and found.size > 1:
        if found.rank > 0:
            return cli.REFUSED  # once is enough
        raise ConfigError(
            [
                _problem(
                    f"{found.source}={found.size}",
                    "forge.parity starts the ranks of both sides itself.",
                    "no torchrun or srun",
                    ENVIRONMENT,
                )
            ]
        )
    words = read(options.overrides)
    sides = resolved(words, options.config_dir)
    for name, side in sides.items():
        world, text = side.world, shlex.join(words.sides[name]) or "as it is"
        print(
            f"{name}: {text}   ({world.size} rank{'s' if world.size > 1 else ''} on {world.device}, from {world.source})"
        )
    config = sides["a"].config
    batch = f"{config.train.global_batch_size} sequences of {config.train.seq_len} tokens"
    print(
        f"both: {words.steps} steps of SGD with lr={words.lr:g} in {words.dtype}, {batch} a step, seed {config.seed}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="forge_parity_") as folder:
        for name, side in sides.items():
            place = Path(folder) / name
            place.mkdir()
            saved_config.save(side.config, place / CONFIG)
            files.write_json(
                place / "parity.json", {"steps": words.steps, "dtype": words.dtype, "lr": words.lr}
            )
            code = processes.start(place, side.world.size, module="forge.parity.worker")
            if code:
                print(f"{name} failed; nothing was compared", file=sys.stderr)
                return code
        return _compare(Path(folder), sides["a"], words.dtype)


def _compare(folder: Path, side: Resolution, dtype: str) -> int:
    import torch

    from forge.parity.side import Record
    from forge.parity.verdict import BOUNDS, compare, may_vanish, table

    bounds = BOUNDS[getattr(torch, dtype)]
    a, b = (Record.load(folder / name) for name in SIDES)
    verdict = compare(a, b, bounds, may_vanish=may_vanish(side.config))
    print(f"\n{table(verdict, bounds)}")
    return EQUAL if verdict.equal else DIFFERENT


def read(words: Sequence[str]) -> Words:
    """Take the words apart. Raises ConfigError for a side that is missing or given twice, and a
    number that cannot be.
    """
    found: dict[str, str] = {}
    common, problems = [], []
    for word in words:
        key, sign, value = word.partition("=")
        if key not in (*SIDES, "steps", "dtype", "lr") or not sign:
            common.append(word)
        elif key in found:
            problems.append(_problem(word, f"{key} is given twice.", f"one {key}=..."))
        else:
            found[key] = value
    for side in SIDES:
        if side not in found:
            problems.append(
                _problem(
                    f"{side}=",
                    f"the overrides of side {side} are missing.",
                    'a="parallel=single" b="parallel.tp=2"',
                )
            )
    result = Words(
        sides={side: _split(side, found.get(side, ""), problems) for side in SIDES}, common=common
    )
    for key, kind, bound in (("steps", int, 1), ("lr", float, 1e-12)):
        if key in found:
            try:
                number = kind(found[key])
            except ValueError:
                number = math.nan
            if not bound <= number < math.inf:
                problems.append(
                    _problem(
                        f"{key}={found[key]}",
                        f"{key} is a positive number.",
                        f"{key}={getattr(result, key):g}",
                    )
                )
            setattr(result, key, number)
    result.dtype = found.get("dtype", result.dtype)
    if result.dtype not in DTYPES:
        problems.append(
            _problem(
                f"dtype={result.dtype}", f"dtype is {' or '.join(DTYPES)}.", f"dtype={DTYPES[0]}"
            )
        )
    if problems:
        raise ConfigError(problems)
    return result


def resolved(words: Words, config_dirs: Sequence[str] = ()) -> dict[str, Resolution]:
    """Both sides, with the same global batch. Raises ConfigError with the problems of both, and
    where they do not read the same.
    """
    sides = _sides(words, config_dirs, ())
    sizes = {side.config.train.global_batch_size or 1 for side in sides.values()}
    given = any(
        text.startswith("train.global_batch_")
        for text in (*words.common, *words.sides["a"], *words.sides["b"])
    )
    if len(sizes) > 1 and not given:
        sides = _sides(words, config_dirs, (f"train.global_batch_size={math.lcm(*sizes)}",))
    problems = list(_unlike(sides["a"], sides["b"]))
    for name, side in sides.items():
        if side.config.precision.mixed_precision != "fp32":
            key = f"precision.mixed_precision={side.config.precision.mixed_precision}"
            problems.append(
                _problem(
                    key,
                    "parity is of sums in float64 or float32.",
                    "precision=fp32",
                    where=f"side {name}",
                )
            )
    if problems:
        raise ConfigError(problems)
    return sides


def _sides(words: Words, config_dirs: Sequence[str], more: Sequence[str]) -> dict[str, Resolution]:
    sides, problems = {}, []
    for name, own in words.sides.items():
        both = [*words.common, *own]
        precision = [] if any(text.startswith("precision") for text in both) else ["precision=fp32"]
        try:
            sides[name] = cli.resolved([*precision, *both, *more], config_dirs)[1]
        except ConfigError as error:
            problems += [
                dataclasses.replace(
                    one, where="; ".join(t for t in (f"side {name}", one.where) if t)
                )
                for one in error.problems
            ]
    if problems:
        raise ConfigError(problems)
    return sides


def _unlike(a: Resolution, b: Resolution) -> Iterator[Problem]:
    for change in changes(a.config, b.config):
        if not change.free and any(
            change.key == key or change.key.startswith(f"{key}.") for key in SAME
        ):
            what = f"{change.key} is {shown(change.before)} in a and {shown(change.after)} in b, so that they read different batches."
            yield _problem(
                change.key, what, f"give {change.key} once, outside of a and b", where="a and b"
            )


def _split(side: str, text: str, problems: list[Problem]) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        problems.append(
            _problem(
                f"{side}={text}",
                f"its quotes do not match: {error}.",
                f'{side}="key=value key=value"',
            )
        )
        return []


def _problem(key: str, what: str, fix: str, where: str = cli.COMMAND_LINE) -> Problem:
    return Problem(key=key, what=what, fix=fix, where=where)


if __name__ == "__main__":
    sys.exit(main())
