"""One side of a parity check: some updates of SGD through the path of training, recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forge.config.root import Config
from forge.data.batches.mixture import Mixture
from forge.data.batches.streams import Streamed
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.store import TokenStore
from forge.objectives.objective import Objective
from forge.parallel.gather import Tensors, gather_on_main
from forge.parallel.ranks import Ranks
from forge.training.models import build_model, build_objective
from forge.training.process import loss_scaler
from forge.training.references import add_references
from forge.training.step import Update
from forge.training.step_source import step_source

LR = 0.1
FILE = "record.pt"


@dataclass(kw_only=True)
class Record:
    """A side's results in each step, and its weights before and after all steps.

    Whole tensors on the CPU by name; None for a gradient absent on a rank. state: the buffers of
    checkpoints, after the last step. replicas: names of tensors with different bits in copies on
    several ranks. frozen: untrained parameters.
    """

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    gradients: list[Tensors] = field(default_factory=list)
    before: Tensors = field(default_factory=dict)
    after: Tensors = field(default_factory=dict)
    state: Tensors = field(default_factory=dict)
    replicas: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        torch.save(vars(self), folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> Record:
        return cls(**torch.load(folder / FILE))


def measure(
    config: Config,
    ranks: Ranks,
    text: TokenStore | Streamed | Mixture,
    *,
    dtype: torch.dtype,
    steps: int = 5,
    lr: float = LR,
    device: torch.device | None = None,
    tokenizer: Tokenizer | None = None,
) -> Record:
    """Record `steps` updates of plain SGD on the run's first batches.

    All ranks call `measure`; the main rank gets the record. dtype: of the whole computation.
    tokenizer: of the store, where the objective needs a tokenizer.
    """
    device = device or torch.device("cpu")
    model = build_model(config, device, ranks, dtype)
    objective = build_objective(config, device, ranks, tokenizer=tokenizer, dtype=dtype)
    texts = [(store, None) for store in Mixture.of(text).stores.values()]
    add_references(objective, config, texts, device, ranks, tokenizer=tokenizer, dtype=dtype)
    update = _plain_sgd(config, model, objective, ranks, device, lr)
    data: Any = {"tokenizer": tokenizer, "run_dir": None}
    loader = step_source(config, text, model, objective, ranks, device, **data)
    of_ranks = ranks.of_all([name for name, p in model.named_parameters() if not p.requires_grad])
    frozen = sorted({name for names in of_ranks for name in names})
    record = Record(before=gather_on_main(model.named_parameters(), ranks).tensors, frozen=frozen)
    for number, step in zip(range(steps), loader, strict=False):
        output = update.gradients(step, number)
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        gradients = ((name, parameter.grad) for name, parameter in trained)
        gathered = gather_on_main(gradients, ranks)
        record.gradients.append(gathered.tensors)
        step_text = f"in step {number + 1}"
        record.replicas += [f"the gradient of {name} {step_text}" for name in gathered.differing]
        update.apply(output, number)
        record.losses.append(float(output.loss))
        record.grad_norms.append(float(output.grad_norm))
    _record_end(record, model, ranks, steps)
    return record if ranks.main else Record()


def _plain_sgd(
    config: Config,
    model: nn.Module,
    objective: Objective,
    ranks: Ranks,
    device: torch.device,
    lr: float,
) -> Update:
    """The updates of a run, by SGD at a constant rate."""
    return Update(
        model=model,
        objective=objective,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        schedule=lambda _: 1.0,
        device=device,
        scaler=loss_scaler(config.precision, device),
        clip_norm=config.train.grad_clip_norm,
        clip_value=config.train.grad_clip_value,
        ranks=ranks,
        reduce_each=config.parallel.reduce_gradients == "micro_batch",
    )


def _record_end(record: Record, model: nn.Module, ranks: Ranks, steps: int) -> None:
    """Record weights and buffers after the last step."""
    parameters = dict(model.named_parameters())
    buffers = [(name, x) for name, x in model.state_dict().items() if name not in parameters]
    final_weights, state = (
        gather_on_main(model.named_parameters(), ranks),
        gather_on_main(buffers, ranks),
    )
    record.after, record.state = final_weights.tensors, state.tensors
    record.replicas += [
        f"{name} after {steps} steps" for name in [*final_weights.differing, *state.differing]
    ]
