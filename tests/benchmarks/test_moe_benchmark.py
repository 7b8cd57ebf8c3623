"""benchmarks/moe.py in its small form: it times what it says that it times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import moe
import pytest
import torch
from moe_layers import CPU, CUDA, KERNELS, SMALL, dense, experts, forward_backward, inputs
from torch.utils.flop_counter import FlopCounterMode

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "moe.py"
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
    assert (
        flops(experts(CASE, "capacity 1", DEVICE)) == CASE.flops + router
    )  # as many rows as there are assignments


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_pieces_make_the_layer(kernel: str) -> None:
    layer, (x, _) = experts(CASE, kernel, DEVICE), inputs(CASE, DEVICE)
    flat = x.flatten(0, 1)
    routed = layer.router(flat)
    found, rows = moe.places(layer, routed.experts, len(x))
    products = moe.run(layer, moe.there(flat, found, rows), found, rows)
    torch.testing.assert_close(
        moe.back(products, routed.weights, found, rows), layer(x).flatten(0, 1), rtol=0, atol=0
    )


def test_sizes_divide_over_sequences_and_ranks() -> None:
    assert not [
        case for case in [*SMALL, *CPU, *CUDA] if case.tokens % case.sequences or case.experts % 2
    ]


@pytest.mark.nightly
def test_small_form() -> None:
    command = [sys.executable, str(SCRIPT), "--small", "--rounds=3"]
    page = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    layers, pieces, ranks = tables(page)
    assert [row["layer"] for row in layers] == ["dense", *KERNELS]
    assert [row["layer"] for row in pieces] == ["grouped, sorted", "capacity 1.25, batched"]
    assert [row["layer"] for row in ranks] == ["grouped", "capacity 1.25"]
    assert {row["tokens x dim"] for row in [*layers, *pieces, *ranks]} == {"64 x 16"}
    for row in layers:
        ratio = float(row["ms"]) / float(layers[0]["ms"])
        assert float(row["of dense"].rstrip("x")) == pytest.approx(ratio, rel=0.1)
        assert 0 < float(row["fastest"]) <= float(row["ms"])
    for row in pieces:
        router, permute, products = (
            float(row[f"{name}, ms"]) for name in ("router", "permute", "experts")
        )
        assert percent(row["router + permute"]) == pytest.approx(
            (router + permute) / (router + permute + products), abs=0.05
        )
    assert {row["layer"]: row["dropped"] for row in layers if row["dropped"]} == {
        "capacity 1.25": f"{dropped(1.25):.1%}",
        "capacity 1": f"{dropped(1.0):.1%}",
    }
    # Forward there and back, backward there and back: of the rows that a capacity makes, 1.25 times
    # as many, half goes to the other rank.
    rows = 1.25 * CASE.tokens * CASE.top_k / 2
    assert float(ranks[1]["sent, MB"]) == pytest.approx(4 * rows * CASE.dim * 4 / 1e6, abs=0.005)


def dropped(factor: float) -> float:
    """Share of assignments beyond a capacity, counted one by one."""
    x, _ = inputs(CASE, DEVICE)
    weight = experts(CASE, "capacity 1", DEVICE).router.weight
    beyond = 0
    for sequence in x:
        chosen = (sequence @ weight.T).topk(CASE.top_k).indices.flatten().tolist()
        size = factor * len(sequence) * CASE.top_k / CASE.experts
        beyond += sum(max(0, chosen.count(expert) - int(size)) for expert in range(CASE.experts))
    return beyond / (CASE.tokens * CASE.top_k)


def tables(page: str) -> list[list[dict[str, str]]]:
    """The tables of a Markdown page: rows by column name."""
    found = []
    for block in page.split("\n\n"):
        lines = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in block.splitlines()
            if line.startswith("|")
        ]
        if lines:
            found.append([dict(zip(lines[0], line, strict=True)) for line in lines[2:]])
    return found


def percent(cell: str) -> float:
    return float(cell.rstrip("%")) / 100
