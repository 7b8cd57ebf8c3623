"""The memory estimate of a layout, counted by hand: each part is cut by the degrees that cut it."""

from __future__ import annotations

import pytest
from helpers.refusing import resolved

from forge.planning.memory import FORWARD, memory_of

SHAPE = {"dim": 64, "n_layers": 4, "n_heads": 8, "vocab_size": 512, "ffn_hidden_dim": 96}
BASE = [
    *(f"model.{key}={value}" for key, value in SHAPE.items()),
    *("model.max_seq_len=128", "model.tie_embeddings=false", "model.qk_norm=false"),
    *("tokenizer.vocab_size=512", "train.batch_size=4", "train.seq_len=64"),
    *("run.device=cpu", "train.compile_model=false", "precision=fp32"),
]
TABLE = 512 * 64
MATRICES = 4 * (4 * 64 * 64 + 3 * 64 * 96)
NORMS = 2 * 4 * 64
BLOCK = (MATRICES + NORMS) // 4
ALL = 2 * TABLE + MATRICES + NORMS + 64
WEIGHTS, GATHERED, UNREDUCED = "weights (fp32)", "gathered weights", "unreduced gradients (fp32)"
STATE = (WEIGHTS, "gradients (fp32)", "optimizer state")


def parts(*overrides: str) -> dict[str, int]:
    """State in full, and of the other parts the most at any moment."""
    memory = memory_of(resolved([*BASE, *overrides]).config)
    names = {name for moment in memory.moments.values() for name in moment}
    kept = {"activations": memory.moments[FORWARD]["activations"]}
    return {name: memory.most(name) for name in names} | dict(memory.state) | kept


def test_fsdp_shards_what_belongs_to_weights_and_gathers_a_block_and_the_next():
    one, two = parts(), parts("parallel.dp_shard=4")
    for part in STATE:
        assert two[part] == pytest.approx(one[part] / 4, abs=16)
    assert two[GATHERED] == 4 * (MATRICES + NORMS) // 2, "more than the head"
    first = BLOCK // 4  # as backward gives them, while the block's activations are all there
    assert two[UNREDUCED] == 4 * (BLOCK + first), "with a block's copy to reduce"
    assert (two["activations"], two["logits"]) == (one["activations"], one["logits"])
    never = parts("parallel.dp_shard=4", "parallel.reshard_after_forward=never")
    assert never[GATHERED] == 4 * ALL
    twice = ("parallel.dp_shard=4", "train.grad_accum_steps=2")
    assert parts(*twice)[UNREDUCED] == 4 * (ALL + first)
    each = parts(*twice, "parallel.reduce_gradients=micro_batch")
    assert each[UNREDUCED] == two[UNREDUCED]
    assert parts("parallel.dp_shard=4", "precision=bf16")[GATHERED] == two[GATHERED] / 2
    assert parts("parallel.dp_shard=2", "parallel.cp=2")[WEIGHTS] == two[WEIGHTS]
    off = parts("parallel.dp_shard=4", "parallel.cpu_offload=true")
    assert [off[part] for part in (*STATE, GATHERED)] == [0, 0, 0, two[GATHERED]]


