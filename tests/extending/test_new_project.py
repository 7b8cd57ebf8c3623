"""python -m forge.new makes a project that trains, resumes from elsewhere, sweeps and passes its
own test at once.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from forge.compose import project
from forge.compose.project import KEYS
from forge.new.__main__ import TEMPLATE, main
from forge.rundir.directory import resume_command
from forge.rundir.untrusted import PROJECT

ROOT = Path(__file__).parents[2]
FEW = ["train.max_steps=4", "eval.interval=2", "eval.max_tokens=500", "checkpoint.interval=2"]
LITTLE = [*FEW, "data=text", "data.path=words.txt", "run.device=cpu", "run.num_threads=1"]


def verb(name: str, *words: str, cwd: Path, code: int = 0) -> str:
    """What a verb prints, stdout and stderr, with a working directory as the only thing in common
    with the project.
    """
    done = subprocess.run(
        [sys.executable, "-m", name, *words], cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr + done.stdout


@pytest.fixture
def demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    folder = tmp_path / "demo_lm"
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder}: 12 files; README.md says what each is\n")
    text = "".join(f"{i} the sea and the ship number {i * i % 97}\n" for i in range(400))
    (folder / "words.txt").write_text(text)
    return folder


@pytest.mark.nightly
def test_it_trains_and_goes_on_and_is_read_from_elsewhere(demo: Path, tmp_path: Path) -> None:
    said = verb("forge.train", *LITTLE, "+callback=lowest_loss", "run.dir=runs/one", cwd=demo)
    assert said.startswith(f"project: demo_lm ({demo / 'forge.yaml'})\n")
    run = demo / "runs" / "one"
    result = json.loads((run / "result.json").read_text())
    assert (result["step"], result["metrics"]["lowest_loss_step"]) == (4, 4)
    printed = [line.split("  ")[-1].strip() for line in said.splitlines() if "resume with" in line]
    assert printed[-1] == "python -m forge.resume runs/one train.max_steps=8"
    assert "--trust" not in said
    assert re.search(r"^  model +demo_lm\.gru\.GRU: [\d,]+ parameters$", said, re.M)
    said = verb("forge.resume", str(run), "train.max_steps=6", cwd=tmp_path)
    assert "resuming from checkpoints/step_4 at step 4" in said
    assert json.loads((run / "result.json").read_text())["step"] == 6
    said = verb("forge.export", str(run), "weights.safetensors", cwd=tmp_path)
    assert "of step 6" in said
    loads = "import forge, sys; print(forge.load(sys.argv[1]).step)"
    code = [sys.executable, "-c", loads, str(run)]
    assert subprocess.check_output(code, cwd=tmp_path, text=True) == "6\n"
    (Path(os.environ["XDG_CONFIG_HOME"]) / "forge" / "trusted.json").unlink()
    said = verb("forge.resume", str(run), "train.max_steps=7", cwd=tmp_path, code=2)
    assert "is not yet trusted on this machine" in said
    said = verb("forge.export", str(run), "again.safetensors", cwd=tmp_path, code=2)
    assert "is not yet trusted on this machine" in said


def test_a_printed_command_leaves_to_the_project_what_it_trusts(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was trusted by hand is typed again."""
    monkeypatch.chdir(demo)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(PROJECT, "")
    (run := demo / "runs" / "printed").mkdir(parents=True)
    (run / "config.yaml").write_text("run: {}\n")
    found = project.find_project()
    assert found is not None
    for by_hand in ([], ["run.trust=[other.]"]):
        (run / "overrides.json").write_text(json.dumps(found.words(by_hand)))
        monkeypatch.setenv(PROJECT, "")
        assert "run.trust=" in resume_command(run)  # where it is typed anywhere else
        found.enter()
        command, _, trust = resume_command(run).partition(" 'run.trust=")
        assert command == "python -m forge.resume runs/printed"
        assert ("other." in trust) == bool(trust) == bool(by_hand)


@pytest.mark.nightly
def test_it_sweeps_as_its_readme_says_and_passes_its_own_test(demo: Path) -> None:
    options = [*LITTLE, "+callback=lowest_loss", "model.width=8,16", "seed=1,2"]
    said = verb("forge.train", "-m", *options, "sweep.name=width", cwd=demo)
    assert "4 done" in said
    verb("forge.report", "sweeps/width", cwd=demo)
    assert (demo / "sweeps" / "width" / "report" / "index.html").is_file()
    assert "2 passed" in verb("pytest", "-q", "-p", "no:cacheprovider", cwd=demo)


@pytest.mark.nightly
def test_its_experiment_is_listed_and_checked(demo: Path) -> None:
    said = verb("forge.train", "--help", cwd=demo / "conf")
    assert "gru" in said
    assert "width" in said
    assert "callback     lowest_loss" in said
    said = verb("forge.train", "--help", "model", cwd=demo)
    assert "model=gru            A recurrent network" in said
    said = verb("forge.completion", "--query", "forge train model.wid", cwd=demo)
    assert said.splitlines()[1:] == ["model.width="]
    said = verb("forge.completion", "--query", "forge train experiment=wi", cwd=demo)
    assert said.splitlines()[1:] == ["experiment=width"]
    said = verb("forge.check", "model.widht=3", cwd=demo, code=2)
    assert "did you mean model.width=3?" in said
    configs = verb("forge.train", "-m", "experiment=width", "--cfg", "job", cwd=demo)
    assert configs.count("\n---\n") == 4


REFUSED = [
    ("2nd", "'2nd' is no name of a Python package"),
    ("class", "'class' is no name of a Python package"),
    ("tests", "a project has a folder tests beside its package"),
    ("json", "there is a module json already, which it would hide"),
    ("full", "full exists, and is no empty directory."),
]


@pytest.mark.parametrize(("name", "what"), REFUSED)
def test_what_cannot_be_made_is_refused(
    tmp_path: Path,
    name: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    assert main([name]) == 2
    assert what in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "mine.txt"]


def test_what_is_typed_with_it_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 2
    assert "it makes a project, or trusts one." in capsys.readouterr().err
    assert main(["--trust", str(tmp_path)]) == 2
    assert f"{tmp_path} is in no project: it has no forge.yaml." in capsys.readouterr().err


def test_the_page_of_projects_has_what_is_made_and_every_key() -> None:
    page = (ROOT / "docs" / "projects.md").read_text(encoding="utf-8")
    example = page.partition("## forge.yaml")[2].partition("    name: demo\n")[2]
    text = textwrap.dedent("    name: demo\n" + example.partition("\n\n")[0])
    made = yaml.safe_load((TEMPLATE / "forge.yaml").read_text(encoding="utf-8"))
    shown = yaml.safe_load(text)
    assert tuple(shown) == tuple(made) == KEYS
    assert shown["trust"] == ["demo."]
    assert set(shown["defaults"]) <= set(made["defaults"])
    readme = (TEMPLATE / "README.md").read_text(encoding="utf-8")
    commands = [line for line in page.splitlines() if line.startswith("    python -m forge.t")]
    assert len(commands) == 2
    assert all(line.partition("#")[0].strip() in readme for line in commands)
