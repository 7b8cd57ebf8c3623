"""What a run starts from: which checkpoint, in which order, why one is passed over, and what is
refused with which words.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from going_on_helpers import alter
from run_helpers import assert_bit_equal, folders, logged, stored

from forge import worker
from forge.rundir import outcome, saved_config
from forge.rundir.checkpoints import CheckpointError
from forge.training.assemble import assemble


def starts(run: Path) -> list[tuple[int, str]]:
    return [
        (line["step"], line["from"]) for line in outcome.attempts(run) if line["event"] == "start"
    ]


def last_said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def edit_meta(step: Path, **values: Any) -> None:
    meta = json.loads((step / "meta.json").read_text())
    (step / "meta.json").write_text(json.dumps(meta | values))


def test_its_own_newest_checkpoint(saved_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(saved_run, train__max_steps=8, run__allow_change=["scheduler"])
    assert assemble(saved_run).loop.state.step == 6
    assert (
        last_said(capsys)
        == "going on from checkpoints/step_6 at step 6, where it stopped in the data: 2 steps to go"
    )
    assert starts(saved_run)[-1] == (6, "checkpoints/step_6")


def test_an_earlier_step_of_its_own_is_taken_once(
    saved_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Later ones are set aside; a kill right after that, or after the next save, does not begin it
    anew; and it ends the same.
    """
    alter(saved_run, checkpoint__resume_from="2")
    assert assemble(saved_run).loop.state.step == 2
    assert "set aside: step_4.undone, step_6.undone" in capsys.readouterr().out
    assert folders(saved_run) == ["step_2", "step_4.undone", "step_6.undone"]
    assert set(logged(saved_run, "train/loss")) == {1, 2}
    loop = assemble(saved_run).loop
    assert loop.state.step == 2
    assert capsys.readouterr().out.startswith("going on from checkpoints/step_2")
    loop.end_step = 3
    loop.run()
    assert assemble(saved_run).loop.state.step == 3
    assert worker.main([str(saved_run)]) == 0
    assert folders(saved_run) == ["step_3", "step_4", "step_4.undone", "step_6", "step_6.undone"]
    for step in ("step_4", "step_6"):
        assert_bit_equal(
            *(stored(saved_run / "checkpoints" / f"{step}{more}") for more in ("", ".undone"))
        )


