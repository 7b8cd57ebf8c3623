"""The closed form of bytes sent equals the bytes of collectives that a step really starts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import on_ranks

from forge.build import build
from forge.compose import composition
from forge.config.root import Config
from forge.data.batches.loader import Step
from forge.models.router import Router
from forge.parallel.counting import TrafficCounter
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.planning.traffic import Sent, busiest_rank
from forge.training.models import build_model
from forge.training.step import Update

pytestmark = pytest.mark.nightly
SMALL = (
    "model.n_layers=4 model.dim=24 model.n_heads=4 model.n_kv_heads=2 model.ffn_hidden_dim=52 "
    "model.vocab_size=301 model.max_seq_len=16 model.tie_embeddings=false model.qk_norm=false "
    "train.seq_len=16 train.batch_size=4 tokenizer.vocab_size=300 run.device=cpu precision=fp32"
)
GPT2 = (
    "model.position=learned model.bias=true model.norm_type=layernorm model.qk_norm=true "
    "model.tie_embeddings=true"
)
MOE = (
    "model.moe.num_experts=4 model.moe.first_num_dense_layers=1 model.moe.ffn_hidden_dim=32 "
    "model.moe.shared_experts=1"
)
FSDP2, TP2, CP2, PP2, EP2 = (f"parallel.{axis}=2" for axis in ("dp_shard", "tp", "cp", "pp", "ep"))
TWO_EACH = "train.grad_accum_steps=2 parallel.reduce_gradients=micro_batch"
FULL, SELECTIVE = (f"train.activation_checkpointing={mode}" for mode in ("full", "selective"))
DELTA = (
    "model.kinds={delta:{mixer:{schema:gated_delta_net,gdn_num_key_heads:2,gdn_num_value_heads:4,"
    "gdn_key_head_dim:6,gdn_value_head_dim:10}}} model.layers=[delta,default]"
)
MAMBA = (
    "model.kinds={mamba:{mixer:{schema:mamba2,ssm_num_heads:4,ssm_head_dim:6,ssm_state_size:10,"
    "ssm_n_groups:2}}} model.layers=[mamba,default]"
)
CONV = "model.kinds={conv:{mixer:{schema:short_conv}}} model.layers=[conv,default]"
CAPACITY, BATCH_SCOPE = "model.moe.capacity_factor=1.0", "model.moe.balance_scope=micro_batch"
FP8 = (
    "quantization=fp8 quantization.emulate=true quantization.min_dim=32 model.dim=64 "
    "model.ffn_hidden_dim=96"
)
FP8_GATHERED = f"{FP8} quantization.fp8_all_gather=true quantization.in_evaluation=true"
LORA = "adapter=lora adapter.rank=4 adapter.dropout=0"
QLORA = f"{LORA.replace('lora', 'qlora')} model.dim=64 model.ffn_hidden_dim=128"
GATHERED = "parallel.ep_method=all_gather"
OVERLAP = "parallel.ep_overlap_degree=3"
COUNTED = "model.moe.gradient_scale=true model.moe.sequence_aux_loss_weight=0.1"
CASES = [
    (2, f"{FSDP2} {TWO_EACH}"),
    (2, f"{FSDP2} train.grad_accum_steps=2 parallel.reshard_after_forward=never"),
    (4, "parallel.dp_shard=4 train.grad_accum_steps=2 parallel.reshard_after_forward=2"),
    (4, f"{GPT2} {FSDP2} parallel.dp_replicate=2 train.grad_accum_steps=2"),
    (4, f"{TP2} {FSDP2} precision=bf16 {TWO_EACH}"),
    (2, f"{FSDP2} precision=bf16 precision.reduce_dtype=bf16 {TWO_EACH}"),
    (4, f"{FSDP2} parallel.dp_replicate=2 precision=bf16 precision.reduce_dtype=bf16"),
    (2, f"{TP2} {FULL}"),
    (2, f"{TP2} {SELECTIVE} train.recompute_every=2 parallel.sequence_parallel=false"),
    (2, f"{TP2} parallel.loss_parallel=false"),
    (4, f"{GPT2} parallel.tp=4"),
    (2, f"{FP8} {TP2} {FULL}"),
    (2, f"{FP8} {TP2} quantization.recipe=rowwise train.grad_accum_steps=2"),
    (2, f"{FP8} {TP2} quantization.recipe=rowwise_with_gw_hp {FULL}"),
    (2, f"{FP8_GATHERED} {FSDP2} train.grad_accum_steps=2 quantization.plain_last_layers=1"),
    (4, f"{FP8_GATHERED} {FSDP2} parallel.dp_replicate=2 parallel.reshard_after_forward=never"),
    (2, f"{LORA} {FSDP2} {FULL} train.grad_accum_steps=2"),
    (4, f"{LORA} {FSDP2} parallel.dp_replicate=2 adapter.target_modules=[attention]"),
    (2, f"{GPT2} {FSDP2} optimizer.freeze_parameters=[embedding.*]"),
    (2, f"{QLORA} {FSDP2}"),
    (4, f"{QLORA} {FSDP2} {TP2} model.dim=128 model.ffn_hidden_dim=128"),
    (2, f"{LORA} {TP2} parallel.sequence_parallel=false"),
    (4, f"{LORA} {FSDP2} {TP2} adapter.target_modules=[attention]"),
    (2, f"{CP2} {FULL}"),
    (2, f"{CP2} parallel.cp_method=ulysses {FULL}"),
    (4, f"parallel.cp=4 parallel.cp_method=ring {FULL}"),
    (2, f"{CP2} parallel.cp_method=ring precision=bf16 train.grad_accum_steps=2"),
    (2, f"{CP2} {DELTA} {FULL}"),
    (4, f"{CP2} {TP2} {MAMBA} {SELECTIVE}"),
    (2, f"{CP2} parallel.cp_method=ulysses {CONV} train.grad_accum_steps=2"),
    (2, f"{PP2} precision=bf16 precision.residual_dtype=fp32"),
    (4, f"{GPT2} {PP2} {FSDP2}"),
    (2, f"{PP2} parallel.pp_schedule=zbv_zero_bubble"),
    (4, f"{MOE} parallel.dp_shard=4 model.moe.num_experts=2"),
    (2, f"{MOE} {EP2} {BATCH_SCOPE} train.grad_accum_steps=3 {COUNTED}"),
    (4, f"{MOE} {EP2} {FSDP2} model.moe.num_experts=6"),
    (4, f"{MOE} {EP2} {TP2} {FULL}"),
    (4, f"{MOE} {EP2} {CP2} {SELECTIVE} {COUNTED}"),
    (4, f"{MOE} {EP2} {CP2} {BATCH_SCOPE} {CAPACITY}"),
    (4, f"{MOE} {PP2} {EP2}"),
    (4, f"{MOE} {EP2} {TP2} {GATHERED} {FULL}"),
    (4, f"{MOE} {EP2} {FSDP2} {GATHERED} {COUNTED} model.moe.shared_experts=0 {FULL}"),
    (2, f"{MOE} {EP2} {GATHERED} {SELECTIVE} train.grad_accum_steps=2 parallel.ep_rows_factor=1.5"),
    (4, f"{MOE} {EP2} {TP2} {OVERLAP} {FULL}"),
    (2, f"{MOE} {EP2} {OVERLAP} {SELECTIVE} {CAPACITY} train.grad_accum_steps=2"),
    (4, f"{MOE} {EP2} {FSDP2} {GATHERED} {OVERLAP} {COUNTED} {FULL}"),
]


def by_kind(sent: list[Sent]) -> dict[str, int]:
    """The closed form by kind of collective alone."""
    kinds: Counter[str] = Counter()
    for each in sent:
        kinds[each.kind] += each.bytes
    return dict(kinds)


def evenly(router: Router, scores: torch.Tensor) -> torch.Tensor:
    """Experts in turn, whatever their scores: [tokens, top_k]."""
    chosen = torch.arange(len(scores) * router.section.top_k).view(len(scores), -1)
    return chosen % router.section.num_experts


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
    batches = [{"tokens": tokens, "targets": tokens} for _ in range(cfg.train.grad_accum_steps)]
    step = Step(batches=batches, n_tokens=1000, n_targets=1000, n_places=1000)
    update(step, 0)
    with TrafficCounter() as counting:
        update(step, 1)
    return dict(counting.sent)


@pytest.mark.parametrize(("world", "overrides"), CASES, ids=str)
def test_bytes_of_real_collectives(
    world: int, overrides: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of experts with tokens dealt out evenly, as the closed form takes them to be."""
    monkeypatch.setattr(Router, "_choose", evenly)
    words = [*SMALL.split(), f"run.num_processes={world}", *overrides.split()]
    cfg = composition.config(words).validate(world_size=world).config
    expected = by_kind(busiest_rank(cfg))

    def work(rank: int) -> None:
        counts: list[dict[str, int]] = [{}] * world
        dist.all_gather_object(counts, count_a_step(cfg, rank, world))
        assert max(counts, key=lambda sent: sum(sent.values())) == expected

    on_ranks(world, work)
