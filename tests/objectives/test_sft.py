"""Supervised fine-tuning: what each token weighs, and what the loss is divided by, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from forge.config.objectives.base import SFT as SFTConfig
from forge.data import IGNORE_INDEX
from forge.data.batches.samples import Samples
from forge.objectives.sft import SFT

END = 0


class Store:
    """Tokens with marks; `counted` is a store of these."""

    def __init__(self, ids: list[int], counted: list[int] | None = None) -> None:
        self.ids = np.array(ids)
        self.counted: Any = None if counted is None else Store(counted)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.ids[start:stop]


# Three examples: prompts of 2, 1 and 3 tokens, answers of 1, 3 and none with their ends.
TOKENS = [5, 6, 7, END, 8, 9, 1, 2, END, 3, 4, 5, END]
MARKS = [0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0]
STORE = Store(TOKENS, MARKS)
ROWS = [[(0, 13)], [(0, 4)], [(4, 9)]]


def samples_of(*rows: int, end: int | None = END) -> Samples:
    find: Any = lambda number: (STORE, ROWS[number])  # noqa: E731
    return Samples(seq_len=14, numbers=rows, find=find, masked=True, end_of_text=end)


def made(**options: Any) -> SFT:
    return SFT(SFTConfig(**options))


def test_each_example_weighs_the_same() -> None:
    objective = made(weighting="example", neftune_alpha=6.0)
    samples = samples_of(0, 1, 2)
    batch = objective.collate(samples)
    assert objective.count(samples) == 4, "two in the first row, one in each other"
    weights = batch["weights"]
    counted = batch["targets"] != IGNORE_INDEX
    assert torch.equal(weights > 0, counted)
    assert weights[0].tolist() == [*(0, 0.5, 0.5, 0), *[0.25] * 4, *[0] * 6]
    assert torch.equal(weights.sum(1), torch.tensor([2.0, 1.0, 1.0]))
    lengths = [4] * 4 + [5] * 5 + [3] * 3
    expected = [6 / length**0.5 for length in lengths] + [0] * 2
    torch.testing.assert_close(batch["jitter"][0], torch.tensor(expected))
    # One text a row: a row is an example.
    whole = samples_of(0, 1, end=None)
    assert objective.count(whole) == 2
    assert torch.equal(objective.collate(whole)["weights"].sum(1), torch.ones(2))
    assert made().count(samples) == 2 + 4 + 2 + 4
    assert not {"weights", "jitter"} & made().collate(samples).keys()


@pytest.mark.parametrize("loss_fn", ["cross_entropy", "chunked_cross_entropy"])
def test_the_loss_is_the_mean_over_examples_of_their_means(loss_fn: str) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, 14, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(11, 6, generator=generator, dtype=torch.float64)
    model: Any = type("Model", (), {"output_weight": weight, "hidden": lambda self, t, **_: states})
    samples = samples_of(0, 1, 2)
    objective = made(loss_fn=loss_fn, weighting="example", label_smoothing=0.1)
    losses = objective(model(), objective.collate(samples))
    logs = (states @ weight.T).log_softmax(-1)
    spans = {(0, 1): [7, END], (0, 4): [9, 1, 2, END], (1, 1): [7, END], (2, 0): [9, 1, 2, END]}
    means = [
        torch.stack(
            [
                -0.9 * logs[row, first + n, token] - 0.1 * logs[row, first + n].mean()
                for n, token in enumerate(answer)
            ]
        ).mean()
        for (row, first), answer in spans.items()
    ]
    expected = torch.stack(means).mean()
    torch.testing.assert_close(losses.total / objective.count(samples), expected)
    assert set(losses.sums) == {"ce", "uniform_ce"}
