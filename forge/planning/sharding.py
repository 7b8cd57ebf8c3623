"""Parameters held by each rank, and a small model of the same layout to take a step on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from forge.config.parallel import ONE_STAGE_SCHEDULES
from forge.config.root import Config
from forge.planning.layout import data_ranks
from forge.planning.shapes import elements
from forge.planning.traffic import Rank

HEAD, WIDTH, ROWS = 8, 16, 64
"""A small model's width of a head, width of a feed-forward layer and rows of a table, a tp rank."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """Parameters held by a rank of the pipeline, and an equal share of its stages."""

    rank: int
    parameters: int
    equal: float

    @property
    def excess(self) -> float:
        """Relative excess over the equal share: parameters no axis cuts, and padding rows."""
        return self.parameters / self.equal - 1


def held(config: Config, rank: int) -> Held:
    """Count the parameters held by a rank of the pipeline, for a resolved config."""
    model, p = config.decoder, config.parallel
    assert model is not None
    pipeline_rank, count, total = Rank(config, model, rank), 0, 0.0
    for stage in pipeline_rank.stages:
        parameters = [
            *pipeline_rank.weights.blocks(pipeline_rank.layers[stage]),
            *((1, tensor) for tensor in pipeline_rank.others(stage)),
        ]
        for number, tensor in parameters:
            shards = p.efsdp if tensor.of_experts else p.fsdp
            count += number * elements(tensor, tp=p.tp, ep=p.ep, shards=shards) // shards
            total += number * tensor.size
    return Held(rank=rank, parameters=count, equal=total / (p.fsdp * p.tp))


IN_FP32: dict[str, Any] = {
    "mixed_precision": "fp32",
    "residual_dtype": "fp32",
    "param_dtype": "fp32",
    "master_weights": False,
    "stochastic_rounding": False,
    "grad_dtype": "fp32",
}
"""Options of `precision` under which every number is in fp32."""


def in_small(config: Config) -> Config:
    """A resolved config with the same layout and a few narrow layers, in fp32 on a CPU. Rules hold
    unchanged: heads, experts and degrees are the same.
    """
    assert config.model.has_blocks
    model, p = config.model.clone(), config.parallel
    model.thaw()
    stages = p.pp * (p.pp_stages_per_rank or 1)
    layers = stages if stages > 1 else min(2, model.n_layers)
    model.n_layers = max(layers, len(model.layers), model.moe.first_num_dense_layers + 1)
    model.dim, model.head_dim = model.n_heads * HEAD, HEAD
    model.ffn_hidden_dim, model.vocab_size = WIDTH * p.tp, ROWS * p.tp
    if model.is_moe:
        model.moe.ffn_hidden_dim = WIDTH * p.tp
        model.moe.shared_hidden_dim = WIDTH * p.tp if model.moe.shared_width(model) else None
    seq_len = max(16, 2 * p.cp * p.tp)
    model.max_seq_len = max(seq_len, 16)
    microbatches = p.pp if p.pp > 1 else 1
    sequences = data_ranks(config) * microbatches
    train = replace(
        config.train,
        seq_len=seq_len,
        batch_size=1,
        grad_accum_steps=microbatches,
        global_batch_size=sequences,
        global_batch_tokens=sequences * seq_len,
        compile_model=False,
    )
    parallel = replace(p, pp_microbatches=microbatches, pp_layers=[], cpu_offload=False)
    if p.pp > 1 and p.pp_schedule in ONE_STAGE_SCHEDULES:
        parallel.pp_stages_per_rank = 1
    precision, run = replace(config.precision, **IN_FP32), replace(config.run, device="cpu")
    return replace(
        config, model=model, train=train, parallel=parallel, precision=precision, run=run
    )
