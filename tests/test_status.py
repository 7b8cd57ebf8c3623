"""`python -m forge.status`: the table of a sweep, one point with its logs, a single run, and what
is neither.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from forge import status
from forge.launch.slurm import queue
from forge.launch.sweep import messages
from forge.launch.sweep.directory import Point, SweepDirectory
from forge.launch.sweep.results import JOURNAL
from forge.rundir.lock import Lock
from forge.rundir.progress import progress

CONFIG = "seed: 1\ntrain:\n  max_steps: 10\n"
RESULT = {"status": "finished", "reason": "end", "step": 10, "metrics": {}, "config": "config.yaml"}
HEADS = "#    lr   seed  state    step   loss    eval    why"
Printed = pytest.CaptureFixture[str]


def json_lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def made(point: Point, steps: int, *, pace: float = 2.0) -> Path:
    """A run directory with so many steps done, the last of them now."""
    path, now = point.path, time.time()
    (path / "logs").mkdir(parents=True)
    (path / "config.yaml").write_text(CONFIG)
    (path / "attempts.jsonl").write_text('{"event": "start", "step": 0, "from": "nothing"}\n')
    numbers = range(1, steps + 1)
    rows = [{"step": n, "train/loss": 5 - n / 10} for n in numbers]
    rows += [{"step": steps, "eval/loss": 4.25}] if steps > 4 else []
    (path / "metrics.jsonl").write_text(json_lines(rows))
    times = [{"step": n, "time": now - (steps - n) * pace} for n in numbers]
    clock = [{**row, "tokens_per_second": 1000.0 + row["step"]} for row in times]
    (path / "performance.jsonl").write_text(json_lines(clock))
    (path / "logs" / "output.log").write_text("step 1\nstep 2\n")
    (path / "logs" / "rank_1.log").write_text("warm\n")
    return path


def ended(point: Point, value: float | None, name: str = "eval/loss") -> None:
    objective = {"name": name, "value": value}
    (made(point, 10) / "result.json").write_text(json.dumps({**RESULT, "objective": objective}))


def failed(point: Point, message: str, kind: str = "RuntimeError") -> None:
    error = {"type": kind, "message": message, "said": message}
    (point.path / "error.json").write_text(json.dumps(error))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepDirectory:
    """A sweep without points."""
    monkeypatch.chdir(tmp_path)
    sweep = SweepDirectory(tmp_path / "sweeps" / "mine")
    sweep.begin(["seed=1,2"], ["forge.train"])
    return sweep


@pytest.fixture
def sweep(mine: SweepDirectory) -> SweepDirectory:
    """Four points: done, failed, begun, waiting."""
    for n in range(4):
        varied = {"optimizer.lr": f"0.{n}", "seed": str(n)}
        mine.add(hash=f"{n:032d}", overrides=[f"seed={n}"], varied=varied)
    points = mine.points()
    ended(points[0], 4.0, "train/loss")
    made(points[1], 3)
    failed(points[1], "no such thing\nmore", "KeyError")
    made(points[2], 5)
    return mine


def table(*arguments: str, capsys: Printed) -> list[str]:
    assert status.main(list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def test_the_table_of_a_sweep(sweep: SweepDirectory, capsys: Printed) -> None:
    """What runs has some time left."""
    assert table("sweeps/mine", capsys=capsys) == [
        "sweeps/mine   (4 points: 1 done, 1 failed, 1 partial, 1 waiting)",
        "",
        HEADS,
        "000  0.0  0     done     10/10  4.0000  4.2500",
        "001  0.1  1     failed   3/10   4.7000          KeyError: no such thing",
        "002  0.2  2     partial  5/10   4.5000  4.2500",
        "003  0.3  3     waiting",
        "",
        "best: #000 lr=0.0 seed=0   train/loss 4",
    ]
    with Lock(sweep.points()[2].path):
        lines = table("sweeps/mine", capsys=capsys)
    assert lines[2].split() == ["#", "lr", "seed", "state", "step", "loss", "eval", "left", "why"]
    assert lines[5].split() == ["002", "0.2", "2", "running", "5/10", "4.5000", "4.2500", "10", "s"]


def test_as_json(sweep: SweepDirectory, capsys: Printed) -> None:
    rows = json.loads("\n".join(table("sweeps/mine", "--json", capsys=capsys)))
    assert [row["state"] for row in rows] == ["done", "failed", "partial", "waiting"]
    known = {"number": 1, "varied": {"optimizer.lr": "0.1", "seed": "1"}, "overrides": ["seed=1"]}
    known |= {"state": "failed", "step": 3, "of": 10, "loss": 4.7, "evaluation": {}}
    known |= {
        "why": "KeyError: no such thing",
        "path": str(sweep.points()[1].path),
        "silent": [],
        "waits_in": "",
    }
    nothing = (
        "arm",
        "seconds_left",
        "stalled",
        "straggler",
        "goodput",
        "job",
        "job_state",
        "job_reason",
    )
    assert rows[1] == {**known, **dict.fromkeys(nothing)}


def test_what_was_typed_for_some_points_alone_has_a_column(
    mine: SweepDirectory, capsys: Printed
) -> None:
    aside = "launch.jobs=2 sweep.retry=true sweeper=optuna run.num_threads=2"
    aside += " hydra/launcher=basic hydra.searchpath=[a]"
    for words, varied in [
        ("optimizer.lr=0.001 train.max_steps=20 model=tiny", {"optimizer.lr": "0.001"}),
        ("optimizer.lr=0.003 train.max_steps=20 model=tiny", {"optimizer.lr": "0.003"}),
        (f"optimizer.lr=1e-3 train.max_steps=22 +model='tiny' {aside}", {}),
        (
            "optimizer.lr=3e-3 train.max_steps=20 model=tiny model.dim=8.0 model.dim=16 ~eval.loss",
            {},
        ),
    ]:
        mine.add(hash=words, overrides=words.split(), varied=varied)
    assert table("sweeps/mine", capsys=capsys)[2:] == [
        "#    lr     max_steps  dim  loss  state",
        "000  0.001  20                    waiting",
        "001  0.003  20                    waiting",
        "002  0.001  22                    waiting",
        "003  0.003  20         16   ~     waiting",
    ]


def test_what_an_arm_is_made_of_is_said_by_its_name(mine: SweepDirectory, capsys: Printed) -> None:
    for optimizer in ([], ["optimizer=adamw_large"]):
        for arm, own in (("base", []), ("wide", ["model.dim=256"])):
            words = [*optimizer, *own, "seed=1"]
            mine.add(hash=str(words), overrides=words, varied={"seed": "1"}, arm=arm)
    assert table("sweeps/mine", capsys=capsys)[2:] == [
        "#    arm   seed  optimizer    state",
        "000  base  1                  waiting",
        "001  wide  1                  waiting",
        "002  base  1     adamw_large  waiting",
        "003  wide  1     adamw_large  waiting",
    ]


def test_the_best_point_and_what_to_do_next(mine: SweepDirectory, capsys: Printed) -> None:
    for n in range(3):
        mine.add(hash=str(n), overrides=[f"seed={n}"], varied={"seed": str(n)}, arm="base")
    points = mine.points()
    assert table("sweeps/mine", capsys=capsys)[-1] == "002  base  2     waiting"
    ended(points[0], 4.5)
    ended(points[1], 4.25)
    best = "best: #001 base seed=1   eval/loss 4.25"
    assert table("sweeps/mine", capsys=capsys)[-1] == best
    ended(points[2], float("nan"))
    compare = "compare them with: python -m forge.report sweeps/mine"
    assert table("sweeps/mine", capsys=capsys)[-2:] == [best, compare]
    (mine.path / JOURNAL).touch()  # of a search, which says in which direction it went
    with (points[0].path / "config.yaml").open("a") as file:
        file.write("sweeper:\n  direction: maximize\n")
    last = table("sweeps/mine", capsys=capsys)[-2:]
    assert last == ["best: #000 base seed=0   eval/loss 4.5", compare]
    (mine.path / JOURNAL).unlink()
    for point, value in zip(points, (0.5, 0.25, 0.125), strict=True):
        last = table("sweeps/mine", capsys=capsys)[-2]
        assert "best:" not in last or point is points[0], "the metrics are not the same"
        objective = {"name": "eval/token_accuracy", "value": value}
        (point.path / "result.json").write_text(json.dumps({**RESULT, "objective": objective}))
    last = table("sweeps/mine", capsys=capsys)[-2:]
    assert last == ["best: #000 base seed=0   eval/token_accuracy 0.5", compare]


def test_a_reason_is_cut_only_where_the_terminal_ends(
    sweep: SweepDirectory, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = f"the loss is nan in {'a/long/path/' * 30}. Lower optimizer.lr."
    point = sweep.points()[1]
    failed(point, reason)
    assert table("sweeps/mine", capsys=capsys)[4].endswith(reason)
    assert f"  why it failed  {reason}" in table("sweeps/mine", "1", capsys=capsys)
    assert messages.failures([(point, messages.cause(point.path))])[1] == f"       {reason}"
    monkeypatch.setattr(status.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    line = table("sweeps/mine", capsys=capsys)[4]
    assert (len(line), line[-24:]) == (80, " is nan in a/long/path/…")


def test_arms_and_jobs_have_columns_where_there_are_any(
    sweep: SweepDirectory, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that ended before its run began says why in its own log."""
    sweep.add(hash="9" * 32, overrides=[], varied={"model.lr": "x"}, arm="wide")
    for number in (3, 4):
        sweep.note("submitted", number, job=f"7_{number}", cluster="slurm")
    waits = "DependencyNeverSatisfied"
    states = {"7_3": "PENDING", "7_4": "FAILED"}
    monkeypatch.setattr(queue, "job_states", lambda jobs: {job: states[job] for job in jobs})
    monkeypatch.setattr(queue, "reasons", lambda jobs: dict.fromkeys(jobs, waits))
    place, folder = sweep.points()[4].path, sweep.path / "jobs"
    place.mkdir()
    folder.mkdir()
    (place / "job.json").write_text(json.dumps({"job": "7_4", "folder": str(folder)}))
    said = "launch.setup failed with exit code 1"
    (folder / "7_4_0_log.out").write_text(f"module: not found\n{said}\n\n")
    lines = table("sweeps/mine", capsys=capsys)
    heads = "# arm optimizer.lr seed model.lr state step loss eval job why"
    assert lines[2].split() == heads.split()
    assert lines[6].split() == f"003 0.3 3 queued 7_3 PENDING ({waits})".split()
    assert lines[7].split() == f"004 wide x failed 7_4 FAILED {said}".split()
    assert f"  why it failed  {said}" in table("sweeps/mine", "4", capsys=capsys)


