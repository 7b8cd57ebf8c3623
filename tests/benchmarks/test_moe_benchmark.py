"""benchmarks/speed/moe.py in its small form: it times what it says that it times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import moe
import pytest
import torch
from moe_layers import CPU, CUDA, KERNELS, SMALL, dense, experts, forward_backward, inputs
from torch.utils.flop_counter import FlopCounterMode

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speed" / "moe.py"
DEVICE = torch.device("cpu")
CASE = SMALL[0]


def flops(layer: torch.nn.Module) -> int:
    """Of a pass, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        forward_backward(layer, *inputs(CASE, DEVICE))
    return counter.get_total_flops()


def test_a_dense_layer_has_the_flops_of_the_experts_that_a_token_meets() -> None:
    router = 6 * CASE.tokens * CASE.dim * CASE.experts
    assert flops(dense(CASE, DEVICE)) == CASE.flops
    # As many rows as there are assignments.
    assert flops(experts(CASE, "capacity 1", DEVICE)) == CASE.flops + router


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_pieces_make_the_layer(kernel: str) -> None:
    layer, (x, _) = experts(CASE, kernel, DEVICE), inputs(CASE, DEVICE)
    flat = x.flatten(0, 1)
    routed = layer.router(flat)
    found, rows = moe.places(layer, routed.experts, len(x))
    products = moe.run(layer, moe.there(flat, found, rows), found, rows)
    back = moe.back(products, routed.weights, found, rows)
    torch.testing.assert_close(back, layer(x).flatten(0, 1), rtol=0, atol=0)


def test_sizes_divide_over_sequences_and_ranks() -> None:
    for case in [*SMALL, *CPU, *CUDA]:
        assert case.tokens % case.sequences == case.experts % 2 == 0


@pytest.mark.nightly
def test_small_form() -> None:
    """Of the rows that a capacity makes, 1.25 times as many, half goes to the other rank and comes
    back, forward and backward.
    """
    command = [sys.executable, str(SCRIPT), "--small", "--rounds=3"]
    page = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    layers, pieces, ranks = tables(page)
    assert [row["layer"] for row in layers] == ["dense", *KERNELS]
    assert [row["layer"] for row in pieces] == ["grouped, sorted", "capacity 1.25, batched"]
    assert [row["layer"] for row in ranks] == ["grouped", "capacity 1.25"]
    for row in layers:
        ratio = float(row["ms"]) / float(layers[0]["ms"])
        assert float(row["of dense"].rstrip("x")) == pytest.approx(ratio, rel=0.1)
        assert 0 < float(row["fastest"]) <= float(row["ms"])
    rows = 1.25 * CASE.tokens * CASE.top_k / 2
    assert float(ranks[1]["sent, MB"]) == pytest.approx(4 * rows * CASE.dim * 4 / 1e6, abs=0.005)


def tables(page: str) -> list[list[dict[str, str]]]:
    """The tables of a Markdown page: rows by column name."""
    found = []
    for block in page.split("\n\n"):
        lines = [line.strip("|").split("|") for line in block.splitlines() if line[:1] == "|"]
        cells = [[cell.strip() for cell in line] for line in lines]
        if cells:
            found.append([dict(zip(cells[0], line, strict=True)) for line in cells[2:]])
    return found
