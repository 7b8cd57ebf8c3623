"""A bit of a checkpoint's tensors has flipped: found as they are read; the one before is taken."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from helpers.going_on_helpers import alter
from layouts import trains
from run_helpers import assert_bit_equal, built, folders, meta, read, step_of, stored, weights

from forge import checkpoints, export, generate, worker
from forge.rundir import outcome
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.restore import load_run


def flip(
    step: Path, below: str, file: str = "rank_0.bin", *, last: bool = False
) -> tuple[str, str]:
    """Change one bit of a tensor whose name begins so: of the first one that has bytes in this
    file, or of the last; returns the tensor's name, and the words for it.
    """
    index = read(step / "weights" / "tensors.json")["tensors"]
    places = [
        (name, chunk["start"])
        for name, entry in index.items()
        for chunk in entry["chunks"]
        if name.startswith(below) and chunk["file"] == file and chunk["crc32"]
    ]
    name, start = places[-1 if last else 0]
    path = step / "weights" / file
    content = bytearray(path.read_bytes())
    content[start] ^= 1
    path.write_bytes(content)
    what = f"the bytes of '{name}' are not those that were saved"
    return name, f"weights/{file} is damaged: {what}"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


@pytest.mark.parametrize("below", ["model/", "optimizer/"])
def test_a_run_goes_on_from_the_one_before_with_the_same_bits(saved_run, below, capsys, caplog):
    """Which is said; the damaged one is set aside, where no keep_last_n counts it."""
    alter(saved_run, checkpoint__keep_last_n=2)
    rows = (saved_run / "metrics.jsonl").read_bytes()
    intact, about = stored(step_of(saved_run, 6)), meta(step_of(saved_run, 6))
    _, fault = flip(step_of(saved_run, 6), below)
    assert worker.main([str(saved_run)]) == 0
    assert warnings(caplog) == [f"{saved_run}/checkpoints/step_6 is skipped: {fault}"]
    assert capsys.readouterr().out.splitlines()[:2] == [
        "resuming from checkpoints/step_4 at step 4, where it stopped in the data: 2 steps to go",
        "set aside: step_6.undone",
    ]
    assert folders(saved_run) == ["step_4", "step_6", "step_6.undone"]
    assert_bit_equal(stored(step_of(saved_run, 6)), intact)
    assert meta(step_of(saved_run, 6)) == about
    assert (saved_run / "metrics.jsonl").read_bytes() == rows
    starts = [row for row in outcome.attempts(saved_run) if row["event"] == "start"]
    assert (starts[-1]["step"], starts[-1]["from"]) == (4, "checkpoints/step_4")


def test_where_none_is_left_the_run_is_refused_and_changed_in_nothing(saved_run, capsys, caplog):
    """A disk that gives no bytes, too."""
    names = ["step_2", "step_4", "step_6"]
    faults = {name: flip(saved_run / "checkpoints" / name, "model/")[1] for name in names[1:]}
    reading = tensor_storage._bytes

    def broken(path, *more):
        if "step_2" in str(path):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return reading(path, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_storage, "_bytes", broken)
        assert worker.main([str(saved_run)]) == 2
    faults["step_2"] = "weights/rank_0.bin cannot be read: Input/output error"
    reasons = "; ".join(f"{name}: {faults[name]}" for name in reversed(names))
    said = f"{saved_run}/checkpoints has checkpoints and none can be used ({reasons}); "
    assert capsys.readouterr().err.lstrip().startswith(said)
    assert len(warnings(caplog)) == 3, "each is said once"
    assert folders(saved_run) == names


def test_one_that_is_named_is_refused(saved_run, tmp_path, capsys):
    step = step_of(saved_run, 4)
    _, fault = flip(step, "model/")
    alter(saved_run, checkpoint__resume_from="4")
    assert worker.main([str(saved_run)]) == 2
    said = f"checkpoint.resume_from=4: {step} cannot be used: {fault}"
    assert capsys.readouterr().err.splitlines()[1] == said
    assert folders(saved_run) == ["step_2", "step_4", "step_6"]
    for verb in (
        generate.main,
        lambda words: export.main([*words, str(tmp_path / "w.safetensors")]),
    ):
        assert verb([str(step)]) == 2
        said = f"{step} cannot be used: {fault}; take another checkpoint\n"
        assert capsys.readouterr().err == said
    assert not (tmp_path / "w.safetensors").exists()


def test_whoever_reads_a_run_takes_the_one_before(saved_run, new_run, tmp_path, caplog, capsys):
    """Reading it, exporting it, and beginning another run with its weights."""
    _, fault = flip(step_of(saved_run, 6), "model/", last=True)
    theirs = stored(step_of(saved_run, 4), "model/")
    said = [f"{saved_run}/checkpoints/step_6 is skipped: {fault}"]
    trained = load_run(saved_run)
    assert (trained.step, trained.path, warnings(caplog)) == (4, step_of(saved_run, 4), said)
    assert_bit_equal(dict(trained.model.state_dict()), theirs)
    caplog.clear()
    assert export.main([str(saved_run), str(tmp_path / "w.safetensors")]) == 0
    assert " tensors of step 4 in " in capsys.readouterr().out
    assert warnings(caplog) == said
    caplog.clear()
    loop = built(new_run(f"checkpoint.init_from={saved_run}"))
    assert warnings(caplog) == said
    assert_bit_equal(weights(loop.model), theirs)
    assert folders(saved_run) == ["step_2", "step_4", "step_6"], "nothing of it is set aside"


def test_what_a_damaged_one_gave_is_not_kept_by_a_changed_model(saved_run):
    """What does not fit the checkpoint before it begins with its initial value."""
    more = {"train__max_steps": 8, "run__allow_change": ["model", "scheduler"]}
    alter(saved_run, model__ffn_hidden_dim=72, **more)
    assert worker.main([str(saved_run)]) == 0
    without = saved_run.with_name("without")
    shutil.copytree(saved_run, without)
    shutil.rmtree(step_of(without, 8))
    flip(step_of(saved_run, 8), "model/", last=True)
    for run in (saved_run, without):
        (run / "result.json").unlink()
    ours, theirs = built(saved_run), built(without)
    assert (ours.state.step, theirs.state.step) == (6, 6)
    assert_bit_equal(weights(ours.model), weights(theirs.model))


def test_two_ranks_agree_where_one_of_them_finds_it(tmp_path, text_file):
    """And end with the bits of a run that was never stopped."""
    train, often = trains(tmp_path, text_file), "checkpoint.interval=2"
    run = train("run", "fsdp2", 6, often)
    rows, intact = (run / "metrics.jsonl").read_bytes(), stored(step_of(run, 6))
    (run / "result.json").unlink()
    _, fault = flip(step_of(run, 6), "optimizer/", "rank_1.bin")
    train("run", "fsdp2", 6, often)
    said = f"{run}/checkpoints/step_6 is skipped: {fault}"
    assert said in (run / "logs" / "rank_0.log").read_text()
    assert folders(run) == ["step_2", "step_4", "step_6", "step_6.undone"]
    assert_bit_equal(stored(step_of(run, 6)), intact)
    assert (run / "metrics.jsonl").read_bytes() == rows


@pytest.mark.nightly
def test_two_ranks_agree_on_rows_that_one_of_them_packs(tmp_path, text_file):
    """Each reads its own rows of a weight that it packs, alone."""
    train, often = trains(tmp_path, text_file), "checkpoint.interval=2"
    base = train("base", "fsdp2", 4, often, "model.dim=128", "model.ffn_hidden_dim=128")
    step = step_of(base, 4)
    name, fault = flip(step, "model/blocks.0.attention.wq", "rank_1.bin")
    assert name == "model/blocks.0.attention.wq.weight"
    qlora = f"adapter=qlora adapter.rank=2 checkpoint.init_from={base} train.max_steps=1"
    run = train("run", "fsdp2", 1, "model.dim=128", "model.ffn_hidden_dim=128", qlora)
    log = (run / "logs" / "rank_0.log").read_text()
    assert f"{step} is skipped: {fault}" in log
    starts = [row["from"] for row in outcome.attempts(run) if row["event"] == "start"]
    assert starts == [str(step_of(base, 2))]


@pytest.mark.nightly
def test_ranks_that_generate_take_the_one_before(saved_run, caplog, capfd):
    _, fault = flip(step_of(saved_run, 6), "model/")
    words = ["--parallel", "tp2", "--tokens", "4", "--temperature", "0", "--prompt", "sea"]
    assert generate.main([str(step_of(saved_run, 4)), *words]) == 0
    theirs = capfd.readouterr().out
    assert generate.main([str(saved_run), *words]) == 0
    assert warnings(caplog) == [f"{saved_run}/checkpoints/step_6 is skipped: {fault}"]
    assert capfd.readouterr().out == theirs
    assert generate.main([str(step_of(saved_run, 6)), *words]) == 2
    said = f"{step_of(saved_run, 6)} cannot be used: {fault}; take another checkpoint\n"
    assert capfd.readouterr().err == said


def test_the_list_of_checkpoints_says_so_where_it_is_to_read_them(saved_run, capsys):
    said = [str(saved_run), "--verify"]
    assert checkpoints.main(said) == 0
    assert capsys.readouterr().out.count("  verified") == 3
    _, fault = flip(step_of(saved_run, 4), "optimizer/", last=True)
    assert checkpoints.main(said[:1]) == 0
    assert capsys.readouterr().out.count("  complete") == 3  # their sizes are right
    assert checkpoints.main(said) == 1
    shown = capsys.readouterr().out.splitlines()
    assert ["  verified" in line for line in shown[1:]] == [True, False, True]
    assert shown[2].endswith(f"  cannot be used: {fault}")
