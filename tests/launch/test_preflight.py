"""All points of a sweep are made and checked before anything starts: what they are, what is wrong
with them and where that was written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forge.compose.composition import compose
from forge.config.problems import ConfigError, Problem
from forge.launch.sweep.expand import Combination
from forge.launch.sweep.preflight import Planned, Preflight
from forge.launch.sweep.refused import PointsRefused, combine_problems
from forge.planning.world import Devices
from forge.resolve.resolve import resolve
from forge.rundir.identity import hash_of

NONE = Devices(gpus=0, source="the test")
Write = Callable[[str, str], str]


def points(*overrides: str, devices: Devices = NONE, folder: str = "") -> list[Planned]:
    return Preflight(overrides, (folder,) if folder else (), devices).points()


def refused(*overrides: str, devices: Devices = NONE, folder: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        points(*overrides, devices=devices, folder=folder)
    assert not Path("sweeps").exists()
    return str(caught.value)


def experiment(write: Write, text: str) -> str:
    return write("experiment/mine.yaml", f"# @package _global_\n# mine\n{text}")


def labels(found: list[Planned]) -> list[str]:
    return [point.combination.label for point in found]


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["seed=1"], ["seed=1"]),
        (
            ["optimizer.lr=1e-3,3e-3", "seed=1,2"],
            [f"optimizer.lr={lr} seed={seed}" for lr in ("0.001", "0.003") for seed in (1, 2)],
        ),
        (["seed=range(3)"], ["seed=0", "seed=1", "seed=2"]),
        (["seed=choice(4)"], ["seed=4"]),
        (
            ["optimizer=adamw", "optimizer.betas=[0.9,0.95],[0.8,0.9]"],
            ["optimizer.betas=[0.9,0.95]", "optimizer.betas=[0.8,0.9]"],
        ),
        (["scheduler=glob(c*)"], ["scheduler=constant", "scheduler=cosine"]),
        (["seed=1", "seed=3"], ["seed=3"]),
        (["sweeper.params.seed=1,2"], ["seed=1", "seed=2"]),
        (
            ["optimizer.lr=${optimizer.weight_decay},1e-3"],
            [r"optimizer.lr=$\{optimizer.weight_decay\}", "optimizer.lr=0.001"],
        ),
    ],
)
def test_the_points_of_overrides(overrides: list[str], wanted: list[str]) -> None:
    assert labels(points(*overrides)) == wanted


def test_an_experiment_carries_values_arms_seeds_and_a_launcher(write: Write) -> None:
    """What is typed replaces its values; arms come one by one, the baseline first."""
    folder = experiment(
        write,
        "defaults:\n  - override /launch: slurm\nlaunch:\n  partition: gpu\nsweeper:\n"
        "  params:\n    optimizer.lr: 1e-3,3e-3\n    train.max_steps: [20, 30]\nsweep:\n"
        "  ablation:\n    baseline: b\n    seeds: [1, 2]\n"
        "    arms:\n      a: [model.qk_norm=false, model.dim=64]\n      b: []\n",
    )
    flight = Preflight(["experiment=mine", "optimizer.lr=0.1", "run.device=cpu"], [folder], NONE)
    found = flight.points()
    assert labels(found) == [
        f"arm={arm} train.max_steps={steps} seed={seed}"
        for arm in "ba"
        for steps in (20, 30)
        for seed in (1, 2)
    ]
    last = found[-1].combination
    assert last.overrides[-3:] == ("model.qk_norm=false", "model.dim=64", "seed=2")
    assert last.changes == {
        "train.max_steps": "30",
        "seed": "2",
        "model.qk_norm": "false",
        "model.dim": "64",
    }
    assert {point.resolution.config.optimizer.lr for point in found} == {0.1}
    assert vars(flight.launch)["partition"] == "gpu"


def test_a_point_resolves_as_a_run_of_its_own_does() -> None:
    for point in points("model=tiny,moe_tiny", "scheduler=cosine,linear", "seed=1,2"):
        composition = compose(point.combination.overrides)
        wanted = resolve(
            composition.typed(),
            devices=NONE,
            origin=composition.origin,
        )
        for part in ("config", "derived", "warnings", "world"):
            assert getattr(point.resolution, part) == getattr(wanted, part)


def test_a_point_is_known_by_its_hash_whatever_else_is_in_the_sweep() -> None:
    (first,) = points("seed=1", "optimizer.lr=1e-3")
    found = points("optimizer.lr=2e-3,0.001", "seed=1,2")
    assert dict(zip(labels(found), found, strict=True))["optimizer.lr=0.001 seed=1"].hash == (
        first.hash
    )
    both = points("parallel=ddp,single", "train.batch_size=1", "train.global_batch_size=2")
    assert len({hash_of(point.resolution.config) for point in both}) == 1, "a layout is free"
    assert len({point.hash for point in both}) == 2, "but it is what varies here"


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["seed=1,2"], "tiny"),
        (["model=tiny,small"], "default"),
        (["experiment=[wsd]", "seed=1,2"], "wsd"),
        (["experiment=wsd", "sweep.name=mine", "seed=1"], "mine"),
        (["experiment=wsd", "experiment=null", "sweep.root=elsewhere"], "../elsewhere/tiny"),
    ],
)
def test_the_directory_depends_on_the_name_alone(
    overrides: list[str], name: str, tmp_path: Path
) -> None:
    assert Preflight(overrides, devices=NONE).place == (tmp_path / "sweeps" / name).resolve()


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        ([], 8),
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
    said = refused("parallel=tp4", "launch.jobs=4", "seed=1,2", devices=eight)
    assert "need 4 GPUs; there are 2 (launch.jobs=4 share 8 GPUs)." in said


SIXTEEN = ["model.n_heads=3,4", "optimizer.lr=-1,1e-3", "train.seq_len=99999,64"]
SIXTEEN_SAID = """\
14 of 16 points cannot run; nothing was started or written.
  1. model.n_heads=3   [command line]
     model.dim (128) must be divisible by model.n_heads (3), or model.head_dim be given.
     -> model.n_heads=2
     in the 4 points with model.n_heads=3 model=tiny
  2. optimizer.lr=-1.0   [command line]
     optimizer.lr must be greater than 0.
     in the 8 points with optimizer.lr=-1
  3. train.seq_len=99999   [command line]
     train.seq_len (99999) must not exceed model.max_seq_len (512).
     -> train.seq_len=512 or model.max_seq_len=99999
     in the 4 points with train.seq_len=99999 model=tiny
  4. model.n_heads=3   [command line]
     model.dim (512) must be divisible by model.n_heads (3), or model.head_dim be given.
     -> model.n_heads=2
     in the 4 points with model.n_heads=3 model=small
  5. train.seq_len=99999   [command line]
     train.seq_len (99999) must not exceed model.max_seq_len (2048).
     -> train.seq_len=2048 or model.max_seq_len=99999
     in the 4 points with train.seq_len=99999 model=small

