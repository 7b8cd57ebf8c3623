"""checkpoint.init_from: the weights alone, of a run, a checkpoint or a .safetensors file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.going_on_helpers import alter
from run_helpers import assert_bit_equal, built, logged, step_of, stored, weights
from safetensors.torch import load_file, save_file

from forge import export, worker
from forge.config.problems import ConfigError
from forge.rundir import outcome


@pytest.fixture
def exported(saved_run, tmp_path) -> Path:
    file = tmp_path / "weights.safetensors"
    assert export.main([str(saved_run), str(file), "--dtype", "float32"]) == 0
    return file


def assert_fresh(loop):
    """Nothing but weights: no update was made, no text was read, the optimizer knows nothing."""
    state = loop.state
    counted = (state.step, state.samples, state.tokens, loop.loader.samples, loop.clock.before)
    assert counted == (0, 0, 0, 0, 0.0)
    assert not loop.optimizer.state


PLACES = [("", 6), ("checkpoints", 6), ("checkpoints/step_2", 2)]


@pytest.mark.parametrize(("place", "step"), PLACES)
def test_the_weights_of_another_run(saved_run, new_run, place, step, capsys):
    path = new_run(f"seed=9 checkpoint.init_from={saved_run / place}")
    loop, source = built(path), step_of(saved_run, step)
    assert f"beginning with the weights of {source}\n" in capsys.readouterr().out
    assert_bit_equal(weights(loop.model), stored(source, "model/"))
    assert_fresh(loop)
    assert outcome.attempts(path)[0]["from"] == str(source)


@pytest.mark.parametrize("from_file", [False, True], ids=["checkpoint", "safetensors"])
def test_excluded_prefixes_keep_their_initial_values(saved_run, exported, assembled, from_file):
    """Also where the file has another shape, or none, for them."""
    tensors = load_file(exported)
    tensors["blocks.1.attention.wq.weight"] = torch.zeros(3, 3)
    del tensors["blocks.1.attention.wk.weight"]
    save_file(tensors, exported)
    source = f"checkpoint.init_from={exported if from_file else saved_run}"
    loop = assembled(f"seed=9 {source} checkpoint.exclude_from_loading=[blocks.1.]")
    assert_fresh(loop)
    fresh = weights(assembled("seed=9").model)
    kept = {name: value for name, value in fresh.items() if name.startswith("blocks.1.")}
    assert_bit_equal(weights(loop.model), stored(step_of(saved_run, 6), "model/") | kept)


def test_the_optimizer_of_another_run(saved_run, new_run, exported, capsys):
    """Its state alone: no step, and the schedule begins."""
    warm = "checkpoint.init_optimizer=true"
    loop, source = built(new_run(f"{warm} checkpoint.init_from={saved_run}")), step_of(saved_run, 6)
    assert f"beginning with the weights and the optimizer of {source}\n" in capsys.readouterr().out
    assert_bit_equal(weights(loop.model), stored(source, "model/"))
    names = {parameter: name for name, parameter in loop.model.named_parameters()}
    state = {
        f"{names[parameter]}/{key}": value
        for parameter, values in loop.optimizer.state.items()
        for key, value in values.items()
        if isinstance(value, torch.Tensor)
    }
    assert_bit_equal(state, stored(source, "optimizer/"))
    assert (loop.state.step, loop.state.samples, loop.loader.samples) == (0, 0, 0)
    for told, fault in (
        (f"checkpoint.init_from={exported}", "it holds the weights alone"),
        (f"checkpoint.init_from={saved_run} optimizer=lion", "it has the state of optimizer=adamw"),
    ):
        assert worker.main([str(new_run(f"{warm} {told}"))]) == 2
        said = capsys.readouterr().err
        assert f"{fault}; set checkpoint.init_optimizer=false" in said


def test_the_weights_of_another_vocabulary_are_refused(
    saved_run, new_run, text_file, tmp_path, capsys
):
    """Also where it has as many ids, and where only the text, when it is read, tells them apart."""
    base = f"checkpoint.init_from={saved_run}"
    own = step_of(saved_run, 6) / "tokenizer" / "tokenizer.json"
    fault = "it was trained with another tokenizer, so its token ids mean something else"
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text().swapcase())
    other_text = f"{base} data=text data.path={other}"
    assert worker.main([str(new_run(other_text))]) == 2
    said = capsys.readouterr().err
    assert fault in said
    assert f"take its own: tokenizer=file tokenizer.path={own}" in said
    with pytest.raises(ConfigError) as told:
        new_run(f"{base} tokenizer.train_bytes=1000")
    assert fault in str(told.value)
    typed = f"its own, tokenizer=file tokenizer.path={own}; run.allow_change=[tokenizer]"
    assert typed in str(told.value)
    assert_fresh(built(new_run(f"{other_text} run.allow_change=[tokenizer]")))


@pytest.mark.nightly
def test_it_is_done_once(saved_run, new_run):
    """A run that has a checkpoint of its own resumes from that; one that was killed before begins
    with the weights again.
    """
    path = new_run(f"checkpoint.init_from={saved_run}")
    assert_fresh(built(path))
    assert_fresh(built(path))
    assert worker.main([str(path)]) == 0
    (path / "result.json").unlink()
    assert built(path).state.step == 6
    assert set(logged(path, "train/loss")) == set(range(1, 7))


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\xff" * 64])
def test_a_file_that_is_no_safetensors(tmp_path, new_run, content, capsys):
    file = tmp_path / "weights.safetensors"
    file.write_bytes(content)
    assert worker.main([str(new_run(f"checkpoint.init_from={file}"))]) == 2
    said = capsys.readouterr().err
    assert f"{file} cannot be read as safetensors: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("option", ["init_from", "resume_from"])
def test_a_source_that_is_gone_does_not_keep_a_run_from_going_on(saved_run, new_run, option):
    """Once it has a checkpoint of its own; before, and with another source, it is refused before
    anything is written.
    """
    path = new_run(f"checkpoint.{option}={saved_run} train.max_steps=9")
    gone = saved_run.with_name("gone")
    saved_run.rename(gone)
    with pytest.raises(ConfigError, match=f"checkpoint.{option}"):
        alter(path, metrics__log_interval=2)
    gone.rename(saved_run)
    loop = built(path)
    loop.end_step = loop.state.step + 1
    loop.run()
    saved_run.rename(gone)
    (change,) = alter(path, metrics__log_interval=2)
    assert change.key == "metrics.log_interval"
    assert built(path).state.step == loop.end_step
    other = {f"checkpoint__{option}": "/gone/nothing", "run__allow_change": ["checkpoint"]}
    with pytest.raises(ConfigError, match=r"there is no.*/gone/nothing"):
        alter(path, **other)
