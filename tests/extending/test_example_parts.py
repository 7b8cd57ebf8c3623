"""The parts of the example package against closed forms, numpy and torch's own."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from example_helpers import SMALL, USE

from forge.compose import composition
from forge.models.contract import check_model
from forge.models.init import init_weights

pytestmark = pytest.mark.usefixtures("example")


def model_of(**options: int) -> Any:
    from forge_example.conf import GatedConv as Section
    from forge_example.gated_conv import GatedConv

    section = Section(
        vocab_size=11, max_seq_len=64, **{"dim": 6, "n_layers": 3, "kernel_size": 3, **options}
    )
    model = GatedConv(section)
    init_weights(model, 0)
    check_model(model, "forge_example.gated_conv.GatedConv")
    return model


def test_a_token_sees_itself_and_the_reach_before_it() -> None:
    model = model_of()
    tokens = torch.arange(40)[None] % 11
    changed = tokens.clone()
    changed[0, 20] = (tokens[0, 20] + 1) % 11
    with torch.no_grad():
        different = (
            (model.hidden(tokens) != model.hidden(changed)).any(-1)[0].nonzero().flatten().tolist()
        )
    reach = 2 * (1 + 2 + 4)
    assert (different[0], different[-1]) == (20, 20 + reach)


def test_a_block_is_the_sum_over_its_taps() -> None:
    block = model_of().blocks["1"].double()  # dilation 2
    x = torch.randn(1, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight, bias = (p.detach().numpy() for p in (block.convolution.weight, block.convolution.bias))
    normed = x[0].numpy() / np.sqrt(
        (x[0].numpy() ** 2).mean(-1, keepdims=True) + torch.finfo(torch.float64).eps
    )
    wanted = x[0].numpy().copy()
    for t in range(9):
        out = bias + sum(
            weight[:, :, tap] @ normed[t - 2 * (2 - tap)]
            for tap in range(3)
            if t - 2 * (2 - tap) >= 0
        )
        wanted[t] += out[:6] / (1 + np.exp(-out[6:]))
    np.testing.assert_allclose(block(x)[0].detach().numpy(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_torchs(smoothing: float) -> None:
    from forge_example.conf import LabelSmoothing as Section
    from forge_example.label_smoothing import LabelSmoothing

    logits = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.tensor([[1, 2, -100, 4, 5], [-100, 0, 10, 3, 3]])
    ours = LabelSmoothing(Section(smoothing=smoothing))(
        lambda _: logits, {"tokens": targets, "targets": targets}
    )
    theirs = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing, reduction="sum"
    )
    torch.testing.assert_close(ours.total, theirs, rtol=1e-6, atol=1e-6)
    (ours_grad,), (theirs_grad,) = (
        torch.autograd.grad(ours.total, logits),
        torch.autograd.grad(theirs, logits),
    )
    torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        ours.sums["ce"], F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    )


def test_the_average_in_closed_form(tmp_path: Path) -> None:
    from forge_example.ema import EMA
    from safetensors.torch import load_file

    model, logged = torch.nn.Linear(2, 2, bias=False), []
    loop: Any = SimpleNamespace(
        model=model, state=SimpleNamespace(step=0), log=logged.append, run_dir=tmp_path
    )
    average = EMA(decay=0.75, log_interval=2)
    visited = [torch.full((2, 2), float(value)) for value in (1, 5, -3, 2)]
    model.weight.data.copy_(visited[0])
    average.on_start(loop)
    for step, value in enumerate(visited[1:], 1):
        loop.state.step = step
        model.weight.data.copy_(value)
        average.on_step_end(loop, None)  # type: ignore[arg-type]
    average.on_end(loop)
    wanted = 0.75**3 * 1 + 0.25 * (0.75**2 * 5 + 0.75 * -3 + 2)
    torch.testing.assert_close(
        load_file(tmp_path / "ema.safetensors")["weight"], torch.full((2, 2), wanted)
    )
    at_2 = 0.75**2 * 1 + 0.25 * (0.75 * 5 - 3)
    assert [float(row["ema/distance"]) for row in logged] == pytest.approx([2 * abs(-3 - at_2)])
    with pytest.raises(ValueError, match=r"decay=1: must be at least 0 and less than 1"):
        EMA(decay=1)


def test_the_file_of_a_run_that_goes_on_has_each_row_once(tmp_path: Path) -> None:
    from forge_example.csv_tracker import CSV

    first = CSV(tmp_path, "m.csv")
    for step in (1, 2, 3):
        first.log(step, {"a": step / 3})
    first.close()
    second = CSV(tmp_path, "m.csv")
    second.log(2, {"a": 9.0, "b": float("nan")})
    second.close()
    with (tmp_path / "m.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["step", "name", "value"],
        ["1", "a", repr(1 / 3)],
        ["2", "a", "9.0"],
        ["2", "b", "nan"],
    ]
    CSV(tmp_path, "m.csv").close()


def test_every_option_of_the_package_composes(
    desk: Path, monkeypatch: pytest.MonkeyPatch, write_nothing: Callable[[], list[Path]]
) -> None:
    monkeypatch.chdir(desk)
    for choice in (
        "model=gated_conv",
        "objective=label_smoothing",
        "optimizer=signum",
        "+mixer@model.mixer=gated",
        "+feed_forward@model.feed_forward=low_rank",
        "+technique=tiles",
        "+callback=ema",
        "+tracker=long_csv",
        "+recipe=smooth",
    ):
        assert composition.config([*USE, *SMALL, choice]).validate().config.frozen
    assert write_nothing() == [desk / "text.txt"]


@pytest.fixture
def write_nothing(desk: Path) -> Callable[[], list[Path]]:
    return lambda: sorted(desk.iterdir())
