"""State spaces with one decay a head (arXiv:2405.21060): each token decays a state and adds to it.

With state S, [state, width] of a head, a token does S <- exp(decay) S + b (step x)' and reads S'c.
`scan_tokens` goes token by token, `scan_chunks` takes many tokens at a time by matrix products
(section 6 there), with equal results. Both compute in fp32, or in fp64 for fp64 inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.models.delta_rule import decays
from forge.models.mixers.causal_conv import wide


class Inputs(NamedTuple):
    """Inputs of the recurrence for each token.

    x: [batch, seq, heads, width]. b, c: [batch, seq, groups, state]; heads / groups adjacent heads
    share a group. step: [batch, seq, heads], above 0. decay: as step, at most 0. begins: bool
    [batch, seq], where the state is emptied first; None = nowhere.
    """

    x: Tensor
    b: Tensor
    c: Tensor
    step: Tensor
    decay: Tensor
    begins: Tensor | None = None


def scan_tokens(inputs: Inputs, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Read token by token; state: [batch, heads, state, width], None = empty -> outputs as x, and
    the last state.
    """
    groups = inputs.x.shape[2] // inputs.b.shape[2]
    b, c = (wide(part).repeat_interleave(groups, 2) for part in (inputs.b, inputs.c))
    x = wide(inputs.x) * wide(inputs.step).unsqueeze(-1)
    state, outputs = no_state(inputs) if state is None else state, []
    for token in range(x.shape[1]):
        if inputs.begins is not None:
            state = state.where(~inputs.begins[:, token, None, None, None], 0)
        state = state * wide(inputs.decay)[:, token, :, None, None].exp()
        state = state + b[:, token].unsqueeze(-1) * x[:, token].unsqueeze(-2)
        outputs.append(torch.einsum("bhnp,bhn->bhp", state, c[:, token]))
    return torch.stack(outputs, 1), state


def scan_chunks(inputs: Inputs, size: int, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Read in chunks of `size` tokens; arguments and results as in `scan_tokens`."""
    (batch, seq, heads, width), groups = inputs.x.shape, inputs.b.shape[2]
    size, of_group = min(size, seq), inputs.x.shape[2] // inputs.b.shape[2]

    def cut(part: Tensor, *of_heads: int) -> Tensor:
        """Cut [batch, seq, heads, ...] into [batch, *of_heads, chunks, size, ...]."""
        part = F.pad(part, (0, 0) * (part.dim() - 2) + (0, -seq % size)) if seq % size else part
        part = part.unflatten(1, (-1, size)).unflatten(3, of_heads)
        return part.movedim((3, 4), (1, 2)).contiguous()

    b, c = (cut(wide(part), groups, 1) for part in (inputs.b, inputs.c))
    x = cut(wide(inputs.x) * wide(inputs.step).unsqueeze(-1), groups, of_group)
    begins = None if inputs.begins is None else cut(inputs.begins.unsqueeze(2), 1, 1)
    within, from_start, to_end, over_chunk = decays(
        cut(wide(inputs.decay), groups, of_group), begins
    )
    near = ((c @ b.mT) * within) @ x
    added = (b * to_end.unsqueeze(-1)).mT @ x
    now = no_state(inputs) if state is None else state
    now, before = now.unflatten(1, (groups, of_group)), []
    for n in range(added.shape[3]):
        before.append(now)
        now = now * over_chunk[:, :, :, n, None, None] + added[:, :, :, n]
    far = (c * from_start.unsqueeze(-1)) @ torch.stack(before, 3)
    output = (near + far).movedim((1, 2), (3, 4))
    return output.reshape(batch, -1, heads, width)[:, :seq], now.flatten(1, 2)


def no_state(inputs: Inputs) -> Tensor:
    """An empty state."""
    batch, _, heads, width = inputs.x.shape
    return wide(inputs.x).new_zeros(batch, heads, inputs.b.shape[-1], width)
