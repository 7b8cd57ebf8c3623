"""Statistics by layer, against sums over whole tensors; the first layer with a NaN."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import Train, trains
from run_helpers import at_step, logged

from forge.training.callback import Callback

OPTIONS = "metrics.internals=2 train.max_steps=4 train.grad_clip_norm=0 eval=off checkpoint=off"


def root_mean_square(values: torch.Tensor) -> float:
    return values.detach().double().square().mean().sqrt().item()


class Looks(Callback):
    """Computes the same from whole tensors, of the second step."""

    def __init__(self, model: Any) -> None:
        self.model, self.found = model, {}
        self.outputs: list[torch.Tensor] = []
        block = model.blocks["1"]
        block.register_forward_hook(lambda module, inputs, output: self._keep(output))

    def _keep(self, output: torch.Tensor) -> None:
        self.outputs.append(output)
        output.retain_grad()

    def on_step_start(self, loop) -> None:
        self.outputs = []

    def on_gradients(self, loop) -> None:
        if loop.state.step != 1:
            return
        block = self.model.blocks["1"]
        gradients = torch.cat([p.grad.flatten() for p in block.parameters()])
        self.found["gradients"] = root_mean_square(gradients)

    def on_step_end(self, loop, output) -> None:
        if loop.state.step != 2:
            return
        block = self.model.blocks["1"]
        outputs = torch.cat(self.outputs)
        self.found["largest"] = outputs.abs().max().item()
        self.found["activations"] = root_mean_square(outputs)
        self.found["output_gradients"] = root_mean_square(torch.cat([x.grad for x in self.outputs]))  # type: ignore[misc]
        weights = torch.cat([p.flatten() for p in block.parameters()])
        self.found["weights"] = root_mean_square(weights)


def test_the_values_are_those_of_whole_tensors(assembled) -> None:
    loop = assembled(OPTIONS)
    looks = Looks(loop.model)
    loop.callbacks.append(looks)
    loop.run()
    assert len(looks.found) == 5
    for kind, value in looks.found.items():
        curve = logged(loop.run_dir, f"internals/{kind}/blocks.1")
        assert curve.keys() == {2, 4}, kind
        assert curve[2] == pytest.approx(value, rel=1e-5), kind
    assert logged(loop.run_dir, "internals/activations/embedding").keys() == {2, 4}


@pytest.mark.parametrize(
    ("layer", "backward", "sentence"),
    [
        ("1", False, "the first layer whose output is not finite is blocks.1"),
        ("0", True, "the gradient of the output of blocks.0 is the first that is not"),
    ],
)
def test_the_first_layer_with_a_nan_is_named(assembled, caplog, layer, backward, sentence) -> None:
    loop = assembled(OPTIONS)

    def spoil(loop) -> None:
        def poison(module, inputs, output):
            if not backward:
                return output * math.nan
            output.register_hook(lambda gradient: gradient * math.inf)
            return None

        loop.model.blocks[layer].register_forward_hook(poison, prepend=True)

    at_step(loop, 2, spoil)
    with caplog.at_level(logging.WARNING):
        loop.run()
    said = [record.getMessage() for record in caplog.records if "layer" in record.getMessage()]
    assert said[0].startswith("step 3: ")
    assert sentence in said[0]


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["fsdp2 x tp2", "pp2"])
def test_the_values_are_those_of_one_rank(tmp_path: Path, text_file: Path, layout: str) -> None:
    train: Train = trains(tmp_path, text_file)
    options = "metrics.internals=1 optimizer=sgd"
    one, many = train("one", "single", 2, options), train("many", layout, 2, options)
    for kind in ("activations", "largest", "gradients", "weights"):
        for name in ("blocks.0", "blocks.3", "embedding", "norm"):
            key = f"internals/{kind}/{name}"
            values, expected = logged(many, key), logged(one, key)
            if "largest" in kind and not expected:
                continue
            assert values.keys() == expected.keys() == {1, 2}, key
            assert list(values.values()) == pytest.approx(list(expected.values()), rel=1e-4), key
