"""Layouts of a model whose products are quantized compute what one device does, where scales do not
span sequences that other ranks have.
"""

from __future__ import annotations

import pytest
import torch
from parity_cases import Case, layout_of
from parity_models import MODELS
from parity_run import config_of, main_ranks, outcomes, record_of

from forge.parallel.ranks import Ranks
from forge.parity.verdict import BOUNDS, compare_records, may_vanish
from forge.planning.memory import LOSS, memory_of

WIDE = "model.dim=64 model.n_heads=2 model.n_kv_heads=1 model.ffn_hidden_dim=96"
FP8 = "quantization=fp8 quantization.emulate=true quantization.min_dim=32"
EXACT = f"{FP8} quantization.recipe=rowwise_with_gw_hp"
EXPERTS = "model.moe.ffn_hidden_dim=32 model.moe.num_experts=4"
MODELS["fp8"] = [*WIDE.split(), *EXACT.split()]
MODELS["fp8 of tensors"] = [*WIDE.split(), *FP8.split(), "train.batch_size=2"]
MODELS["fp8 experts"] = [
    *MODELS["moe"],
    *f"{WIDE} {EXACT} {EXPERTS} train.batch_size=8".split(),
]
MODELS["fp8 over tp"] = [
    *WIDE.split(),
    *FP8.split(),
    *["model.n_kv_heads=2", "train.batch_size=2"],
]
MODELS["fp8 of rows over tp"] = [*MODELS["fp8 over tp"], "quantization.recipe=rowwise"]
MODELS["fp8 of rows over tp, plain gradients"] = [
    *MODELS["fp8 over tp"],
    "quantization.recipe=rowwise_with_gw_hp",
]
MODELS["mxfp8 over tp"] = [
    *WIDE.split(),
    *["quantization=mxfp8", "quantization.emulate=true", "quantization.min_dim=32"],
    *["model.n_kv_heads=2", "model.ffn_hidden_dim=128", "train.batch_size=2"],
]
CASES = [
    ("fp8", "dp_shard=2"),
    ("fp8 over tp", "tp=2"),
    ("fp8 over tp", "tp=2 dp_shard=1 parallel.sequence_parallel=false"),
    ("fp8 over tp", "tp=2 compiled recompute=selective"),
    ("fp8 of rows over tp", "tp=2"),
    ("fp8 of rows over tp, plain gradients", "tp=2"),
    ("mxfp8 over tp", "tp=2"),
    ("fp8", "compiled recompute=selective"),
    ("fp8 of tensors", "pp=2 train.batch_size=8 parallel.pp_microbatches=4"),
    ("fp8 experts", "ep=2 train.batch_size=4"),
]


NAMES = [
    "fsdp2",
    *("tp2", "tp2, no sequences cut", "tp2, compiled"),
    *("tp2, rows", "tp2, rows and plain gradients", "tp2, mxfp8"),
    *("compiled", "pp2", "ep2"),
]


@pytest.mark.ci("fsdp2", "tp2", "ep2")
@pytest.mark.parametrize(("model", "layout"), CASES, ids=NAMES)
def test_a_layout_of_a_quantized_model_equals_one_device(model: str, layout: str) -> None:
    case = Case(name=layout, layout=layout_of(layout), model=model, formats=("float64",))
    (found,) = outcomes(case, case.formats)
    assert not found.faults, found.shown
    assert found.same_state


GATHERED = "quantization.fp8_all_gather=true quantization.in_evaluation=true"
MODELS["fp8 gathered"] = [*MODELS["fp8 of tensors"], *GATHERED.split()]


@pytest.mark.nightly
def test_weights_that_are_gathered_in_fp8_are_those_that_a_product_rounds() -> None:
    """The scale is of the whole weight: losses and gradients are those of weights in fp32."""
    layout = "dp_shard=2 train.batch_size=2"
    configs = [config_of(model, layout_of(layout)) for model in ("fp8 of tensors", "fp8 gathered")]

    def work(ranks: Ranks) -> list[float]:
        plain, gathered = (record_of(config, ranks, torch.float32)[0] for config in configs)
        verdict = compare_records(
            plain, gathered, BOUNDS[torch.float32], may_vanish=may_vanish(configs[0])
        )
        return [*verdict.largest(), float(len(verdict.faults))]

    assert main_ranks(configs[0], work) == [0, 0, 0, 0]


def test_what_is_gathered_in_fp8_takes_a_byte() -> None:
    """Two blocks and the head at a time, of which the matrices of the blocks are fp8."""
    layout = layout_of("dp_shard=2 train.batch_size=2")
    memories = [memory_of(config_of(f"fp8 {kind}", layout)) for kind in ("of tensors", "gathered")]
    parts = [dict(memory.moments[LOSS]) for memory in memories]
    wide, narrow = (each.pop("gathered weights") for each in parts)
    matrices = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96
    assert wide - narrow == 2 * 3 * matrices
    assert parts[0] == parts[1]
