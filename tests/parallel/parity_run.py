"""How a layout of the parity matrix is measured: on forked ranks, in each number format, against one device."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from parity_cases import Case, overrides_of
from ranks import on_ranks

from forge.config import compose
from forge.config.root import Config
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.training.parity import Record, measure
from forge.training.parity_verdict import BOUNDS, compare, may_vanish, table

LR = 0.1
STEPS = {torch.float64: 5, torch.float32: 3}


class Tokens:
    """A split of token ids that are drawn once and kept in memory."""

    def __init__(self, rows: int = 4096, vocab: int = 301) -> None:
        self.ids = np.random.default_rng(0).integers(vocab, size=rows)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop)."""
        return self.ids[start:stop]


def config_of(model: str, layout: str = "") -> Config:
    """The resolved config of one side."""
    return compose.config(overrides_of(model, layout)).validate().config


@functools.cache
def on_one_device(model: str, dtype: torch.dtype) -> Record:
    """What every layout of this model must equal."""
    return measure(config_of(model), Ranks(), Tokens(), dtype=dtype, steps=STEPS[dtype], lr=LR)  # type: ignore[arg-type]


def world_of(config: Config) -> int:
    """Ranks of a layout."""
    return config.parallel.product_without_dp_shard * config.parallel.dp_shard


def this_rank(config: Config) -> Ranks:
    """The ranks that `on_ranks` has joined, laid out; alone where there is one."""
    if dist.get_world_size() == 1:
        return Ranks()
    host = dist.new_group()
    assert isinstance(host, dist.ProcessGroup)
    return Ranks(rank=dist.get_rank(), size=dist.get_world_size(), mesh=make_mesh(config.parallel, "cpu"), host=host)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How far a layout is from one device in one number format; no faults: within the bounds."""

    dtype: str
    loss: float
    gradient: float
    weights: float
    faults: list[str]
    shown: str


def outcomes(case: Case) -> list[Outcome]:
    """Measure a layout in every number format, on the same forked ranks, and compare it with one device."""
    references = {dtype: on_one_device(case.model, dtype) for dtype in STEPS}
    config = config_of(case.model, case.layout)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"

        def work(rank: int) -> None:
            ranks, found = this_rank(config), []
            for dtype, reference in references.items():
                record = measure(config, ranks, Tokens(), dtype=dtype, steps=STEPS[dtype], lr=LR)  # type: ignore[arg-type]
                if rank == 0:
                    verdict = compare(reference, record, BOUNDS[dtype], may_vanish=may_vanish(config))
                    loss, gradient, weights = verdict.largest()
                    name, shown = str(dtype).removeprefix("torch."), table(verdict, BOUNDS[dtype])
                    found.append(
                        Outcome(dtype=name, loss=loss, gradient=gradient, weights=weights, faults=verdict.faults, shown=f"{name}\n{shown}")
                    )
            if rank == 0:
                file.write_text(json.dumps([asdict(outcome) for outcome in found]))

        on_ranks(world_of(config), work)
        return [Outcome(**outcome) for outcome in json.loads(file.read_text())]
