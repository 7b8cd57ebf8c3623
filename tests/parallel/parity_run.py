"""How a layout of the parity matrix is measured: on forked ranks, against one device."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from choices import recorded
from helpers.ranks import on_ranks
from parity_cases import Case
from parity_models import TOKENIZER, overrides_of
from torch import Tensor

from forge.compose import composition
from forge.config.objectives.base import SFT
from forge.config.problems import ConfigError
from forge.config.root import Config
from forge.parallel.gather import Tensors
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.parity.side import Record, measure
from forge.parity.verdict import BOUNDS, compare_records, may_vanish, verdict_table
from forge.resolve.rules.degrees import pp_torch

LR = 0.1
STEPS = {torch.float64: 5, torch.float32: 3}
FORMATS = ("float64", "float32")


class Tokens:
    """A split of token ids that are drawn once and kept in memory."""

    counted: Any = None

    def __init__(
        self, rows: int = 4096, vocab: int = 301, *, documents: bool = False, marked: bool = False
    ) -> None:
        """documents: whether some tokens end one, six in a sequence of 16 tokens at times. marked:
        whether only some count.
        """
        draw = np.random.default_rng(0)
        self.ids = draw.integers(vocab, size=rows)
        if documents:
            self.ids[draw.random(rows) < 0.15] = TOKENIZER.eos_id
        if marked:
            self.counted = Tokens(rows, vocab=2)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop)."""
        return self.ids[start:stop]


def config_of(model: str, layout: str = "") -> Config:
    """The resolved config of one side; skips the test if only the installed torch refuses it."""
    try:
        return composition.config(overrides_of(model, layout)).validate().config
    except ConfigError as error:
        said = [problem.what for problem in error.problems if problem.rule == pp_torch.id]
        if len(said) == len(error.problems):
            pytest.skip(said[0])
        raise


@functools.cache
def on_one_device(model: str, dtype: torch.dtype) -> tuple[Record, Tensor | None]:
    """What every layout of this model must equal, and the experts that it chooses."""
    return record_of(config_of(model), Ranks(), dtype)


def record_of(config: Config, ranks: Ranks, dtype: torch.dtype) -> tuple[Record, Tensor | None]:
    """One side of a comparison; the choices of experts where there are any that can be seen."""
    seen = config.model.is_moe and not config.train.compile_model
    with recorded() if seen else nullcontext() as calls:
        steps = STEPS[dtype]
        marked = isinstance(config.objective, SFT)
        tokens: Any = Tokens(documents=config.data.pack_sequences, marked=marked)
        how: dict[str, Any] = {"dtype": dtype, "steps": steps, "lr": LR, "tokenizer": TOKENIZER}
        record = measure(config, ranks, tokens, **how)
    return record, None if calls is None else calls.counts(config, ranks, tokens, STEPS[dtype])


def world_of(config: Config) -> int:
    """Ranks of a layout."""
    return config.parallel.product_without_dp_shard * config.parallel.dp_shard


def this_rank(config: Config) -> Ranks:
    """The rank that `on_ranks` has made, as `forge.parallel.join.join_ranks` would give it."""
    if dist.get_world_size() == 1:
        if config.precision.mixed_precision == "fp32":
            return Ranks()
        return Ranks(mesh=make_mesh(config.parallel, "cpu"))
    host, mesh = dist.new_group(), make_mesh(config.parallel, "cpu")
    assert isinstance(host, dist.ProcessGroup)
    return Ranks(rank=dist.get_rank(), size=dist.get_world_size(), mesh=mesh, host=host)


def main_ranks(config: Config, work: Callable[[Ranks], Any]) -> Any:
    """What work gives on the main one of forked ranks, as JSON has it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"

        def run(rank: int) -> None:
            result = work(this_rank(config))
            if rank == 0:
                file.write_text(json.dumps(result))

        on_ranks(world_of(config), run)
        return json.loads(file.read_text())


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How far a layout is from one device in one number format; no faults: within the bounds.

    same_state: whether buffers (selection biases) are equal to the bit. same_choices: whether every
    token went to the same experts; null where that is not seen.
    """

    dtype: str
    loss: float
    gradient: float
    weights: float
    faults: list[str]
    shown: str
    same_state: bool
    same_choices: bool | None


def outcomes(case: Case, formats: tuple[str, ...] = FORMATS) -> list[Outcome]:
    """A layout compared with one device in these number formats, on the same forked ranks."""
    dtypes = [getattr(torch, name) for name in formats]
    config = config_of(case.model, case.layout)
    references = {dtype: on_one_device(case.model, dtype) for dtype in dtypes}

    def work(ranks: Ranks) -> list[dict[str, Any]]:
        sides = {dtype: record_of(config, ranks, dtype) for dtype in dtypes}
        if not ranks.main:
            return []
        return [
            asdict(_compared(config, dtype, references[dtype], sides[dtype])) for dtype in dtypes
        ]

    return [Outcome(**outcome) for outcome in main_ranks(config, work)]


def _compared(
    config: Config,
    dtype: torch.dtype,
    one: tuple[Record, Tensor | None],
    many: tuple[Record, Tensor | None],
) -> Outcome:
    (reference, wanted), (record, choices) = one, many
    verdict = compare_records(reference, record, BOUNDS[dtype], may_vanish=may_vanish(config))
    loss, gradient, weights = verdict.largest()
    state = [(value, record.state[name]) for name, value in reference.state.items()]
    seen = choices is not None and wanted is not None
    return Outcome(
        dtype=str(dtype).removeprefix("torch."),
        loss=loss,
        gradient=gradient,
        weights=weights,
        faults=verdict.faults,
        shown=f"{dtype}\n{verdict_table(verdict, BOUNDS[dtype])}",
        same_state=all(torch.equal(a, b) for a, b in state),  # type: ignore[arg-type]
        same_choices=torch.equal(choices, wanted) if seen else None,
    )


class Distance(NamedTuple):
    """How far training in bf16 is from fp32 on one device: ||a - b|| / ||b||, over all steps."""

    loss: float
    gradient: float
    weights: float


@functools.cache
def distance_in_bf16(model: str, layout: str) -> Distance:
    """Measured on forked ranks, one where the layout has one."""
    config = config_of(model, f"precision=bf16 {layout}")
    exact, _ = on_one_device(model, torch.float32)

    def work(ranks: Ranks) -> list[float]:
        record, _ = record_of(config, ranks, torch.float32)
        if not ranks.main:
            return []
        loss = max(abs(a - b) / b for a, b in zip(record.losses, exact.losses, strict=True))
        gradient = _distance(record.gradients, exact.gradients)
        return [loss, gradient, _distance([record.after], [exact.after])]

    return Distance(*main_ranks(config, work))


def _distance(found: list[Tensors], exact: list[Tensors]) -> float:
    pairs = [(a[name], b[name]) for a, b in zip(found, exact, strict=True) for name in b]
    both = [(a.double(), b.double()) for a, b in pairs if a is not None and b is not None]
    assert len(both) == len(pairs), "a gradient is missing"
    difference = sum(float((a - b).square().sum()) for a, b in both)
    return (difference / sum(float(b.square().sum()) for _, b in both)) ** 0.5
