"""The example's attention, feed-forward layer, optimizer and parallel technique."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from example_helpers import USE
from helpers.optimizers import params_of
from helpers.ranks import on_ranks
from torch.distributed.tensor import DTensor

import forge
from forge.models.decoder import Decoder
from forge.parallel.apply import apply
from forge.parallel.mesh import make_mesh

pytestmark = pytest.mark.usefixtures("example")
SIZES = [
    *("tokenizer.vocab_size=300", "model.dim=32", "model.n_layers=2", "model.n_heads=4"),
    *("model.n_kv_heads=2", "model.ffn_hidden_dim=48", "model.max_seq_len=32", "train.seq_len=16"),
    *("train.batch_size=2", "model.init_std=0.2", "run.device=cpu", "precision=fp32"),
]
OWN = ["+mixer@model.mixer=gated", "+feed_forward@model.feed_forward=low_rank"]
SP_OFF = "parallel.sequence_parallel=false"
TILES = ["+technique=tiles", "techniques.tiles.number=2"]


def config_of(*overrides: str, ranks: int = 1) -> Any:
    return forge.compose([*USE, *SIZES, *overrides]).validate(world_size=ranks).config


def built(config: Any) -> Decoder:
    return apply(lambda: Decoder(config.model).double(), config, None, torch.device("cpu"))


def tokens() -> torch.Tensor:
    return torch.randint(300, (2, 16), generator=torch.Generator().manual_seed(1))


def test_the_tables_are_those_of_the_built_model() -> None:
    model = config_of(*OWN).model
    found = [(name, tuple(p.shape)) for name, p in Decoder(model).named_parameters()]
    assert [(one.name, one.shape) for one in model.tensors()] == found


def test_the_layers_by_hand() -> None:
    model = built(config_of(*OWN))
    block, x = model.blocks["0"], torch.randn(2, 16, 32, dtype=torch.float64)
    attention = block.attention
    heads = attention.heads(x, None)
    torch.testing.assert_close(
        attention(x), attention.wo(heads * torch.sigmoid(x @ attention.w_gate.weight.T))
    )
    layer = block.feed_forward
    wide = x @ (layer.w_up.weight @ layer.w_in.weight).T
    torch.testing.assert_close(layer(x), F.silu(wide) @ layer.w_down.weight.T)


def test_tiles_change_no_number() -> None:
    found = []
    for overrides in ([], TILES):
        model = built(config_of(*overrides))
        model(tokens()).square().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-12, atol=1e-12)


def test_signum_is_that_of_numpy() -> None:
    from forge_example.conf import Signum as Section
    from forge_example.signum import Signum

    model = torch.nn.Linear(3, 2, bias=False).double()
    section = Section(lr=0.1, beta=0.6, weight_decay=0.5)
    optimizer = Signum(section, params_of(section, model))
    weight, momentum = model.weight.detach().numpy().copy(), np.zeros((2, 3))
    drawn = np.random.default_rng(0)
    for _ in range(20):
        gradient = drawn.normal(size=(2, 3))
        model.weight.grad = torch.tensor(gradient)
        optimizer.step()
        momentum = 0.6 * momentum + 0.4 * gradient
        weight = weight * (1 - 0.1 * 0.5) - 0.1 * np.sign(momentum)
        np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=1e-12)


def gradients(layout: list[str], ranks: int = 1) -> dict[str, torch.Tensor]:
    config = config_of(*OWN, *TILES, *layout, ranks=ranks)
    mesh = make_mesh(config.parallel, "cpu") if ranks > 1 else None
    make = lambda: Decoder(config.model).double()  # noqa: E731
    model = apply(make, config, mesh, torch.device("cpu"))
    model(tokens()).square().sum().backward()
    return {name: whole(p.grad) for name, p in model.named_parameters()}


def whole(gradient: Any) -> torch.Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


@pytest.mark.parametrize("layout", [["parallel=tp2"], ["parallel=tp2", SP_OFF]], ids=" ".join)
def test_tp_cuts_them_as_their_tables_say(layout: list[str]) -> None:
    expected = gradients([])

    def work(rank: int) -> None:
        found = gradients(layout, 2)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10)

    on_ranks(2, work)
