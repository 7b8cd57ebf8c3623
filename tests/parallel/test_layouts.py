"""A model that is laid out over ranks has the initial weights, the loss and the gradients of one device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from forge.config import compose
from forge.config.parallel import Parallel
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.parallel.fsdp import last_micro_batch, shard
from forge.parallel.materialize import materialize, owned
from forge.parallel.mesh import Mesh, make_mesh

ROWS, SEQ = 8, 16
UNEVEN = ["model.dim=36", "model.n_heads=3", "model.ffn_hidden_dim=53", "model.vocab_size=301"]
LAYOUTS = {
    "fsdp2": {"dp_shard": 2},
    "fsdp4": {"dp_shard": 4},
    "hsdp 2x2": {"dp_shard": 2, "dp_replicate": 2},
    "ddp2": {"dp_shard": 1, "dp_replicate": 2},
}


def section(*overrides: str):
    small = ["model.n_layers=2", "model.max_seq_len=32", "train.seq_len=16", "tokenizer.vocab_size=300", *UNEVEN]
    return compose.config([*small, *overrides]).validate(world_size=1).config.model


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 301, (ROWS, SEQ + 1), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """The sum over these targets divided by the number of all."""
    logits = F.linear(model.hidden(tokens), model.output_weight)  # type: ignore[operator, arg-type]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (ROWS * SEQ)


def on_one_device(config, dtype: torch.dtype) -> tuple[float, dict[str, Tensor]]:
    model = Decoder(config)
    init_weights(model, 3)
    model = model.to(dtype)
    loss = loss_of(model, *batch())
    loss.backward()
    return loss.item(), {name: gradient(parameter) for name, parameter in model.named_parameters()}


def gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    whole = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad.clone()
    assert whole.norm() > 0
    return whole


def laid_out(config, layout: dict[str, int], dtype: torch.dtype) -> tuple[Mesh, nn.Module]:
    mesh = make_mesh(Parallel(**layout), "cpu")
    with torch.device("meta"):
        model = Decoder(config).to(dtype)
    shard(model, mesh)
    materialize(model, torch.device("cpu"), 3)
    return mesh, model


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_weights_loss_and_gradients(name: str, tied: bool) -> None:
    config, layout = section(f"model.tie_embeddings={str(tied).lower()}"), LAYOUTS[name]
    whole = Decoder(config)
    init_weights(whole, 3)
    for dtype, loss_bound, gradient_bound in ((torch.float64, 1e-12, 1e-10), (torch.float32, 1e-6, 1e-5)):
        loss, gradients = on_one_device(config, dtype)

        def work(_: int, dtype=dtype, loss_bound=loss_bound, gradient_bound=gradient_bound, loss=loss, gradients=gradients) -> None:
            mesh, model = laid_out(config, layout, dtype)
            for key, parameter in model.named_parameters():
                assert isinstance(parameter, DTensor)
                assert torch.equal(parameter.full_tensor(), whole.get_parameter(key).to(dtype)), key
            tokens, targets = batch()
            each = ROWS // mesh.batch_ranks // 2  # two micro-batches of what this rank draws
            total = torch.zeros((), dtype=dtype)
            for micro in range(2):
                last_micro_batch(model, micro == 1)
                rows = slice((mesh.batch_rank * 2 + micro) * each, (mesh.batch_rank * 2 + micro + 1) * each)
                part = loss_of(model, tokens[rows], targets[rows])
                part.backward()
                total += part.detach()
            dist.all_reduce(total, group=mesh.loss_group)
            assert abs(total.item() - loss) <= loss_bound * abs(loss)
            for key, parameter in model.named_parameters():
                assert (gradient(parameter) - gradients[key]).norm() <= gradient_bound * gradients[key].norm(), key

        on_ranks(mesh_size(layout), work)


def test_no_rank_holds_the_whole_model() -> None:
    config = section("model.tie_embeddings=false", "model.dim=96", "model.n_layers=4", "model.ffn_hidden_dim=256")
    whole = sum(parameter.numel() for parameter in Decoder(config).parameters())

    def work(_: int) -> None:
        _, model = laid_out(config, {"dp_shard": 4}, torch.float32)
        assert sum(p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor)) < whole / 4 * 1.05

    on_ranks(4, work)


def test_what_a_rank_owns_is_what_torch_gives_it() -> None:
    """Of uneven sizes too, where some ranks own less or nothing."""

    def work(rank: int) -> None:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = make_mesh(Parallel(dp_shard=2, dp_replicate=2), "cpu").dense
        for shape in ((7, 3), (1, 5), (4, 9)):
            values = torch.arange(shape[0] * shape[1]).view(shape)
            for placements in ([Replicate()] * 2 + [Shard(0), Replicate()], [Replicate(), Shard(1), Shard(0), Replicate()]):
                cut = distribute_tensor(values, mesh, placements)
                rows, columns = owned(cut)
                assert torch.equal(cut.to_local(), values[rows][:, columns]), (rank, shape, placements)

    on_ranks(4, work)


def mesh_size(layout: dict[str, int]) -> int:
    return layout.get("dp_shard", 1) * layout.get("dp_replicate", 1)
