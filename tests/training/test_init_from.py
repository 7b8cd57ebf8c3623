"""checkpoint.init_from: the weights alone, of a run, a checkpoint or a .safetensors file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from going_on_helpers import alter
from run_helpers import assert_bit_equal, logged, stored, weights
from safetensors.torch import load_file, save_file

from forge import export, worker
from forge.config.problems import ConfigError
from forge.rundir import outcome
from forge.training.assemble import Parts, assemble


@pytest.fixture
def exported(saved_run: Path, tmp_path: Path) -> Path:
    file = tmp_path / "weights.safetensors"
    assert export.main([str(saved_run), str(file), "--dtype", "float32"]) == 0
    return file


def of_step(run: Path, step: int) -> dict[str, torch.Tensor]:
    tensors = stored(run / "checkpoints" / f"step_{step}")
    return {
        key.removeprefix("model/"): value
        for key, value in tensors.items()
        if key.startswith("model/")
    }


def assert_fresh(parts: Parts) -> None:
    """Nothing but weights: no update was made, no text was read, the optimizer knows nothing."""
    state = parts.loop.state
    assert (
        state.step,
        state.samples,
        state.tokens,
        parts.loop.loader.samples,
        parts.loop.seconds_before,
    ) == (0, 0, 0, 0, 0.0)
    assert not parts.loop.optimizer.state


@pytest.mark.parametrize(
    ("place", "step"), [("", 6), ("checkpoints", 6), ("checkpoints/step_2", 2)]
)
def test_the_weights_of_another_run(
    saved_run: Path,
    new_run: Callable[..., Path],
    place: str,
    step: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = new_run("seed=9", f"checkpoint.init_from={saved_run / place}")
    capsys.readouterr()
    parts = assemble(path)
    source = f"{saved_run}/checkpoints/step_{step}"
    assert f"beginning with the weights of {source}\n" in capsys.readouterr().out
    assert_bit_equal(weights(parts.model), of_step(saved_run, step))
    assert_fresh(parts)
    assert outcome.attempts(path)[0]["from"] == source


def test_the_weights_of_a_safetensors_file(
    saved_run: Path, exported: Path, assembled: Callable[..., Parts]
) -> None:
    parts = assembled("seed=9", f"checkpoint.init_from={exported}")
    assert_bit_equal(weights(parts.model), of_step(saved_run, 6))
    assert_fresh(parts)


@pytest.mark.parametrize("from_file", [False, True], ids=["checkpoint", "safetensors"])
def test_excluded_prefixes_keep_their_initial_values(
    saved_run: Path, exported: Path, assembled: Callable[..., Parts], from_file: bool
) -> None:
    """Also where the file has another shape, or none, for them."""
    tensors = load_file(exported)
    tensors["blocks.1.attention.wq.weight"] = torch.zeros(3, 3)
    del tensors["blocks.1.attention.wk.weight"]
    save_file(tensors, exported)
    source = exported if from_file else saved_run
    ours = weights(
        assembled(
            "seed=9",
            f"checkpoint.init_from={source}",
            "checkpoint.exclude_from_loading=[blocks.1.]",
        ).model
    )
    fresh, theirs = weights(assembled("seed=9").model), of_step(saved_run, 6)
    assert_bit_equal(
        ours, {name: (fresh if name.startswith("blocks.1.") else theirs)[name] for name in ours}
    )


def test_it_is_done_once(saved_run: Path, new_run: Callable[..., Path]) -> None:
    """A run that has a checkpoint of its own goes on from that; one that was killed before begins
    with the weights again.
    """
    path = new_run(f"checkpoint.init_from={saved_run}")
    assert_fresh(assemble(path))
    assert_fresh(assemble(path))
    assert worker.main([str(path)]) == 0
    (path / "result.json").unlink()
    assert assemble(path).loop.state.step == 6
    assert set(logged(path, "train/loss")) == set(range(1, 7))


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\xff" * 64])
def test_a_file_that_is_no_safetensors(
    tmp_path: Path, new_run: Callable[..., Path], content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(content)
    assert worker.main([str(new_run(f"checkpoint.init_from={file}"))]) == 2
    said = capsys.readouterr().err
    assert f"{file} cannot be read as safetensors: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("option", ["init_from", "resume_from"])
def test_a_source_that_is_gone_does_not_keep_a_run_from_going_on(
    saved_run: Path, new_run: Callable[..., Path], option: str
) -> None:
    """Once it has a checkpoint of its own; before, and with another source, it is refused before
    anything is written.
    """
    path = new_run(f"checkpoint.{option}={saved_run}", "train.max_steps=9")
    gone = saved_run.with_name("gone")
    saved_run.rename(gone)
    with pytest.raises(ConfigError, match=f"checkpoint.{option}"):
        alter(path, metrics__log_interval=2)
    gone.rename(saved_run)
    loop = assemble(path).loop
    loop.end_step = loop.state.step + 1
    loop.run()
    saved_run.rename(gone)
    assert [change.key for change in alter(path, metrics__log_interval=2)] == [
        "metrics.log_interval"
    ]
    assert assemble(path).loop.state.step == loop.end_step
    with pytest.raises(ConfigError, match=f"there is no.*{gone}/nothing"):
        alter(
            path,
            **{f"checkpoint__{option}": f"{gone}/nothing", "run__allow_change": ["checkpoint"]},
        )
