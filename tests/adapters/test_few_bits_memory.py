"""What weights in few bits take, against the estimate from the config alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import forge
from forge.adapters.formats import pack_weight, unpack
from forge.config.adapters.packed import made_bytes
from forge.parallel.ranks import Ranks
from forge.planning.memory import memory_of
from forge.training.models import build_model

SIZES = [
    *("model.dim=128", "model.n_layers=2", "model.n_heads=4", "model.ffn_hidden_dim=256"),
    *("model.vocab_size=320", "model.max_seq_len=64", "tokenizer=bytes", "data=synthetic"),
    *("train.seq_len=64", "run.device=cpu", "precision=fp32", "adapter=qlora"),
    *("adapter.target_modules=[all]", "adapter.dropout=0"),
]
EXPERTS = ("model.moe.num_experts=4", "model.moe.ffn_hidden_dim=128")


class Most(TorchDispatchMode):
    """The most bytes that results of operations had at once, each counted while it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[int, Any] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            own = torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes()
            self.there[storage._cdata] = own
        self.there = {key: one for key, one in self.there.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.there.values()))
        return result


@pytest.mark.parametrize("options", [(), EXPERTS, ("adapter.base_format=int8",)], ids=str)
def test_weights_take_what_is_estimated(options: tuple[str, ...]) -> None:
    config: Any = forge.compose([*SIZES, *options]).validate(world_size=1).config
    model = build_model(config, torch.device("cpu"), Ranks(), trained=True)
    live = sum(one.nbytes for one in model.parameters())
    assert memory_of(config).state["weights (fp32)"] == live
    plain = sum(one.size for one in config.model.tensors())
    assert live < 4 * plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_weight_that_is_made_again_takes_what_is_estimated(dtype: torch.dtype) -> None:
    parts = pack_weight(torch.randn(256, 1024), "nf4_double")
    with Most() as most:
        unpack(parts, "nf4_double", dtype)
    assert most.peak == pytest.approx(made_bytes((256, 1024), dtype.itemsize), rel=0.02)
