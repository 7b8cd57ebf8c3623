"""Distillation: a student learns what a teacher says of each next token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.objectives.distill import SOFT
from forge.config.objectives.distill import Distill as Section
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.data.batches.samples import Samples
from forge.models.contract import LanguageModel
from forge.models.head import head_of
from forge.objectives.distillation_terms import (
    OnlineTeacher,
    StoredTeacher,
    Teacher,
    Terms,
    distillation_terms,
)
from forge.objectives.losses import Losses
from forge.objectives.next_token import NextToken
from forge.objectives.objective import hidden_of
from forge.objectives.stored_teacher import Stored

EPS = 1e-6  # of cosines, as MaxText has it


class Distill(NextToken):
    """The sum of the section's terms over the learned tokens.

    stored: probabilities of a teacher by the fingerprint of the text, in place of the model
    `teacher`; batches then have `teacher_ids`, int32 [batch, seq, k], and `teacher_logps`, float32
    [batch, seq, k + 1], the last one of all other tokens.
    """

    section: Section
    along_sequence = ("tokens", "targets", "teacher_ids", "teacher_logps")

    def __init__(self, section: Section, **runtime: Any) -> None:
        super().__init__(section, **runtime)
        self.stored: dict[str, Stored] = {}

    @property
    def terms(self) -> Terms:
        """The terms with their weights at this step."""
        section, at = self.section, self.progress
        soft = {name: getattr(section, name) for name in SOFT}
        return Terms(
            hard=section.hard.at(at),
            soft={name: weight.at(at) for name, weight in soft.items() if weight.ever},
            temperature=section.temperature.at(at),
            beta=section.jsd_beta,
        )

    def collate(self, samples: Samples) -> Batch:
        batch = super().collate(samples)
        stores = {sample.store.fingerprint for sample in samples} if self.stored else set()
        if stores and stores <= self.stored.keys():
            rows = [(self.stored[sample.store.fingerprint], sample.pieces) for sample in samples]
            batch |= Stored.collated(rows, samples.width)
        return batch

    def __call__(self, model: LanguageModel, batch: Batch) -> Losses:
        section, terms = self.section, self.terms
        layers = self._layers(model) if section.feature.ever else ([], [])
        teacher, teacher_states = self._teacher(batch, terms, layers[1])
        with outputs_of(layers[0]) as states:
            hidden = hidden_of(model, batch)
        targets, size = batch["targets"], section.ce_chunk_size
        total, sums = distillation_terms(
            hidden, head_of(model), teacher, targets, terms, chunk_size=size
        )
        if section.feature.ever:
            counted = targets != IGNORE_INDEX
            distance = feature_distance(states, teacher_states, counted, section.feature_loss)
            total = total + section.feature.at(self.progress) * distance
            sums["feature"] = distance.detach()
        sums["ce"] = sums.pop("hard")
        return Losses(total=total, sums=sums | {"distill_loss": total.detach()})

    def _teacher(
        self, batch: Batch, terms: Terms, layers: list[nn.Module]
    ) -> tuple[Teacher, list[Tensor]]:
        """What the teacher says of a batch, and the outputs of its compared layers."""
        if "teacher_ids" in batch:
            ids, logps = (batch[f"teacher_{name}"].flatten(0, 1) for name in ("ids", "logps"))
            return StoredTeacher(ids, logps, self.section.tail), []
        if not terms.soft and not layers:
            return None, []
        model: Any = self.models["teacher"]
        with torch.no_grad(), outputs_of(layers) as states:
            hidden = hidden_of(model, without_noise(batch)).flatten(0, 1)
        return OnlineTeacher(hidden, head_of(model)), states

    def _layers(self, model: Any) -> tuple[list[nn.Module], list[nn.Module]]:
        """The compared blocks of the student and of the teacher."""
        section, teacher = self.section, self.models["teacher"]
        ours = list(section.feature_layers) or [len(model.blocks) - 1]
        theirs = list(section.teacher_layers) or (
            ours if section.feature_layers else [len(teacher.blocks) - 1]  # type: ignore[arg-type]
        )
        pairs = (("feature_layers", model, ours), ("teacher_layers", teacher, theirs))
        blocks = [_blocks(key, part, layers) for key, part, layers in pairs]
        if len(ours) != len(theirs):
            message = f"{len(theirs)} layers for {len(ours)} of objective.feature_layers"
            raise ValueError(f"objective.teacher_layers={theirs}: {message}")
        return blocks[0], blocks[1]


def _blocks(key: str, model: Any, layers: list[int]) -> list[nn.Module]:
    blocks = dict(model.blocks.named_children())
    for layer in layers:
        if str(layer) not in blocks:
            message = f"there are layers 0 to {len(blocks) - 1}"
            raise ValueError(f"objective.{key}={layers}: {message}")
    return [blocks[str(layer)] for layer in layers]


def without_noise(batch: Mapping[str, Tensor]) -> Batch:
    """A batch as a teacher reads it: without the random numbers of training."""
    return {name: batch[name] for name in ("tokens", "documents") if name in batch}


@contextmanager
def outputs_of(blocks: list[nn.Module]) -> Iterator[list[Tensor]]:
    """The outputs of blocks, in the order of the blocks, filled while a model reads."""
    outputs: list[Any] = [None] * len(blocks)
    with ExitStack() as hooks:
        for index, block in enumerate(blocks):

            def keep(_: nn.Module, __: Any, output: Tensor, index: int = index) -> None:
                outputs[index] = output

            hooks.callback(block.register_forward_hook(keep).remove)
        yield outputs


def feature_distance(
    states: list[Tensor], teacher_states: list[Tensor], counted: Tensor, kind: str
) -> Tensor:
    """The distance of hidden states, [batch, seq, dim] of each layer, summed over counted tokens:
    a mean over layers, and for l2 over dimensions too.
    """
    distances = []
    for ours, theirs in zip(states, teacher_states, strict=True):
        dtype = torch.promote_types(ours.dtype, torch.float32)
        ours, theirs = ours.to(dtype), theirs.to(dtype)
        if ours.shape != theirs.shape:
            widths = f"the student's are {ours.shape[-1]} wide, the teacher's {theirs.shape[-1]}"
            hint = "objective.feature.value=0"
            raise ValueError(f"objective.feature compares hidden states: {widths}; {hint}")
        if kind == "cosine":
            distance = 1 - F.cosine_similarity(ours, theirs, dim=-1, eps=EPS)
        else:
            distance = (ours - theirs).square().mean(-1)
        distances.append(distance.where(counted, 0).sum())
    return torch.stack(distances).mean()
