"""What a run starts from: which checkpoint, in which order, why one is skipped, and what is
refused with which words.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from helpers.going_on_helpers import alter
from run_helpers import assert_bit_equal, built, folders, logged, read, step_of, stored

from forge import worker
from forge.rundir import checkpoints, outcome, saved_config
from forge.rundir.checkpoints import CheckpointError

STEPS = ["step_2", "step_4", "step_6"]


def starts(run: Path) -> list[tuple[int, str]]:
    return [(row["step"], row["from"]) for row in outcome.attempts(run) if row["event"] == "start"]


def last_said(capsys) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_its_own_newest_checkpoint(saved_run, capsys):
    alter(saved_run, train__max_steps=8, run__allow_change=["scheduler"])
    assert built(saved_run).state.step == 6
    where = "at step 6, where it stopped in the data: 2 steps to go"
    assert last_said(capsys) == f"resuming from checkpoints/step_6 {where}"
    assert starts(saved_run)[-1] == (6, "checkpoints/step_6")


def test_an_earlier_step_of_its_own_is_taken_once(saved_run, capsys):
    """Later ones are set aside; a kill right after that, or after the next save, does not begin it
    again; and it ends the same.
    """
    alter(saved_run, checkpoint__resume_from="2")
    assert built(saved_run).state.step == 2
    assert "set aside: step_4.undone, step_6.undone" in capsys.readouterr().out
    assert folders(saved_run) == ["step_2", "step_4.undone", "step_6.undone"]
    assert set(logged(saved_run, "train/loss")) == {1, 2}
    loop = built(saved_run)
    assert loop.state.step == 2
    assert capsys.readouterr().out.startswith("resuming from checkpoints/step_2")
    loop.end_step = 3
    loop.run()
    assert built(saved_run).state.step == 3
    assert worker.main([str(saved_run)]) == 0
    assert folders(saved_run) == ["step_3", "step_4", "step_4.undone", "step_6", "step_6.undone"]
    for step in ("step_4", "step_6"):
        both = (saved_run / "checkpoints" / f"{step}{more}" for more in ("", ".undone"))
        assert_bit_equal(*map(stored, both))


@pytest.mark.parametrize("relative", ["", "checkpoints", "checkpoints/step_6"])
def test_the_checkpoint_of_another_run(saved_run, new_run, relative, capsys):
    """With all of its state; a kill before the first save of its own takes it once more, one after
    that does not.
    """
    source = f"checkpoint.resume_from={saved_run / relative}"
    path, theirs = new_run("train.max_steps=8 checkpoint.interval=1", source), step_of(saved_run, 6)
    for _ in range(2):
        loop = built(path)
        assert (loop.state.step, loop.state.samples, loop.loader.samples) == (6, 24, 24)
        assert len(loop.optimizer.state) > 0
        said = f"resuming from {theirs} at step 6, where it stopped in the data: 2 steps to go"
        assert last_said(capsys) == said
    loop.end_step = 7
    loop.run()
    assert built(path).state.step == 7
    assert starts(path) == [(6, str(theirs))] * 2 + [(7, "checkpoints/step_7")]


def edit(step: Path, **values):
    meta = checkpoints.sealed(read(step / "meta.json") | values)
    (step / "meta.json").write_text(json.dumps(meta))


def flip(file: Path):
    """One bit, in the middle: the size stays."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def change_digit(step: Path):
    text = (step / "meta.json").read_text()
    (step / "meta.json").write_text(text.replace('"step": 6', '"step": 7', 1))


