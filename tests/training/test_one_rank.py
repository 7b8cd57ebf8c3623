"""One rank without FSDP against FSDP: the same recipe of formats, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from layouts import trains
from run_helpers import assert_bit_equal, logged, step_of, stored

from forge import compose
from forge.config.root import Config

BF16_PRODUCTS = "precision.mixed_precision=bf16"
FP8_GATHER = "quantization=fp8 quantization.fp8_all_gather=true"
BF16 = f"{BF16_PRODUCTS} precision.param_dtype=bf16 optimizer=adamw"
WIDE = "precision.residual_dtype=fp32"
CASES = {
    "one micro-batch": f"{BF16} train.global_batch_size=2",
    "sums in fp32": f"{BF16} {WIDE} parallel.reduce_gradients=step",
    "sums in 16 bits": f"{BF16} parallel.reduce_gradients=micro_batch",
    "experts": f"{BF16} model.moe.num_experts=4 model.moe.top_k=2 train.global_batch_size=4",
    "adapters": f"{BF16} adapter=lora",
}
STEPS = 3


@pytest.mark.ci("sums in fp32")
@pytest.mark.parametrize("name", CASES)
def test_fsdp_around_one_rank_changes_no_bit(tmp_path, text_file: Path, monkeypatch, name):
    train = trains(tmp_path, text_file)
    options = CASES[name], f"checkpoint.interval={STEPS}"
    plain = train("plain", "single", STEPS, *options)
    monkeypatch.setattr(Config, "one_rank_has_fsdp", property(lambda config: True))
    sharded = train("sharded", "single", STEPS, *options)
    assert logged(plain, "train/loss") == logged(sharded, "train/loss")
    assert logged(plain, "train/grad_norm") == logged(sharded, "train/grad_norm")
    assert_bit_equal(stored(step_of(plain, STEPS)), stored(step_of(sharded, STEPS)))


def test_two_ranks_in_16_bits_agree_with_one(tmp_path, text_file: Path):
    """FSDP reduces in fp32 over two ranks what one rank adds up in fp32 over two micro-batches."""
    train = trains(tmp_path, text_file)
    options = BF16, "train.global_batch_size=4 parallel.reduce_gradients=step"
    one, two = (train(layout, layout, STEPS, *options) for layout in ("single", "fsdp2"))
    ours, theirs = (list(logged(run, "train/loss").values()) for run in (one, two))
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("words", "sharded"),
    [
        (f"{BF16_PRODUCTS} precision.param_dtype=bf16", False),
        (f"{BF16_PRODUCTS} precision.param_dtype=fp32", True),
        ("precision.param_dtype=bf16 precision.mixed_precision=fp32", True),
        (f"{BF16_PRODUCTS} precision.param_dtype=bf16 parallel.cpu_offload=true", True),
        (f"{BF16_PRODUCTS} precision.param_dtype=bf16 {FP8_GATHER}", True),
        ("precision=fp32 precision.mixed_precision=fp32", False),
    ],
)
def test_one_rank_has_fsdp_where_weights_are_cast_or_kept_elsewhere(words: str, sharded: bool):
    config = compose(words.split())
    assert config.one_rank_has_fsdp is sharded
