"""What layers send: as much as the papers count, and weights before they are needed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from helpers.ranks import on_ranks
from parity_cases import layout_of
from parity_run import config_of, this_rank
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from forge.build import build
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.parallel.tensor import spread_width
from forge.training.models import build_model

TEXT = torch.randint(0, 301, (2, 16), generator=torch.Generator().manual_seed(0))


class Sent(TorchDispatchMode):
    """The collectives in the order in which they start, and the largest result of any."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if "c10d" in str(function) and "wait" not in str(function):
            self.names.append(str(function).split(".")[1])
            if isinstance(result, Tensor):
                self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.ci("tp=2")
@pytest.mark.parametrize(
    "options", ["tp=2", "tp=2 no_sp", "tp=2 objective.loss_fn=chunked_cross_entropy"]
)
def test_tensor_parallelism_exchanges_twice_a_layer_and_direction_and_never_logits(options) -> None:
    config = config_of("llama", layout_of(options))

    def work(_: int) -> None:
        mesh = this_rank(config).mesh
        assert mesh is not None
        model = Decoder(config.model)  # type: ignore[arg-type]
        init_weights(model, 3)
        spread_width(model, config.parallel, mesh)
        objective = build(config.objective, path="objective")
        with Sent() as forward:
            total = objective(model, {"tokens": TEXT, "targets": TEXT}).total
        with Sent() as backward:
            total.backward()
        each = 2 * model.section.n_layers + 1
        exchanges = {"all_gather_into_tensor": each, "reduce_scatter_tensor": each}
        if not config.parallel.sequence_parallel:
            exchanges = {"all_reduce": each}
        # Of the loss three: largest logit, its partition, and the target's logit.
        assert Counter(forward.names) == exchanges | {"allreduce_": 3}
        assert Counter(backward.names) == exchanges
        assert max(forward.largest, backward.largest) == TEXT.numel() * model.section.dim

    on_ranks(2, work)


def test_expert_parallelism_sends_tokens_after_the_next_weights_are_asked_for() -> None:
    config = config_of("moe", layout_of("ep=2 dp_shard=2 batch=2"))

    def work(_: int) -> None:
        model = build_model(config, torch.device("cpu"), this_rank(config))
        with Sent() as forward:
            y = model(TEXT)
        with Sent() as backward:
            (y * y.detach()).sum().backward()
        sent, layers = "all_to_all_single", len(model.blocks)
        assert forward.names.count(sent) == 3 * layers  # counts, there and back
        assert backward.names.count(sent) == 2 * layers
        before = forward.names[: forward.names.index(sent)]
        # The root, embedding and head, and block and experts of two layers.
        assert sum("allgather" in name for name in before) == 6, forward.names

    on_ranks(4, work)
