"""Preflight: all points of a sweep are checked before anything starts, all that is wrong is told,
and no run is there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forge.compose.composition import compose
from forge.config.problems import ConfigError, Problem
from forge.launch.sweep.expand import Combination
from forge.launch.sweep.preflight import Planned, Preflight
from forge.launch.sweep.refused import PointsRefused, Refused
from forge.plan.world import Devices
from forge.resolve.resolve import resolve
from forge.rundir.identity import hash_of

BAD = ["model.n_heads=3,4", "optimizer.lr=-1,1e-3", "train.seq_len=99999,64", "model=tiny,small"]
BAD_SAID = """\
14 of 16 points cannot run; nothing was started or written.
  1. model.n_heads=3   [command line]
     model.dim (128) is not divisible by model.n_heads (3).
     -> model.n_heads=2
     in the 4 points with model.n_heads=3 model=tiny
  2. optimizer.lr=-1.0   [command line]
     optimizer.lr must be greater than 0.
     in the 8 points with optimizer.lr=-1
  3. train.seq_len=99999   [command line]
     train.seq_len (99999) exceeds model.max_seq_len (512).
     -> train.seq_len=512 or model.max_seq_len=99999
     in the 4 points with train.seq_len=99999 model=tiny
  4. model.n_heads=3   [command line]
     model.dim (512) is not divisible by model.n_heads (3).
     -> model.n_heads=2
     in the 4 points with model.n_heads=3 model=small
  5. train.seq_len=99999   [command line]
     train.seq_len (99999) exceeds model.max_seq_len (2048).
     -> train.seq_len=2048 or model.max_seq_len=99999
     in the 4 points with train.seq_len=99999 model=small

the points that cannot run, each with the numbers of its problems:
  #0    model.n_heads=3 optimizer.lr=-1 train.seq_len=99999 model=tiny   (1, 2, 3)
  #1    model.n_heads=3 optimizer.lr=-1 train.seq_len=99999 model=small   (2, 4, 5)
  #2    model.n_heads=3 optimizer.lr=-1 train.seq_len=64 model=tiny   (1, 2)
  #3    model.n_heads=3 optimizer.lr=-1 train.seq_len=64 model=small   (2, 4)
"""
NONE = Devices(gpus=0, source="the test")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def points(*overrides: str, devices: Devices = NONE) -> list[Planned]:
    return Preflight(overrides, devices=devices).points()


def refused(*overrides: str, devices: Devices = NONE) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        points(*overrides, devices=devices)
    return caught.value


def test_all_that_is_wrong_with_sixteen_points() -> None:
    error = refused(*BAD)
    assert isinstance(error, PointsRefused)
    assert str(error).startswith(BAD_SAID)
    assert len(error.refused) == 14
    assert not any(Path().iterdir())


def test_what_is_wrong_with_all_is_said_once() -> None:
    assert (
        str(refused("optimizer.lrr=1", "seed=1,2,3"))
        == """\