@pytest.mark.parametrize("relative", ["", "checkpoints", "checkpoints/step_6"])
def test_the_checkpoint_of_another_run(
    saved_run: Path, new_run: Callable[..., Path], relative: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all of its state; a kill before the first save of its own takes it once more, one after
    that does not.
    """
    path = new_run(
        "train.max_steps=8",
        "checkpoint.interval=1",
        f"checkpoint.resume_from={saved_run / relative}",
    )
    for _ in range(2):
        loop = assemble(path).loop
        assert (loop.state.step, loop.state.samples, loop.loader.samples) == (6, 24, 24)
        assert len(loop.optimizer.state) > 0
        assert last_said(capsys).startswith(
            f"going on from {saved_run}/checkpoints/step_6 at step 6"
        )
    loop.end_step = 7
    loop.run()
    assert assemble(path).loop.state.step == 7
    assert starts(path) == [(6, f"{saved_run}/checkpoints/step_6")] * 2 + [
        (7, "checkpoints/step_7")
    ]


def no_meta(step: Path) -> None:
    (step / "meta.json").unlink()


def broken_meta(step: Path) -> None:
    (step / "meta.json").write_text('{"format": 2, "st')


def short_file(step: Path) -> None:
    (step / "weights" / "rank_0.bin").write_bytes(b"short")


def missing_file(step: Path) -> None:
    shutil.rmtree(step / "tokenizer")


def foreign(step: Path) -> None:
    edit_meta(step, run_id="somebody else's")


def newer(step: Path) -> None:
    edit_meta(step, format=99)


def older(step: Path) -> None:
    edit_meta(step, format=1)


REASONS: dict[Callable[[Path], None], str] = {
    no_meta: "it is torn: it has no meta.json, which is written last",
    broken_meta: "its meta.json cannot be read",
    short_file: "it is torn: weights/rank_0.bin has 5 bytes of ",
    missing_file: "it is torn: tokenizer/",
    foreign: "it is of another run; checkpoint.resume_from takes one on purpose",
    newer: (
        "it has checkpoint format 99, and this version reads format 2; a "
        "newer version of forge wrote it"
    ),
    older: "it has checkpoint format 1, and this version reads format 2",
}


@pytest.mark.parametrize(
    ("damage", "reason"), REASONS.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_what_cannot_be_used_is_passed_over_with_its_reason(
    saved_run: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], reason: str
) -> None:
    damage(saved_run / "checkpoints" / "step_6")
    with caplog.at_level(logging.WARNING):
        assert assemble(saved_run).loop.state.step == 4
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{saved_run}/checkpoints/step_6 is passed over: {reason}")
    assert set(logged(saved_run, "train/loss")) == {1, 2, 3, 4}


@pytest.mark.parametrize("damage", [broken_meta, foreign, newer])
def test_nothing_usable_is_refused_rather_than_lost(
    saved_run: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("step_2", "step_4", "step_6"):
        damage(saved_run / "checkpoints" / name)
    rows = (saved_run / "metrics.jsonl").read_bytes()
    assert worker.main([str(saved_run)]) == 2
    said = capsys.readouterr().err
    reasons = "; ".join(f"step_{n}: {REASONS[damage]}" for n in (6, 4, 2))
    advice = "put one back, or give another run.dir to begin anew"
    assert (
        f"{saved_run}/checkpoints has checkpoints and none can be used ({reasons}); {advice}"
        in said
    )
    assert folders(saved_run) == ["step_2", "step_4", "step_6"]
    assert (saved_run / "metrics.jsonl").read_bytes() == rows


def test_checkpoints_that_are_gone_are_not_replaced_in_silence(saved_run: Path) -> None:
    """A disk that is not mounted, or a folder that was removed: the run was further, and begins
    anew only elsewhere.
    """
    rows = (saved_run / "metrics.jsonl").read_bytes()
    shutil.rmtree(saved_run / "checkpoints")
    with pytest.raises(CheckpointError) as raised:
        assemble(saved_run)
    assert str(raised.value) == (
        f"{saved_run}/checkpoints has no checkpoint, and this run was at step 6; "
        f"put one back, or give another run.dir to begin anew"
    )
    assert (saved_run / "metrics.jsonl").read_bytes() == rows


def test_a_start_that_is_refused_changes_nothing(
    saved_run: Path, trained: Callable[..., Path]
) -> None:
    """Neither the checkpoints, nor the rows, nor the result, nor the config that the next start is
    judged against.
    """
    other = trained("model.dim=32")
    before = {
        name: (saved_run / name).read_bytes() for name in ("metrics.jsonl", "performance.jsonl")
    }
    alter(saved_run, checkpoint__resume_from=str(other), train__max_steps=9)
    assert worker.main([str(saved_run)]) == 2
    assert folders(saved_run) == ["step_2", "step_4", "step_6"]
    assert {name: (saved_run / name).read_bytes() for name in before} == before
    assert saved_config.last_started(saved_run) == 1
    alter(saved_run, train__max_steps=8, checkpoint__resume_from=None)
    assert sorted(p.name for p in saved_run.glob("config*.yaml")) == [
        "config.2.yaml",
        "config.yaml",
    ]
    assert worker.main([str(saved_run)]) == 0
    assert "step_8" in folders(saved_run)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(no_meta, REASONS[no_meta]), (foreign, REASONS[foreign]), (newer, REASONS[newer])],
)
def test_a_step_that_was_asked_for_is_not_passed_over(
    saved_run: Path, damage: Callable[[Path], None], reason: str
) -> None:
    alter(saved_run, checkpoint__resume_from="4")
    damage(saved_run / "checkpoints" / "step_4")
    with pytest.raises(CheckpointError) as raised:
        assemble(saved_run)
    assert (
        str(raised.value)
        == f"checkpoint.resume_from=4: {saved_run}/checkpoints/step_4 cannot be used: {reason}"
    )
    assert folders(saved_run) == ["step_2", "step_4", "step_6"], "nothing is set aside before that"


def test_damage_inside_is_refused_and_another_can_be_taken(
    saved_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is found when it is read, by its checksum; the rows stay."""
    file = saved_run / "checkpoints" / "step_6" / "weights" / "rank_0.bin"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    for _ in range(2):
        assert worker.main([str(saved_run)]) == 2
        said = capsys.readouterr().err
        assert (
            f"{saved_run}/checkpoints/step_6 cannot be read (ValueError: "
            f"{file} is damaged: the bytes of "
        ) in said
        assert "; take another checkpoint" in said
    alter(saved_run, checkpoint__resume_from="4")
    assert worker.main([str(saved_run)]) == 0
    assert set(logged(saved_run, "train/loss")) == {1, 2, 3, 4, 5, 6}


def test_what_a_kill_left_half_done_is_removed(saved_run: Path) -> None:
    for name in (".step_8.partial", ".step_1.removed"):
        shutil.copytree(saved_run / "checkpoints" / "step_6", saved_run / "checkpoints" / name)
    (saved_run / "checkpoints" / ".step_8.partial" / "meta.json").unlink()
    assert assemble(saved_run).loop.state.step == 6
    assert folders(saved_run) == ["step_2", "step_4", "step_6"]
