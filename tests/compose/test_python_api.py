"""forge from Python: compose, validate, train; every refusal is a ConfigError, which is a
ValueError.
"""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.refusing import SMALL

import forge
from forge import resume
from forge.config.problems import ConfigError, Problem
from forge.config.root import Config
from forge.launch.local import processes
from forge.rundir import files, saved_config


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Run directories that a worker was started for; it ends at once, with a result."""
    seen: list[Path] = []

    def start(run_dir: Path, ranks: int, *, trust: tuple[str, ...] = (), **_: object) -> int:
        seen.append(run_dir)
        content = {"status": "finished", "reason": "end", "step": 7, "metrics": {"eval/loss": 2.5}}
        files.write_json(
            run_dir / "result.json", {**content, "objective": {"name": "eval/loss", "value": 2.5}}
        )
        return 0

    monkeypatch.setattr(processes, "start", start)
    monkeypatch.chdir(tmp_path)
    return seen


def test_compose_gives_a_typed_config_that_can_be_changed():
    config = forge.compose(["model=llama7b", "train.max_steps=5"])
    assert isinstance(config, Config)
    assert config.model.num_params_estimate == 6_738_415_616  # type: ignore[attr-defined]
    assert config.train.max_steps == 5
    config.train.max_steps = 9
    assert config.validate().config.train.max_steps == 9


def test_a_config_changed_in_python_is_checked():
    config = forge.compose()
    config.train.seq_len, config.optimizer.lr = 10**6, -1.0
    with pytest.raises(ValueError, match="2 problems") as refused:
        config.validate()
    assert isinstance(refused.value, ConfigError)
    assert [p.option for p in refused.value.problems] == ["optimizer.lr", "train.seq_len"]


def test_validate_says_what_was_worked_out_and_where_it_would_run():
    resolution = forge.compose([*SMALL, "scheduler.warmup_steps=100"]).validate(world_size=1)
    assert (resolution.world.size, resolution.world.source, resolution.world.device) == (
        1,
        "the caller",
        "cpu",
    )
    assert "train.global_batch_size" in {d.key for d in resolution.derived}
    assert [w.rule for w in resolution.warnings] == ["scheduler.warmup"]
    with pytest.raises(ConfigError, match="there are 4 ranks"):
        forge.compose(SMALL).validate(world_size=4)


@pytest.mark.parametrize("resolve_first", [False, True])
def test_train_starts_a_worker_and_gives_its_result(
    resolve_first: bool, started: list[Path], tmp_path: Path
):
    config = forge.compose([*SMALL, "run.name=mine"])
    result = forge.train(config.validate().config if resolve_first else config)
    assert started == [result.run_dir]
    assert result.run_dir.parent == tmp_path / "runs"
    assert "_mine_" in result.run_dir.name
    assert (result.status, result.step, result.metrics, result.objective) == (
        "finished",
        7,
        {"eval/loss": 2.5},
        2.5,
    )
    assert yaml.safe_load((result.run_dir / "overrides.json").read_text()) == [
        *SMALL,
        "run.name=mine",
    ]


def test_what_is_set_in_python_is_an_override_of_the_run(started: list[Path], write):
    folder = write("experiment/mine.yaml", "# @package _global_\nseed: 9\n")
    config = forge.compose([*SMALL, "experiment=mine"], config_dirs=[folder])
    config.optimizer.lr, config.run.name, config.eval.sample_prompts = (
        0.25,
        "it's 1",
        ["a, b", "true"],
    )
    run_dir = forge.train(config).run_dir
    again = resume.overrides_of(run_dir)
    assert again[:-1] == [
        f"hydra.searchpath=[{folder}]",
        *SMALL,
        "experiment=mine",
        "optimizer.lr=0.25",
        "eval.sample_prompts=['a, b','true']",
        "run.name='it\\'s 1'",
    ]
    composed = forge.compose(again)
    assert (composed.seed, composed.optimizer.lr, composed.run.name) == (9, 0.25, "it's 1")
    assert list(composed.eval.sample_prompts) == ["a, b", "true"]
    assert forge.train(config.validate().config).run_dir != run_dir
    # What resolving worked out was set by nobody.
    assert resume.overrides_of(started[-1])[:-1] == again[:-1]


def test_a_run_goes_on(started: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With its own overrides and others, from its result, its path or a text, from anywhere."""
    result = forge.train(forge.compose([*SMALL, "seed=9"]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = forge.resume(result, {"train.max_steps": 200})
    assert again == result
    assert forge.resume(str(result.run_dir)).run_dir == started[-1] == started[0]
    config = saved_config.load_own(started[0])
    assert (config.seed, config.train.max_steps) == (9, 200)
    assert len(started) == 3
    with pytest.raises(ConfigError, match="has seed=9; here it is 1"):
        forge.resume(result.run_dir, ["seed=1"])
    with pytest.raises(ConfigError, match="continues, in its own directory"):
        forge.resume(result.run_dir, {"run.dir": "x"})
    with pytest.raises(ConfigError, match="is no run directory"):
        forge.resume(tmp_path)


def test_a_run_that_fails(started: list[Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "start", lambda run_dir, ranks, **_: 1)
    with pytest.raises(
        RuntimeError, match=r"^the run in .*_tiny_\w+ failed: its worker ended with exit code 1$"
    ):
        forge.train(forge.compose())


def test_a_run_that_is_interrupted_before_it_begins(
    started: list[Path], monkeypatch: pytest.MonkeyPatch
):
    """Also one that continues, whose directory has the result of its last start still."""
    done = forge.train(forge.compose())
    monkeypatch.setattr(processes, "start", lambda run_dir, ranks, **_: 130)
    for overrides in ([], [f"run.dir={done.run_dir}", "train.max_steps=3200"]):
        with pytest.raises(KeyboardInterrupt):
            forge.train(forge.compose(overrides))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "imports", ["import forge", "import forge.train", "from forge import train\nimport forge"]
)
def test_train_is_callable_however_it_was_imported(imports: str, tmp_path: Path):
    code = f"""
{imports}
from forge.launch.local import processes
processes.start = lambda run_dir, ranks, **_: 3
try:
    forge.train(forge.compose())
except RuntimeError as error:
    print(error)
assert forge.train.main(['--help']) == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert "failed: its worker ended with exit code 3" in done.stdout, done.stderr


def test_the_package_says_what_it_has():
    assert forge.train is importlib.import_module("forge.train")
    assert forge.resume is importlib.import_module("forge.resume") is resume
    names = {"ConfigError", "compose", "load", "report", "resume", "sweep", "train"}
    assert set(forge.__all__) == names
    assert all(callable(getattr(forge, name)) for name in names)
    with pytest.raises(AttributeError, match="module 'forge' has no attribute 'trian'"):
        forge.trian  # noqa: B018  # type: ignore[attr-defined]


def test_a_refusal_survives_another_process():
    error = ConfigError([Problem(key="a", what="b")])
    again = pickle.loads(pickle.dumps(error))
    assert again.problems == error.problems
    assert str(again) == str(error)


def test_train_takes_a_config_and_dir_lists_what_there_is() -> None:
    with pytest.raises(TypeError, match=r"^forge\.train takes a config, .* gives, not list$"):
        forge.train(["model=tiny"])  # type: ignore[arg-type]
    assert set(forge.__all__) <= set(dir(forge))
