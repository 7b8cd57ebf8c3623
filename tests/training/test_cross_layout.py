"""A run that is stopped goes on in any other layout: the same checkpoint to the bit, the same
batches, the same curve.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from going_on_helpers import take
from run_helpers import assert_bit_equal, logged, meta, step_of, stored

from forge import worker
from forge.data.loader import Step, TrainLoader
from forge.launch.local.processes import free_port
from forge.rundir import saved_config

LAYOUTS = {
    "single": "",
    "fsdp2 x tp2": "parallel.dp_shard=2 parallel.tp=2",
    "fsdp4": "parallel.dp_shard=4",
    "pp2": "parallel.pp=2",
    "cp2": "parallel.cp=2",
    "hsdp 2x2": "parallel.dp_shard=2 parallel.dp_replicate=2",
    "interleaved": "parallel.pp=2 parallel.dp_shard=2 parallel.pp_schedule=interleaved_1f1b",
}
OF_EXPERTS = {
    "ep2 x fsdp2": "parallel.ep=2 parallel.dp_shard=2",
    "ep4": "parallel.ep=4",
    "ep2 x tp2": "parallel.ep=2 parallel.tp=2",
    "pp2 x ep2": "parallel.pp=2 parallel.ep=2",
}
SMALL = """
    model.dim=20 model.n_heads=2 model.n_layers=4 model.ffn_hidden_dim=34 model.vocab_size=301
    model.tie_embeddings=true model.max_seq_len=32 tokenizer.vocab_size=300 train.seq_len=16
    train.batch_size=2 train.global_batch_size=8 scheduler.warmup_steps=3 scheduler.decay_steps=17
    optimizer.lr=0.003 checkpoint.interval=100 eval.enabled=false metrics.enable_console=false
    metrics.log_interval=1 run.device=cpu run.num_threads=1
"""
MOE = """
    model.moe.num_experts=8 model.moe.ffn_hidden_dim=18 model.moe.bias_update_rate=0.01
    model.moe.sequence_aux_loss_weight=0.01
"""
LAST, SEQ = 12, 16
Train = Callable[..., Path]


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    """Let the run of a name go on in a layout, on forked ranks, up to a step; what its ranks read
    is left in its batches/.
    """

    def run(name: str, layout: str, steps: int, *overrides: str) -> Path:
        place = f"run.dir={tmp_path / name} data=text data.path={text_file}"
        chosen = f"{SMALL} {(LAYOUTS | OF_EXPERTS)[layout]} train.max_steps={steps} {place}"
        path, _ = take(*" ".join([chosen, *overrides]).split())
        (path / "batches").mkdir(exist_ok=True)
        parallel, port = saved_config.load_own(path).parallel, str(free_port())
        world = parallel.product_without_dp_shard * parallel.dp_shard
        where = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        fork = multiprocessing.get_context("fork").Process
        ranks = [fork(target=rank_of, args=(path, rank, where)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(90)
        codes = [process.exitcode for process in ranks]
        for process in ranks:
            process.kill()
        error = path / "error.json"
        assert codes == [0] * world, (layout, codes, error.exists() and error.read_text())
        return path

    return run


def rank_of(path: Path, rank: int, environ: dict[str, str]):
    """One rank: the worker of a run, which leaves the rows of tokens that it reads in each step."""
    os.environ.update(environ, RANK=str(rank), LOCAL_RANK=str(rank))
    read = TrainLoader.__next__

    def noted(loader: TrainLoader) -> Step:
        number = loader.samples // loader.sizes.last + 1
        step = read(loader)
        pairs = [
            (batch["tokens"].numpy(), batch["targets"].numpy()[:, -1:]) for batch in step.batches
        ]
        rows = np.stack([np.concatenate(pair, axis=1) for pair in pairs])
        np.save(path / "batches" / f"{number}_{loader._dataset.rank}.npy", rows)
        return step

    TrainLoader.__next__ = noted
    os._exit(worker.main([str(path)]))


def rows_of_step(path: Path, number: int) -> np.ndarray:
    """The global batch of a step in its order: [sequences, tokens]; ranks that read the same rows
    have written the same file.
    """
    files = (path / "batches").glob(f"{number}_*.npy")
    ordered = sorted(files, key=lambda file: int(file.stem.partition("_")[2]))
    return np.concatenate([np.load(file) for file in ordered], axis=1).reshape(-1, SEQ + 1)


STOPS = (("fsdp2 x tp2", 3), ("single", 5), ("fsdp4", 7), ("pp2", 9), ("fsdp2 x tp2", LAST))
"""Where the travelling run is stopped: out, over every kind of layout, and back."""
STOPS_OF_EXPERTS = (
    ("ep2 x fsdp2", 3),
    ("single", 5),
    ("ep4", 7),
    ("pp2 x ep2", 9),
    ("ep2 x tp2", 11),
    ("ep2 x fsdp2", LAST),
)


@pytest.mark.parametrize(
    ("model", "stops"),
    [("", STOPS), pytest.param(MOE, STOPS_OF_EXPERTS, marks=pytest.mark.nightly)],
    ids=["dense", "experts"],
)
def test_a_run_that_changes_its_layout_at_every_stop_equals_one_that_never_stops(
    train, model, stops
):
    whole = train("whole", "single", LAST, model)
    for layout, step in stops:
        path = train("travelling", layout, step, model)
    for key, bound in (("train/loss", 1e-6), ("train/grad_norm", 1e-5), ("lr", 0)):
        expected, found = logged(whole, key), logged(path, key)
        assert list(found) == list(expected) == list(range(1, LAST + 1))
        for step, value in expected.items():
            assert abs(found[step] - value) <= bound * abs(value), (key, step)
    batches = [rows_of_step(whole, number) for number in range(1, LAST + 1)]
    for number, expected in enumerate(batches, start=1):
        assert expected.shape == (8, SEQ + 1)
        assert np.array_equal(rows_of_step(path, number), expected), number
    assert len({batch.tobytes() for batch in batches}) == LAST


@pytest.mark.parametrize(
    ("source", "model"),
    [
        pytest.param("fsdp2 x tp2", "", marks=pytest.mark.nightly),
        pytest.param("pp2", "", marks=pytest.mark.nightly),
        ("ep2 x fsdp2", MOE),
    ],
    ids=["fsdp2 x tp2", "pp2", "ep2 x fsdp2"],
)
def test_a_checkpoint_is_the_same_on_every_layout(train, source, model):
    """Loaded on another layout and saved again at once, it has every name and bit of weights,
    optimizer and data state.
    """
    original = step_of(train("first", source, 3, model), 3)
    theirs, expected = meta(original), stored(original)
    layouts = ["single", "hsdp 2x2", *OF_EXPERTS] if model else LAYOUTS
    for number, layout in enumerate(layout for layout in layouts if layout != source):
        path = train(f"copy_{number}", layout, 3, f"checkpoint.resume_from={original}", model)
        assert_bit_equal(stored(step_of(path, 3)), expected)
        ours = meta(step_of(path, 3))
        assert all(ours[key] == theirs[key] for key in ("train", "data", "step"))
    assert {name.partition("/")[0] for name in expected} == {"model", "optimizer"}
    assert any(name.endswith("selection_bias") for name in expected) == bool(model)