3 of 3 points cannot run; nothing was started or written.
  1. optimizer.lrr=1   [command line]
     AdamW has no option 'lrr'.
     -> did you mean optimizer.lr=1?
     in every point"""
    )


def test_one_point_is_refused_as_a_run_is() -> None:
    error = refused("optimizer.lrr=1")
    assert not isinstance(error, PointsRefused)
    assert str(error).startswith("1 problem; nothing was started or written.\n  1. optimizer.lrr=1")


@pytest.mark.parametrize(
    ("having", "said"),
    [
        ((0, 1, 2, 3, 4, 5), "in every point"),
        ((0, 2, 4), "in the 3 points with b=0"),
        ((4, 5), "in the 2 points with a=2"),
        ((3,), "in the point with a=1 b=1"),
        ((0, 1, 3), "in 3 points: #0 #1 #3"),
    ],
)
def test_what_the_points_have_in_common_is_named(having: tuple[int, ...], said: str) -> None:
    combinations = [
        Combination(overrides=(), varied={"a": str(n // 2), "b": str(n % 2)}) for n in range(6)
    ]
    problem = Problem(key="x", what="y.")
    wrong = [Refused(number=n, problems=(problem,)) for n in having]
    assert f"     y.\n     {said}" in str(PointsRefused(wrong, combinations))


def test_the_same_run_twice_is_refused() -> None:
    (problem,) = refused("optimizer.lr=1e-3,0.001,2e-3").problems
    assert problem.what == "#0 (optimizer.lr=0.001) and #1 (optimizer.lr=0.001) are the same run."
    assert problem.fix == "give each value once, and values that make a difference"
    assert "and 2 more are the same run" in refused("seed=1,1,1,1,1").problems[0].what


def test_points_that_differ_in_what_is_free_are_different_runs() -> None:
    found = points("parallel=ddp,single", "train.batch_size=1", "train.global_batch_size=2")
    assert len({point.hash for point in found}) == 2
    assert len({hash_of(point.resolution.config) for point in found}) == 1
    again = points("parallel=ddp", "train.batch_size=1", "train.global_batch_size=2")
    assert again[0].hash not in {point.hash for point in found}, (
        "it is what varies that tells them apart"
    )


def test_a_point_has_the_same_hash_whatever_else_is_in_the_sweep() -> None:
    (first,) = points("seed=1", "optimizer.lr=1e-3")
    found = {
        point.combination.label: point.hash
        for point in points("optimizer.lr=2e-3,0.001", "seed=1,2")
    }
    assert found["optimizer.lr=0.001 seed=1"] == first.hash


def test_a_point_resolves_as_a_run_of_its_own_does() -> None:
    for point in points("model=tiny,moe_tiny", "scheduler=cosine,linear", "seed=1,2"):
        composition = compose(point.combination.overrides)
        wanted = resolve(
            composition.typed(),
            devices=NONE,
            origin=composition.origin,
        )
        assert (
            point.resolution.config,
            point.resolution.derived,
            point.resolution.warnings,
            point.resolution.world,
        ) == (*(wanted.config, wanted.derived, wanted.warnings, wanted.world),)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["seed=1,2"], "tiny"),
        (["model=small", "seed=1,2"], "small"),
        (["model=tiny,small"], "default"),
        (["experiment=wsd", "seed=1,2"], "wsd"),
        (["experiment=[wsd]", "seed=1,2"], "wsd"),
        (["experiment=wsd", "sweep.name=mine", "seed=1"], "mine"),
        (["experiment=wsd", "experiment=null", "seed=1"], "tiny"),
    ],
)
def test_the_directory_depends_on_the_name_alone(
    overrides: list[str], name: str, tmp_path: Path
) -> None:
    assert Preflight(overrides, devices=NONE).place == tmp_path / "sweeps" / name
    assert (
        Preflight([*overrides, "sweep.root=elsewhere"], devices=NONE).place
        == tmp_path / "elsewhere" / name
    )


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        Preflight(["sweep.root=file", "seed=1,2"], devices=NONE).place  # noqa: B018
    (problem,) = caught.value.problems
    assert (
        problem.what
        == f"the directory file/tiny cannot be made or written: {'file'} is no directory."
    )
    assert problem.fix == "choose another place with sweep.root"


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        (
            "run.dir=x",
            "each point has a directory of its own in that of the sweep.",
            "leave it out; sweep.name and sweep.root say where the sweep is",
        ),
        (
            "run.inline=true",
            "the points of a sweep run in processes of their own.",
            "run.inline=false, or one point without -m",
        ),
    ],
)
def test_what_is_said_of_one_run_only(override: str, what: str, fix: str) -> None:
    (problem,) = refused(override, "seed=1,2").problems
    assert (problem.key, problem.what, problem.fix) == (override, what, fix)


def test_too_many_points() -> None:
    (problem,) = refused("seed=range(30000)").problems
    assert problem.what == "these are 30,000 points, and a sweep has at most 20,000."


def test_a_sweep_has_one_launcher(write: Callable[[str, str], str]) -> None:
    folder = write("experiment/other.yaml", "# @package _global_\n# other\nlaunch:\n  jobs: 3\n")
    with pytest.raises(PointsRefused) as caught:
        Preflight(["experiment=wsd,other"], [folder], NONE).points()
    assert "launch.jobs=3\n     the first point has 1 here, and all are started together." in str(
        caught.value
    )


def test_an_experiment_may_carry_what_varies_and_how_it_is_launched(
    write: Callable[[str, str], str],
) -> None:
    folder = write(
        "experiment/mine.yaml",
        "# @package _global_\n# mine\ndefaults:\n  - override /launch: slurm\nlaunch:\n  partition: gpu\n"
        "sweeper:\n  params:\n    optimizer.lr: 1e-3,3e-3\n    seed: 1,2\n",
    )
    flight = Preflight(["experiment=mine", "seed=7", "run.device=cpu"], [folder], NONE)
    assert [point.combination.label for point in flight.points()] == [
        "optimizer.lr=0.001",
        "optimizer.lr=0.003",
    ]
    assert (type(flight.launch).__name__, flight.launch.partition) == ("Slurm", "gpu")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        ([], 8),
        (["launch.jobs=2"], 4),
        (["launch.jobs=3"], 2),
        (["launch.jobs=16"], 1),
        (["launch.jobs=2", "launch.devices_per_job=1"], 1),
        (["launch.devices_per_job=5"], 5),
    ],
)
def test_points_at_a_time_share_the_devices(overrides: list[str], size: int) -> None:
    eight = Devices(gpus=8, source="NVML")
    found = points("parallel=fsdp", "train.batch_size=1", "seed=1,2", *overrides, devices=eight)
    assert {point.resolution.world.size for point in found} == {size}


def test_a_layout_that_takes_more_than_its_share_is_refused() -> None:
    error = refused(
        "parallel=tp4", "launch.jobs=4", "seed=1,2", devices=Devices(gpus=8, source="NVML")
    )
    assert (
        "4 ranks (from the parallel degrees) need 4 GPUs; there are 2 (launch.jobs=4 share 8 GPUs)."
        in str(error)
    )


def test_a_model_that_this_machine_cannot_hold_is_refused() -> None:
    assert "of a CPU's memory" in str(
        refused("model=llama70b", "parallel=tp8", "run.device=cpu", "seed=1,2")
    )
