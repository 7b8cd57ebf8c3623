"""`python -m forge.report`: what it prints, what it writes where, and what it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from example_sweep import Example

from forge.report import __main__ as report

FILES = ("index.html", "report.md", "arms.csv", "runs.csv")
Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    example = Example(tmp_path_factory.mktemp("made") / "rates", steps=20)
    for seed in (1, 2):
        example.done(["optimizer.lr=0.001"], seed=seed)
        example.done(["optimizer.lr=0.002"], seed=seed, gain=0.2)
    return example.sweep.path


@pytest.fixture
def sweep(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy below where the commands are typed."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path / "sweeps" / "rates")).relative_to(tmp_path)


def test_a_sweep(sweep: Path, capsys: Printed) -> None:
    assert report.main([str(sweep)]) == report.main([str(sweep)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("rates\n4 runs in 2 arms: 4 done.\nBest eval/loss: ")
    places = ", ".join(f"sweeps/rates/report/{name}" for name in FILES)
    assert (out.splitlines()[-1], err) == (f"written: {places}", "")
    assert {path.name for path in (sweep / "report").iterdir()} == set(FILES)


def test_named_files_are_all_that_is_written(sweep: Path, capsys: Printed) -> None:
    assert report.main([str(sweep), "--csv", "out/arms.csv", "--html", "out/page.html"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "written: out/page.html, out/arms.csv"
    assert {path.name for path in Path("out").iterdir()} == {"arms.csv", "page.html"}
    assert not (sweep / "report").exists()
    assert 'href="../sweeps/rates/points/000_' in Path("out/page.html").read_text()


def test_what_is_printed_instead_of_the_tables(sweep: Path, capsys: Printed) -> None:
    assert report.main([str(sweep), "--csv", "-", "--markdown", "a.md"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("arm,baseline,metric,")
    assert (len(out.splitlines()), err) == (3, "written: a.md\n")
    assert report.main([str(sweep), "--markdown", "-"]) == 0
    assert capsys.readouterr() == (Path("a.md").read_text(), "")
    assert report.main([str(sweep), "--runs-csv", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert not Path("-").exists()


@pytest.mark.parametrize(("columns", "width"), [(None, 120), ("60", 60)])
def test_as_wide_as_it_is_asked_to_be(
    sweep: Path, columns: str | None, width: int, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert report.main([str(sweep), "--html", "page.html"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert width - 15 < max(map(len, lines)) <= width
    assert not [line for line in lines if line != line.rstrip()]


def test_options_reach_the_numbers(sweep: Path, capsys: Printed) -> None:
    typed = "--metric train/loss --baseline lr=0.002 --reach 9 --markdown a.md --runs-csv b.csv"
    assert report.main([str(sweep), *typed.split()]) == 0
    out = capsys.readouterr().out
    assert "train/loss at the end" in out
    assert "difference to lr=0.002" in out
    assert "how soon train/loss reached 9.0" in out
    assert "as asked for" in Path("a.md").read_text()


def test_the_best_arms_only(sweep: Path, capsys: Printed) -> None:
    Example(sweep, steps=20).done(["optimizer.lr=0.003"], seed=1, gain=0.3)
    assert report.main([str(sweep), "--top", "1"]) == 0
    said = "The baseline and the best 1 of 2 other arms; all of them: --top 2, or arms.csv"
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in (sweep / "report" / "index.html").read_text()
    assert said in (sweep / "report" / "report.md").read_text().replace("\\", "")
    assert len((sweep / "report" / "arms.csv").read_text().splitlines()) == 4
    with pytest.raises(SystemExit, match="2"):
        report.main([str(sweep), "--top", "0"])


def test_single_runs_are_compared_and_nothing_is_written(sweep: Path, capsys: Printed) -> None:
    first, second = sorted((sweep / "points").iterdir())[:2]
    before = {path: path.stat().st_mtime_ns for path in sweep.rglob("*")}
    assert report.main([str(first), str(second)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{first.name} against {second.name}\n2 runs in 2 arms: 2 done.\n")
    assert "optimizer.lr: 0.001 → 0.002" in out
    assert "Without interval and p-value: one seed." in out
    assert "written:" not in out
    assert {path: path.stat().st_mtime_ns for path in sweep.rglob("*")} == before


REFUSED = """\
3 problems; nothing was started or written.
  1. absent   [command line]
     absent is neither a sweep nor a run: there is no such directory.
     -> give the directory of a sweep, like sweeps/rates, or those of runs
  2. sweeps   [command line]
     sweeps is neither a sweep nor a run: it has neither a sweep.json nor a config.yaml.
     -> give the directory of a sweep, like sweeps/rates, or those of runs
  3. sweeps/rates   [command line]
     a report is of one sweep, or of runs.
     -> python -m forge.report sweeps/rates
"""
NOT_WRITTEN = """\
1 problem; nothing was started or written.
  1. sweeps/rates/sweep.json/page.html
     it cannot be written: File exists.
     -> --html FILE elsewhere
"""


def test_what_is_refused(sweep: Path, capsys: Printed) -> None:
    """A file that cannot be written is said after the tables are printed."""
    assert report.main(["absent", "sweeps", "sweeps/rates"]) == 2
    assert capsys.readouterr() == ("", REFUSED)
    assert report.main([str(sweep), "--html", "sweeps/rates/sweep.json/page.html"]) == 2
    out, err = capsys.readouterr()
    assert (out.startswith("rates\n4 runs"), err) == (True, NOT_WRITTEN)
    assert not (sweep / "report").exists()


def test_nothing_is_done_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    example = Example(tmp_path / "sweeps" / "new", steps=20)
    assert report.main(["sweeps/new"]) == 2
    said = "there is nothing to compare yet, for no run is done: it has no points."
    assert said in capsys.readouterr().err
    example.partial([], seed=1, at=10)
    failed = example.failed([], seed=2, at=10, why="out of memory")
    example.waiting([], seed=3)
    assert report.main(["sweeps/new"]) == 2
    assert capsys.readouterr().err == (
        "1 problem; nothing was started or written.\n"
        "  1. new\n"
        "     there is nothing to compare yet, for no run is done: 1 partial, 1 failed, "
        "1 waiting.\n"
        f"     {failed.slug}: out of memory\n"
        "     -> python -m forge.status sweeps/new shows how far they are\n"
    )


def test_it_needs_neither_torch_nor_pandas(sweep: Path) -> None:
    code = "import runpy, sys; sys.argv[1:] = ['sweeps/rates']\n"
    code += "try: runpy.run_module('forge.report', run_name='__main__')\n"
    code += "finally: print('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"torch", "pandas", "matplotlib"}.isdisjoint(done.stdout.partition("LOADED")[2].split())
