"""sweeper=optuna: searches that are refused, and searches on an objective that costs nothing,
stopped and gone on with.
"""

from __future__ import annotations

import json
import pickle
import re
import shlex
import sys
from pathlib import Path

import optuna
import pytest
from cheap import BAD, Here, Killed, valley
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from forge.compose.engine import Library
from forge.config.problems import ConfigError
from forge.launch.optuna import search as optuna_search
from forge.launch.optuna.search import check_search
from forge.launch.optuna.space import read_space
from forge.launch.optuna.trials import sampler
from forge.launch.sweep import sweep
from forge.launch.sweep.directory import SweepDirectory
from forge.launch.sweep.preflight import Preflight
from forge.planning.world import Devices

CPU = ["run.device=cpu", "eval.enabled=true"]
RATE = "optimizer.lr=tag(log, interval(1e-4, 1e-2))"
DECAY = "optimizer.weight_decay=interval(0, 0.5)"
LR = "optimizer.lr"


def search(*overrides: str, run: Here | None = None, name: str = "x", folder: str = "") -> int:
    """Search in this process, and return the exit code."""
    named = [] if folder else ["sweeper=optuna", f"sweep.name={name}"]
    typed, folders = [*named, *CPU, *overrides], [folder] if folder else []
    here = Devices(gpus=0, source="a test")
    return optuna_search.run_search(Preflight(typed, folders, here), run or Here())


def study(name: str = "x", root: str = "sweeps") -> optuna.Study:
    """What Optuna itself reads in the journal of a sweep."""
    storage = JournalStorage(JournalFileBackend(f"{root}/{name}/optuna.journal"))
    return optuna.load_study(study_name=name, storage=storage)


def states(name: str = "x") -> list[str]:
    return sorted(trial.state.name for trial in study(name).trials)


def points(name: str = "x"):
    return SweepDirectory(Path("sweeps", name)).points()


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        search(*overrides)
    return str(caught.value)


def test_a_search_that_cannot_begin_is_refused_with_all_reasons() -> None:
    ablation = ["sweep.ablation.baseline=a", "sweep.ablation.arms={a: []}"]
    assert refused(DECAY, *ablation, "sweeper.n_jobs=4", "sweeper.sampler=grid") == (
        "3 problems; nothing was started or written.\n"
        "  1. sweeper=optuna\n"
        "     an ablation runs all of its arms and seeds, and leaves nothing to choose.\n"
        "     -> sweeper=basic, or leave sweep.ablation out\n"
        "  2. sweeper.n_jobs=4\n"
        "     on this machine launch.jobs says how many trials run at a time.\n"
        "     -> launch.jobs=4\n"
        "  3. sweeper.sampler=grid\n"
        f"     {DECAY} has no values to go through one by one.\n"
        "     -> range(START, STOP, STEP), or sweeper.sampler=tpe"
    )
    assert not Path("sweeps").exists()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["seed=3"], "there is nothing to search.\n     -> 'optimizer.lr=tag(log, interval("),
        (
            ["seed=int(interval(0,99999))", "sweeper.sampler=grid"],
            "the grid has 100,000 points, and at most 20,000 can be gone through.",
        ),
        (
            ["model.n_layers=tag(log,interval(1,9))"],
            "  1. model.n_layers=tag(log, interval(1, 9))   [command line]\n     model.n_layers is "
            "an integer, and an interval has all numbers between its ends.\n"
            "     -> model.n_layers=tag(log, int(interval(1, 9)))",
        ),
        (
            [RATE, "launch=slurm", "launch.gpus_per_node=0", "launch.wait=false"],
            "  1. launch.wait=false   [command line]\n     sweeper=optuna chooses a trial by what",
        ),
        ([RATE, "model.dimm=3"], "1 problem; nothing was started or written.\n  1. model.dimm=3 "),
        (
            ["model.n_heads=3,5"],
            "none of 2 points can run; what is wrong with them is below.\n     -> another space\n"
            "  2. model.n_heads=3   [command line]",
        ),
        (
            ["model.n_heads=int(interval(65,9999))", DECAY],
            "none of 128 points of the space that were tried can run;",
        ),
    ],
)
def test_what_is_refused_before_anything_is_written(overrides: list[str], said: str) -> None:
    assert said in refused(*overrides)
    assert not Path("sweeps").exists()


