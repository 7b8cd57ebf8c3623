"""`python -m forge.report`: what it prints, what it writes where, and what it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from example_sweep import Example

from forge.report import __main__ as report

WHOLE = {"index.html", "report.md", "arms.csv", "runs.csv"}


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


def test_a_sweep(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(sweep)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("rates\n4 runs in 2 arms: 4 done.\nBest eval/loss: ")
    places = ", ".join(
        f"sweeps/rates/report/{name}"
        for name in ("index.html", "report.md", "arms.csv", "runs.csv")
    )
    assert out.splitlines()[-1] == f"written: {places}"
    assert err == ""
    assert {path.name for path in (sweep / "report").iterdir()} == WHOLE
    assert report.main([str(sweep)]) == 0


def test_named_files_are_all_that_is_written(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(sweep), "--csv", "out/arms.csv", "--html", "out/page.html"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "written: out/page.html, out/arms.csv"
    assert {path.name for path in Path("out").iterdir()} == {"arms.csv", "page.html"}
    assert not (sweep / "report").exists()
    assert 'href="../sweeps/rates/points/000_' in Path("out/page.html").read_text()


def test_what_is_printed_instead_of_the_tables(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(sweep), "--csv", "-", "--markdown", "a.md"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("arm,baseline,metric,")
    assert len(out.splitlines()) == 3
    assert err == "written: a.md\n"
    assert report.main([str(sweep), "--markdown", "-"]) == 0
    assert capsys.readouterr() == (Path("a.md").read_text(), "")
    assert report.main([str(sweep), "--runs-csv", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert report.main([str(sweep), "--runs-csv", "-", "--csv", "-"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        "--csv -   [command line]\n     only one of them can be printed.\n     -> --csv FILE\n"
        in err
    )
    assert not Path("-").exists()


@pytest.mark.parametrize(("columns", "width"), [(None, 120), ("60", 60), ("200", 200)])
def test_as_wide_as_it_is_asked_to_be(
    sweep: Path,
    columns: str | None,
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert report.main([str(sweep), "--html", "page.html"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert width - 15 < max(map(len, lines)) <= width
    assert not [line for line in lines if line != line.rstrip()]


def test_options_reach_the_numbers(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--metric",
        "train/loss",
        "--baseline",
        "lr=0.002",
        "--reach",
        "9",
        "--markdown",
        "a.md",
        "--runs-csv",
        "b.csv",
    ]
    assert report.main([str(sweep), *words]) == 0
    out = capsys.readouterr().out
    assert "train/loss at the end" in out
    assert "difference to lr=0.002" in out
    assert "how soon train/loss reached 9.0" in out
    assert "as asked for" in Path("a.md").read_text()
    assert len(Path("b.csv").read_text().splitlines()) == 5


def test_single_runs_are_compared_and_nothing_is_written(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = sorted((sweep / "points").iterdir())[:2]
    before = {path: path.stat().st_mtime_ns for path in sweep.rglob("*")}
    assert report.main([str(first), str(second)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{first.name} against {second.name}\n2 runs in 2 arms: 2 done.\n")
    assert "optimizer.lr: 0.001 → 0.002" in out
    assert "Without interval and p-value: one seed." in out
    assert "nan" not in out
    assert "written:" not in out
    assert {path: path.stat().st_mtime_ns for path in sweep.rglob("*")} == before


REFUSED = {
    "nothing there": (
        ["absent"],
        "absent   [command line]\n     absent is neither a sweep nor a run: there is no such directory.\n"
        "     -> give the directory of a sweep, like sweeps/rates, or those of runs",
    ),
    "another folder": (
        ["sweeps"],
        "sweeps   [command line]\n     sweeps is neither a sweep nor a run: it has neither a sweep.json nor a config.yaml.\n"
        "     -> give the directory of a sweep, like sweeps/rates, or those of runs",
    ),
    "a sweep and more": (
        ["sweeps/rates", "sweeps/rates"],
        "sweeps/rates   [command line]\n     a report is of one sweep, or of runs.\n     -> python -m forge.report sweeps/rates",
    ),
    "unknown metric": (
        ["sweeps/rates", "--metric", "eval/los"],
        "--metric eval/los   [command line]\n     no run that is done has a final value of eval/los.\n"
        "     -> did you mean --metric eval/loss?",
    ),
    "a directory": (
        ["sweeps/rates", "--html", "sweeps"],
        "--html sweeps   [command line]\n     it is a directory.\n     -> --html sweeps/index.html",
    ),
    "below a file": (
        ["sweeps/rates", "--runs-csv", "sweeps/rates/sweep.json/runs.csv"],
        "--runs-csv sweeps/rates/sweep.json/runs.csv   [command line]\n"
        "     it cannot be written: sweeps/rates/sweep.json is no directory.\n     -> --runs-csv FILE elsewhere",
    ),
    "a page on the terminal": (
        ["sweeps/rates", "--html", "-"],
        "--html -   [command line]\n     a page is not printed.\n     -> --html FILE",
    ),
    "unknown arm": (
        ["sweeps/rates", "--baseline", "big"],
        "--baseline big   [command line]\n     there is no arm 'big'.\n     -> its arms are lr=0.001, lr=0.002",
    ),
}


@pytest.mark.parametrize(("words", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(
    sweep: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main(words) == 2
    assert capsys.readouterr() == ("", f"1 problem; nothing was started or written.\n  1. {said}\n")
    assert not (sweep / "report").exists()


def test_nothing_is_done_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = Example(tmp_path / "sweeps" / "new", steps=20)
    assert report.main(["sweeps/new"]) == 2
    assert (
        "there is nothing to compare yet, for no run is done: it has no points."
        in capsys.readouterr().err
    )
    example.partial([], seed=1, at=10)
    failed = example.failed([], seed=2, at=10, why="out of memory")
    example.waiting([], seed=3)
    assert report.main(["sweeps/new"]) == 2
    assert capsys.readouterr().err == (
        "1 problem; nothing was started or written.\n"
        "  1. new\n"
        "     there is nothing to compare yet, for no run is done: 1 partial, 1 failed, 1 waiting.\n"
        f"     {failed.slug}: out of memory\n"
        "     -> python -m forge.status sweeps/new shows how far they are\n"
    )
    assert report.main([str(failed.path)]) == 2
    assert capsys.readouterr().err.endswith("     -> wait until one is done\n")


def test_a_target_that_is_no_number(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("nan", "soon"):
        with pytest.raises(SystemExit) as caught:
            report.main([str(sweep), "--reach", text])
        assert caught.value.code == 2
        assert f"argument --reach: '{text}' is no finite number" in capsys.readouterr().err


def test_the_best_arms_only(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Example(sweep, steps=20)
    example.done(["optimizer.lr=0.003"], seed=1, gain=0.3)
    assert report.main([str(sweep), "--top", "1"]) == 0
    said = "The baseline and the best 1 of 2 other arms; all of them: --top 2, or arms.csv (--csv FILE)."
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in (sweep / "report" / "index.html").read_text()
    assert said in (sweep / "report" / "report.md").read_text().replace("\\", "")
    assert len((sweep / "report" / "arms.csv").read_text().splitlines()) == 4
    for text in ("0", "-1", "all"):
        with pytest.raises(SystemExit) as caught:
            report.main([str(sweep), "--top", text])
        assert caught.value.code == 2
        assert f"argument --top: '{text}' is no number of arms" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tables are printed all the same."""
    (sweep / "report").write_text("a file")
    assert report.main([str(sweep)]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("rates\n")
    place = (sweep / "report" / "index.html").resolve()
    assert err.endswith(
        f"  1. {place}\n     it cannot be written: File exists.\n     -> --html FILE elsewhere\n"
    )


def test_it_needs_neither_torch_nor_pandas(sweep: Path) -> None:
    code = "import sys; from forge import report; assert report.main(['sweeps/rates']) == 0; print('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"torch", "pandas", "matplotlib"}.isdisjoint(done.stdout.rpartition("LOADED")[2].split())
