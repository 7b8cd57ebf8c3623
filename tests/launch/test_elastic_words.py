"""The layout of an elastic run over as many ranks as torchrun or Slurm has started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.tiny import TINY

from forge import train
from forge.cli import resolved
from forge.config.problems import ConfigError
from forge.config.root import Config
from forge.launch.local.elastic import fit_run, words_for_ranks
from forge.launch.slurm.task import Rank
from forge.rundir import directory, saved_config

WORDS = [word for word in TINY if not word.startswith("train.batch_size")]
WORDS += ["parallel.dp_shard=2", "parallel.dp_replicate=2", "train.batch_size=3"]
WORDS += ["run.elastic=1:4", "train.global_batch_size=12"]
Ranks = Callable[[int], None]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Set the variables of a launcher for the main rank of so many."""

    def ranks(size: int) -> None:
        values = {"RANK": "0", "WORLD_SIZE": str(size), "LOCAL_RANK": "0"}
        for name, value in (values | {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}).items():
            monkeypatch.setenv(name, value)

    return ranks


def start(run: Path, *words: str) -> Config:
    """Make the run directory or take it up, as forge.train does, and begin a start."""
    composition, resolution = resolved(words_for_ranks([*WORDS, f"run.dir={run}", *words]))
    path, _ = directory.prepare_directory(resolution, overrides=composition.overrides)
    begun(path)
    return resolution.config


def begun(run: Path) -> None:
    row = {"event": "start", "config": saved_config.newest(run).name}
    with (run / "attempts.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def layout(config: Config) -> tuple[int, ...]:
    parallel, train_section = config.parallel, config.train
    batch = (train_section.batch_size, train_section.grad_accum_steps)
    return parallel.dp_replicate, parallel.dp_shard, *batch


def test_the_same_words_under_another_number_of_ranks(tmp_path: Path, ranks: Ranks) -> None:
    """torchrun starts with four, continues with two, one and four: 12 sequences a step."""
    layouts = {}
    for size in (4, 2, 1, 4):
        ranks(size)
        config = start(tmp_path / "run")
        assert config.train.global_batch_size == 12
        layouts[size] = layout(config)
    assert layouts == {4: (2, 2, 3, 1), 2: (2, 1, 3, 2), 1: (1, 1, 3, 4)}
    ranks(2)
    with pytest.raises(ConfigError, match=r"has train\.global_batch_size=12; here it is 24"):
        start(tmp_path / "run", "train.global_batch_size=24")
    wider = ["train.global_batch_size=24", "run.allow_change=[train.global_batch_size]"]
    assert layout(start(tmp_path / "run", *wider)) == (2, 1, 3, 4)


@pytest.mark.nightly
def test_another_batch_is_refused_once(tmp_path: Path, ranks: Ranks) -> None:
    """As it was typed: in sequences, in tokens, or with another length of sequences."""
    ranks(4)
    length = start(tmp_path / "run").train.seq_len
    ranks(2)
    words = [word for word in WORDS if not word.startswith("train.global_batch_size")]
    size, tokens = "train.global_batch_size=24", f"train.global_batch_tokens={24 * length}"
    longer = f"train.seq_len={length // 2}"
    for typed in ([size], [tokens], [longer], [size, longer]):
        with pytest.raises(ConfigError) as refused:
            resolved(words_for_ranks([*words, f"run.dir={tmp_path / 'run'}", *typed]))
        keys = sorted(problem.key for problem in refused.value.problems)
        assert keys == sorted(typed), typed
    for key in ("train.global_batch_size", "train.global_batch_tokens"):
        permitted = [*words, f"run.dir={tmp_path / 'run'}", tokens, f"run.allow_change=[{key}]"]
        assert resolved(words_for_ranks(permitted))[1].config.train.global_batch_size == 24


def test_ranks_that_share_no_batch_are_refused(
    tmp_path: Path, ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, with exit code 2; and torchrun is told a directory for restarts."""
    ranks(4)
    start(tmp_path / "run")
    ranks(5)
    with pytest.raises(ConfigError) as refused:
        words_for_ranks([*WORDS, f"run.dir={tmp_path / 'run'}", "run.elastic=1:8"])
    (problem,) = refused.value.problems
    assert problem.what == "no layout of 5 ranks shares 12 sequences a step evenly."
    ranks(1)
    words = [word for word in WORDS if not word.startswith("parallel.")]
    assert train.main(words) == 2
    assert "a restart by another launcher continues in a directory" in capsys.readouterr().err


def test_torchrun_with_one_store_for_all_rounds(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(2)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(ConfigError, match="export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before"):
        words_for_ranks([*WORDS, "run.dir=mine"])
    assert words_for_ranks(TINY) == TINY


def test_a_task_of_slurm_lays_its_run_out(
    tmp_path: Path, ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the main rank, where Slurm has started fewer; a number that fits nothing ends the job."""
    ranks(4)
    start(tmp_path / "run")
    task = Rank(tmp_path / "run")
    assert task._fit() == 0
    assert not (tmp_path / "run" / "config.2.yaml").exists()
    ranks(2)
    assert task._fit() == 0
    assert "laid out over 2 ranks" in capsys.readouterr().out
    config = saved_config.load_own(tmp_path / "run")
    assert layout(config) == (2, 1, 3, 2)
    begun(tmp_path / "run")
    ranks(4)
    fit_run(tmp_path / "run", 4)
    config = saved_config.load_own(tmp_path / "run")
    assert layout(config) == (2, 2, 3, 1)
    ranks(5)
    assert task._fit() == 2
    assert "no layout of 5 ranks" in capsys.readouterr().err
