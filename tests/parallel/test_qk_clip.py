"""QK-Clip: largest logits against all scores, what is scaled, and layouts against one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from parity_run import Tokens, config_of, this_rank, world_of
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge.build import build
from forge.models.attention import Attention
from forge.models.mla import MLA
from forge.optim.build import build_optimizer
from forge.parallel.qk_clip import largest_logits
from forge.parallel.ranks import Ranks
from forge.training.data import train_loader
from forge.training.models import build_model
from forge.training.step import Update

CLIP = "train.use_qk_clip=true train.qk_clip_threshold=1e-3 optimizer=muon"
STILL = "optimizer=sgd optimizer.lr=1e-30 optimizer.weight_decay=0"


def test_largest_logits_are_those_of_all_scores():
    """With GQA, a window or chunks, and more queries than are held at a time."""
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 1100, 4, generator=draw) for heads in (4, 2))
    places = torch.arange(1100)
    for window, chunk in ((0, 0), (7, 0), (0, 600)):
        scores = q @ k.repeat_interleave(2, 1).mT * 0.3
        seen = torch.ones(1100, 1100).tril().bool()
        seen &= ~torch.ones(1100, 1100).tril(-window).bool() if window else True
        seen &= (places[:, None] // chunk == places // chunk) if chunk else True
        expected = scores.masked_fill(~seen, -torch.inf).amax((0, 2, 3))
        found = largest_logits(q, k, scale=0.3, window=window, chunk=chunk, seen=None)
        torch.testing.assert_close(found, expected)
        mask = torch.zeros(1, 1, 1100, 1100).masked_fill(~seen, -torch.inf)
        torch.testing.assert_close(largest_logits(q, k, scale=0.3, window=0, seen=mask), expected)


class Scores:
    """Collects the largest logits of the first layer, from what its attention is called with."""

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[Tensor] = []
        layer = next(m for m in model.modules() if isinstance(m, Attention | MLA))
        attend, scale = layer.attend, layer.scale

        def seeing(q: Tensor, k: Tensor, *more: Any) -> Tensor:
            whole = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
            scores = q @ whole.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
            hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
            self.found.append(scores.detach().masked_fill(hidden, -torch.inf).amax((0, 2, 3)))
            return attend(q, k, *more)

        monkeypatch.setattr(layer, "attend", seeing)

    def take(self) -> Tensor:
        found, self.found = torch.stack(self.found).amax(0), []
        return found


def updates(config: Any, ranks: Ranks) -> tuple[Any, Update, Any]:
    device = torch.device("cpu")
    model = build_model(config, device, ranks, torch.float64)
    objective = build(config.objective, path="objective")
    update = Update(
        model=model,
        objective=objective,
        optimizer=build_optimizer(config, model),
        schedule=lambda number: 1.0,
        device=device,
        clip_norm=1.0,
        ranks=ranks,
    )
    return model, update, train_loader(config, Tokens(), objective, ranks, device)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama", ""),
        ("llama", "model.n_kv_heads=null"),
        ("llama", "model.n_kv_heads=null model.attention_output_gate=true"),
        ("llama", "model.n_kv_heads=null model.share_kv_projections=true"),
        ("mla", ""),
    ],
    ids=["gqa", "mha", "gated", "values of keys", "mla"],
)
def test_the_largest_logit_of_a_head_comes_down_to_the_threshold(model, options, monkeypatch):
    """Of the same tokens, with weights that nothing else changes; other heads stay."""
    plain = config_of(model, f"{STILL} model.qk_norm=false {options}")
    built, update, loader = updates(plain, Ranks())
    scores, steps = Scores(built, monkeypatch), iter(loader)
    step = next(steps)
    update(step, 0)
    before = scores.take()
    threshold = before.median().item()
    assert before.max() > threshold > before.min()
    clip = f"train.use_qk_clip=true train.qk_clip_threshold={threshold!r}"
    built, update, loader = updates(
        config_of(model, f"{STILL} {clip} model.qk_norm=false {options}"), Ranks()
    )
    output = update(next(iter(loader)), 0)
    assert output.means["qk_clip/max_logit"] >= before.max() * (1 - 1e-6)
    scores = Scores(built, monkeypatch)
    update.gradients(step, 1)
    expected = before.clamp(max=threshold)
    torch.testing.assert_close(scores.take(), expected, rtol=1e-6, atol=0, check_dtype=False)


LAYOUTS = {
    "tp2 x fsdp2": "parallel.tp=2 parallel.dp_shard=2 train.batch_size=2",
    "pp2": "parallel.pp=2",
}


def train(model: str, layout: str, ranks: Ranks) -> dict[str, Tensor]:
    built, update, loader = updates(config_of(model, f"{CLIP} model.qk_norm=false {layout}"), ranks)
    for number, step in zip(range(2), loader, strict=False):
        update(step, number)
    named = built.named_parameters()
    return {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in named}


on_one_device = cache(lambda model: train(model, "", Ranks()))


@pytest.mark.ci("mla-pp2")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["llama", "mla"])
def test_weights_are_those_of_one_device(model, layout):
    options = LAYOUTS[layout]
    expected, config = on_one_device(model), config_of(model, options)

    def work(_: int) -> None:
        for name, values in train(model, options, this_rank(config)).items():
            torch.testing.assert_close(values, expected[name], rtol=0, atol=1e-9, msg=name)

    on_ranks(world_of(config), work)
