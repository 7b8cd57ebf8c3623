"""States of recurrent mixers over parts of a sequence.

The state after a run of tokens is linear in the state before: S' = M S + A. Each rank reads its
runs from an empty state, all ranks gather M and A of all runs, and each computes the state before
each of its runs; outputs are linear in that state too. No rank waits for an earlier one: the work
of a rank is that of its own tokens. M of a delta rule is a matrix, computed with A by the rule
itself, from the columns of the identity beside an empty state; M of a state space is a number.
Convolutions read the last tokens of the run before, gathered as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.models.delta_rule import DeltaInputs
from forge.models.gated_delta_net import GatedDeltaNet
from forge.models.mixers.causal_conv import wide
from forge.models.mixers.mamba2 import Mamba2
from forge.models.mixers.short_conv import ShortConv
from forge.models.mixers.state_space import Inputs
from forge.parallel.collectives import gather
from forge.parallel.sequences.part import Context

Row = TypeVar("Row", DeltaInputs, Inputs)


class ConvolvedParts:
    """Mixin of a mixer with convolutions: runs of tokens after those of other ranks."""

    over_cp: Context

    def convolve(
        self,
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        biases: Sequence[Tensor | None],
        tails: Sequence[Tensor | None],
        places: Tensor | None,
    ) -> list[tuple[Tensor, Tensor]]:
        convolve, back = super().convolve, weights[0].shape[1] - 1  # type: ignore[misc]
        if not self.over_cp.sequences.cut or not back:
            return convolve(inputs, weights, biases, tails, places)
        runs, context = [as_rows(x, self.over_cp) for x in inputs], self.over_cp
        assert runs[0].shape[1] >= back, (runs[0].shape, back)
        ends = torch.cat([x[:, -back:] for x in runs], -1)
        # The end of the run before each run of this rank: [runs * batch, back, channels].
        ends_of_all = gather_runs(ends, context)
        none = zeros_with_gradient(ends_of_all[0])
        ends = [ends_of_all[n - 1] if n else none for n in context.part.chunks]
        tails = torch.cat(ends).split([x.shape[-1] for x in runs], -1)
        at = None if places is None else as_rows(places, context)
        results = convolve(runs, weights, biases, tails, at)
        return [(as_sequences(output, context), tail) for output, tail in results]


class DeltaNetOfPart(ConvolvedParts):
    """Mixin of a gated delta net: the states before this rank's runs of tokens."""

    def read(self, fed: DeltaInputs, state: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
        read, context = super().read, self.over_cp  # type: ignore[misc]
        if not context.sequences.cut:
            return read(fed, state, x)
        runs = rows_in(fed, context)
        (rows, _, heads, value), key = runs.v.shape, runs.k.shape[-1]
        identity = torch.eye(key, dtype=wide(runs.v).dtype, device=x.device)
        start = F.pad(identity, (value, 0)).expand(rows, heads, -1, -1)
        both, last = read(runs._replace(v=F.pad(runs.v, (0, key))), start, x)
        output, of_state = both.split((value, key), -1)
        added, factor = last.split((value, key), -1)
        earlier = states_before(factor, added, context)
        output = output + torch.einsum("bshk,bhkv->bshv", wide(of_state), earlier).to(output.dtype)
        return as_sequences(output, context), earlier


class StateSpaceOfPart(ConvolvedParts):
    """Mixin of Mamba-2: the states before this rank's runs of tokens."""

    def read(self, inputs: Inputs, state: Tensor | None) -> tuple[Tensor, Tensor]:
        read, context = super().read, self.over_cp  # type: ignore[misc]
        if not context.sequences.cut:
            return read(inputs, state)
        runs = rows_in(inputs, context)
        output, added = read(runs, None)
        decay = wide(runs.decay).cumsum(1)
        if runs.begins is not None:
            decay = decay.masked_fill(runs.begins.cumsum(1).unsqueeze(-1) > 0, -torch.inf)
        factor = decay.exp()  # of the state before the run, in each token
        earlier = states_before(factor[:, -1, :, None, None], added, context)
        groups = runs.b.shape[2]
        of_groups = earlier.unflatten(1, (groups, -1))
        far = torch.einsum("bsgn,bghnp->bsghp", wide(runs.c), of_groups).flatten(2, 3)
        output = output + far * factor.unsqueeze(-1)
        return as_sequences(output, context), earlier


def states_before(factor: Tensor, added: Tensor, context: Context) -> Tensor:
    """The state before each of this rank's runs, [runs * batch, heads, key, value].

    factor: [runs * batch, heads, key, key], or [..., 1, 1] of a number. added: as the state; the
    state after a run is factor @ state + added.
    """
    (key, value), size = added.shape[2:], factor.shape[-1]
    flat = torch.cat((factor.flatten(2), added.flatten(2)), -1)
    state, states = None, {}
    for number, run in enumerate(gather_runs(flat, context)):
        of_run, added_by = run.split((run.shape[-1] - key * value, key * value), -1)
        of_run = of_run.unflatten(-1, (size, size))
        added_by = added_by.unflatten(-1, (key, value))
        state = zeros_with_gradient(added_by) if state is None else state
        if number in context.part.chunks:
            states[number] = state
        state = (of_run * state if size == 1 else of_run @ state) + added_by
    return torch.cat([states[number] for number in context.part.chunks])


def as_rows(x: Tensor, context: Context) -> Tensor:
    """[batch, seq, ...] -> [runs * batch, seq / runs, ...]: each run of tokens as a row."""
    runs = len(context.part.chunks)
    return x if runs == 1 else torch.cat(x.chunk(runs, 1))


def rows_in(inputs: Row, context: Context) -> Row:
    """The inputs of a recurrence with each run of tokens as a row."""
    parts = inputs._asdict().items()
    return inputs._replace(**{k: as_rows(x, context) for k, x in parts if x is not None})


def as_sequences(x: Tensor, context: Context) -> Tensor:
    """The inverse of `as_rows`."""
    runs = len(context.part.chunks)
    return x if runs == 1 else torch.cat(x.chunk(runs), 1)


def gather_runs(x: Tensor, context: Context) -> list[Tensor]:
    """x: [runs * batch, ...] of this rank -> [batch, ...] of each run of the sequence, in order."""
    part = context.part
    runs = x.unflatten(0, (len(part.chunks), -1)).unsqueeze(0)
    gathered = gather(runs, 0, context.group)
    return [run.squeeze(0) for run in part.ordered(gathered, 1)]


def zeros_with_gradient(x: Tensor) -> Tensor:
    """Zeros as x, made of x: so every rank takes part in the collective of its gradient."""
    return x.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0.0)


RECURRENT: dict[type, type] = {
    GatedDeltaNet: DeltaNetOfPart,
    Mamba2: StateSpaceOfPart,
    ShortConv: ConvolvedParts,
}
"""Mixins by type of recurrent mixers."""
