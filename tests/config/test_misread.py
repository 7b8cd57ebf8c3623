"""Numbers that YAML reads in base 60 or 8, where a user means a time or the digits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from refusing import only, problems

GLOBAL = "# @package _global_\n"
SLURM = "defaults:\n  - override /launch: slurm\n"
QUOTES = "in quotes where a text is meant: {}; else the number that is meant"

READ_OTHERWISE = [
    (
        f"{SLURM}launch:\n  time: 24:00:00\n",
        "launch.time",
        5,
        "24:00:00 as the number 86400, in base 60.",
        "in minutes: time: 1440",
    ),
    (
        f"{SLURM}launch:\n  time: 1:30\n",
        "launch.time",
        5,
        "1:30 as the number 90, in base 60.",
        "in minutes, like time: 60",
    ),
    (
        f"{SLURM}hydra:\n  launcher: {{timeout_min: 2:00:01}}\n",
        "launch.time",
        5,
        "2:00:01 as the number 7201, in base 60.",
        "in minutes: time: 121",
    ),
    (
        f"{SLURM}launch:\n  sbatch: {{begin: 16:00}}\n",
        "launch.sbatch.begin",
        5,
        "16:00 as the number 960, in base 60.",
        QUOTES.format('"16:00"'),
    ),
    (
        "sweeper:\n  params:\n    seed: [1:30, 2]\n",
        "sweeper.params.seed",
        4,
        "1:30 as the number 90, in base 60.",
        QUOTES.format('"1:30"'),
    ),
    (
        "run:\n  name: 007\n",
        "run.name",
        3,
        "007 as the number 7, in base 8.",
        QUOTES.format('"007"'),
    ),
    (
        "train:\n  max_steps: 010\n",
        "train.max_steps",
        3,
        "010 as the number 8, in base 8.",
        QUOTES.format('"010"'),
    ),
    (
        "optimizer:\n  lr: 1:30.5\n",
        "optimizer.lr",
        3,
        "1:30.5 as the number 90.5, in base 60.",
        QUOTES.format('"1:30.5"'),
    ),
]


@pytest.mark.parametrize(
    ("text", "key", "line", "what", "fix"),
    READ_OTHERWISE,
    ids=[what for *_, what, _ in READ_OTHERWISE],
)
def test_a_number_that_is_read_otherwise_than_it_looks(
    text: str, key: str, line: int, what: str, fix: str, write: Callable[[str, str], str]
) -> None:
    folder = write("experiment/mine.yaml", GLOBAL + text)
    found = only(["experiment=mine"], config_dirs=[folder])
    assert (found.key, found.what, found.fix) == (key, f"YAML reads {what}", fix)
    assert found.where == f"{folder}/experiment/mine.yaml:{line}"


@pytest.mark.parametrize(
    "value", ["'1:30'", "1:75", "a:1", "007x", "'007'", "2026-01-01", "1_0", "1:30:", "0"]
)
def test_what_is_read_as_it_looks(value: str, write: Callable[[str, str], str]) -> None:
    folder = write(
        "experiment/mine.yaml",
        f"{GLOBAL}# 1:30\nrun:\n  name: '{{}}'\nlaunch:\n  jobs: 10\nseed: 0\n".replace(
            "'{}'", value
        ),
    )
    assert not [
        problem
        for problem in problems(["experiment=mine"], config_dirs=[folder])
        if "YAML reads" in problem.what
    ]


def test_a_model_of_the_users_own(write: Callable[[str, str], str]) -> None:
    folder = write("model/mine.yaml", "defaults:\n  - tiny\n  - _self_\ndim: 0100\n")
    assert only(["model=mine"], config_dirs=[folder]).key == "model.dim"