the points that cannot run, each with the numbers of its problems:
  #0    model.n_heads=3 optimizer.lr=-1 train.seq_len=99999 model=tiny   (1, 2, 3)
  #1    model.n_heads=3 optimizer.lr=-1 train.seq_len=99999 model=small   (2, 4, 5)
  #2    model.n_heads=3 optimizer.lr=-1 train.seq_len=64 model=tiny   (1, 2)
"""
EVERY_POINT = """\
4 of 4 points cannot run; nothing was started or written.
  1. modell=tiny,small   [command line]
     there is no group or option 'modell'.
     -> did you mean model=tiny,small?
     in every point
  2. optimizer.lrr=1   [command line]
     Muon has no option 'lrr'.
     -> did you mean optimizer.lr=1?
     in every point"""
CANNOT_VARY = """\
8 problems; nothing was started or written.
  1. launch.jobs=1,2   [command line]
     it is the same for all points of a sweep.
     -> one value; a list is written [...]
  2. launch=local,slurm   [command line]
     it is the same for all points of a sweep.
     -> one value; a list is written [...]
  3. seed=2,3   [command line]
     seed is there twice, so that seed=1 would count for nothing.
     -> leave one of the two out
  4. optimizer.lr=range(1e-4,1e-2)   [command line]
     it goes in steps of 1, as a third number does not say otherwise.
     -> optimizer.lr=range(START, STOP, STEP), or values with commas between
  5. run.dir=a,b   [command line]
     each point has a directory of its own in that of the sweep.
     -> leave it out
  6. scheduler=glob(nothing*)   [command line]
     it stands for no value at all.
     -> options: {schedulers}
  7. train.max_steps=glob(*)   [command line]
     it stands for no value at all.
     -> at least one
  8. train.seq_len=range(5,3)   [command line]
     it stands for no value at all.
     -> at least one"""


def test_all_that_is_wrong_with_sixteen_points() -> None:
    assert refused(*SIXTEEN, "model=tiny,small").startswith(SIXTEEN_SAID)


def test_what_is_wrong_with_every_point_is_said_once() -> None:
    assert refused("modell=tiny,small", "optimizer.lrr=1", "seed=1,2") == EVERY_POINT


def test_what_cannot_vary() -> None:
    typed = [line.split("   ")[0].split(". ", 1)[1] for line in CANNOT_VARY.splitlines()[1::3]]
    schedulers = ", ".join(sorted(path.stem for path in (FORGE / "conf" / "scheduler").iterdir()))
    assert refused("seed=1", *typed) == CANNOT_VARY.format(schedulers=schedulers)


FORGE = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["optimizer.lrr=1"], "1 problem; nothing was started or written.\n  1. optimizer.lrr=1 "),
        (
            ["optimizer.lr=1e-3,0.001,2e-3"],
            "#0 (optimizer.lr=0.001) and #1 (optimizer.lr=0.001) are the same run.\n"
            "     -> give each value once, and values that make a difference",
        ),
        (["seed=1,1,1,1,1"], "#2 (seed=1) and 2 more are the same run"),
        (["run.dir=x", "seed=1,2"], "1. run.dir=x   [command line]\n     each point has a dir"),
        (["run.inline=true", "seed=1,2"], "1. run.inline=true   [command line]\n     the points"),
        (["seed=range(30000)"], "these are 30,000 points, and a sweep has at most 20,000."),
        (["model=llama70b", "parallel.tp=8", "run.device=cpu", "seed=1,2"], "of a CPU's memory"),
        (["optimizer.lrr=range(1,8)"], "1. optimizer.lrr=1,2,3,4,5,...   [command line]"),
        (["launch.job=1,2"], "Local has no option 'job'."),
        (
            ["optimizer.eps=interval(1,2)"],
            "an interval has no first value; only sweeper=optuna takes one.\n     -> sweeper=optu",
        ),
        (["seed=range(1,5,0)"], "line]\n     it cannot be read: range() arg 3 must not be zero.\n"),
        (["optimizer.lr=range(0.1,1,0)"], "it cannot be read: Invalid range values (start:0.1"),
    ],
)
def test_what_is_refused(overrides: list[str], said: str) -> None:
    assert said in refused(*overrides)


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/tiny cannot be made or written: file is no dir"):
        Preflight(["sweep.root=file", "seed=1,2"], devices=NONE).place  # noqa: B018


def test_a_sweep_has_one_launcher(write: Write) -> None:
    folder = experiment(write, "launch:\n  jobs: 3\n")
    said = refused("experiment=wsd,mine", folder=folder)
    assert "the first point has another launch, and all are started together.\n" in said
    assert "in the point with experiment=mine" in said


ARMS = "sweep:\n  ablation:\n    baseline: base\n    seeds: [1]\n    arms:\n      base: []\n"
IN_AN_ARM = [
    ("model.dimm=256", "Decoder has no option 'dimm'.", "did you mean model.dim=256?"),
    ("model=tinyy", "there is no model named 'tinyy'.", "did you mean model=tiny or model=moe_t"),
    ("run.name=x", "it is the same for all points of a sweep.", "leave it out of the arm"),
    ("launch=slurm", "it is the same for all points of a sweep.", "leave it out of the arm"),
    ("''", "this is not key=value.", "group=option or key=value, such as"),
    ("seed=7", "seeds are what the runs of an arm differ in.", "sweep.ablation.seeds=[7], for all"),
    ("'model.dim=64,128'", "an arm has one value of model.dim.", "an arm for each, or sweeper."),
    ("model.n_layers=9", "model.n_layers is there twice in the arm", "leave one of the two out"),
]


@pytest.mark.parametrize(("override", "what", "fix"), IN_AN_ARM)
def test_what_is_wrong_in_an_arm_is_said_of_the_arm(
    override: str, what: str, fix: str, write: Write
) -> None:
    folder = experiment(write, f"{ARMS}      wide: [{override}, model.n_layers=2]\n")
    key, said, then = refused("experiment=mine", folder=folder).splitlines()[1:4]
    assert key.endswith("   [conf/experiment/mine.yaml:9, the arm wide]")
    assert what in said
    assert then.startswith(f"     -> {fix}")


@pytest.mark.parametrize(
    ("text", "key", "place"),
    [
        ("sweeper:\n  params:\n    model.dimm: '32,64'\n", "model.dimm=32,64", "5, sweeper.params"),
        ("hydra:\n  sweeper:\n    params: {seed: '-1,1'}\n", "seed=-1", "5, sweeper.params"),
        ("sweeper:\n  params:\n    launch.jobs: 1,2\n", "launch.jobs=1,2", "5, sweeper.params"),
        (f"{ARMS}      wide: []\n".replace("[1]", "[-1]"), "sweep.ablation.seeds[0]=-1", "6"),
        ("run:\n  dir: x\n", "run.dir=x", "4"),
    ],
)
def test_the_place_in_a_file(text: str, key: str, place: str, write: Write) -> None:
    said = refused("experiment=mine", folder=experiment(write, text)).splitlines()
    assert said[1] == f"  1. {key}   [conf/experiment/mine.yaml:{place}]"


def test_what_is_typed_contradicts_no_arm(write: Write) -> None:
    folder = experiment(write, f"{ARMS}      wide: [model.dim=64]\n")
    typed = ["model.dim=8,16", "seed=1,2"]
    assert refused("experiment=mine", *typed, folder=folder) == (
        "2 problems; nothing was started or written.\n"
        "  1. model.dim=8,16   [command line]\n"
        "     the arm wide of the ablation sets model.dim: it cannot be the same in all arms.\n"
        "     -> leave it out, or change the arm\n"
        "  2. seed=1,2   [command line]\n     the ablation has seeds of its own.\n"
        "     -> sweep.ablation.seeds=[1,2]"
    )


@pytest.mark.parametrize(
    ("having", "said"),
    [
        ((0, 1, 2, 3, 4, 5), "in every point"),
        ((0, 2, 4), "in the 3 points with b=0"),
        ((2, 3, 4, 5), "in the 4 points with a=1 or 2"),
        ((3,), "in the point with a=1 b=1"),
        ((0, 1, 3), "in 3 points: #0 #1 #3"),
    ],
)
def test_what_the_points_have_in_common_is_named(having: tuple[int, ...], said: str) -> None:
    combinations = [
        Combination(overrides=(), varied={"a": str(n // 2), "b": str(n % 2)}) for n in range(6)
    ]
    problem = Problem(key="x", what="y.")
    found = {n: [problem] for n in having}
    assert f"     y.\n     {said}" in str(PointsRefused(found, combinations))


def test_problems_that_differ_in_more_than_the_value_stay_two() -> None:
    problems = [
        Problem(key=f"a.b={value}", what=what, fix=f"a.c={value}0")
        for value, what in [("1", "x."), ("2", "y."), ("3", "x.")]
    ]
    assert list(dict.fromkeys(combine_problems(problems).values())) == problems