def test_tp_cuts_matrices_and_tables_and_no_norm():
    assert parts("parallel.tp=2")[WEIGHTS] == 4 * (TABLE + MATRICES // 2 + NORMS + 64)
    key_values, matrices = 4 * 2 * 64 * 16, 4 * (2 * 64 * 64 + 3 * 64 * 96)
    shared = parts("parallel.tp=4", "model.n_kv_heads=2")[WEIGHTS]
    assert shared == 4 * (2 * TABLE // 4 + matrices // 4 + key_values + NORMS + 64)


def test_tp_and_cp_cut_activations():
    one, cut = parts(), parts("parallel.tp=2")
    half, gathered = (
        parts("parallel.cp=2", f"parallel.cp_method={method}")
        for method in ("ulysses", "all_gather")
    )
    whole = parts("parallel.tp=2", "parallel.sequence_parallel=false")
    assert one["activations"] / 2 < cut["activations"] < whole["activations"] < one["activations"]
    assert cut["logits"] == one["logits"] / 2
    assert parts("parallel.tp=2", "parallel.loss_parallel=false")["logits"] == one["logits"]
    assert [2 * half[part] for part in ("activations", "logits")] == [
        one["activations"],
        one["logits"],
    ]
    # A layer keeps keys and values of 1.5 times as many tokens: to the end of a rank's later run.
    more = gathered["activations"] - half["activations"]
    assert more == 4 * 2 * 4 * 64 * (4 * 64 // 2) * 3 // 2
    full = "train.activation_checkpointing=full"
    saved = parts(full)["activations"] - parts(full, "parallel.tp=2")["activations"]
    assert saved == 4 * 64 * 4 * (4 * 64 // 2)


def test_a_pipeline_rank_has_its_blocks_and_one_table():
    two = parts("parallel.pp=2")
    stage = 4 * (TABLE + (MATRICES + NORMS) // 2)
    assert two[WEIGHTS] == two[GATHERED] == two[UNREDUCED] - 4 * BLOCK == stage
    v = parts("parallel.pp=2", "parallel.pp_schedule=zbv_zero_bubble")
    assert v[WEIGHTS] == stage + 4 * (TABLE + 64)


def test_schedules_hold_different_numbers_of_micro_batches():
    """Eight of one sequence each: gpipe holds all, 1F1B one a rank."""
    step = ("train.batch_size=8", "parallel.pp=2", "parallel.pp_microbatches=8")
    more = ("train.seq_len=128", "objective.loss_fn=chunked_cross_entropy")
    held = {
        name: parts(*step, *more, f"parallel.pp_schedule={name}")["activations"]
        for name in ("gpipe", "1f1b", "interleaved_1f1b")
    }
    assert held["gpipe"] == 4 * held["1f1b"]
    assert held["interleaved_1f1b"] == held["1f1b"] * 5 / 4


def test_recompute_in_every_nth_block():
    """One, two and four of four blocks."""
    one, two, four = (
        parts("train.activation_checkpointing=full", f"train.recompute_every={n}")["activations"]
        for n in (4, 2, 1)
    )
    assert two - four == 2 * (one - two) > 0


def test_weights_in_16_bits_have_half_the_bytes_and_their_gradients_too():
    """Counted by hand, of one rank and of two, in bf16 and multiplied in fp32."""
    adamw = ("optimizer=adamw", "precision.param_dtype=bf16")
    one = parts(*adamw)
    assert one["weights (bf16)"] == one["gradients (bf16)"] == 2 * ALL
    assert (one["fp32 masters"], one["optimizer state"]) == (4 * ALL, 8 * ALL)
    assert one[UNREDUCED] == (1 + 4) * BLOCK
    assert one[GATHERED] == 4 * ALL, "nothing is sharded, so it stays"
    both = parts(*adamw, "precision.mixed_precision=bf16", "precision.stochastic_rounding=true")
    assert "fp32 masters" not in both
    two = parts(*adamw, "parallel.dp_shard=2", "precision.mixed_precision=bf16")
    assert (two["weights (bf16)"], two[UNREDUCED]) == (ALL, (2 / 4 + 4) * BLOCK)
    assert parts(*adamw, "optimizer.freeze_parameters=[embedding]")["fp32 masters"] < 4 * ALL


def test_gradients_in_bf16_of_weights_in_fp32_have_half_the_bytes():
    """Counted by hand; sums over micro-batches are there in fp32, or in bf16 if each is reduced."""
    adamw = ("optimizer=adamw", "precision.grad_dtype=bf16")
    one = parts(*adamw)
    assert (one["weights (fp32)"], one["gradients (bf16)"]) == (4 * ALL, 2 * ALL)
    assert one["optimizer state"] == 8 * ALL
    assert parts(*adamw, "parallel.dp_shard=2")["gradients (bf16)"] == ALL
    several = (*adamw, "train.grad_accum_steps=4")
    summed = parts(*several, "parallel.reduce_gradients=step")
    assert summed[UNREDUCED] == 4 * ALL
    each = parts(*several, "parallel.reduce_gradients=micro_batch")
    assert UNREDUCED not in each
    inside = parts(*adamw, "train.optimizer_in_backward=true", "train.grad_clip_norm=0")
    assert inside["gradients (bf16)"] == 2 * (MATRICES + NORMS) // 4


def test_offloaded_state_is_here_for_two_parameters_and_gradients_in_backward_for_a_block():
    adamw = ("optimizer=adamw", "precision.param_dtype=bf16", "parallel.dp_shard=2")
    there = parts(*adamw, "parallel.offload_optimizer=true")
    assert (there["optimizer state"], there["fp32 masters"]) == (2 * 12 * TABLE // 2, 0)
    inside = ("train.optimizer_in_backward=true", "train.grad_clip_norm=0")
    assert parts(*adamw, *inside)["gradients (bf16)"] == 2 * (MATRICES + NORMS) // 4 // 2
