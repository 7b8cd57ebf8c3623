"""Which parameter is in which group."""

from __future__ import annotations

import pytest
import torch
from helpers.optimizers import params_of
from torch import nn

from forge.config.optimizers.adam import AdamW


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.attention = nn.Linear(dim, dim, bias=True)
        self.experts = nn.Parameter(torch.zeros(2, dim, dim))


class Model(nn.Module):
    """The shape of a decoder, with a head that may be tied."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 4)
        self.positions = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList([Block(4), Block(4)])
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(4, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


def members(model: nn.Module, *, decay_embeddings: bool) -> dict[float, set[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = params_of(AdamW(decay_embeddings=decay_embeddings), model)
    return {
        group["weight_decay"]: {names[id(each)] for each in group["params"]} for group in groups
    }


BLOCK_MATRICES = {f"blocks.{i}.{name}" for i in (0, 1) for name in ("attention.weight", "experts")}
VECTORS = {f"blocks.{i}.{name}" for i in (0, 1) for name in ("norm.weight", "attention.bias")}
VECTORS |= {"norm.weight", "norm.bias", "scale"}


@pytest.mark.parametrize("decay_embeddings", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_members_and_decay(tied, decay_embeddings):
    """A frozen parameter is in none."""
    model = Model(tied=tied)
    model.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    tables = {"tokens.weight", "positions.weight"}
    assert members(model, decay_embeddings=decay_embeddings) == {
        0.1: BLOCK_MATRICES
        | (set() if tied else {"head.weight"})
        | (tables if decay_embeddings else set()),
        0.0: VECTORS | (set() if decay_embeddings else tables),
    }


def test_a_tied_head_that_was_registered_first_is_an_embedding():
    model = nn.Module()
    model.head = nn.Linear(4, 11, bias=False)
    model.tokens = nn.Embedding(11, 4)
    model.tokens.weight = model.head.weight
    assert members(model, decay_embeddings=False) == {0.0: {"head.weight"}}