@pytest.mark.parametrize("package", ["optuna", "cmaes"])
def test_a_package_that_is_not_installed(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"the package {package}"):
        sweep.run_sweep(["sweeper=optuna", *CPU, RATE, "sweeper.sampler=cmaes"])


def test_trials_are_points_and_their_objectives_what_optuna_learns_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert search("sweeper.n_trials=3", RATE, DECAY) == 0
    found = points()
    numbers = [trial.number for trial in study().trials]
    assert numbers == [point.number for point in found] == [0, 1, 2]
    for trial, point in zip(study().trials, found, strict=True):
        assert trial.user_attrs["overrides"] == list(point.overrides[-2:])
        assert dict(word.split("=") for word in point.overrides[-2:]) == point.varied
        typed = {key: float(value) for key, value in point.varied.items()}
        assert typed == pytest.approx(trial.params, rel=1e-5)
        rate, decay = typed.values()
        assert trial.value == valley({"lr": rate, "weight_decay": decay})
    best = study().best_trial
    added = " ".join(best.user_attrs["overrides"])
    path = found[best.user_attrs["point"]].path
    assert capsys.readouterr().out.splitlines() == [
        "sweep: sweeps/x   (3 trials: 3 to run)",
        f"  searched is {RATE.replace('1e-4', '0.0001').replace('1e-2', '0.01')} {DECAY}",
        "  watch it with: python -m forge.status sweeps/x --watch",
        "",
        "sweep: sweeps/x   (3 trials: 3 done)",
        f"best: eval/loss {best.value:.6g}   ({added}; sweeps/x/points/{path.name})",
        f"  python -m forge.train run.device=cpu eval.enabled=true {added}",
    ]


@pytest.mark.nightly
def test_the_same_seed_gives_the_same_trials_and_another_others() -> None:
    runs = {name: Here() for name in "abcd"}
    own = {
        "a": [],
        "b": ["seed=42"],
        "c": ["sweeper.seed=7"],
        "d": ["launch.jobs=4", "sweeper.sampler=random"],
    }
    for name, options in own.items():
        search("sweeper.n_trials=12", RATE, *options, run=runs[name], name=name)
    rates = {name: run.rates for name, run in runs.items()}
    assert rates["a"] == rates["b"]
    assert set(rates["a"]).isdisjoint(rates["c"])
    assert rates["a"][:10] == rates["d"][:10]  # Optuna draws the first ten at random
    assert rates["a"][10:] != rates["d"][10:]
    assert [runs["a"].batches, runs["d"].batches] == [[1] * 12, [4] * 3]


