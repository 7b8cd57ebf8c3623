"""Any command line is run or refused: never a traceback, never exit 0 for a wrong one, nothing
written by a refused one.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from fuzz_pieces import Desk, Piece, Stage, lines
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

import forge.train
import forge.worker
from forge import check, cli, explain
from forge.config import problems as errors
from forge.config.problems import Problem
from forge.launch.local import processes
from forge.plan.world import Devices
from forge.resolve import resolve as resolving

EXAMPLES = int(os.environ.get("FORGE_FUZZ_EXAMPLES", "100"))
RANDOM = "FORGE_FUZZ_EXAMPLES" in os.environ  # a search by hand takes other lines each time
KEYS = [
    "optimizer.lr",
    "model",
    "train.global_batch_size",
    "seed",
    "data",
    "run.dir",
    "scheduler.decay_steps",
    "experiment",
]
ALL = list(Stage)[:-1]
JUDGES = {
    "train": ALL,
    "train --cfg job": [Stage.USAGE, Stage.COMPOSE],
    "check": ALL,
    "explain": ALL,
}
"""Which stages a verb gets to: showing the config checks no values."""


@dataclass(frozen=True)
class Said:
    """What a line ended with, and the problems it printed."""

    code: object
    out: str
    err: str
    problems: list[Problem]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A folder of its own, home and scratch in it, where nothing is trained and there is no GPU."""
    place = tmp_path_factory.mktemp("desk").resolve()
    found = Desk(place / "work")
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in (("HOME", "home"), ("TMPDIR", "tmp"), ("FORGE_CACHE", "cache")):
            (place / folder).mkdir()
            patch.setenv(name, str(place / folder))
        found.path.mkdir()
        found.lay()
        patch.chdir(found.path)
        patch.delenv("WORLD_SIZE", raising=False)
        patch.setattr(processes, "start", lambda *_, **__: 0)
        patch.setattr(forge.worker, "main", lambda *_, **__: 0)
        patch.setattr(resolving, "find_devices", lambda: Devices(gpus=0, source="the test"))
        yield found


def tree(desk: Desk) -> dict[str, tuple[int, int]]:
    """Every path below the desk and beside it, with size and time of change."""
    root = desk.path.parent
    found = (
        Path(folder, name)
        for folder, folders, files in os.walk(root)
        for name in (*folders, *files)
    )
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in found}


def clear(desk: Desk, before: dict[str, tuple[int, int]]) -> None:
    """Remove what a line made."""
    for path in sorted(set(tree(desk)) - set(before)):
        shutil.rmtree(path) if os.path.isdir(path) else Path(path).unlink(missing_ok=True)


def say(verb: str, words: Sequence[str]) -> Said:
    """Type a line in this process; standard output is strict, as a terminal's is."""
    main = {"check": check.main, "explain": explain.main}.get(verb, forge.train.main)
    argv = [*verb.split()[1:], *words]
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors)
        for errors in ("strict", "backslashreplace")
    )
    problems: list[Problem] = []
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(
            errors,
            "render",
            lambda found: problems.extend(found) or "\n".join(p.render() for p in found),
        )
        try:
            code = main(argv)
        except SystemExit as left:  # argparse's way
            code = left.code
    for stream in (out, err):
        stream.flush()
    buffers = [stream.buffer for stream in (out, err)]
    texts = [one.getvalue().decode() for one in buffers]  # type: ignore[attr-defined]
    return Said(code, *texts, problems)


def judge(verb: str, pieces: Sequence[Piece], said: Said) -> None:
    """Exit 0 for nothing wrong, else 2 with every piece named that is wrong at a stage the verb got
    to.
    """
    stages = [p.stage if p.stage in JUDGES[verb] else Stage.RIGHT for p in pieces]
    first = min(stages, default=Stage.RIGHT)
    if first is Stage.RIGHT:
        assert said.code in (0, 2)
        assert said.code == 0 or said.problems
        assert all(p.rule or "It belongs to" in p.what for p in said.problems), (
            "right pieces can only be against a rule together"
        )
        return
    assert said.code == 2
    assert "Traceback" not in said.err
    assert (said.out == "") or first is Stage.USAGE
    if first is Stage.USAGE:
        reached = {first}
    elif any(problem.rule == "type" for problem in said.problems):
        reached = {Stage.COMPOSE, Stage.VALUE}
    else:
        reached = {Stage.COMPOSE, Stage.VALUE, Stage.RULE}
    for piece, stage in zip(pieces, stages, strict=True):
        if stage in reached:
            shown = cli.printable(piece.named.encode(errors="backslashreplace").decode())
            assert shown in said.err, f"{piece.words} is not named"
    assert said.problems or first is Stage.USAGE
    assert all(problem.what for problem in said.problems)


@pytest.mark.nightly
@settings(
    max_examples=EXAMPLES,
    derandomize=not RANDOM,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate) if not RANDOM else (Phase.generate, Phase.shrink),
)
@given(data=st.data())
def test_any_line(desk: Desk, data: st.DataObject):
    verb = data.draw(
        st.sampled_from(["train", "check", "explain", "train", "train --cfg job", "train"])
    )
    pieces = data.draw(lines(desk))
    words = [word for piece in pieces for word in piece.words]
    if verb == "explain":
        words = [data.draw(st.sampled_from(KEYS)), *words]
    before = tree(desk)
    try:
        said = say(verb, words)
        event(f"{verb}: exit {said.code}")
        judge(verb, pieces, said)
        if said.code != 0 or verb != "train":
            assert tree(desk) == before, "a line that starts nothing writes nothing"
    finally:
        clear(desk, before)
