"""Tensor parallelism: what is sent, what a rank holds, and generated text."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from forge.compose import composition
from forge.config.objective import Pretrain as Section
from forge.config.parallel import Parallel
from forge.data.loader import Batch
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.sampling import generate
from forge.objectives.pretrain import Pretrain
from forge.parallel.fsdp import shard
from forge.parallel.gradients import clip
from forge.parallel.materialize import materialize
from forge.parallel.mesh import Mesh, make_mesh
from forge.parallel.owned import copy_owned
from forge.parallel.tensor import spread_width

ROWS, SEQ, VOCAB = 2, 16, 301
SMALL = (
    "model.n_layers=2 model.max_seq_len=32 model.dim=48 model.n_heads=4 model.n_kv_heads=2 "
    "model.ffn_hidden_dim=52 model.vocab_size=301 train.seq_len=16 tokenizer.vocab_size=300"
)


def section(*overrides: str):
    return composition.config([*SMALL.split(), *overrides]).validate(world_size=1).config.model


def spread(config, parallel: Parallel) -> tuple[Mesh, Decoder]:
    mesh = make_mesh(parallel, "cpu")
    with torch.device("meta"):
        model = Decoder(config)
    spread_width(model, parallel, mesh)
    shard(model, mesh)
    materialize(model, torch.device("cpu"), 3)
    return mesh, model


class Sent(TorchDispatchMode):
    """Counts collectives, in forward and backward, and the largest result of any."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = str(function)
        if "c10d" in name and "wait" not in name:
            key = name.split(".")[1]
            self.counts[key] = self.counts.get(key, 0) + 1
            if isinstance(result, Tensor):
                self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("loss_fn", ["cross_entropy", "chunked_cross_entropy"])
def test_what_travels(sequence_parallel: bool, loss_fn: str) -> None:
    """Two exchanges a layer and direction, as the papers count them, and never logits."""
    config = section("model.dim=16", "model.ffn_hidden_dim=20")
    tokens = torch.randint(0, VOCAB, (ROWS, SEQ), generator=torch.Generator().manual_seed(0))

    def work(_: int) -> None:
        mesh = make_mesh(Parallel(dp_shard=1, tp=2, sequence_parallel=sequence_parallel), "cpu")
        model = Decoder(config)
        init_weights(model, 3)
        spread_width(model, mesh.parallel, mesh)
        objective = Pretrain(Section(loss_fn=loss_fn))
        with Sent() as forward:
            total = objective(model, Batch(tokens, tokens)).total
        with Sent() as backward:
            total.backward()
        each = 2 * config.n_layers + 1
        exchanges = {"all_reduce": each}
        if sequence_parallel:
            exchanges = {"all_gather_into_tensor": each, "reduce_scatter_tensor": each}
        # Of the loss three: largest logit, its partition, and the target's logit.
        assert forward.counts == exchanges | {"allreduce_": 3}
        assert backward.counts == exchanges
        assert max(forward.largest, backward.largest) == ROWS * SEQ * config.dim

    on_ranks(2, work)


@pytest.mark.parametrize(
    "options",
    [[], ["model.position=learned", "model.tie_embeddings=true"]],
    ids=["rope", "learned, tied"],
)
def test_text_is_that_of_one_device(options: list[str]) -> None:
    """Prompts of any length, with a cache and a key/value head shared by two ranks."""
    config = section(*options)
    whole = Decoder(config)
    init_weights(whole, 3)
    prompt = torch.tensor([[5, 7, 11], [2, 3, 5]])
    greedy, drawn = (generate(whole, prompt, 12, temperature=t, seed=1) for t in (0.0, 1.0))

    def work(_: int) -> None:
        _, model = spread(config, Parallel(dp_shard=1, tp=4))
        assert torch.equal(generate(model, prompt, 12, temperature=0.0, seed=1), greedy)
        assert torch.equal(generate(model, prompt, 12, temperature=1.0, seed=1), drawn)

    on_ranks(4, work)


def test_what_each_rank_holds() -> None:
    """A quarter of what can be cut, and of the vocabulary what torch.chunk gives."""
    config = section("model.tie_embeddings=false")

    def work(rank: int) -> None:
        _, model = spread(config, Parallel(dp_shard=1, tp=4))
        named = model.named_parameters()
        shapes = {name: tuple(p.to_local().shape) for name, p in named if isinstance(p, DTensor)}
        rows = len(torch.arange(VOCAB).chunk(4)[rank])
        assert shapes["embedding.weight"] == shapes["output.weight"] == (rows, 48)
        assert shapes["blocks.0.attention.wq.weight"] == (12, 48)
        assert shapes["blocks.0.attention.wk.weight"] == (24, 48), "four ranks have both heads"
        assert shapes["blocks.0.attention.wo.weight"] == (48, 12)
        assert shapes["blocks.0.feed_forward.w_down.weight"] == (48, 13)

    on_ranks(4, work)


def test_one_norm_and_one_factor_for_all_ranks() -> None:
    """On replicas x TP the norm is that of all gradients, and clipping scales each by the same."""
    config = section("model.tie_embeddings=true")
    whole = Decoder(config)
    gradients = {
        name: torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
        for name, p in whole.named_parameters()
    }
    expected = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))

    def work(_: int) -> None:
        mesh, model = spread(config, Parallel(dp_replicate=2, dp_shard=1, tp=2))
        named = list(model.named_parameters())
        for name, parameter in named:
            parameter.grad = torch.zeros_like(parameter)
            copy_owned(parameter.grad, gradients[name])
        norm, _ = clip(named, expected / 4, counted=lambda _: True, spread=True)
        assert norm.item() == pytest.approx(expected, rel=1e-6)
        for name, parameter in named:
            assert isinstance(parameter.grad, DTensor)
            found = parameter.grad.full_tensor()
            torch.testing.assert_close(found, gradients[name] / 4, rtol=1e-5, atol=1e-6)
        assert mesh.batch_ranks == 2
        dist.barrier()

    on_ranks(4, work)
