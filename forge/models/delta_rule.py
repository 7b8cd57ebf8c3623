"""The gated delta rule (arXiv:2412.06464): a decaying state that maps keys to values; each token
replaces the value of its key.

With state S, [key, value] of a head, a token does S <- exp(decay) S, then
S <- S + k (beta (v - S'k))', and reads S'q / sqrt(width of a key). `recurrent` goes token by token,
`chunked` takes many tokens at a time by matrix products (section 3.3), with equal results. Both
compute in fp32, or in fp64 for fp64 inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.models.mixers.causal_conv import wide

L2_EPS = 1e-6


class DeltaInputs(NamedTuple):
    """Inputs of the rule for each token.

    q, k: [batch, seq, key_heads, key]; heads / key_heads adjacent heads share a key head. v:
    [batch, seq, heads, value]. decay: [batch, seq, heads], at most 0. beta: [batch, seq, heads], 0
    to 1. begins: bool [batch, seq], where the state is emptied first; None = nowhere.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor
    begins: Tensor | None = None


def l2_norm(x: Tensor) -> Tensor:
    """Scale vectors to length 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def recurrent(fed: DeltaInputs, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Apply the rule token by token; state: [batch, heads, key, value], None = empty -> outputs as
    v, and the last state.
    """
    groups = fed.v.shape[2] // fed.k.shape[2]
    q, k = (wide(x).repeat_interleave(groups, 2) for x in (fed.q, fed.k))
    v, decay, beta = wide(fed.v), wide(fed.decay), wide(fed.beta)
    q, state = q * q.shape[-1] ** -0.5, empty(fed) if state is None else state
    outputs = []
    for token in range(v.shape[1]):
        if fed.begins is not None:
            state = state.where(~fed.begins[:, token, None, None, None], 0)
        state = state * decay[:, token, :, None, None].exp()
        recalled = torch.einsum("bhkv,bhk->bhv", state, k[:, token])
        change = beta[:, token, :, None] * (v[:, token] - recalled)
        state = state + k[:, token].unsqueeze(-1) * change.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, token]))
    return torch.stack(outputs, 1), state


def chunked(fed: DeltaInputs, size: int, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Apply the rule in chunks of `size` tokens; arguments and results as in `recurrent`."""
    (batch, seq, key_heads, width), heads = fed.k.shape, fed.v.shape[2]
    size = min(size, seq)

    def cut(x: Tensor, *of_heads: int) -> Tensor:
        """Cut [batch, seq, heads, ...] into [batch, *of_heads, chunks, size, ...], copied once for
        all products.
        """
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, -seq % size)) if seq % size else x
        x = x.unflatten(1, (-1, size)).unflatten(3, of_heads)
        return x.movedim((3, 4), (1, 2)).contiguous()

    groups = heads // key_heads
    q, k = (cut(wide(part), key_heads, 1) for part in (fed.q, fed.k))
    v, decay, beta = (cut(wide(part), key_heads, groups) for part in (fed.v, fed.decay, fed.beta))
    begins = None if fed.begins is None else cut(fed.begins.unsqueeze(2), 1, 1)
    within, from_start, to_end, over_chunk = decays(decay, begins)

    # All changes of a chunk solve a triangular system with two right sides: the values alone, and
    # the keys, whose solution is multiplied by the state before the chunk.
    system = (k @ k.mT) * within * beta.unsqueeze(-1)
    right_side = torch.cat((v * beta.unsqueeze(-1), k * (beta * from_start).unsqueeze(-1)), -1)
    solved = torch.linalg.solve_triangular(system, right_side, upper=False, unitriangular=True)
    of_values, of_state = solved.split((v.shape[-1], width), -1)
    q = q * width**-0.5
    near = (q @ k.mT) * within
    q, k = q * from_start.unsqueeze(-1), k * to_end.unsqueeze(-1)
    now = empty(fed) if state is None else state
    now, outputs = now.unflatten(1, (key_heads, groups)), []
    for n in range(of_values.shape[3]):
        change = of_values[:, :, :, n] - of_state[:, :, :, n] @ now
        outputs.append(q[:, :, :, n] @ now + near[:, :, :, n] @ change)
        now = now * over_chunk[:, :, :, n, None, None] + k[:, :, :, n].mT @ change
    output = torch.stack(outputs, 3).movedim((1, 2), (3, 4))
    return output.reshape(batch, -1, heads, v.shape[-1])[:, :seq], now.flatten(1, 2)


def decays(decay: Tensor, begins: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """decay, begins: [..., size] -> factors of an earlier token read by a token, [..., size, size],
    of the state before the chunk, [..., size], of a token in the state after the chunk, [...,
    size], and of the state over the chunk, [...]; 0 across the beginning of a document.
    """
    size, total = decay.shape[-1], decay.cumsum(-1)
    hidden = torch.ones(size, size, dtype=torch.bool, device=decay.device).triu(1)
    between = total.unsqueeze(-1) - total.unsqueeze(-2)
    to_end, last = total[..., -1:] - total, total[..., -1]
    if begins is not None:
        number = begins.cumsum(-1)  # of the document; 0 = it began before the chunk
        hidden = hidden | (number.unsqueeze(-1) != number.unsqueeze(-2))
        total = total.masked_fill(number > 0, -torch.inf)
        to_end = to_end.masked_fill(number != number[..., -1:], -torch.inf)
        last = last.masked_fill(number[..., -1] > 0, -torch.inf)
    # Masked before exp: differences above the diagonal are positive and could overflow.
    return between.masked_fill(hidden, -torch.inf).exp(), total.exp(), to_end.exp(), last.exp()


def empty(fed: DeltaInputs) -> Tensor:
    """An empty state."""
    batch, _, heads, value = fed.v.shape
    return wide(fed.v).new_zeros(batch, heads, fed.k.shape[-1], value)
