"""`python -m forge.resume RUN`: goes on from stored overrides, refuses word by word, and asks for
consent to code of others.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from going_on_helpers import RUN, content, end, read, take

from forge import resume
from forge.launch.local import processes
from forge.rundir import saved_config

TINY = (
    *(
        "tokenizer.vocab_size=300",
        "model.vocab_size=300",
        "model.dim=16",
        "model.n_layers=1",
        "model.n_heads=2",
        "model.ffn_hidden_dim=32",
    ),
    *(
        "train.seq_len=16",
        "train.batch_size=2",
        "scheduler.warmup_steps=2",
        "eval=off",
        "run.device=cpu",
        "run.num_threads=1",
    ),
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr("forge.rundir.provenance.diff", lambda: "")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The run directories that a worker would be started in."""
    paths: list[Path] = []
    monkeypatch.setattr(processes, "start", lambda path, ranks, **_: paths.append(path) or 0)
    return paths


def verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_from_the_first_command_to_a_longer_run_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("".join(f"{i} the sea and the ship\n" for i in range(200)))
    first = verb(
        "forge.train", "data=text", "data.path=my.txt", "run.dir=run", "train.max_steps=3", *TINY
    )
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines()[0] == "run directory: run"
    assert "\ngoes on with: python -m forge.resume run\n" in first.stdout
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    run = tmp_path / "run"
    done = verb("forge.resume", "../run")
    said = "this run is finished: all steps done, after 3 steps; to go on: "
    assert (done.returncode, done.stdout.splitlines()[1]) == (
        0,
        f"{said}python -m forge.resume {run} train.max_steps=6",
    )
    longer = verb(*shlex.split(done.stdout.splitlines()[1].removeprefix(f"{said}python -m ")))
    assert (longer.returncode, longer.stderr) == (0, "")
    assert longer.stdout.splitlines()[:3] == [
        f"run directory: {run}   (goes on with: python -m forge.resume {run})",
        "  changed: scheduler.decay_steps=4   (was 1; kept in config.2.yaml)",
        "  changed: train.max_steps=6   (was 3; kept in config.2.yaml)",
    ]
    assert (
        "going on from checkpoints/step_3 at step 3, where it stopped in the data: 3 steps to go"
        in longer.stdout
    )
    assert read(run / "result.json")["step"] == 6


