"""Expert parallelism: what is sent, what a rank holds, and generated text."""

from __future__ import annotations

import pytest
import torch
from ranks import on_ranks
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from forge.config.model import Decoder as DecoderConfig
from forge.config.moe import MoE as MoEConfig
from forge.config.parallel import Parallel
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.moe import MoE
from forge.models.sampling import generate
from forge.parallel.collectives import exchange_counts, exchange_rows
from forge.parallel.expert import spread_experts
from forge.parallel.fsdp import placement, shard
from forge.parallel.materialize import materialize
from forge.parallel.mesh import Mesh, make_mesh
from forge.parallel.tensor import spread_width

VOCAB, DIM, SEQ, HIDDEN, EXPERTS = 61, 16, 12, 20, 4


def section(**moe) -> DecoderConfig:
    options = {"num_experts": EXPERTS, "ffn_hidden_dim": HIDDEN, "kernel": "loop"} | moe
    return DecoderConfig(
        dim=DIM,
        n_layers=3,
        n_heads=2,
        vocab_size=VOCAB,
        max_seq_len=2 * SEQ,
        init_std=0.3,
        moe=MoEConfig(**options),
    )


def spread(parallel: Parallel, model: DecoderConfig) -> tuple[Mesh, Decoder]:
    """As `apply` does it."""
    mesh = make_mesh(parallel, "cpu")
    with torch.device("meta"):
        made = Decoder(model)
    if parallel.tp > 1:
        spread_width(made, parallel, mesh)
    spread_experts(made, mesh)
    shard(made, mesh)
    materialize(made, torch.device("cpu"), 3)
    return mesh, made


def test_rows_go_to_their_rank_and_gradients_back() -> None:
    """Of rank r's rows none, r and r go to ranks 0, 1 and 2: one sends, and one gets, nothing."""

    def work(rank: int) -> None:
        mesh = make_mesh(Parallel(dp_shard=1, ep=3), "cpu")
        group = mesh.axes.get_group("ep")
        send = torch.tensor([0, rank, rank])
        receive = exchange_counts(send, group)
        assert receive.tolist() == ([0, 0, 0] if rank == 0 else [0, 1, 2])
        rows = torch.arange(2.0 * rank).unsqueeze(1) + 10 * rank
        x = rows.expand(-1, 3).clone().requires_grad_()
        y = exchange_rows(x, send.tolist(), receive.tolist(), group)
        expected = {0: [], 1: [10, 20, 21], 2: [11, 22, 23]}[rank]
        assert y[:, 0].tolist() == expected
        (gradient,) = torch.autograd.grad(y, x, y.detach() * 2)
        assert torch.equal(gradient, 2 * x)

    on_ranks(3, work)


@pytest.mark.parametrize("favourite", [0, EXPERTS - 1])
def test_a_rank_whose_experts_nobody_chooses(favourite: int) -> None:
    """All tokens go to an expert of one rank; the experts of the other have a gradient of 0."""
    config = section(top_k=1, norm_topk_prob=False)
    whole = Decoder(config)
    init_weights(whole, 3)
    text = torch.randint(VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(0))

    def favour(model: Decoder) -> None:
        for module in model.modules():
            if isinstance(module, MoE):
                module.router.selection_bias[favourite] = 100.0

    favour(whole)
    whole(text).square().sum().backward()

    def work(rank: int) -> None:
        _, model = spread(Parallel(dp_shard=1, ep=2), config)
        favour(model)
        model(text[rank : rank + 1]).square().sum().backward()
        for (name, ours), theirs in zip(model.named_parameters(), whole.parameters(), strict=True):
            assert isinstance(ours.grad, DTensor), name
            assert theirs.grad is not None, name
            found, atol = ours.grad.full_tensor(), 1e-5 * float(theirs.grad.abs().max())
            torch.testing.assert_close(found, theirs.grad, rtol=1e-4, atol=atol, msg=name)
            if "experts" in name:
                assert not found[torch.arange(EXPERTS) != favourite].any()

    on_ranks(2, work)


