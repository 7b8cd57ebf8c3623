"""A run directory that exists: the same command continues, changes are kept, a refusal writes
nothing, and what is finished stays so.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from helpers.going_on_helpers import alter, content, end, resume, take

from forge.config.changes import Change
from forge.config.problems import ConfigError
from forge.resume import overrides_of as resume_overrides
from forge.rundir import directory, files, outcome, saved_config, versions
from forge.rundir.lock import Lock
from forge.rundir.saved_config import CHANGES

pytestmark = pytest.mark.usefixtures("no_git")
RUN = ("run.dir=run", "train.max_steps=40", "scheduler=cosine", "scheduler.warmup_steps=4")


def test_the_same_command_goes_on_and_writes_nothing(tmp_path: Path) -> None:
    path, changes = take(*RUN)
    assert (path, changes) == (tmp_path / "run", [])
    before = content(path)
    assert take(*RUN) == (path, [])
    assert resume("run") == (path, [])
    assert content(path) == before


def test_what_is_derived_differently_but_equal_is_no_change() -> None:
    take(*RUN, "train.batch_size=4")
    assert (
        take(*RUN, "train.batch_size=4", "scheduler.decay_steps=36", "train.global_batch_size=4")[1]
        == []
    )
    changes = take(*RUN, "train.batch_size=2", "train.global_batch_tokens=1024")[1]
    assert {c.key: c.after for c in changes} == {"train.batch_size": 2, "train.grad_accum_steps": 2}


def test_a_change_is_kept_in_files_of_its_own() -> None:
    path, _ = take(*RUN)
    first = content(path)
    changes = resume("run", "metrics.log_interval=3")[1]
    assert changes == [Change(key="metrics.log_interval", before=10, after=3, free=True)]
    typed = ["train.max_steps=50", "optimizer.lr=0.5", "run.allow_change=[optimizer.lr]"]
    resume("run", *typed)
    assert {name: content(path)[name] for name in first} == first, "what was there stays as it was"
    assert set(content(path)) == {*first, CHANGES, "config.2.yaml", "config.3.yaml"}
    rows = files.read_rows(path / CHANGES)
    assert [set(row) for row in rows] == [{"version", "config", *KEPT}] * 2
    names = ("config.yaml", "config.2.yaml", "config.3.yaml")
    configs = [saved_config.load_config(path / name, trust=()) for name in names]
    assert [c.metrics.log_interval for c in configs] == [10, 3, 3]
    assert [c.train.max_steps for c in configs] == [40, 40, 50]
    assert saved_config.newest(path).name == "config.3.yaml"
    recorded = [tuple(change.values()) for change in rows[1]["changes"]]
    assert sorted(recorded) == [
        ("optimizer.lr", 0.01, 0.5, False),
        ("run.allow_change", [], ["optimizer.lr"], True),
        ("scheduler.decay_steps", 36, 46, True),
        ("train.max_steps", 40, 50, True),
    ]
    assert rows[1]["overrides"] == [*RUN[2:], "metrics.log_interval=3", *typed]
    again = resume_overrides(path)[:-1]
    assert again == [*RUN[2:], "metrics.log_interval=3", *typed[:-1]], "allowed once only"
    assert take("run.dir=run", *rows[1]["overrides"])[1] == []


KEPT = ("changes", "overrides", "derived", "warnings", "provenance")


def test_the_tenth_change_comes_after_the_ninth() -> None:
    path, _ = take(*RUN)
    for n in range(1, 11):
        alter(path, metrics__log_interval=n + 100)
    assert saved_config.newest(path).name == "config.11.yaml"
    assert directory.own_overrides(path) == [*RUN[1:]]
    assert [c.after for c in directory.changed(path, "config.9.yaml")] == [109, 110]
    assert [c.after for c in directory.changed(path)] == [110]
    configs = {"config.yaml", "config.10.yaml", "config.11.yaml"}
    assert {name for name in content(path) if name.startswith(("config.", "changes"))} == {
        *configs,
        CHANGES,
    }
    fifth = saved_config.load_config(path / "config.5.yaml", trust=())
    assert fifth.metrics.log_interval == 104
    assert fifth.model == saved_config.load_config(path / "config.yaml", trust=()).model


def test_the_numbered_files_of_an_earlier_forge_are_read() -> None:
    """They stay; further changes are rows."""
    path, _ = take(*RUN)
    alter(path, metrics__log_interval=3)
    (row,) = files.read_rows(path / CHANGES)
    for name in KEPT:
        files.write_json(path / f"{name}.2.json", row[name])
    (path / CHANGES).unlink()
    assert [c.after for c in directory.changed(path)] == [3]
    assert directory.own_overrides(path) == [*RUN[1:]]
    alter(path, metrics__log_interval=4)
    alter(path, metrics__log_interval=5)
    assert [c.after for c in directory.changed(path, "config.yaml")] == [3, 4, 5]
    assert [row["version"] for row in files.read_rows(path / CHANGES)] == [3, 4]
    assert (path / "config.2.yaml").is_file()


@pytest.mark.parametrize("change", ["model.n_layers=3", "scheduler=linear", "train.max_steps=39"])
def test_a_refusal_writes_nothing(change: str) -> None:
    path, _ = take(*RUN)
    before = content(path)
    with pytest.raises(ConfigError) as refused:
        resume(path, change)
    assert {p.rule for p in refused.value.problems} == {"run.identity"}
    assert content(path) == before


def test_a_directory_in_use_is_refused_and_left_alone() -> None:
    path, _ = take(*RUN)
    before = content(path)
    with Lock(path), pytest.raises(ConfigError) as refused:
        resume(path, "metrics.log_interval=3")
    (problem,) = refused.value.problems
    assert (problem.key, problem.fix) == (
        f"run.dir={path}",
        "Wait for it, end it, or give another run.dir",
    )
    assert problem.what.startswith(f"{path} is in use by process ")
    assert content(path) == before


def test_of_two_commands_at_once_one_makes_the_run() -> None:
    """The other is told to come again, and the id that names the run's checkpoints stays the first
    one's.
    """
    Path("run").mkdir()
    said: list[str] = []

    def late() -> None:
        try:
            take(*RUN)
        except ConfigError as error:
            said.extend(p.what for p in error.problems)

    with Lock(Path("run")) as lock:
        other = threading.Thread(target=late)
        other.start()
        other.join(0.5)
        assert other.is_alive()
        shutil.copytree(take("run.dir=made", *RUN[1:])[0], "run", dirs_exist_ok=True)
        identity = directory.run_id(Path("run"))
        lock.release()
        other.join()
    assert said == [f"another process has just made a run in {Path('run').resolve()}."]
    assert directory.run_id(Path("run")) == identity


@pytest.mark.parametrize("killed_at", [1, 4])
def test_a_directory_that_a_kill_left_half_made_is_taken(
    killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after so many files, each of them before config.yaml; in the next one a scratch file
    was left too.
    """
    left = killed_at

    def write(path: Path, content: object) -> None:
        nonlocal left
        if not left:
            path.with_name(f".{path.name}.123").write_text("{")
            raise KeyboardInterrupt
        left -= 1
        real(path, content)

    real = files.write_json
    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_json", write)
        patch.setattr(versions, "write_json", write)
        patch.setattr(
            saved_config, "save_config", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            take(*RUN)
    assert not saved_config.is_run(Path("run"))
    assert len(list(Path("run").glob("*.json"))) == killed_at
    assert take(*RUN)[1] == []
    assert take(*RUN, "metrics.log_interval=3")[1] != []


def test_a_change_that_a_kill_left_half_kept_is_not_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, _ = take(*RUN)
    with monkeypatch.context() as patch:
        patch.setattr(
            saved_config, "save_config", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            resume(path, "metrics.log_interval=3")
    assert versions.read_config_part(path, "changes", 2)
    assert saved_config.newest(path).name == "config.yaml"
    assert directory.own_overrides(path) == [*RUN[1:]]
    assert directory.changed(path) == []
    assert resume(path) == (path, [])
    assert [c.after for c in resume(path, "metrics.log_interval=5")[1]] == [5]
    assert [c["after"] for c in versions.read_config_part(path, "changes", 2)] == [5]
    assert len(files.read_rows(path / CHANGES)) == 1


def test_every_run_has_an_id_of_its_own_that_goes_with_it() -> None:
    first, _ = take(*RUN)
    second, _ = take("run.dir=other", *RUN[1:])
    identity = directory.run_id(first)
    assert identity != directory.run_id(second)
    resume(first, "metrics.log_interval=3")
    shutil.move(first, "elsewhere")
    assert directory.run_id(Path("elsewhere")) == identity
    assert resume("elsewhere") == (Path("elsewhere").resolve(), [])
    resume("elsewhere", "metrics.log_interval=4")
    moved = saved_config.load_config(Path("elsewhere/config.3.yaml"), trust=())
    assert moved.run.dir == str(Path("elsewhere").resolve())


LONGER = {"train__max_steps": 80}
PROLONG: list[tuple[str, dict[str, object], bool]] = [
    ("end", LONGER, True),
    ("end", {"train__max_epochs": 2.0}, True),
    (
        "end",
        {"train__max_time": 90.0, "eval__interval": 7, "metrics__log_interval": 3},
        False,
    ),
    ("max_time", {"train__max_time": 90.0}, True),
    ("max_time", {**LONGER, "eval__interval": 7}, False),
    ("target", {"eval__target": 0.1}, True),
    ("patience", {**LONGER, "train__max_time": 90.0}, False),
]


def test_a_finished_run_goes_on_when_what_ended_it_changes(tmp_path: Path) -> None:
    """And not when something else does, nor does a later change hide it."""
    ends = ["eval.enabled=true", "eval.target=1", "eval.patience=2", "train.max_time=60"]
    take(*RUN, *ends, "train.max_epochs=1")
    for number, (reason, change, goes_on) in enumerate(PROLONG):
        path = tmp_path / str(number)
        shutil.copytree("run", path)
        end(path, reason=reason)
        done = outcome.finished(path)
        assert done is not None
        assert (done.reason, done.step, done.run_dir) == (reason, 7, path)
        assert alter(path, **change)
        assert (outcome.finished(path) is None) is goes_on, (reason, change)
        assert alter(path, metrics__log_interval=4)
        assert (outcome.finished(path) is None) is goes_on, (reason, change)


def test_only_what_changed_since_the_result_counts() -> None:
    path, _ = take(*RUN)
    end(path, status="stopped", reason="SIGTERM")
    assert outcome.finished(path) is None
    alter(path, **LONGER)
    end(path, config="config.2.yaml")
    assert outcome.finished(path) is not None
    alter(path, train__max_steps=81)
    assert outcome.finished(path) is None


def test_a_step_to_go_back_to_takes_up_a_finished_run_once() -> None:
    path, _ = take(*RUN)
    (path / "checkpoints" / "step_5").mkdir(parents=True)
    end(path)
    resume(path, "checkpoint.resume_from=5")
    assert outcome.finished(path) is None
    end(path, config="config.2.yaml")
    assert resume(path, "checkpoint.resume_from=5")[1] == []
    assert outcome.finished(path) is not None
    resume(path, "checkpoint.resume_from=null")
    assert outcome.finished(path) is not None


@pytest.mark.parametrize("log", ["", '{"event": "start", "conf', '{"event": "end"}\n', "\x00" * 9])
def test_a_run_that_has_saved_has_started_whatever_its_log_says(log: str) -> None:
    """With the config of its newest checkpoint; what a damaged log says of an earlier one is no
    ground to drop that.
    """
    path, _ = take(*RUN)
    (path / "attempts.jsonl").write_text(log)
    assert saved_config.last_started(path) == 0, "without a checkpoint every start failed"
    step = path / "checkpoints" / "step_7"
    step.mkdir(parents=True)
    shutil.copy(path / "config.yaml", step)
    files.write_json(step / "meta.json", {"run_id": directory.run_id(path)})
    before = content(path)
    with pytest.raises(ConfigError) as refused:
        resume(path, "optimizer.lr=0.5")
    assert {p.rule for p in refused.value.problems} == {"run.identity"}
    assert content(path) == before
    resume(path, "metrics.log_interval=3")
    assert content(path)["config.yaml"] == before["config.yaml"]
    assert [c.after for c in directory.changed(path)] == [3]
    shutil.copy(path / "config.2.yaml", step / "config.yaml")
    with (path / "attempts.jsonl").open("a") as file:
        file.write('\n{"event": "start", "config": "config.yaml"}\n')
    resume(path, "metrics.log_interval=4")
    assert [c.before for c in directory.changed(path)] == [3], "against what it saved with"
    assert saved_config.newest(path).name == "config.3.yaml"
    files.write_json(step / "meta.json", {"run_id": "another"})
    assert saved_config.last_started(path) == 1, "what another run saved is no start of this one"
