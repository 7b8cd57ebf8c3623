"""The closed form of bytes sent equals the bytes of collectives that a step really starts."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from counting import Counting
from ranks import on_ranks

from forge.build import build
from forge.compose import composition
from forge.config.root import Config
from forge.data.loader import Batch, Step
from forge.models.decoder import Decoder
from forge.models.router import Router
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.parallel.shapes import block_shapes, other_shapes
from forge.parallel.traffic import bytes_per_step
from forge.training.assemble import build_model
from forge.training.step import Update

SMALL = [
    "model.n_layers=3",
    "model.dim=24",
    "model.n_heads=4",
    "model.n_kv_heads=2",
    "model.ffn_hidden_dim=52",
    "model.vocab_size=301",
    "model.max_seq_len=16",
    "model.tie_embeddings=false",
    "model.qk_norm=false",
    "train.seq_len=16",
    "train.batch_size=4",
    "tokenizer.vocab_size=300",
    "run.device=cpu",
    "precision=fp32",
]
SLOW = pytest.mark.slow
GPT2_LIKE = [
    "model.position=learned",
    "model.bias=true",
    "model.norm_type=layernorm",
    "model.qk_norm=true",
    "model.tie_embeddings=true",
]
EACH = ("train.grad_accum_steps=2", "parallel.reduce_gradients=micro_batch")
LAYOUTS = {
    "fsdp2": (2, ["parallel.dp_shard=2"]),
    "fsdp2, each micro-batch reduced": (2, ["parallel.dp_shard=2", *EACH]),
    "hsdp, each micro-batch reduced": (
        4,
        ["parallel.dp_shard=2", "parallel.dp_replicate=2", *EACH],
    ),
    "tp2 x fsdp2, each micro-batch reduced": (
        4,
        ["parallel.tp=2", "parallel.dp_shard=2", "precision=bf16", *EACH],
    ),
    "pp2, fp32 between layers": (
        2,
        ["parallel.pp=2", "precision=bf16", "precision.residual_dtype=fp32"],
    ),
    "fsdp2, weights kept": (
        2,
        ["parallel.dp_shard=2", "train.grad_accum_steps=2", "parallel.reshard_after_forward=never"],
    ),
    "hsdp 2x2": (4, ["parallel.dp_shard=2", "parallel.dp_replicate=2", "train.grad_accum_steps=2"]),
    "tp2": (2, ["parallel.tp=2", "precision=bf16"]),
    "tp2, no sequence parallel": (2, ["parallel.tp=2", "parallel.sequence_parallel=false"]),
    "tp4, shared key heads": (4, ["parallel.tp=4"]),
    "tp2, full recompute": (2, ["parallel.tp=2", "train.activation_checkpointing=full"]),
    "cp2": (2, ["parallel.cp=2", "train.activation_checkpointing=full"]),
    "cp2, ulysses": (2, ["parallel.cp=2", "parallel.cp_method=ulysses"]),
    "pp2": (2, ["parallel.pp=2"]),
    "pp2 x fsdp2": (4, ["parallel.pp=2", "parallel.dp_shard=2"]),
}
RARER = {
    "fsdp2, bf16, recompute": (
        2,
        ["parallel.dp_shard=2", "precision=bf16", "train.activation_checkpointing=full"],
    ),
    "ddp2": (2, ["parallel.dp_shard=1", "parallel.dp_replicate=2"]),
    "tp2, three micro-batches": (
        2,
        ["parallel.tp=2", "train.grad_accum_steps=3", "precision=bf16"],
    ),
    "tp2, all logits": (2, ["parallel.tp=2", "parallel.loss_parallel=false"]),
    "tp2, every other block": (
        2,
        ["parallel.tp=2", "train.activation_checkpointing=selective", "train.recompute_every=2"],
    ),
    "tp2, full, no sequence parallel": (
        2,
        [
            "parallel.tp=2",
            "parallel.sequence_parallel=false",
            "train.activation_checkpointing=full",
        ],
    ),
    "tp2, selective, no sequence parallel": (
        2,
        [
            "parallel.tp=2",
            "parallel.sequence_parallel=false",
            "train.activation_checkpointing=selective",
        ],
    ),
    "tp2 x fsdp2": (4, ["parallel.tp=2", "parallel.dp_shard=2"]),
    "cp2, bf16": (2, ["parallel.cp=2", "precision=bf16"]),
    "cp2, ulysses, full recompute": (
        2,
        ["parallel.cp=2", "parallel.cp_method=ulysses", "train.activation_checkpointing=full"],
    ),
    "cp2 x tp2": (4, ["parallel.cp=2", "parallel.tp=2"]),
    "pp4": (4, ["parallel.pp=4", "model.n_layers=5"]),
    "pp2, interleaved": (
        2,
        ["parallel.pp=2", "parallel.pp_schedule=interleaved_1f1b", "model.n_layers=4"],
    ),
    "pp2, zbv": (
        2,
        [
            "parallel.pp=2",
            "parallel.pp_schedule=zbv_zero_bubble",
            "model.n_layers=4",
            "model.tie_embeddings=false",
        ],
    ),
    "pp2 x tp2": (4, ["parallel.pp=2", "parallel.tp=2", "precision=bf16"]),
}
MOE = [
    f"model.moe.{option}"
    for option in (
        "num_experts=4",
        "first_num_dense_layers=1",
        "ffn_hidden_dim=32",
        "shared_experts=1",
    )
]
CAPACITY, WIDE = "model.moe.capacity_factor=1.0", "model.moe.balance_scope=micro_batch"
EP2, FULL, SELECTIVE = (
    "parallel.ep=2",
    "train.activation_checkpointing=full",
    "train.activation_checkpointing=selective",
)
ALL_COUNTS = ["model.moe.gradient_scale=true", "model.moe.sequence_aux_loss_weight=0.1"]
OF_EXPERTS = {
    "fsdp2": (2, ["parallel.dp_shard=2"]),
    "fsdp4, two experts": (4, ["parallel.dp_shard=4", "model.moe.num_experts=2"]),
    "ep2": (2, [EP2, "precision=bf16"]),
    "ep4, capacity": (4, ["parallel.ep=4", CAPACITY]),
    "ep2 x fsdp2": (4, [EP2, "parallel.dp_shard=2", "train.grad_accum_steps=2"]),
    "ep2 x tp2, full recompute": (4, [EP2, "parallel.tp=2", FULL]),
    "ep2 x cp2, selective": (4, [EP2, "parallel.cp=2", SELECTIVE, *ALL_COUNTS]),
    "pp2 x ep2": (4, ["parallel.pp=2", EP2]),
}
OF_EXPERTS_RARER = {
    "ep2, full recompute": (2, [EP2, FULL, "train.recompute_every=2"]),
    "ep2, selective, capacity": (2, [EP2, SELECTIVE, CAPACITY]),
    "ep2, micro-batch": (2, [EP2, WIDE, "train.grad_accum_steps=3", *ALL_COUNTS]),
    "ep2, micro-batch, capacity": (2, [EP2, WIDE, CAPACITY, FULL, *ALL_COUNTS]),
    "ep2, weights kept": (2, [EP2, "parallel.reshard_after_forward=never"]),
    "ep2 x hsdp 2x1": (4, [EP2, "parallel.dp_replicate=2", "parallel.dp_shard=1"]),
    "ep2 x fsdp2, one expert a rank": (4, [EP2, "parallel.dp_shard=2", "model.moe.num_experts=2"]),
    "ep2 x fsdp2, widths that do not divide": (
        4,
        [EP2, "parallel.dp_shard=2", "model.moe.num_experts=6"],
    ),
    "ep2 x tp2": (4, [EP2, "parallel.tp=2", "precision=bf16"]),
    "ep2 x tp2, no sequence parallel": (
        4,
        [EP2, "parallel.tp=2", "parallel.sequence_parallel=false", SELECTIVE],
    ),
    "ep2 x tp2, selective": (4, [EP2, "parallel.tp=2", SELECTIVE]),
    "ep2 x tp2, two micro-batches": (4, [EP2, "parallel.tp=2", "train.grad_accum_steps=2"]),
    "tp2": (2, ["parallel.tp=2"]),
    "tp2, selective": (2, ["parallel.tp=2", SELECTIVE]),
    "cp2, capacity": (2, ["parallel.cp=2", CAPACITY, *ALL_COUNTS]),
    "ep2 x cp2, micro-batch, capacity": (4, [EP2, "parallel.cp=2", WIDE, CAPACITY]),
    "ep2 x cp2, ulysses, capacity": (
        4,
        [EP2, "parallel.cp=2", "parallel.cp_method=ulysses", CAPACITY, FULL],
    ),
    "pp2": (2, ["parallel.pp=2", *ALL_COUNTS]),
    "pp2, selective, micro-batch": (2, ["parallel.pp=2", SELECTIVE, WIDE, *ALL_COUNTS]),
    "pp2, interleaved": (
        2,
        ["parallel.pp=2", "parallel.pp_schedule=interleaved_1f1b", "model.n_layers=4"],
    ),
}
LIKE_GPT2 = ("hsdp 2x2", "tp4, shared key heads", "pp2 x fsdp2")
CASES = [
    pytest.param(
        layout,
        model,
        id=f"{name}, {kind}",
        marks=[] if name in LAYOUTS and (kind == "gpt2") == (name in LIKE_GPT2) else SLOW,
    )
    for name, layout in {**LAYOUTS, **RARER}.items()
    for kind, model in {"llama": [], "gpt2": GPT2_LIKE}.items()
]
CASES += [
    pytest.param(layout, MOE, id=f"{name}, experts", marks=[] if name in OF_EXPERTS else SLOW)
    for name, layout in {**OF_EXPERTS, **OF_EXPERTS_RARER}.items()
]


def config(world: int, *overrides: str) -> Config:
    return (
        composition.config([*SMALL, f"run.num_processes={world}", *overrides])
        .validate(world_size=world)
        .config
    )


def by_kind(sent: dict[str, int]) -> dict[str, int]:
    """The closed form by kind of collective alone."""
    kinds: Counter[str] = Counter()
    for name, count in sent.items():
        technique, what = name.split(": ")
        kind = (
            "send"
            if technique == "pp"
            else "all-reduce"
            if technique == "all"
            else what.split(" ")[0]
        )
        kinds[kind] += count
    return dict(kinds)


def evenly(router: Router, scores: torch.Tensor) -> torch.Tensor:
    """Experts in turn, whatever their scores: [tokens, top_k]."""
    return (
        torch.arange(len(scores) * router.section.top_k).view(len(scores), -1)
        % router.section.num_experts
    )


def count_a_step(cfg: Config, rank: int, world: int) -> dict[str, int]:
    """Bytes of a step's collectives, the second one's: the first also sets up."""
    device = torch.device("cpu")
    ranks = Ranks(rank=rank, size=world, mesh=make_mesh(cfg.parallel, "cpu"))
    model = build_model(cfg, device, ranks)
    update = Update(
        model=model,
        objective=build(cfg.objective, path="objective"),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        schedule=lambda _: 1.0,
        device=device,
        clip_norm=1.0,
        ranks=ranks,
        reduce_each=cfg.parallel.reduce_gradients == "micro_batch",
    )
    tokens = torch.zeros(cfg.train.batch_size, cfg.train.seq_len, dtype=torch.int64)
    step = Step(
        batches=[Batch(tokens, tokens) for _ in range(cfg.train.grad_accum_steps)], n_targets=1000
    )
    update(step, 0)
    with Counting() as counting:
        update(step, 1)
    return dict(counting.sent)


@pytest.mark.parametrize(("layout", "model"), CASES)
def test_bytes_of_real_collectives(
    layout: tuple[int, list[str]], model: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of experts with tokens dealt out evenly, as the closed form takes them to be."""
    monkeypatch.setattr(Router, "_choose", evenly)
    world, overrides = layout
    cfg = config(world, *model, *overrides)
    told = by_kind(bytes_per_step(cfg))

    def work(rank: int) -> None:
        counted = count_a_step(cfg, rank, world)
        everybodys: list[dict[str, int]] = [{}] * world
        dist.all_gather_object(everybodys, counted)
        most = max(everybodys, key=lambda sent: sum(sent.values()))
        assert most == told

    on_ranks(world, work)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("model", [[], GPT2_LIKE, MOE], ids=["llama-like", "gpt2-like", "experts"])
def test_shapes_are_those_of_the_model(model: list[str], tp: int) -> None:
    section = config(1, *model).model
    whole = {
        name: tuple(parameter.shape) for name, parameter in Decoder(section).named_parameters()
    }
    sparse = [model == MOE and layer > 0 for layer in range(3)]
    blocks = {
        f"blocks.{layer}.{shape.name}": shape.size
        for layer in range(3)
        for shape in block_shapes(section, tp, moe=sparse[layer])
    }
    assert {**blocks, **{shape.name: shape.size for shape in other_shapes(section)}} == whole


def test_it_needs_no_torch() -> None:
    code = "import sys, forge.parallel.traffic; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