@pytest.mark.parametrize("layout", [{"ep": 2, "tp": 2}, {"ep": 4}], ids=str)
def test_text_is_that_of_one_device(layout: dict[str, int]) -> None:
    """Token by token: most ranks get nothing most of the time, and nothing is dropped."""
    config = section(capacity_factor=0.5, shared_experts=1)
    whole = Decoder(config)
    init_weights(whole, 3)
    prompt = torch.tensor([[5, 7, 11], [2, 3, 5]])
    expected = generate(whole, prompt, 8, temperature=0.0, seed=1)

    def work(_: int) -> None:
        _, model = spread(Parallel(dp_shard=1, **layout), config)
        assert torch.equal(generate(model, prompt, 8, temperature=0.0, seed=1), expected)

    on_ranks(Parallel(dp_shard=1, **layout).product_without_dp_shard, work)


def test_a_rank_holds_its_part_and_draws_its_own_data() -> None:
    """KempnerForge's ep ranks share one batch, which experts' gradients then count twice."""
    config = section(num_experts=6)

    def work(rank: int) -> None:
        mesh, model = spread(Parallel(dp_shard=2, ep=2), config)
        assert (mesh.batch_rank, mesh.batch_ranks) == (rank, 4)
        up = model.blocks["0"].feed_forward.experts.w_up
        assert isinstance(up, DTensor)
        local = up.to_local()
        # Three experts an ep rank, of which FSDP gives the first shard two.
        rows = {0: [0, 1], 1: [3, 4], 2: [2], 3: [5]}[rank]
        whole = Decoder(config)
        init_weights(whole, 3)
        assert torch.equal(local, whole.blocks["0"].feed_forward.experts.w_up.detach()[rows])
        attention = model.blocks["0"].attention.wq.weight
        assert isinstance(attention, DTensor)
        assert attention.to_local().shape[0] == DIM // 4

    on_ranks(4, work)


@pytest.mark.parametrize(
    ("layout", "experts", "expected"),
    [
        ({"dp_shard": 4}, 4, (Shard(0), (1, HIDDEN, DIM))),
        ({"dp_shard": 4}, 2, (Shard(1), (2, HIDDEN // 4, DIM))),
        ({"dp_shard": 2, "tp": 2}, 1, (Shard(2), (1, HIDDEN // 2, DIM // 2))),
        ({"dp_shard": 2, "ep": 2}, 2, (Shard(1), (1, HIDDEN // 2, DIM))),
    ],
    ids=str,
)
def test_fewer_experts_than_shards_are_sharded_across(layout, experts, expected) -> None:
    config = section(num_experts=experts, top_k=1)

    def work(_: int) -> None:
        _, model = spread(Parallel(**layout), config)
        up = model.blocks["0"].feed_forward.experts.w_up
        assert isinstance(up, DTensor)
        assert (up.placements[0], tuple(up.to_local().shape)) == expected

    on_ranks(4, work)


def test_nothing_is_sharded_across_that_does_not_divide() -> None:
    assert placement(torch.nn.Parameter(torch.empty(2, 5, 7)), 4) is None
    assert placement(torch.nn.Parameter(torch.empty(2, 8, 7)), 4) == Shard(1)
    assert placement(torch.nn.Parameter(torch.empty(5, 8)), 16) is None


class Order(TorchDispatchMode):
    """The collectives, in the order in which they start."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        if "c10d" in name and "wait" not in name:
            self.names.append(name.split(".")[1])
        return function(*args, **(kwargs or {}))


def test_what_travels_and_that_weights_are_fetched_ahead() -> None:
    """The weights of the next block are on their way before tokens are."""
    text = torch.randint(VOCAB, (1, SEQ), generator=torch.Generator().manual_seed(0))

    def work(_: int) -> None:
        _, model = spread(Parallel(dp_shard=2, ep=2), section())
        with Order() as forward:
            y: Tensor = model(text)
        with Order() as backward:
            (y * y.detach()).sum().backward()
        sent = "all_to_all_single"
        assert [name for name in forward.names if name == sent] == [sent] * 3 * 3
        assert [name for name in backward.names if name == sent] == [sent] * 2 * 3
        assert not {"all_reduce", "allreduce_"} & {*forward.names, *backward.names}
        before = forward.names[: forward.names.index(sent)]
        # The root, the embedding, and block and experts of two layers.
        assert sum("allgather" in name for name in before) == 6, forward.names

    on_ranks(4, work)