@pytest.mark.parametrize(("jobs", "kill"), [(1, False), (3, False), (1, True), (3, True)])
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(
    jobs: int, kill: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["sweeper.n_trials=14", f"launch.jobs={jobs}", RATE, DECAY]
    undisturbed, first, second = Here(), Here(stop_at=11, kill=kill), Here()
    assert search(*options, run=undisturbed, name="u") in (0, 1)
    capsys.readouterr()
    if kill:
        with pytest.raises(Killed):
            search(*options, run=first)
        assert "RUNNING" in states()
    else:
        assert search(*options, run=first) == 128 + 15
        assert "\nsweep: sweeps/x   (14 trials: " in capsys.readouterr().out
    # A kill may leave a torn line and Optuna's lock.
    journal = Path("sweeps/x/optuna.journal")
    journal.write_text(journal.read_text() + '{"op_code":4,"wor')
    Path(f"{journal}.lock").symlink_to(journal.name)
    assert search(*options, run=second) in (0, 1)
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    assert {*first.rates, *second.rates} == set(undisturbed.rates)
    replaced = {trial.user_attrs.get("instead_of") for trial in study().trials}
    kept = [trial for trial in study().trials if trial.number not in replaced]
    wanted = [(trial.params, trial.value) for trial in study("u").trials]
    assert [(trial.params, trial.value) for trial in kept] == wanted
    assert len(study().trials) == 14 + len(replaced - {None})


def test_a_problem_with_a_parameter_has_the_place_in_its_file() -> None:
    text = "# @package _global_\n# mine\ndefaults:\n  - override /sweeper: optuna\nsweeper:\n"
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/mine.yaml").write_text(f"{text}  params:\n    model.n_heads: 3,5\n")
    with pytest.raises(
        ConfigError, match=r"n_heads=3   \[conf/experiment/mine\.yaml:7, sweeper\.p"
    ):
        search("experiment=mine", folder="conf")


def test_trials_that_fail_are_listed_and_retried(capsys: pytest.CaptureFixture[str]) -> None:
    def objective(options: dict[str, float]) -> float | None:
        if options["lr"] == 0.004:
            raise RuntimeError(BAD)
        return None if options["lr"] == 0.003 else options["lr"]

    run = Here(objective)
    options = ["sweeper.n_trials=4", f"{LR}=-1,0.001,0.003,0.004", "sweeper.sampler=grid"]
    assert search(*options, run=run) == 1
    assert sorted(run.rates) == [0.001, 0.003, 0.004]
    assert {trial.params[LR]: trial.user_attrs.get("reason") for trial in study().trials} == {
        "-1": f"{LR}=-1.0: {LR} must be greater than 0.",
        "0.001": None,
        "0.003": "eval/loss is not finite",
        "0.004": BAD,
    }
    assert states() == ["COMPLETE", "FAIL", "FAIL", "FAIL"]
    paths = {point.varied[LR]: point for point in points()}
    before, end = capsys.readouterr().out.split("\nsweep:")
    number = paths["0.003"].number
    assert f"#{number:03d} FAILED    {LR}=0.003   eval/loss is not finite\n" in before
    lines = [
        " sweeps/x   (4 trials: 1 done, 3 failed)\n",
        f"  #--- refused   {LR}=-1\n       {LR}=-1.0: {LR} must be greater than 0.\n",
        f"  #{paths['0.004'].number:03d} failed    {LR}=0.004\n       {BAD}\n       sweeps/x/poi",
        f"  the same command with sweep.retry=true runs them again\nbest: eval/loss 0.001   ({LR}",
    ]
    assert [line for line in lines if line not in end] == []
    again = Here(lambda options: options["lr"])
    assert search(*options, run=again) == 1
    assert again.rates == []
    assert search(*options, "sweep.retry=true", run=again) == 1
    assert again.rates == [0.004]  # 0.003 has finished, and would do the same again
    assert states() == ["COMPLETE"] * 2 + ["FAIL"] * 5


def test_a_point_is_run_once_and_a_longer_search_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = Here()
    for count in (4, 6, 5):
        assert search(f"sweeper.n_trials={count}", f"{LR}=0.001,0.002", run=run) == 0
    assert sorted(run.rates) == [0.001, 0.002]
    assert states() == ["COMPLETE"] * 6
    assert capsys.readouterr().out.count(" known     optimizer.lr=") == 4
    assert len(SweepDirectory(Path("sweeps/x")).commands()) == 3


def test_a_trial_that_keeps_being_stopped_fails_in_the_end() -> None:
    class Stopped(Here):
        def __call__(self, sweep):  # as when a cluster ends each job before its time
            with sweep.open():
                self.batches.append(len(sweep.due))
                for entry in sweep.due:
                    entry.point.path.mkdir(parents=True, exist_ok=True)
                    sweep.directory.note("ended", entry.point.number, code=143)
                return sweep.finish([])

    run = Stopped()
    assert search("sweeper.n_trials=1", RATE, run=run) == 1
    assert run.batches == [1, 1, 1]
    reason = "its processes ended with exit code 143, and said nothing"
    assert study().trials[0].user_attrs["reason"] == reason


def test_trials_that_cannot_be_compared_are_refused() -> None:
    search("sweeper.n_trials=1", RATE, "scheduler=cosine,linear")
    before = Path("sweeps/x/optuna.journal").read_bytes()
    typed = ["optimizer.lr=interval(1e-4, 1e-2)", "scheduler=cosine,wsd", "train.max_steps=7"]
    had, why = "the trials of x had", "and what they reached cannot be compared."
    fix = "     -> give another sweep.name"
    metric = ["eval.metric=perplexity", "sweeper.direction=maximize"]
    assert refused(*typed, *metric).splitlines()[1:] == [
        "  1. optimizer.lr=interval(0.0001, 0.01)",
        "     the trials of x were chosen from tag(log, interval(0.0001, 0.01)), and only the ends "
        "of a range may change.",
        fix,
        "  2. scheduler=choice(cosine, wsd)",
        "     the trials of x were chosen from choice(cosine, linear), and only the ends "
        "of a range may change.",
        fix,
        "  3. run.objective=eval/perplexity",
        f"     {had} run.objective=eval/loss, {why}",
        f"{fix}, or leave it as it was",
        "  4. sweeper.direction=maximize",
        f"     {had} sweeper.direction=minimize, {why}",
        f"{fix}, or leave it as it was",
        "  5. train.max_steps=7",
        f"     {had} train.max_steps=1600, {why}",
        f"{fix}, or leave it as it was",
    ]
    said = refused(RATE, "scheduler=cosine,linear", "model=small", "train.seq_len=64")
    assert re.search(r"6\. sweep\.name=x\n     \d+ more options differ\.\n", said)
    assert Path("sweeps/x/optuna.journal").read_bytes() == before
    wider = [RATE.replace("1e-2", "1e-1"), "scheduler=cosine,linear", "sweeper.n_trials=1"]
    assert search(*wider) == 0
    Path("sweeps/x/optuna.journal").write_text("no journal\n[]\n")
    assert "optuna.journal cannot be read: Expecting value: line 1" in refused(RATE)


def test_a_grid_is_gone_through_once_in_an_order_of_its_own() -> None:
    run = Here(lambda options: options["lr"])
    grid = ["sweeper.sampler=grid", f"{LR}=range(0.001,0.007,0.001)"]
    assert search("sweeper.n_trials=99", *grid, "launch.jobs=4", run=run) == 0
    assert sorted(run.rates) == [0.001, 0.002, 0.003, 0.004, 0.005, 0.006] != run.rates
    assert run.batches == [4, 2]


def test_the_direction_of_the_search() -> None:
    metrics = {"eval/loss": "minimize", "eval/token_accuracy": "maximize"}
    assert {name: optuna_search.direction_of(name) for name in metrics} == metrics
    search("sweeper.n_trials=1", RATE, "sweeper.direction=maximize")
    assert study().direction.name == "MAXIMIZE"


def test_a_script_is_printed_for_trials_that_run_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slurm = ["launch=slurm", "launch.wait=true", "launch.dry_run=true", "launch.gpus_per_node=0"]
    assert sweep.run_sweep(["sweeper=optuna", *CPU, *slurm, "sweeper.n_jobs=3", RATE]) == 0
    assert "#SBATCH --array=0-2" in capsys.readouterr().out
    assert not Path("sweeps").exists()


class Command:
    """Its pickle makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def cmaes(state: bytes) -> optuna.Study:
    """A search by CMA-ES with this state in its journal, asked for the next trial."""
    found = optuna.create_study(sampler=sampler("cmaes", 1))
    box = dict.fromkeys("ab", FloatDistribution(0, 1))
    trial = found.ask(box)
    attribute = "cma:optimizer:0"
    found._storage.set_trial_system_attr(trial._trial_id, attribute, state.hex())
    found.tell(trial, 1.0)
    found.ask(box)
    return found


def test_the_state_of_cmaes_in_a_journal_runs_no_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cmaes in the journal cannot be used: it names pathlib"):
        cmaes(pickle.dumps(Command(tmp_path / "made")))
    assert not (tmp_path / "made").exists()


def test_the_state_of_cmaes_is_restored() -> None:
    own = pytest.importorskip("cmaes")
    np = pytest.importorskip("numpy")
    given = {"mean": np.zeros(2), "sigma": 1.0, "bounds": np.array([[-1.0, 1.0]] * 2), "seed": 3}
    optimizer = own.CMA(**given)
    optimizer.ask()
    assert len(cmaes(pickle.dumps(optimizer)).trials) == 2


def test_the_commands_and_the_experiment_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    page = text.partition("\n## Searching with Optuna\n")[2].partition("\n## ")[0]
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    tune = page.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "conf" / "experiment" / "tune.yaml").write_text(tune)
    shell = re.findall(r"python -m forge\.train -m ([^#\n]*)", page.replace("\\\n", " "))
    assert len(shell) == 4
    for words in map(shlex.split, shell):
        assert check_search(Preflight(words, ["conf"], Devices(gpus=0, source="a test")))[0].params
    for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE):
        for span in re.findall(r"`'?([\w.]+=[^`]*?)'?`", cell):
            assert read_space([span], {}, lambda: Library([])).params
    assert search("experiment=tune", "sweeper.n_trials=2", folder="conf") == 0
    keys = {LR, "model.n_layers", "scheduler"}
    assert [set(point.varied) for point in points("tune")] == [keys] * 2
    alone = "--config-dir conf train.max_steps=400 run.device=cpu eval.enabled=true experiment=tune"
    assert f"  python -m forge.train {alone} " in capsys.readouterr().out