def test_slurm_that_does_not_answer_is_said(
    sweep: SweepDirectory, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_):
        raise queue.NoAnswer("squeue fails: no route.")

    monkeypatch.setattr(queue, "job_states", silent)
    sweep.note("submitted", 3, job="7_1", cluster="slurm")
    said = f"{messages.NO_ANSWER}: squeue fails: no route."
    assert table("sweeps/mine", capsys=capsys)[-1] == said


def test_one_point_with_its_logs(sweep: SweepDirectory, capsys: Printed) -> None:
    path = "sweeps/mine/points/" + sweep.points()[1].path.name
    assert table("sweeps/mine", "1", capsys=capsys) == [
        "#001 failed    optimizer.lr=0.1 seed=1",
        f"  directory      {path}",
        "  steps          3 of 10",
        "  loss           4.7000",
        "  why it failed  KeyError: no such thing",
        f"  log            {path}/logs/output.log",
        f"                 {path}/logs/rank_1.log",
        "",
        "its last steps:",
        "  step  loss    tokens/s",
        "  1     4.9000  1,001",
        "  2     4.8000  1,002",
        "  3     4.7000  1,003",
        "",
        f"the end of {path}/logs/output.log:",
        "  step 1",
        "  step 2",
    ]
    lines = table("sweeps/mine", "0", "3", capsys=capsys)
    assert [line[:4] for line in lines if line.startswith("#")] == ["#000", "#003"]
    lines = table(str(sweep.points()[2].path), capsys=capsys)
    assert lines[0] == f"sweeps/mine/points/{sweep.points()[2].path.name}   partial"
    assert {"  steps          5 of 10", "  eval/loss      4.2500"} <= set(lines)


