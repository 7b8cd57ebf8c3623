"""What is said of the points of a sweep: a problem once for all values that have it, and at the
place that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forge.config.problems import ConfigError, Problem
from forge.launch.sweep.preflight import Planned, Preflight
from forge.launch.sweep.refused import merged
from forge.plan.world import Devices

GLOBAL = "# @package _global_\n"
ARMS = "sweep:\n  ablation:\n    baseline: base\n    arms:\n      base: []\n      wide: {}\n"
Write = Callable[[str, str], str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def points(*overrides: str, config_dirs: tuple[str, ...] = ()) -> list[Planned]:
    return Preflight(overrides, config_dirs, Devices(gpus=0, source="the test")).points()


def refused(*overrides: str, config_dirs: tuple[str, ...] = ()) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        points(*overrides, config_dirs=config_dirs)
    return caught.value


def of_file(write: Write, text: str, *overrides: str) -> ConfigError:
    return refused(
        "experiment=mine", *overrides, config_dirs=(write("experiment/mine.yaml", GLOBAL + text),)
    )


def test_an_unknown_key_is_said_once_for_all_its_values() -> None:
    assert (
        str(refused("model.dimm=32,64"))
        == """\
2 of 2 points cannot run; nothing was started or written.
  1. model.dimm=32,64   [command line]
     Decoder has no option 'dimm'.
     -> did you mean model.dim=32,64?
     in every point"""
    )


def test_an_unknown_key_beside_what_is_wrong_with_some_points() -> None:
    assert (
        str(refused("modell=tiny,small", "optimizer.lr=-1,-2,1e-3"))
        == """\
6 of 6 points cannot run; nothing was started or written.
  1. modell=tiny,small   [command line]
     there is no group or option 'modell'.
     -> did you mean model=tiny,small?
     in every point
  2. optimizer.lr=-1.0,-2.0   [command line]
     optimizer.lr must be greater than 0.
     in the 4 points with optimizer.lr=-1 or -2

the points that cannot run, each with the numbers of its problems:
  #0    modell=tiny optimizer.lr=-1   (1, 2)
  #1    modell=tiny optimizer.lr=-2   (1, 2)
  #2    modell=tiny optimizer.lr=1e-3   (1)
  #3    modell=small optimizer.lr=-1   (1, 2)
  #4    modell=small optimizer.lr=-2   (1, 2)
  #5    modell=small optimizer.lr=1e-3   (1)""".replace("1e-3", "0.001")
    )


def test_of_many_values_the_first_are_named() -> None:
    (problem,) = refused("optimizer.lrr=range(1,8)").problems
    assert (problem.key, problem.fix) == (
        "optimizer.lrr=1,2,3,4,5,...",
        "did you mean optimizer.lr=1,2,3,4,5,...?",
    )


def test_what_differs_in_more_than_the_value_stays_apart() -> None:
    problems = [
        Problem(key=f"a.b={value}", what=what, fix=f"a.c={value}0")
        for value, what in [("1", "x."), ("2", "y."), ("3", "x.")]
    ]
    assert list(dict.fromkeys(merged(problems).values())) == problems, (
        "the fix is no text with the value in it"
    )
    assert [p.key for p in refused("optimizer.lr=a,b").problems] == [
        "optimizer.lr=a",
        "optimizer.lr=b",
    ]


@pytest.mark.parametrize(
    ("text", "key", "line", "what", "fix"),
    [
        (
            "model.dimm: 32,64",
            "model.dimm=32,64",
            4,
            "Decoder has no option 'dimm'.",
            "did you mean model.dim=32,64?",
        ),
        (
            "launch.jobs: 1,2",
            "launch.jobs=1,2",
            4,
            "it is the same for all points of a sweep.",
            "one value",
        ),
        (
            "model: tiny,smal",
            "model=smal",
            4,
            "there is no model named 'smal'.",
            "did you mean model=small or model=moe_small?",
        ),
        ("seed: 1,,2", "seed=1,,2", 4, "a value is missing beside a comma.", "write seed=1,2"),
        ("optimizer.lr: -1,1", "optimizer.lr=-1.0", 4, "optimizer.lr must be greater than 0.", ""),
        (
            "model.n_heads: 3,4",
            "model.n_heads=3",
            4,
            "model.dim (128) is not divisible by model.n_heads (3).",
            "model.n_heads=2",
        ),
    ],
)
@pytest.mark.parametrize(
    "section",
    ["sweeper:\n  params:\n    {}\n", "hydra:\n  sweeper:\n    params: {{{}}}\n"],
    ids=["ours", "Hydra's"],
)
def test_the_place_of_a_parameter(
    section: str, text: str, key: str, line: int, what: str, fix: str, write: Write
) -> None:
    quoted = "{0}: '{2}'".format(*text.partition(": "))
    (problem,) = of_file(write, section.format(quoted)).problems
    assert (problem.key, problem.what, problem.fix) == (key, what, fix)
    assert problem.where == f"conf/experiment/mine.yaml:{line}, sweeper.params"


