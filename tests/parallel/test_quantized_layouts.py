"""Layouts of a model whose products are quantized compute what one device does, where scales do not
span sequences that other ranks have.
"""

from __future__ import annotations

import pytest
from parity_cases import Case, layout_of
from parity_models import MODELS
from parity_run import outcomes

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
CASES = [
    ("fp8", "dp_shard=2"),
    ("fp8", "compiled recompute=selective"),
    ("fp8 of tensors", "pp=2 train.batch_size=8 parallel.pp_microbatches=4"),
    ("fp8 experts", "ep=2 train.batch_size=4"),
]


@pytest.mark.parametrize(("model", "layout"), CASES, ids=["fsdp2", "compiled", "pp2", "ep2"])
def test_a_layout_of_a_quantized_model_equals_one_device(model: str, layout: str) -> None:
    case = Case(name=layout, layout=layout_of(layout), model=model, formats=("float64",))
    (found,) = outcomes(case, case.formats)
    assert not found.faults, found.shown
    assert found.same_state
