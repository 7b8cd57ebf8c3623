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

from forge.config import compose
from forge.config.build import build
from forge.config.root import Config
from forge.data.loader import Batch, Step
from forge.models.decoder import Decoder
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.parallel.shapes import block_shapes, other_shapes
from forge.parallel.traffic import bytes_per_step
from forge.training.assemble import build_model
from forge.training.device import Autocast
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
GPT2_LIKE = ["model.position=learned", "model.bias=true", "model.norm_type=layernorm", "model.qk_norm=true", "model.tie_embeddings=true"]
LAYOUTS = {
    "fsdp2": (2, ["parallel.dp_shard=2"]),
    "fsdp2, weights kept": (2, ["parallel.dp_shard=2", "train.grad_accum_steps=2", "parallel.reshard_after_forward=never"]),
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
    "fsdp2, bf16, recompute": (2, ["parallel.dp_shard=2", "precision=bf16", "train.activation_checkpointing=full"]),
    "ddp2": (2, ["parallel.dp_shard=1", "parallel.dp_replicate=2"]),
    "tp2, three micro-batches": (2, ["parallel.tp=2", "train.grad_accum_steps=3", "precision=bf16"]),
    "tp2, all logits": (2, ["parallel.tp=2", "parallel.loss_parallel=false"]),
    "tp2, every other block": (2, ["parallel.tp=2", "train.activation_checkpointing=selective", "train.recompute_every=2"]),
    "tp2, full, no sequence parallel": (
        2,
        ["parallel.tp=2", "parallel.sequence_parallel=false", "train.activation_checkpointing=full"],
    ),
    "tp2, selective, no sequence parallel": (
        2,
        ["parallel.tp=2", "parallel.sequence_parallel=false", "train.activation_checkpointing=selective"],
    ),
    "tp2 x fsdp2": (4, ["parallel.tp=2", "parallel.dp_shard=2"]),
    "cp2, bf16": (2, ["parallel.cp=2", "precision=bf16"]),
    "cp2, ulysses, full recompute": (2, ["parallel.cp=2", "parallel.cp_method=ulysses", "train.activation_checkpointing=full"]),
    "cp2 x tp2": (4, ["parallel.cp=2", "parallel.tp=2"]),
    "pp4": (4, ["parallel.pp=4", "model.n_layers=5"]),
    "pp2, interleaved": (2, ["parallel.pp=2", "parallel.pp_schedule=interleaved_1f1b", "model.n_layers=4"]),
    "pp2, zbv": (2, ["parallel.pp=2", "parallel.pp_schedule=zbv_zero_bubble", "model.n_layers=4", "model.tie_embeddings=false"]),
    "pp2 x tp2": (4, ["parallel.pp=2", "parallel.tp=2", "precision=bf16"]),
}
LIKE_GPT2 = ("hsdp 2x2", "tp4, shared key heads", "pp2 x fsdp2")
CASES = [
    pytest.param(layout, model, id=f"{name}, {kind}", marks=[] if name in LAYOUTS and (kind == "gpt2") == (name in LIKE_GPT2) else SLOW)
    for name, layout in {**LAYOUTS, **RARER}.items()
    for kind, model in {"llama": [], "gpt2": GPT2_LIKE}.items()
]


def config(world: int, *overrides: str) -> Config:
    return compose.config([*SMALL, f"run.num_processes={world}", *overrides]).validate(world_size=world).config


def by_kind(sent: dict[str, int]) -> dict[str, int]:
    """The closed form by kind of collective alone."""
    kinds: Counter[str] = Counter()
    for name, count in sent.items():
        technique, what = name.split(": ")
        kind = "send" if technique == "pp" else "all-reduce" if technique == "all" else what.split(" ")[0]
        kinds[kind] += count
    return dict(kinds)


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
        autocast=Autocast(cfg, device),
        clip_norm=1.0,
        ranks=ranks,
    )
    tokens = torch.zeros(cfg.train.batch_size, cfg.train.seq_len, dtype=torch.int64)
    step = Step(batches=[Batch(tokens, tokens) for _ in range(cfg.train.grad_accum_steps)], n_targets=1000)
    update(step, 0)
    with Counting() as counting:
        update(step, 1)
    return dict(counting.sent)


@pytest.mark.parametrize(("layout", "model"), CASES)
def test_bytes_of_real_collectives(layout: tuple[int, list[str]], model: list[str]) -> None:
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
@pytest.mark.parametrize("model", [[], GPT2_LIKE], ids=["llama-like", "gpt2-like"])
def test_shapes_are_those_of_the_model(model: list[str], tp: int) -> None:
    section = config(1, *model).model
    whole = {name: tuple(parameter.shape) for name, parameter in Decoder(section).named_parameters()}
    blocks = {f"blocks.{layer}.{shape.name}": shape.size for layer in range(3) for shape in block_shapes(section, tp)}
    assert {**blocks, **{shape.name: shape.size for shape in other_shapes(section)}} == whole


def test_it_needs_no_torch() -> None:
    code = "import sys, forge.parallel.traffic; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
