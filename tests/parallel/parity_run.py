"""How a layout of the parity matrix is measured: on forked ranks, in each number format, against
one device.
"""

from __future__ import annotations

import functools
import json
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from choices import recorded
from parity_cases import Case, overrides_of
from ranks import on_ranks
from torch import Tensor

from forge.compose import composition
from forge.config.problems import ConfigError
from forge.config.root import Config
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.parity.side import Record, measure
from forge.parity.verdict import BOUNDS, compare, may_vanish, table
from forge.resolve.rules.degrees import pp_torch
from forge.training.whole import Found

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
    return composition.config(overrides_of(model, layout)).validate().config


@functools.cache
def on_one_device(model: str, dtype: torch.dtype) -> tuple[Record, Tensor | None]:
    """What every layout of this model must equal, and the experts that it chooses."""
    return record_of(config_of(model), Ranks(), dtype)


def record_of(config: Config, ranks: Ranks, dtype: torch.dtype) -> tuple[Record, Tensor | None]:
    """One side of a comparison; the choices of experts where there are any that can be seen."""
    with (
        recorded()
        if config.model.is_moe and not config.train.compile_model
        else nullcontext() as calls
    ):
        record = measure(config, ranks, Tokens(), dtype=dtype, steps=STEPS[dtype], lr=LR)  # type: ignore[arg-type]
    return record, None if calls is None else calls.counts(config, ranks, Tokens(), STEPS[dtype])


def skip_what_torch_cannot(error: ConfigError) -> None:
    """Skip the test of a layout that is refused on the torch that is installed, and not on newer
    ones.
    """
    said = [problem.what for problem in error.problems if problem.rule == pp_torch.id]
    if len(said) == len(error.problems):
        pytest.skip(said[0])


def world_of(config: Config) -> int:
    """Ranks of a layout."""
    return config.parallel.product_without_dp_shard * config.parallel.dp_shard


def this_rank(config: Config) -> Ranks:
    """The ranks that `on_ranks` has joined, laid out; one in fp32 alone, and one in 16 bits as
    `forge.parallel.ranks.join` has it.
    """
    if dist.get_world_size() == 1:
        return (
            Ranks()
            if config.precision.mixed_precision == "fp32"
            else Ranks(mesh=make_mesh(config.parallel, "cpu"))
        )
    host = dist.new_group()
    assert isinstance(host, dist.ProcessGroup)
    return Ranks(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        mesh=make_mesh(config.parallel, "cpu"),
        host=host,
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How far a layout is from one device in one number format; no faults: within the bounds.

    same_state: whether buffers, selection biases that is, are equal to the bit. same_choices:
    whether every token went to the same experts; null where that is not seen.
    """

    dtype: str
    loss: float
    gradient: float
    weights: float
    faults: list[str]
    shown: str
    same_state: bool
    same_choices: bool | None


def outcomes(case: Case) -> list[Outcome]:
    """Measure a layout in every number format, on the same forked ranks, and compare it with one
    device.
    """
    references = {dtype: on_one_device(case.model, dtype) for dtype in STEPS}
    try:
        config = config_of(case.model, case.layout)
    except ConfigError as error:
        skip_what_torch_cannot(error)
        raise
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes.json"

        def work(rank: int) -> None:
            ranks, found = this_rank(config), []
            for dtype, (reference, wanted) in references.items():
                record, choices = record_of(config, ranks, dtype)
                if rank == 0:
                    verdict = compare(
                        reference, record, BOUNDS[dtype], may_vanish=may_vanish(config)
                    )
                    loss, gradient, weights = verdict.largest()
                    found.append(
                        Outcome(
                            dtype=str(dtype).removeprefix("torch."),
                            loss=loss,
                            gradient=gradient,
                            weights=weights,
                            faults=verdict.faults,
                            shown=f"{dtype}\n{table(verdict, BOUNDS[dtype])}",
                            same_state=all(
                                torch.equal(value, record.state[name])
                                for name, value in reference.state.items()
                            ),  # type: ignore[arg-type]
                            same_choices=None
                            if choices is None or wanted is None
                            else torch.equal(choices, wanted),
                        )
                    )
            if rank == 0:
                file.write_text(json.dumps([asdict(outcome) for outcome in found]))

        on_ranks(world_of(config), work)
        return [Outcome(**outcome) for outcome in json.loads(file.read_text())]


class Distance(NamedTuple):
    """How far training in bf16 is from fp32 on one device: losses, and all gradients and weights,
    ||a - b|| / ||b||, of all steps.
    """

    loss: float
    gradient: float
    weights: float


@functools.cache
def distance_in_bf16(model: str, layout: str) -> Distance:
    """Measured on forked ranks, one where the layout has one."""
    config = config_of(model, f"precision=bf16 {layout}")
    exact, _ = on_one_device(model, torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "distance.json"

        def work(rank: int) -> None:
            record, _ = record_of(config, this_rank(config), torch.float32)
            if rank == 0:
                loss = max(abs(a - b) / b for a, b in zip(record.losses, exact.losses, strict=True))
                gradient = _apart(record.gradients, exact.gradients)
                file.write_text(json.dumps([loss, gradient, _apart([record.after], [exact.after])]))

        on_ranks(world_of(config), work)
        return Distance(*json.loads(file.read_text()))


def _apart(found: list[Found], exact: list[Found]) -> float:
    pairs = [(a[name], b[name]) for a, b in zip(found, exact, strict=True) for name in b]
    both = [(a.double(), b.double()) for a, b in pairs if a is not None and b is not None]
    assert len(both) == len(pairs), "a gradient is missing"
    return float(
        (
            sum((a - b).square().sum() for a, b in both) / sum(b.square().sum() for _, b in both)
        ).sqrt()
    )  # type: ignore[union-attr]
