"""Layers that no parallel code knows stand below every technique, by their tensors' table alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.ranks import on_ranks
from parity_cases import layout_of
from parity_run import LR, STEPS, Tokens, config_of, main_ranks, this_rank
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.feed_forwards.base import FeedForward
from forge.config.model.mixers.base import Mixer
from forge.config.model.tensors import MATRIX, TensorSpec, linear, norm
from forge.config.root import Config
from forge.models.decoder import Decoder, OutputHead
from forge.models.norm import RMSNorm
from forge.models.rope import Rotation, rotate
from forge.models.sdpa import causal_attention
from forge.parallel.context import spread_context
from forge.parallel.ranks import Ranks
from forge.parallel.tensor import spread_width
from forge.parity.side import Record, measure
from forge.parity.verdict import BOUNDS, compare_records, may_vanish, verdict_table

RANK, LATENT, NARROW = 3, 6, 5


class LowRank(nn.Linear):
    """A linear layer with a forward of its own: its product, and one of low rank (LoRA)."""

    def __init__(self, into: int, out: int, *, bias: bool) -> None:
        super().__init__(into, out, bias=bias)
        self.down, self.up = (nn.Parameter(torch.empty(*s)) for s in ((RANK, into), (out, RANK)))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.T @ self.up.T


class LowRankDecoder(Decoder):
    def __init__(self, section: LowRankSection) -> None:
        super().__init__(section)
        for module in list(self.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear) and not isinstance(child, OutputHead):
                    sizes, bias = (child.in_features, child.out_features), child.bias is not None
                    setattr(module, name, LowRank(*sizes, bias=bias))


@dataclass(kw_only=True)
class LowRankSection(DecoderConfig):
    _target_: str = "test_seams.LowRankDecoder"

    def tensors(self) -> Iterator[TensorSpec]:
        for one in super().tensors():
            yield one
            if one.role == MATRIX:
                layer, (out, into) = one.name.removesuffix("weight"), one.shape
                inputs, outputs = (1 if one.tp == 1 else None), (0 if one.tp == 0 else None)
                yield replace(one, name=f"{layer}down", shape=(RANK, into), tp=inputs, pieces=0)
                yield replace(one, name=f"{layer}up", shape=(out, RANK), tp=outputs)


class LatentAttention(nn.Module):
    """Queries from latents that ranks share, one rotated key for all heads, narrow values, a factor
    for each head, and a gate after the last product.
    """

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        dim, heads, self.width = section.dim, section.n_heads, section.computed_head_dim
        self.q_a, self.q_norm = nn.Linear(dim, LATENT), RMSNorm(LATENT)
        self.q_b = nn.Linear(LATENT, heads * self.width)
        self.k = nn.Linear(dim, self.width, bias=False)
        self.v = nn.Linear(dim, heads * NARROW, bias=False)
        self.factor = nn.Parameter(torch.empty(heads, 1))
        self.o, self.gate = nn.Linear(heads * NARROW, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, rotation: Rotation | None = None, cache: None = None) -> Tensor:
        batch, seq, _ = x.shape
        q = self.q_b(self.q_norm(self.q_a(x))).view(batch, seq, -1, self.width) * self.factor
        k, v = self.k(x).unsqueeze(2), self.v(x).view(batch, seq, -1, NARROW)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        k = k.expand(-1, -1, q.shape[2], -1)
        heads = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.gate(x).sigmoid() * self.o(heads.transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal_attention(q, k, v, "math")


class Bilinear(nn.Module):
    """A feed-forward layer whose matrices are one tensor."""

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        dim, hidden = section.dim, section.computed_ffn_hidden_dim
        self.both = nn.Parameter(torch.empty(2, hidden, dim))
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        first, second = (F.linear(x, weight) for weight in self.both)
        return self.down(first * second)


@dataclass(kw_only=True)
class LatentSection(Mixer):
    _target_: str = "test_seams.LatentAttention"

    def tensors(self, layer: DecoderConfig) -> Iterator[TensorSpec]:
        dim, heads, width, part = layer.dim, layer.n_heads, layer.computed_head_dim, "attention"
        of_heads: dict[str, Any] = {"part": part, "tp": 0, "pieces": heads}
        yield TensorSpec(name="factor", shape=(heads, 1), role=MATRIX, **of_heads)
        yield from linear("q_a", LATENT, dim, part=part, bias=True)
        yield from norm("q_norm", LATENT)
        yield from linear("q_b", heads * width, LATENT, bias=True, **of_heads)
        yield from linear("k", width, dim, part=part)
        yield from linear("v", heads * NARROW, dim, **of_heads)
        yield from linear("o", dim, heads * NARROW, part=part, bias=True, tp=1, residual=True)
        yield from linear("gate", dim, dim, part=part, bias=True)


@dataclass(kw_only=True)
class BilinearSection(FeedForward):
    _target_: str = "test_seams.Bilinear"

    def tensors(self, layer: DecoderConfig) -> Iterator[TensorSpec]:
        width, part = layer.computed_ffn_hidden_dim, "feed-forward"
        yield TensorSpec(name="both", shape=(2, width, layer.dim), role=MATRIX, part=part, tp=1)
        yield from linear("down", layer.dim, width, part=part, bias=True, tp=1, residual=True)


def low_rank(section: DecoderConfig) -> DecoderConfig:
    values = {each.name: getattr(section, each.name) for each in fields(DecoderConfig)}
    return LowRankSection(**{**values, "_target_": LowRankSection._target_})


def latent(section: DecoderConfig) -> DecoderConfig:
    return replace(section, mixer=LatentSection(), feed_forward=BilinearSection())


def one_side(config: Config, change: Callable[..., DecoderConfig], ranks: Ranks) -> Record:
    run = replace(config.run, trust=("test_seams",))
    config = replace(config, model=change(config.model), run=run)
    dtype, tokens = torch.float64, Tokens()
    return measure(config, ranks, tokens, dtype=dtype, steps=STEPS[dtype], lr=LR)


@pytest.mark.ci("low_rank-llama-tp=2")
@pytest.mark.parametrize(
    ("change", "model", "layout"),
    [
        (low_rank, "llama", "tp=2"),
        (low_rank, "gpt2", "tp=2 no_sp"),
        (low_rank, "llama", "tp=4"),
        (low_rank, "gpt2", "tp=2 compiled"),
        (latent, "llama", "tp=2 compiled recompute=full"),
        (latent, "llama", "tp=2 no_sp"),
        (latent, "llama", "tp=2 cp=2"),
        (latent, "llama", "cp=2 compiled"),
        (latent, "llama", "cp=2 ulysses"),
    ],
)
def test_layers_of_ones_own_equal_one_device(change, model, layout) -> None:
    one, layout = one_side(config_of(model), change, Ranks()), layout_of(layout)
    config = config_of(model, layout)

    def work(ranks: Ranks) -> list[str]:
        many = one_side(config, change, ranks)
        if not ranks.main:
            return []
        verdict = compare_records(one, many, BOUNDS[torch.float64], may_vanish=may_vanish(config))
        return (
            [*verdict.faults, verdict_table(verdict, BOUNDS[torch.float64])]
            if verdict.faults
            else []
        )

    names = {name.rpartition(".")[2] for name in one.gradients[0]}
    assert names >= ({"down", "up"} if change is low_rank else {"factor", "both"})
    faults = main_ranks(config, work)
    assert not faults, "\n\n".join(faults)


def test_layers_that_say_nothing_are_refused() -> None:
    """They would compute with a part of each sequence, or be added up."""
    config = config_of("llama", layout_of("tp=2 cp=2"))

    def work(_: int) -> None:
        mesh = this_rank(config).mesh
        assert mesh is not None
        for spread in (
            lambda model: spread_width(model, config.parallel, mesh),
            lambda model: spread_context(model, config, mesh),
        ):
            model = Decoder(config.model)  # type: ignore[arg-type]
            model.blocks["1"].attention = nn.Sequential(nn.Linear(40, 40))
            with pytest.raises(ValueError, match=r"^parallel\.[tc]p=2: .*Sequential"):
                spread(model)

    on_ranks(4, work)
