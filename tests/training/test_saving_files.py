"""How a checkpoint gets onto the disk, and what happens where it cannot."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.going_on_helpers import alter
from run_helpers import assert_bit_equal, folders, meta, read, step_of, stored

from forge import worker
from forge.training.checkpoints import checkpoint
from forge.training.checkpoints.tensor_storage import TensorWriter


def test_everything_is_on_the_disk_before_it_gets_its_name(assembled, monkeypatch):
    loop = assembled("train.max_steps=2")
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int):
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        events.append(("rename", str(self)))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    loop.run()
    folder = loop.run_dir / "checkpoints"
    partial = f"{folder}/.step_2.partial"
    named = events.index(("rename", partial))
    before = [path for kind, path in events[:named] if kind == "sync"]
    files = {str(path.relative_to(folder / "step_2")) for path in (folder / "step_2").rglob("*")}
    assert {os.path.relpath(path, partial) for path in before} >= files | {"."}
    last = {path: index for index, path in enumerate(before)}
    contents = [name for name in files if name != "meta.json"]
    assert all(
        last[f"{partial}/{name}"] < last[f"{partial}/meta.json"] < last[partial]
        for name in contents
    ), "meta.json is written last"
    assert ("sync", str(folder)) in events[named:], "and so is the name"


def no_space(self, *_):
    raise OSError(errno.ENOSPC, "No space left on device")


FULL: dict[str, tuple[Any, str, Any]] = {
    "before it is written": (shutil, "disk_usage", lambda _: SimpleNamespace(free=200_000)),
    "while tensors are written": (TensorWriter, "write_data", no_space),
    "while the config is written": (checkpoint.saved_config, "save_config", no_space),
    "while it is committed": (checkpoint, "sync", no_space),
}


@pytest.mark.ci("before it is written-async", "while it is committed-disabled")
@pytest.mark.parametrize("mode", ["disabled", "async"])
@pytest.mark.parametrize("when", FULL)
def test_a_full_disk_costs_no_more_than_the_steps_since_the_last_save(
    saved_run, monkeypatch, capsys, when, mode
):
    """And the run continues afterwards to the same end, bit for bit."""
    rows = (saved_run / "metrics.jsonl").read_bytes()
    alter(saved_run, checkpoint__resume_from="4", checkpoint__async_mode=mode)
    with monkeypatch.context() as patch:
        patch.setattr(*FULL[when])
        assert worker.main([str(saved_run)]) == 1
    _, said, advice = capsys.readouterr().err.splitlines()
    reason = "No space left on device"
    if when.startswith("before"):
        reason = "it needs 0.3 MiB, and 0.2 MiB are free"
    fix = "Make room or give access, then continue with this run"
    fix += "; the checkpoint of step 4 is complete"
    assert said == f"{saved_run}/checkpoints/step_6 cannot be written: {reason}. {fix}"
    assert advice.endswith(f"the run continues with: python -m forge.resume {saved_run})")
    assert folders(saved_run) == ["step_2", "step_4", "step_6.undone"], "nothing half written"
    assert read(saved_run / "error.json")["type"] == "OSError"
    assert worker.main([str(saved_run)]) == 0
    ours, undisturbed = (step_of(saved_run, 6).with_suffix(end) for end in ("", ".undone"))
    assert_bit_equal(stored(ours), stored(undisturbed))
    assert meta(ours) == meta(undisturbed)
    assert (saved_run / "metrics.jsonl").read_bytes() == rows


def test_a_first_save_that_fails_says_that_there_is_none(new_run, monkeypatch, capsys):
    monkeypatch.setattr(TensorWriter, "write_data", no_space)
    assert worker.main([str(new_run())]) == 1
    assert (
        "then continue with this run; there is no earlier checkpoint\n" in capsys.readouterr().err
    )


def test_a_killed_removal_is_no_checkpoint_and_is_cleaned_up(saved_run, monkeypatch):
    def killed(path: Path, ignore_errors: bool = False):
        if path.exists():
            (path / "meta.json").unlink()
            raise KeyboardInterrupt

    alter(saved_run, train__max_steps=8, checkpoint__keep_last_n=1, run__allow_change=["scheduler"])
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        assert worker.main([str(saved_run)]) == 130
    assert folders(saved_run) == [".step_2.removed", ".step_4.removed", ".step_6.removed", "step_8"]
    assert worker.main([str(saved_run)]) == 0
    assert folders(saved_run) == ["step_8"]
