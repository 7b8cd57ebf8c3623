"""Lines of launch.setup, and what sbatch says of a script that launch.dry_run shows. No Slurm is
needed: sbatch is a script too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forge.config.launch import Slurm
from forge.config.problems import ConfigError
from forge.launch.slurm import jobs as slurm
from forge.launch.slurm.script import setup, unfinished


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put an sbatch on PATH that does what a script says."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def make(script: str) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        path = tmp_path / "bin" / "sbatch"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    return make


def test_a_line_of_launch_setup_that_fails_ends_the_job_with_its_words(tmp_path: Path) -> None:
    fine = [
        "x=1 # || here",
        "f() {\n  false\n  true\n}",
        "f",
        "false || true",
        "if [ $x = 1 ]; then\n  echo 'one'\nfi",
    ]
    assert (
        subprocess.run(
            ["bash", "-c", "\n".join([*setup(fine), "echo on"])], capture_output=True, text=True
        ).stdout
        == "one\non\n"
    )
    missing = "source 'a venv/bin/activate'"
    done = subprocess.run(
        ["bash", "-c", "\n".join([*setup([*fine, missing]), "echo on"])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (1, "one\n")
    assert done.stderr.splitlines()[-1] == f"launch.setup failed with exit code 1: {missing}"
    assert setup([]) == []


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("if true; then", "syntax error: unexpected end of file."),
        ("fi", "syntax error near unexpected token `fi'."),
        ("echo 'it", "unexpected EOF while looking for matching `''."),
        ("export A=1 \\", "the next line is a part of it."),
    ],
)
def test_an_entry_of_launch_setup_is_a_whole_command(entry: str, said: str) -> None:
    (fault,) = unfinished(["module load cuda # of the site", entry, r"echo a\\", r"printf '\n'"])
    assert (fault.key, fault.what) == (
        f"launch.setup={entry}",
        f"bash does not take it for a whole command: {said}",
    )
    assert (
        fault.fix
        == "commands that are whole; one of several lines, like if ... fi, is one entry, with ; or line breaks in it"
    )
    with pytest.raises(ConfigError, match="for a whole command"):
        slurm.scripts([(Path("run"), 1)], Slurm(setup=[entry]), name="run", folder=Path("run"))


def test_what_is_shown_is_what_sbatch_would_take(
    tmp_path: Path, sbatch: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr: stdout has the script alone."""
    sbatch(
        f"cat > {tmp_path}/given; echo $* > {tmp_path}/asked; echo 'sbatch: Job 7 to start at noon' >&2"
    )
    (script,) = slurm.scripts(
        [(tmp_path / "run", 4)], Slurm(), name="run", folder=tmp_path / "slurm", labels=["seed=1"]
    )
    assert capsys.readouterr() == ("", "sbatch --test-only says: Job 7 to start at noon\n")
    assert (tmp_path / "asked").read_text() == "--test-only\n"
    assert script == (tmp_path / "given").read_text() + "\n# element 0: seed=1"
    assert not (tmp_path / "slurm").exists()


def test_a_script_that_sbatch_refuses_is_shown_all_the_same(
    tmp_path: Path, sbatch: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch('echo "sbatch: error: invalid partition specified: gpuu" >&2; exit 1')
    with pytest.raises(ConfigError) as refused:
        slurm.scripts(
            [(tmp_path / "run", 1), (tmp_path / "other", 2)], Slurm(), name="run", folder=tmp_path
        )
    assert [problem.render().splitlines() for problem in refused.value.problems] == [
        [
            "  launch=slurm",
            f"  sbatch refuses a job with nodes=1 ntasks-per-node={count} gpus-per-node={count}: invalid partition specified: gpuu",
            "  -> the script above is what it is given",
        ]
        for count in (1, 2)
    ]
    assert capsys.readouterr().out.count("#!/bin/bash\n") == 2


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1",
            "fatal: Could not establish a configuration source",
        ),
        (
            "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
            "Unable to contact slurm controller",
        ),
        ("exec sleep 5", "sbatch gives no answer in 0.2 s"),
    ],
)
def test_a_script_is_shown_where_slurm_is_away(
    script: str,
    said: str,
    sbatch: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(slurm, "PATIENCE", 0.2 if "sleep" in script else 20)
    sbatch(script)
    assert len(slurm.scripts([(Path("run"), 1)], Slurm(), name="run", folder=Path("run"))) == 1
    assert capsys.readouterr().err.startswith(f"sbatch --test-only cannot ask Slurm: {said}")
