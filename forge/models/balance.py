"""All mixtures of experts over a step: scale of the losses, load, and bias."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.contract import StepReport
from forge.models.mixers.indexer import Indexing, number_of_losses
from forge.models.moe import mixtures_of
from forge.models.routing_record import SUMS
from forge.tensors.wide import widest


class Balanced:
    """A model with a balance of experts, or indexers that learn, over all layers of this rank in
    each step.
    """

    @cached_property
    def balance(self) -> Balance:
        """The balance of the layers present at the first step."""
        assert isinstance(self, nn.Module)
        return Balance(self)

    @cached_property
    def indexing(self) -> Indexing:
        """The indexers of the layers present at the first step."""
        assert isinstance(self, nn.Module)
        return Indexing(self)

    def begin_step(self, scale: Tensor | float) -> None:
        self.balance.begin_step(scale)
        self.indexing.begin_step(scale)

    def end_of_step(
        self, done: float, *, skipped: Tensor, total: Callable[[Tensor], Tensor]
    ) -> StepReport:
        of_experts = self.balance.end_of_step(done, skipped=skipped, total=total)
        of_indexers = self.indexing.end_of_step(device=skipped.device, total=total)
        return StepReport(of_experts.sums | of_indexers.sums, of_experts.means)


def has_steps(section: DecoderConfig) -> bool:
    """Whether a model of this section is to be `Balanced`."""
    return section.is_moe or number_of_losses(section) > 0


class Balance:
    """The `forge.models.contract.InStep` of all layers with experts of a model.

    The report has sums over tokens, the auxiliary losses without coefficients, and means over the
    layers: load_max and load_min, of the busiest and the idlest expert over the even load; entropy
    of a token's shares, in nats; dropped, share of the assignments; bias, from lowest to highest.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = mixtures_of(model)
        section = getattr(model, "section", None)
        self.section = section if isinstance(section, DecoderConfig) and section.is_moe else None
        assert self.section is not None or not self.layers, "a model with experts has a `section`"
        self.numbers = torch.tensor([layer.number for layer in self.layers], dtype=torch.int64)

    def begin_step(self, scale: Tensor | float) -> None:
        if self.layers:
            buffers = [buffer for layer in self.layers for buffer in layer.record.buffers()]
            torch._foreach_zero_(buffers)  # type: ignore[attr-defined]
            # All layers of a decoder are spread alike, so the first one's summands are everyone's.
            scales = [layer.record.scale for layer in self.layers]
            share = scale / self.layers[0].summands
            if isinstance(share, Tensor):  # CUDA would wait for a single tensor
                share = [share] * len(scales)
            torch._foreach_add_(scales, share)  # type: ignore[attr-defined]

    @torch.no_grad()
    def end_of_step(
        self, done: float, *, skipped: Tensor, total: Callable[[Tensor], Tensor] = lambda x: x
    ) -> StepReport:
        """Report the step, and move the selection biases unless the update was skipped."""
        if self.section is None:
            return StepReport({}, {})
        section, n_layers = self.section.moe, self.section.n_mixtures
        records = total(self._records(n_layers, section.num_experts, skipped.device))
        counts = records[:, : section.num_experts]
        *columns, ranges, copies = records[:, section.num_experts :].unbind(1)
        sums: dict[str, Tensor] = dict(zip(SUMS, columns, strict=True))
        means = {
            "load_max": counts.amax(1) / counts.mean(1).clamp(min=1),
            "load_min": counts.amin(1) / counts.mean(1).clamp(min=1),
            "entropy": sums["entropy"] / sums["tokens"].clamp(min=1),
        }
        if section.capacity_factor:
            means["dropped"] = sums["dropped"] / (sums["tokens"].clamp(min=1) * section.top_k)
        if section.bias_update_rate:
            means["bias"] = ranges / copies
            self._move(counts, done, skipped)
        weights = {
            "aux_loss": section.aux_loss_weight,
            "sequence_aux_loss": section.sequence_aux_loss_weight,
            "router_z_loss": section.z_loss_weight,
        }
        return StepReport(
            {name: sums[name].sum() / n_layers for name, weight in weights.items() if weight},
            {f"moe/{name}": values.sum() / n_layers for name, values in means.items()},
        )

    def _records(self, n_layers: int, experts: int, device: torch.device) -> Tensor:
        """Rows of all layers, [layers, experts + len(SUMS) + 2], in the widest format: counts,
        sums, range of the bias, and 1; 0 for layers of other stages.
        """
        wide, width = widest(device), experts + len(SUMS) + 2
        records = torch.zeros(n_layers, width, dtype=wide, device=device)
        if self.layers:
            buffers = [
                (layer.record.counts, layer.record.sums, layer.router.selection_bias)
                for layer in self.layers
            ]
            counts, sums, bias = (
                torch.stack(tensors).to(wide) for tensors in zip(*buffers, strict=True)
            )
            ranges = bias.amax(1, keepdim=True) - bias.amin(1, keepdim=True)
            rows = torch.cat([counts, sums, ranges, torch.ones_like(ranges)], dim=1)
            self.numbers = self.numbers.to(device)
            records.index_copy_(0, self.numbers, rows)
        return records

    def _move(self, counts: Tensor, done: float, skipped: Tensor) -> None:
        """Do b_i += rate * sign(mean load - load_i) for a step (arXiv:2408.15664, alg. 1)."""
        assert self.section is not None
        section = self.section.moe
        factor = bias_factor(section.bias_schedule, done)
        rate = section.bias_update_rate * factor
        # By a mask on the device: a branch on `skipped` would wait for the device.
        steps = (rate * (counts.mean(1, keepdim=True) - counts).sign()).where(~skipped, 0)
        if self.layers:
            biases = [layer.router.selection_bias for layer in self.layers]
            added = steps[self.numbers].to(biases[0].dtype).unbind()
            torch._foreach_add_(biases, added)  # type: ignore[attr-defined]


def bias_factor(schedule: str, done: float) -> float:
    """Factor of bias_update_rate after a share `done` of the run, 0 to 1."""
    if schedule == "cosine_decay":
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    if schedule == "linear_warmup":
        return min(1.0, 10 * done)
    assert schedule == "constant", schedule
    return 1.0