def test_a_run_under_way_shows_its_last_steps(sweep: SweepDirectory, capsys: Printed) -> None:
    """Also the one whose loss was not finite; what a start has not printed yet is left out."""
    point = sweep.add(hash="8" * 32, overrides=[], varied={"seed": "8"})
    path = made(point, 7, pace=20.0)
    rows = (path / "metrics.jsonl").read_text().splitlines()
    rows[5] = '{"step": 6, "train/loss": null}'
    (path / "metrics.jsonl").write_text("\n".join(rows))
    (path / "logs" / "output.log").write_text("")
    (path / "logs" / "rank_1.log").rename(path / "logs" / "rank_0.log").write_text("")
    with Lock(path):
        lines = table(str(path), capsys=capsys)
    assert lines[-7:] == [
        "its last steps:",
        "  step  loss    eval    tokens/s  left",
        "  3     4.7000          1,003     2 min 20 s",
        "  4     4.6000          1,004     2 min",
        "  5     4.5000          1,005     1 min 40 s",
        "  6                     1,006     1 min 20 s",
        "  7     4.3000  4.2500  1,007     1 min",
    ]


def test_watching_ends_when_all_have_ended(
    sweep: SweepDirectory, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            sweep.note("cancelled", 3)

    monkeypatch.setattr(status.time, "sleep", sleep)
    lines = table("sweeps/mine", "--watch", "0.5", capsys=capsys)
    assert (waits, lines.count(HEADS)) == ([0.5, 0.5], 2)
    assert lines[-3].split() == ["003", "0.3", "3", "cancelled"]


REFUSED = {
    "sweeps/mine 4": "sweeps/mine has no point 4.\n     -> one of 0 to 3",
    "sweeps/mine -1": "sweeps/mine has no point -1.\n     -> one of 0 to 3",
    "": "which sweep, or run?\n     -> python -m forge.status sweeps/mine\n",
}


def test_what_is_refused(sweep: SweepDirectory, capsys: Printed) -> None:
    for typed, said in REFUSED.items():
        assert status.main(typed.split()) == 2
        assert said in capsys.readouterr().err


def test_how_far_a_run_is(sweep: SweepDirectory) -> None:
    path = sweep.points()[2].path
    now = json.loads((path / "performance.jsonl").read_text().splitlines()[-1])["time"]
    left = [progress(path, now + later).left for later in (0, 4, 400)]
    assert left == pytest.approx([10, 6, 0])
    (path / "derived.json").write_text('[{"key": "train.max_steps", "value": 7, "why": ""}]')
    (path / "metrics.jsonl").write_text('{"step": 6, "train/loss": null}\n{"step": 7, "train')
    found = progress(path, now)
    assert (found.step, found.of, found.loss) == (6, 7, None)
    assert progress(path / "nothing") == progress(path / "else")
    long = [{"step": n, "train/loss": 1.0, "tokens": n * 1000} for n in range(20_000)]
    (path / "metrics.jsonl").write_text(json_lines(long))
    assert progress(path).step == 19_999
