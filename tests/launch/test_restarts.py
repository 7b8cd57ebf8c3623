"""Ranks that are started again: fewer of them, all of them, and not for ever."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny import TINY

from forge.cli import resolved
from forge.config.problems import ConfigError
from forge.config.run import Run
from forge.launch.local import restarts
from forge.launch.local.elastic import Elastic, layout_words
from forge.launch.local.restarts import RestartedRanks
from forge.rundir import directory, saved_config
from forge.rundir.wall_clock.goodput import read_goodput


class Layouts:
    """In place of Elastic: any number of ranks from 2 on."""

    least = 2

    def lay_out(self, most: int) -> int:
        return most


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The exit code, the numbers of ranks of all starts, and what was said."""
    monkeypatch.setattr(restarts, "PAUSE", 0.01)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def start(*plan: tuple[int, Any], ranks: int = 1, **options: Any) -> tuple[int, list[int], str]:
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        (tmp_path / "starts").write_text("[]")
        words: list[str] = []
        section = Run(**options)
        layouts: Any = Layouts() if section.elastic else None
        running = RestartedRanks(
            tmp_path, ranks, section, layouts, module="restart_worker", say=words.append
        )
        try:
            code = running.wait()
        finally:
            running.kill()
        return code, json.loads((tmp_path / "starts").read_text()), "\n".join(words)

    return start


def test_a_killed_rank_is_left_out_and_tried_again(started, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_restarts": 2, "elastic": "2:4", "elastic_retry_minutes": 0.002}
    plan = [(5, {"2": "kill"}), (7, "stop"), (9, 0)]
    code, ranks, said = started(*plan, ranks=4, **options)
    assert (code, ranks) == (0, [4, 3, 4])
    assert "rank 2 of 4 was ended by SIGKILL" in said
    assert "start 1 of run.max_restarts=2), with 3 ranks" in said
    assert "1 rank left out for" in said
    spent = read_goodput(tmp_path)
    assert spent is not None
    assert spent.starts == 3
    assert spent.seconds["restart"] > 0.02
    assert "idle" not in spent.seconds


def test_too_few_ranks_are_no_run(started) -> None:
    options: dict[str, Any] = {"max_restarts": 2, "elastic": "2:3"}
    code, ranks, _ = started((5, {"1": "kill"}), (6, {"0": "kill"}), (9, 0), ranks=3, **options)
    assert (code, ranks) == (0, [3, 2, 3])


def test_deaths_without_progress_end_the_run(started) -> None:
    """The third in a row; a step beyond the furthest one counts as progress."""
    plan = [(4, 1), (3, 1), (5, 1), (5, 1), (2, 1), (5, 1)]
    code, ranks, said = started(*plan, max_restarts=100)
    assert (code, len(ranks)) == (1, 6)
    assert "not started again: 3 starts in a row have not come beyond step 5" in said


@pytest.mark.parametrize(
    ("plan", "starts", "words"),
    [
        ([(1, 1), (2, 1), (3, 1)], 3, "run.max_restarts=2 is used up"),
        ([(1, 2)], 1, ""),  # the user's mistake
    ],
)
def test_what_is_not_started_again(started, plan, starts: int, words: str) -> None:
    code, ranks, said = started(*plan, max_restarts=2)
    assert (code, len(ranks)) == (plan[-1][1], starts)
    assert words in said
    assert bool(words) == bool(said)


def test_a_stopped_run_stays_stopped(started, monkeypatch: pytest.MonkeyPatch) -> None:
    poll = RestartedRanks.poll

    def stopping(self: RestartedRanks) -> int | None:
        if not self.passed_on and next(self.run_dir.glob("go_*"), None):
            self.pass_on(signal.SIGUSR1)
        return poll(self)

    monkeypatch.setattr(RestartedRanks, "poll", stopping)
    code, ranks, said = started((1, "stop"), max_restarts=2)
    assert (code, ranks, said) == (128 + signal.SIGUSR1, [1], "")


SIZES = ["run.num_processes=4", "train.batch_size=3", "train.global_batch_size=12"]


def test_the_layout_of_fewer_ranks_has_the_same_batch(tmp_path: Path) -> None:
    """24 sequences a step: 5 ranks cannot share them, and 3 can, as 2 replicas cannot."""
    words = [*TINY, "parallel.dp_shard=-1", "run.num_processes=6", "parallel.dp_replicate=2"]
    words = [word for word in words if not word.startswith("train.batch_size")]
    words += ["train.batch_size=4", "run.elastic=2:6", "run.max_restarts=3"]
    composition, resolution = resolved([*words, f"run.dir={tmp_path / 'run'}"])
    run_dir, _ = directory.prepare_directory(resolution, overrides=composition.overrides)
    elastic = Elastic(run_dir=run_dir, resolution=resolution, overrides=composition.overrides)
    assert layout_words(resolution.config, 5) is None
    expected = {4: (2, 2, 3), 3: (1, 3, 4)}
    for ranks, (replicas, shards, micro) in expected.items():
        assert elastic.lay_out(ranks + (ranks == 4)) == ranks
        config = saved_config.load_own(run_dir)
        parallel, train = config.parallel, config.train
        assert (parallel.dp_replicate, parallel.dp_shard) == (replicas, shards)
        assert (train.batch_size, train.global_batch_size) == (micro, 24)
        assert train.batch_size * train.grad_accum_steps * ranks == 24
    assert elastic.lay_out(6) == 6
    config = saved_config.load_own(run_dir)
    assert config.parallel == resolution.config.parallel
    assert config.train == resolution.config.train


def test_no_layout_fits(tmp_path: Path) -> None:
    words = [*TINY, "run.num_processes=2", "parallel.tp=2", "run.elastic=1:2", "run.max_restarts=3"]
    composition, resolution = resolved([*words, f"run.dir={tmp_path / 'run'}"])
    run_dir, _ = directory.prepare_directory(resolution, overrides=composition.overrides)
    elastic = Elastic(run_dir=run_dir, resolution=resolution, overrides=composition.overrides)
    with pytest.raises(ConfigError, match="no layout of 1 to 1"):
        elastic.lay_out(1)
