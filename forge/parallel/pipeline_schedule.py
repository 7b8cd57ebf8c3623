"""Training with a pipeline: torch.distributed.pipelining runs the stages; the loss at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from forge.config.parallel import ONE_STAGE_SCHEDULES
from forge.objectives.losses import Losses
from forge.parallel.modules import mix_in
from forge.parallel.pipeline_relay import Line

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv_zero_bubble": ScheduleZBVZeroBubble,
}


class Stage:
    """Mixin of a part of the model: called, it gives hidden states for the next stage."""

    gives: torch.dtype

    def forward(self, x: Tensor, **more: Tensor) -> Tensor:
        """Tokens [batch, seq] or hidden states [batch, seq, dim] -> hidden states."""
        # The class's own method: the instance's is wrapped by FSDP, which would act twice.
        return super().hidden(x, **more).to(self.gives)  # type: ignore[misc]


def make_stage(part: nn.Module, gives: torch.dtype) -> None:
    """Let a part be called as a stage, in place; after FSDP, since FSDP inspects the wrapped
    module.
    """
    mix_in(part, Stage)
    part.gives = gives  # type: ignore[assignment]


class Ending:
    """The loss of a step's micro-batches, on the last stage; its sums are read after the step."""

    def __init__(
        self,
        part: nn.Module,
        batches: Sequence[Any],
        objective: Callable[[Any, Any], Losses],
        weight: float,
    ) -> None:
        self.part, self.batches, self.objective, self.weight = part, batches, objective, weight
        self.total: Tensor | None = None
        self.sums: dict[str, Tensor] = {}

    def __call__(self, hidden: Tensor, number: Tensor) -> Tensor:
        losses = self.objective(Read(self.part, hidden), self.batches[int(number)])
        loss = losses.total * self.weight
        self.total = loss.detach() if self.total is None else self.total + loss.detach()
        for name, value in losses.sums.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        return loss


class Read:
    """The model as an objective sees it, with hidden states of one micro-batch already computed."""

    def __init__(self, part: nn.Module, states: Tensor) -> None:
        self.part, self.states = part, states

    def hidden(self, tokens: Tensor, **read: Any) -> Tensor:
        return self.states

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.part.logits(self.states)  # type: ignore[operator]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)  # the head, and how its rows are spread


def make_schedule(
    line: Line,
    parts: dict[int, nn.Module],
    *,
    tokens: tuple[int, int],
    between: tuple[int, ...],
    after: tuple[int, ...],
    n_microbatches: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Any:
    """torch's schedule over this rank's stages.

    tokens, between, after: shapes of a micro-batch at the entry, between stages, and after the
    last stage. Without shapes torch would run every stage on uninitialised memory.
    """

    def shaped(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)

    first = torch.empty(tokens, dtype=torch.int64, device="meta")
    stages = [
        PipelineStage(
            part,
            stage,
            line.num_stages,
            line.device,
            input_args=first if stage == 0 else shaped(between, line.between),
            output_args=shaped(after if stage == line.last else between, line.gives(stage)),
            group=line.group,
        )
        for stage, part in parts.items()
    ]
    made_of = stages[0] if line.schedule in ONE_STAGE_SCHEDULES else stages
    # scale_grads would divide by the number of micro-batches: our loss is a sum and not a mean.
    schedule: Any = SCHEDULES[line.schedule]
    return schedule(made_of, n_microbatches, loss_fn=loss, scale_grads=False)
