"""Checkpoints: what is in them, which are kept, which are taken, and what is refused with which
words.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_helpers import assert_bit_equal, meta, stored, weights

from forge import worker
from forge.rundir import checkpoints
from forge.rundir.checkpoints import CheckpointError
from forge.training.assemble import Parts
from forge.training.restore import load, load_run
from forge.training.state import TrainState


def find(path: Path) -> Path:
    return checkpoints.find(path)[0].path


def steps(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def optimizer_state(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module
) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value
        for name, p in model.named_parameters()
        for key, value in optimizer.state[p].items()
    }


def test_weights_and_optimizer_state_come_back_bit_for_bit(assembled: Callable[..., Parts]) -> None:
    parts = assembled()
    parts.loop.run()
    path = Path(parts.config.run.dir or "") / "checkpoints" / "step_6"
    other = assembled("seed=1")
    assert load(path, model=other.model, optimizer=other.loop.update.optimizer) == {}
    assert meta(path)["train"] == TrainState(step=6, samples=24, tokens=384).state_dict()
    assert_bit_equal(weights(other.model), weights(parts.model))
    ours, theirs = (optimizer_state(p.loop.update.optimizer, p.model) for p in (other, parts))
    assert {key.rpartition("/")[2] for key in ours} == {"step", "exp_avg", "exp_avg_sq"}
    assert_bit_equal(ours, theirs)
    assert all(value.item() == 6 for key, value in ours.items() if key.endswith("/step"))
    by_name = {f"model/{name}": p.detach() for name, p in parts.model.named_parameters()} | {
        f"optimizer/{k}": v for k, v in theirs.items()
    }
    assert_bit_equal(stored(path), by_name)  # under the names of parameters, and nothing else


@pytest.mark.parametrize(("keep", "left"), [(0, "2 4 6 8"), (1, "8"), (3, "4 6 8")])
def test_keep_last_n(trained: Callable[..., Path], keep: int, left: str) -> None:
    path = trained(
        "train.max_steps=8",
        "checkpoint.interval=2",
        f"checkpoint.keep_last_n={keep}",
        "checkpoint.async_mode=async",
    )
    assert steps(path) == [f"step_{n}" for n in left.split()]


def test_exclude_from_loading_keeps_fresh_weights_and_optimizer_state(
    trained: Callable[..., Path], assembled: Callable[..., Parts]
) -> None:
    source = trained("model.tie_embeddings=false")
    options = (
        "model.tie_embeddings=false",
        "seed=3",
        "train.max_steps=8",
        f"checkpoint.resume_from={source}",
    )
    parts, fresh = (
        assembled(*options, "checkpoint.exclude_from_loading=[output,blocks.1.]"),
        assembled(*options[:2]),
    )
    there, here, new = (
        stored(source / "checkpoints" / "step_6"),
        weights(parts.model),
        weights(fresh.model),
    )
    excluded = {name for name in here if name.startswith(("output", "blocks.1."))}
    assert len(excluded) == 10
    for name, value in here.items():
        assert torch.equal(value, new[name] if name in excluded else there[f"model/{name}"])
    state = parts.loop.update.optimizer.state
    assert {name for name, p in parts.model.named_parameters() if state[p]} == set(here) - excluded
    parts.loop.run()
    ages = {name: int(state[p]["step"].item()) for name, p in parts.model.named_parameters()}
    assert ages == {name: 2 if name in excluded else 8 for name in here}


def test_an_exclusion_that_fits_nothing_is_refused(
    trained: Callable[..., Path], assembled: Callable[..., Parts]
) -> None:
    source = trained()
    with pytest.raises(
        CheckpointError,
        match=r"checkpoint.exclude_from_loading: no parameter of this model begins with 'ouput'",
    ):
        assembled(f"checkpoint.resume_from={source}", "checkpoint.exclude_from_loading=[ouput]")


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (
            ("model.ffn_hidden_dim=48",),
            [
                "blocks.0.feed_forward.w_gate.weight is (32, 16) there and (48, 16) here",
                "and 1 more",
            ],
        ),
        (("model.n_layers=3",), ["blocks.2.attention_norm.weight is missing there"]),
        (("model.n_layers=1",), ["blocks.1.attention.wk.weight is missing here"]),
        (("model.tie_embeddings=false",), ["output.weight is missing there"]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_another_model_is_refused_with_the_names(
    trained: Callable[..., Path],
    assembled: Callable[..., Parts],
    options: tuple[str, ...],
    faults: list[str],
) -> None:
    source = trained()
    with pytest.raises(CheckpointError) as raised:
        assembled(f"checkpoint.resume_from={source}", *options)
    for fault in faults:
        assert fault in str(raised.value)
    assert str(raised.value).endswith(
        "Choose the model it was trained with, or checkpoint.exclude_from_loading"
    )


def the_weights(path: Path) -> Path:
    return path / "weights" / "rank_0.bin"


def the_index(path: Path) -> Path:
    return path / "weights" / "tensors.json"


def empty_index(path: Path) -> None:
    the_index(path).write_bytes(b"")


def scramble_index(path: Path) -> None:
    the_index(path).write_bytes(b"\x00" * the_index(path).stat().st_size)


def scramble_config(path: Path) -> None:
    (path / "config.yaml").write_bytes(
        b"{[" * 5 + b" " * ((path / "config.yaml").stat().st_size - 10)
    )


def overwrite_weights(path: Path) -> None:
    the_weights(path).write_bytes(b"\x00" * the_weights(path).stat().st_size)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            empty_index,
            (
                r"cannot be used: it is torn: weights/tensors.json has 0 bytes "
                r"of \d+; take another checkpoint"
            ),
        ),
        *[
            (damage, r"step_6 cannot be read \(\w+: .+\); take another checkpoint")
            for damage in (scramble_index, overwrite_weights)
        ],
        (
            scramble_config,
            r"step_6/config.yaml cannot be read \(ParserError: .+\); take another checkpoint",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_checkpoint_is_refused(
    trained: Callable[..., Path],
    assembled: Callable[..., Parts],
    new_run: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    message: str,
) -> None:
    path = trained() / "checkpoints" / "step_6"
    damage(path)
    with pytest.raises(CheckpointError) as raised:
        assembled(f"checkpoint.resume_from={path}")
    assert re.search(message, str(raised.value))
    assert "\n" not in str(raised.value)
    assert worker.main([str(new_run(f"checkpoint.resume_from={path}"))]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_checkpoint_needs_nothing_of_its_run(
    trained: Callable[..., Path], tmp_path: Path
) -> None:
    run = trained()
    shutil.copytree(run / "checkpoints" / "step_6", tmp_path / "moved")
    expected = weights(load_run(run).model)
    shutil.rmtree(run)
    assert_bit_equal(weights(load_run(tmp_path / "moved").model), expected)
