"""nanochat's forward pass in plain torch, made from its description alone: no code of forge."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a model; windows: keys before the present one that each layer sees."""

    layers: int
    heads: int
    kv_heads: int
    windows: tuple[int, ...]
    vocab: int

    def has_values(self, layer: int) -> bool:
        return layer % 2 == (self.layers - 1) % 2


def norm(x: Tensor) -> Tensor:
    eps = torch.finfo(x.dtype).eps
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def turned(x: Tensor) -> Tensor:
    """x: [batch, seq, heads, width]; y1 = x1 cos + x2 sin, y2 = -x1 sin + x2 cos."""
    half = x.shape[-1] // 2
    rates = 1.0 / (100000.0 ** (torch.arange(0, 2 * half, 2).float() / (2 * half)))
    angles = torch.outer(torch.arange(x.shape[1]).float(), rates)[:, None]
    cos, sin = angles.cos(), angles.sin()
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat((x1 * cos + x2 * sin, -x1 * sin + x2 * cos), -1)


def attention(w: Weights, shape: Shape, layer: int, h: Tensor, ids: Tensor) -> Tensor:
    name = f"transformer.h.{layer}.attn"
    batch, seq, _ = h.shape
    q = (h @ w[f"{name}.c_q.weight"].T).view(batch, seq, shape.heads, -1)
    k = (h @ w[f"{name}.c_k.weight"].T).view(batch, seq, shape.kv_heads, -1)
    v = (h @ w[f"{name}.c_v.weight"].T).view(batch, seq, shape.kv_heads, -1)
    if shape.has_values(layer):
        of_tokens = w[f"value_embeds.{layer}.weight"][ids].view_as(v)
        gate = 3 * torch.sigmoid(h[..., :12] @ w[f"{name}.ve_gate.weight"].T)
        v = v + gate[..., None] * of_tokens
    q, k = 1.2 * norm(turned(q)), 1.2 * norm(turned(k))
    k, v = (x.repeat_interleave(shape.heads // shape.kv_heads, 2) for x in (k, v))
    scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
    behind = torch.arange(seq)[:, None] - torch.arange(seq)
    seen = (behind >= 0) & (behind <= shape.windows[layer])
    shares = scores.masked_fill(~seen, -math.inf).softmax(-1)
    y = torch.einsum("bhts,bshd->bthd", shares, v).reshape(batch, seq, -1)
    return y @ w[f"{name}.c_proj.weight"].T


def logits(w: Weights, shape: Shape, ids: Tensor) -> Tensor:
    x = norm(w["transformer.wte.weight"][ids])
    gate = w["smear_lambda"] * torch.sigmoid(x[:, 1:, :24] @ w["smear_gate.weight"].T)
    x = torch.cat((x[:, :1], x[:, 1:] + gate * x[:, :-1]), 1)
    x0 = middle = x
    for layer in range(shape.layers):
        x = w["resid_lambdas"][layer] * x + w["x0_lambdas"][layer] * x0
        x = x + attention(w, shape, layer, norm(x), ids)
        mlp = f"transformer.h.{layer}.mlp"
        hidden = F.relu(norm(x) @ w[f"{mlp}.c_fc.weight"].T) ** 2
        x = x + hidden @ w[f"{mlp}.c_proj.weight"].T
        if layer == shape.layers // 2:
            middle = x
    x = norm(x - w["backout_lambda"] * middle)
    z = (x @ w["lm_head.weight"].T)[..., : shape.vocab]
    return 15 * torch.tanh(z / 15)