@pytest.mark.parametrize(
    ("arm", "key", "what", "fix"),
    [
        (
            "[model.dimm=256]",
            "model.dimm=256",
            "Decoder has no option 'dimm'.",
            "did you mean model.dim=256?",
        ),
        (
            "[model=tinyy]",
            "model=tinyy",
            "there is no model named 'tinyy'.",
            "did you mean model=tiny or model=moe_tiny?",
        ),
        (
            "['model.dim=-1']",
            "model.dim=-1",
            "model.dim must be greater than 0.",
            "for example model.dim=1",
        ),
        (
            "[run.name=x]",
            "run.name=x",
            "it is the same for all points of a sweep.",
            "leave it out of the arm",
        ),
        (
            "['']",
            "''",
            "this is not key=value.",
            "group=option or key=value, such as model=small or optimizer.lr=1e-3",
        ),
        (
            "['model.dim=64,128']",
            "model.dim=64,128",
            "an arm has one value of model.dim.",
            "an arm for each of them, or sweeper.params.model.dim=64,128 for all arms",
        ),
    ],
)
def test_the_place_of_an_arm(arm: str, key: str, what: str, fix: str, write: Write) -> None:
    (problem,) = of_file(write, ARMS.format(arm)).problems
    assert (problem.key, problem.what, problem.fix) == (key, what, fix)
    assert problem.where == "conf/experiment/mine.yaml:7, the arm wide"


def test_the_place_of_the_seeds_of_an_ablation(write: Write) -> None:
    (problem,) = of_file(write, ARMS.format("[model.dim=64]") + "    seeds: [-1]\n").problems
    assert (problem.key, problem.where) == (
        "sweep.ablation.seeds[0]=-1",
        "conf/experiment/mine.yaml:8",
    )


def test_what_is_typed_over_a_parameter_has_its_own_place(write: Write) -> None:
    (problem,) = of_file(write, "sweeper:\n  params:\n    seed: 1,2\n", "seed=-1").problems
    assert (problem.key, problem.where) == ("seed=-1", "command line")


@pytest.mark.parametrize(
    ("text", "key"),
    [("run:\n  dir: x\n", "run.dir=x"), ("run:\n  inline: true\n", "run.inline=true")],
    ids=["run.dir", "run.inline"],
)
def test_the_place_of_what_is_of_one_run(text: str, key: str, write: Write) -> None:
    (problem,) = of_file(write, text, "seed=1,2").problems
    assert (problem.key, problem.where) == (key, "conf/experiment/mine.yaml:3")


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        (ARMS.format("['optimizer.lr=${nokey}']"), "sweep.ablation.arms.wide", 7),
        (ARMS.format("${nokey}"), "sweep.ablation.arms.wide", 7),
        ("sweeper:\n  params:\n    optimizer.lr: ${nokey}\n", "sweeper.params.optimizer.lr", 4),
        ("sweep:\n  name: ${nokey}\n", "sweep.name", 3),
    ],
)
def test_an_interpolation_to_nothing(text: str, key: str, line: int, write: Write) -> None:
    (problem,) = of_file(write, text).problems
    assert (problem.key, problem.where) == (key, f"conf/experiment/mine.yaml:{line}")
    assert problem.what == "its interpolation fails: Interpolation key 'nokey' not found."


def test_an_interpolation_is_a_value_that_varies() -> None:
    found = points("optimizer.lr=${optimizer.weight_decay},1e-3", "optimizer.weight_decay=0.25")
    assert [point.resolution.config.optimizer.lr for point in found] == [0.25, 1e-3]


@pytest.mark.parametrize("override", ["launch.job=1,2", "sweep.params.seed=1,2"])
def test_an_unknown_key_of_the_launcher_is_an_unknown_key(override: str) -> None:
    (problem,) = refused(override).problems
    assert (problem.key, problem.what.partition(" ")[2]) == (
        override,
        f"has no option '{override.split('.')[1].split('=')[0]}'.",
    )