NEWER = "; a newer version of forge wrote it"
DAMAGE = {
    "no meta": (
        lambda step: (step / "meta.json").unlink(),
        "it is torn: it has no meta.json, which is written last",
    ),
    "broken meta": (
        lambda step: (step / "meta.json").write_text('{"format": 2, "st'),
        "its meta.json cannot be read",
    ),
    "short file": (
        lambda step: (step / "weights" / "rank_0.bin").write_bytes(b"short"),
        "it is torn: weights/rank_0.bin has 5 bytes of ",
    ),
    "missing file": (lambda step: shutil.rmtree(step / "tokenizer"), "it is torn: tokenizer/"),
    "a digit of meta": (change_digit, "its meta.json is damaged: its bytes are not those that"),
    "no checksum of meta": (
        lambda step: (step / "meta.json").write_text(
            (step / "meta.json").read_text().replace('"checksum"', '"chdcksum"')
        ),
        "its meta.json is damaged: its bytes are not those that were saved",
    ),
    "a bit of the config": (
        lambda step: flip(step / "config.yaml"),
        "it is damaged: the bytes of config.yaml are not those that were saved",
    ),
    "a bit of the tokenizer": (
        lambda step: flip(next(file for file in (step / "tokenizer").iterdir())),
        "it is damaged: the bytes of tokenizer/",
    ),
    "a bit of the index": (
        lambda step: flip(step / "weights" / "tensors.json"),
        "it is damaged: the bytes of weights/tensors.json are not those that were saved",
    ),
    "foreign": (
        lambda step: edit(step, run_id="somebody else's"),
        "it is of another run; checkpoint.resume_from takes one on purpose",
    ),
    "newer": (
        lambda step: edit(step, format=99),
        f"it has checkpoint format 99, and this version reads format 2{NEWER}",
    ),
    "older": (
        lambda step: edit(step, format=1),
        "it has checkpoint format 1, and this version reads format 2",
    ),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_what_cannot_be_used_is_passed_over_with_its_reason(saved_run, caplog, damage, reason):
    damage(step_of(saved_run, 6))
    with caplog.at_level(logging.WARNING):
        assert built(saved_run).state.step == 4
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{saved_run}/checkpoints/step_6 is skipped: {reason}")
    assert set(logged(saved_run, "train/loss")) == {1, 2, 3, 4}


def test_a_checkpoint_of_before_checksums_is_still_read(saved_run, caplog):
    step = step_of(saved_run, 6)
    meta = {k: v for k, v in read(step / "meta.json").items() if k not in ("checksum", "sha256")}
    (step / "meta.json").write_text(json.dumps(meta))
    assert (built(saved_run).state.step, caplog.text) == (6, "")


def test_nothing_usable_is_refused_rather_than_lost(saved_run, capsys):
    """A disk that is not mounted, or a folder that was removed, too: the run was further, and
    begins again only elsewhere.
    """
    rows, place = (saved_run / "metrics.jsonl").read_bytes(), f"{saved_run}/checkpoints"
    damage, reason = DAMAGE["foreign"]
    for name in STEPS:
        damage(saved_run / "checkpoints" / name)
    advice = "put one back, or give another run.dir to begin again"
    reasons = "; ".join(f"step_{step}: {reason}" for step in (6, 4, 2))
    assert worker.main([str(saved_run)]) == 2
    said = f"{place} has checkpoints and none can be used ({reasons}); {advice}"
    assert said in capsys.readouterr().err
    assert folders(saved_run) == STEPS
    shutil.rmtree(saved_run / "checkpoints")
    assert worker.main([str(saved_run)]) == 2
    said = f"{place} has no checkpoint, and this run was at step 6; {advice}"
    assert said in capsys.readouterr().err
    assert (saved_run / "metrics.jsonl").read_bytes() == rows


def test_a_start_that_is_refused_changes_nothing(saved_run, trained):
    """Neither the checkpoints, nor the rows, nor the result, nor the config that the next start is
    judged against.
    """
    other, names = trained("model.dim=32"), ("metrics.jsonl", "performance.jsonl")
    before = [(saved_run / name).read_bytes() for name in names]
    alter(saved_run, checkpoint__resume_from=str(other), train__max_steps=9)
    assert worker.main([str(saved_run)]) == 2
    assert folders(saved_run) == STEPS
    assert [(saved_run / name).read_bytes() for name in names] == before
    assert saved_config.last_started(saved_run) == 1
    alter(saved_run, train__max_steps=8, checkpoint__resume_from=None)
    configs = sorted(p.name for p in saved_run.glob("config*.yaml"))
    assert configs == ["config.2.yaml", "config.yaml"]
    assert worker.main([str(saved_run)]) == 0
    assert "step_8" in folders(saved_run)


def test_a_step_that_was_asked_for_is_not_passed_over(saved_run):
    alter(saved_run, checkpoint__resume_from="4")
    damage, reason = DAMAGE["no meta"]
    damage(step_of(saved_run, 4))
    with pytest.raises(CheckpointError) as raised:
        built(saved_run)
    said = f"checkpoint.resume_from=4: {saved_run}/checkpoints/step_4 cannot be used: {reason}"
    assert str(raised.value) == said
    assert folders(saved_run) == STEPS, "nothing is set aside before that"


def test_what_a_kill_left_half_done_is_removed(saved_run):
    for name in (".step_8.partial", ".step_1.removed"):
        shutil.copytree(step_of(saved_run, 6), saved_run / "checkpoints" / name)
    (saved_run / "checkpoints" / ".step_8.partial" / "meta.json").unlink()
    assert built(saved_run).state.step == 6
    assert folders(saved_run) == STEPS
