"""Small runs in this process: a text, a tiny model, and the global settings of torch put back."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.tiny import TWO_LAYERS
from run_helpers import built

from forge import cli, worker
from forge.config.parallel import Parallel
from forge.parallel.mesh import Mesh, make_mesh
from forge.rundir import directory
from forge.rundir.saved_config import newest, stored_trust
from forge.training.loop import Loop


@pytest.fixture
def mesh_of_one() -> Iterator[Mesh]:
    """This process as the one rank of a run in 16 bits."""
    if dist.is_initialized():  # by a run in this process that failed
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield make_mesh(Parallel(dp_shard=1), "cpu")
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def torch_settings():
    """What a run sets for its process is put back."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)


@pytest.fixture
def new_run(tmp_path: Path, text_file: Path) -> Callable[..., Path]:
    """The run directory of a small model with overrides, several in a text, as forge.train makes
    it; nothing runs yet.
    """

    def make(*overrides: str) -> Path:
        more = [one for text in overrides for one in shlex.split(text)]
        own = any(one.startswith("data=") for one in more)
        data = [] if own else ["data=text", f"data.path={text_file}"]
        data += [f"run.root={tmp_path / 'runs'}", "run.inline=true"]
        composition, resolution = cli.resolved([*data, *TWO_LAYERS, *more])
        return directory.create(resolution, overrides=composition.overrides)[0]

    return make


@pytest.fixture
def saved_run(tiny_run: Path) -> Path:
    """A run with checkpoints of steps 2, 4 and 6, as if it had been killed then."""
    (tiny_run / "result.json").unlink()
    return tiny_run


@pytest.fixture
def assembled(new_run) -> Callable[..., Loop]:
    """The parts of a run, ready to run."""
    return lambda *overrides: built(new_run(*overrides))


@pytest.fixture
def trained(new_run) -> Callable[..., Path]:
    """The directory of a run that the worker has finished in this process, without an error."""

    def run(*overrides: str) -> Path:
        path = new_run(*overrides)
        assert worker.main([str(path), *stored_trust(newest(path))]) == 0
        return path

    return run
