"""Runs on forked ranks that continue in another layout."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from helpers.going_on_helpers import take
from helpers.ranks import forking, in_fork

from forge import worker
from forge.data.batches.loader import Step, TrainLoader
from forge.launch.local.processes import free_port
from forge.rundir import saved_config

LAYOUTS = {
    "single": "",
    "fsdp2 x tp2": "parallel.dp_shard=2 parallel.tp=2",
    "fsdp2": "parallel.dp_shard=2",
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
APART = {
    "replicas2": "parallel.dp_shard=1 parallel.dp_replicate=2",
    "replicas2 x fsdp2": "parallel.dp_shard=2 parallel.dp_replicate=2",
    "replicas2 x tp2": "parallel.dp_shard=1 parallel.tp=2 parallel.dp_replicate=2",
}
SMALL = """
    model.dim=20 model.n_heads=2 model.n_layers=4 model.ffn_hidden_dim=34 model.vocab_size=301
    model.tie_embeddings=true model.max_seq_len=32 tokenizer.vocab_size=300 train.seq_len=16
    train.batch_size=2 train.global_batch_size=8 scheduler.warmup_steps=3 scheduler.decay_steps=17
    optimizer.lr=0.003 checkpoint.interval=100 eval.enabled=false metrics.enable_console=false
    metrics.log_interval=1 run.device=cpu run.num_threads=1
"""
Train = Callable[..., Path]


def trains(folder: Path, text_file: Path) -> Train:
    """Let the run of a name continue in a layout, on forked ranks, up to a step; what its ranks
    read is left in its batches/.
    """

    def run(name: str, layout: str, steps: int, *overrides: str) -> Path:
        place = f"run.dir={folder / name} data=text data.path={text_file}"
        chosen = f"{SMALL} {(LAYOUTS | OF_EXPERTS | APART)[layout]} train.max_steps={steps} {place}"
        path, _ = take(*" ".join([chosen, *overrides]).split())
        (path / "batches").mkdir(exist_ok=True)
        parallel, port = saved_config.load_own(path).parallel, str(free_port())
        world = parallel.product_without_dp_shard * parallel.dp_shard
        where = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        fork = multiprocessing.get_context("fork").Process
        ranks = [fork(target=rank_of, args=(path, rank, where)) for rank in range(world)]
        with forking():
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
    in_fork()
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

    TrainLoader.__next__ = noted  # type: ignore[method-assign]
    os._exit(worker.main([str(path)]))