def test_it_starts_a_worker_in_the_run(
    started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    take(*RUN)
    assert resume.main(["run"]) == 0
    assert started == [tmp_path / "run"]
    assert (
        capsys.readouterr().out
        == "run directory: run   (goes on with: python -m forge.resume run)\n"
    )
    assert resume.main(["run", "metrics.log_interval=3", "eval.target=2.5"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "changed" in line] == [
        "  changed: eval.target=2.5   (was null; kept in config.2.yaml)",
        "  changed: metrics.log_interval=3   (was 10; kept in config.2.yaml)",
    ]


def test_a_config_dir_given_again_counts(started: list[Path], tmp_path: Path) -> None:
    (tmp_path / "conf" / "metrics").mkdir(parents=True)
    (tmp_path / "conf" / "metrics" / "mine.yaml").write_text("log_interval: 7\n")
    take(*RUN)
    assert resume.main(["run", "--config-dir", "conf", "metrics=mine"]) == 0
    assert saved_config.load(Path("run/config.2.yaml"), trust=()).metrics.log_interval == 7
    assert resume.main(["run"]) == 0
    assert not Path("run/config.3.yaml").exists()


MODEL = """\
{n} problems; nothing was started or written.
  1. model.n_layers=3   [command line]
     the run in {run} has model.n_layers=2; here it is 3.
     -> model.n_layers=2, run.allow_change=[model.n_layers], or another run.dir
  2. model.activation=relu2   [command line]
     the run in {run} has model.activation=silu; here it is relu2.
     -> model.activation=silu, run.allow_change=[model.activation], or another run.dir
  3. model.gated_mlp=false   [{where}; worked out: model.activation=relu2]
     the run in {run} has model.gated_mlp=true; here it is false.
     -> model.gated_mlp=true, run.allow_change=[model.gated_mlp], or another run.dir
"""


def test_another_model_is_refused_with_a_diff_until_it_is_allowed(
    started: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = take(*RUN, "model.ffn_hidden_dim=64")
    before = content(path)
    capsys.readouterr()
    changed = ["model.n_layers=3", "model.activation=relu2"]
    assert resume.main(["run", *changed]) == 2
    out, err = capsys.readouterr()
    where = err.partition("model.gated_mlp=false   [")[2].partition(";")[0]
    assert (out, err) == ("", MODEL.format(n=3, run=path, where=where))
    assert (content(path), started) == (before, [])
    assert resume.main(["run", *changed, "run.allow_change=[model.n_layers]"]) == 2
    assert capsys.readouterr().err.startswith("2 problems;")
    assert resume.main(["run", *changed, "run.allow_change=[model]"]) == 0
    assert started == [path]
    recorded = {
        c["key"]: (c["before"], c["after"]) for c in read(path / "changes.2.json") if not c["free"]
    }
    assert recorded == {
        "model.n_layers": (2, 3),
        "model.activation": ("silu", "relu2"),
        "model.gated_mlp": (True, False),
    }


def test_a_mistyped_permission(started: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    take(*RUN)
    assert resume.main(["run", "seed=3", "run.allow_change=[sead]"]) == 2
    said = capsys.readouterr().err
    assert (
        "there is no option or section 'sead'.\n     -> did you mean run.allow_change=[seed]?"
        in said
    )
    assert started == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: None, "run is no run directory: there is no such directory."),
        (lambda: Path("run").mkdir(), "run is no run directory: it has no config.yaml."),
        (lambda: Path("run").write_text(""), "run is no run directory: it has no config.yaml."),
    ],
)
def test_what_is_no_run(
    make: Callable[[], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make()
    assert resume.main(["run", "seed=1"]) == 2
    expected = [
        "1 problem; nothing was started or written.",
        "  1. run   [command line]",
        f"     {said}",
        "     -> give the directory of a run",
    ]
    assert capsys.readouterr().err.splitlines() == expected


def test_no_run_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert resume.main([]) == 2
    assert (
        "which run is to go on?\n     -> python -m forge.resume runs/<run>"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("damage", ["", "{", "3", "null"])
def test_overrides_that_cannot_be_read(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    take(*RUN)
    Path("run/overrides.json").write_text(damage)
    assert resume.main(["run"]) == 2
    said = capsys.readouterr().err
    assert "     run/overrides.json cannot be read: " in said
    assert "-> type the overrides of the run again, with run.dir=run" in said


def test_a_finished_run_starts_no_torch_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    path, _ = take(*RUN)
    end(path, step=40)
    assert resume.main(["run"]) == 0
    assert "this run is finished: all steps done, after 40 steps" in capfd.readouterr().out


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `others` with a config folder and a callback; importing it leaves a trace."""
    folder = tmp_path / "lib" / "others"
    (folder / "conf" / "metrics").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
    )
    (folder / "conf" / "__init__.py").write_text("")
    (folder / "conf" / "metrics" / "theirs.yaml").write_text("log_interval: 7\n")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "others"]:
        del sys.modules[name]


def imported() -> bool:
    """Whether the package was, since this was asked last."""
    seen = Path("imported").exists()
    Path("imported").unlink(missing_ok=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "others"]:
        del sys.modules[name]
    return seen


CODE = {
    "trust": ["run.trust=[others.]"],
    "a package to search": ["hydra.searchpath=[pkg://others.conf]", "metrics=theirs"],
    "a package to search, hidden": [r"hydra.searchpath=[pkg\://others.conf]", "metrics=theirs"],
}


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("options", CODE.values(), ids=CODE)
def test_code_of_others_is_used_only_by_who_asks_for_it(
    options: list[str], started: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command to type is given, and works."""
    path, _ = take(*RUN, *options)
    before = content(path)
    imported()
    capsys.readouterr()
    assert resume.main(["run", "seed=42"]) == 2
    assert not imported()
    assert (content(path), started) == (before, [])
    said = capsys.readouterr().err.splitlines()
    assert (
        said[2]
        == "     the run was made with code outside of forge, which is only used by who asks for it."
    )
    command = shlex.split(said[3].removeprefix("     -> if you trust it: "))
    assert command[:4] == ["python", "-m", "forge.resume", "run"]
    assert resume.main(command[3:]) == 0
    assert started == [path]
    assert not Path("run/config.2.yaml").exists(), "it is the same run"
    printed = (
        capsys.readouterr().out.splitlines()[0].partition("(goes on with: ")[2].removesuffix(")")
    )
    assert shlex.split(printed) == command, "what a run prints asks for it as well"


def test_trust_that_somebody_wrote_into_a_run_is_not_taken(
    started: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither that of its overrides nor that of its config."""
    path, _ = take(*RUN)
    (path / "overrides.json").write_text(
        json.dumps([*RUN[1:], "++run.trust=[evil.]", "+callbacks.e={_target_:evil.Callback}"])
    )
    assert resume.main(["run"]) == 2
    assert (
        "1. ++run.trust=[evil.]   [command line]\n     the run was made with code outside of forge"
        in capsys.readouterr().err
    )
    (path / "overrides.json").write_text(
        json.dumps([*RUN[1:], "+callbacks.e={_target_:evil.Callback}"])
    )
    assert resume.main(["run"]) == 2
    assert (
        "evil.Callback may not be built for callbacks: it is under no trusted prefix."
        in capsys.readouterr().err
    )
    (path / "overrides.json").write_text(json.dumps(RUN[1:]))
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(
        text.replace("trust: []", "trust: ['evil.']").replace(
            "callbacks: {}", "callbacks: {e: {_target_: evil.Callback}}"
        )
    )
    assert started == []
    assert resume.main(["run"]) == 0
    config = saved_config.load_own(path)
    assert (config.run.trust, config.callbacks) == ((), {})


def test_a_command_that_somebody_wrote_into_a_run_is_not_run(
    started: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by resume, nor by a worker that is given the directory."""
    path, _ = take(*RUN)
    mark = tmp_path / "ran"
    entry = f"{{_target_: forge.doctor.finding.ask, command: [touch, {mark}], seconds: 5}}"
    said = "forge.doctor.finding.ask may not be built for callbacks.\n     -> callbacks takes your own, with run.trust=[mypkg.]"
    (path / "overrides.json").write_text(json.dumps([*RUN[1:], f"+callbacks.e={entry}"]))
    assert resume.main(["run"]) == 2
    assert said in capsys.readouterr().err
    (path / "config.yaml").write_text(
        (path / "config.yaml").read_text().replace("callbacks: {}", f"callbacks: {{e: {entry}}}")
    )
    done = verb("forge.worker", "run")
    assert (done.returncode, started, mark.exists()) == (2, [], False)
    assert said in done.stderr
