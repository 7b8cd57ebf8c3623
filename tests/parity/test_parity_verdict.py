"""What a parity check calls different: each thing that can be wrong with a side is named."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import on_ranks
from torch import nn

from forge.parallel.gather import gather_on_main
from forge.parallel.ranks import Ranks
from forge.parity.side import Record
from forge.parity.verdict import BOUNDS, compare_records, verdict_table

BOUND = BOUNDS[torch.float64]
NAMES = ("blocks.0.attention.wq.weight", "blocks.0.attention.wk.bias")


def record() -> Record:
    """Two steps of two parameters."""
    draw = torch.Generator().manual_seed(0)

    def tensors() -> dict[str, torch.Tensor | None]:
        return {name: torch.rand(3, 4, generator=draw, dtype=torch.float64) for name in NAMES}

    return Record(
        losses=[4.0, 3.0],
        grad_norms=[1.0, 2.0],
        gradients=[tensors(), tensors()],
        before=tensors(),
        after=tensors(),
    )


def changed(tensor: torch.Tensor | None, by: float) -> torch.Tensor:
    assert tensor is not None
    return tensor * (1 + by)


def test_a_side_is_equal_to_itself_and_to_rounding() -> None:
    a, b = record(), record()
    b.losses[1] *= 1 + 1e-13
    b.gradients[1][NAMES[0]] = changed(b.gradients[1][NAMES[0]], 1e-11)
    b.after[NAMES[1]] = changed(b.after[NAMES[1]], 1e-10)
    verdict = compare_records(a, b, BOUND)
    assert verdict.equal
    assert verdict.largest() == (
        pytest.approx(1e-13, rel=0.1),
        pytest.approx(1e-11, rel=0.1),
        pytest.approx(1e-10, rel=0.1),
    )
    assert (
        "equal, within the bounds: losses 1e-12, gradients 1e-10, weights at the end 1e-09"
        in verdict_table(verdict, BOUND)
    )


def lose(b: Record) -> None:
    del b.before[NAMES[0]]


def rename(b: Record) -> None:
    b.before["module." + NAMES[0]] = b.before.pop(NAMES[0])


FAULTS: dict[str, tuple[Callable[[Record], object], str]] = {
    "weight at the start, one bit": (
        lambda b: b.before[NAMES[0]].view(-1)[5].mul_(1 + 2e-16),
        f"{NAMES[0]} differs at step 0",
    ),
    "missing parameter": (lose, f"{NAMES[0]} is missing in b"),
    "other name": (rename, f"module.{NAMES[0]} is missing in a"),
    "loss": (
        lambda b: b.losses.__setitem__(1, 3.0 + 1e-11),
        "step 2: the losses differ by 3.3e-12, more than 1e-12",
    ),
    "loss that is no number": (
        lambda b: b.losses.__setitem__(0, math.nan),
        "step 1: the losses differ by nan, more than 1e-12",
    ),
    "gradient norm": (
        lambda b: b.grad_norms.__setitem__(0, 1 + 1e-9),
        "step 1: the gradient norms differ by 1.0e-09, more than 1e-10",
    ),
    "gradient": (
        lambda b: b.gradients[0].update({NAMES[0]: changed(b.gradients[0][NAMES[0]], 1e-9)}),
        f"step 1: the gradient of {NAMES[0]} differs by 1.0e-09, more than 1e-10",
    ),
    "no gradient": (
        lambda b: b.gradients[1].update({NAMES[0]: None}),
        f"step 2: {NAMES[0]} has no gradient in b",
    ),
    "zero gradient": (
        lambda b: b.gradients[1][NAMES[0]].zero_(),
        f"step 2: the gradient of {NAMES[0]} is zero in b",
    ),
    "gradient that is no number": (
        lambda b: b.gradients[1][NAMES[0]].view(-1)[0].fill_(math.inf),
        f"step 2: the gradient of {NAMES[0]} is not finite in b",
    ),
    "weights at the end": (
        lambda b: b.after.update({NAMES[0]: changed(b.after[NAMES[0]], 1e-8)}),
        f"{NAMES[0]} differs by 1.0e-08 after the last step, more than 1e-09",
    ),
    "frozen weight": (
        lambda b: b.after.update({NAMES[0]: b.before[NAMES[0]].clone()}),
        f"{NAMES[0]} has not moved in b",
    ),
    "copies": (
        lambda b: b.replicas.append(NAMES[0]),
        f"ranks of b have different copies of {NAMES[0]}",
    ),
    "fewer steps": (lambda b: (b.losses.pop(), b.gradients.pop()), "a made 2 steps and b 1"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_found(what, tmp_path) -> None:
    """Also after it was written to files and read again."""
    spoil, said = FAULTS[what]
    a, b = record(), record()
    spoil(b)
    verdict = compare_records(a, b, BOUND)
    assert not verdict.equal
    assert said in verdict.faults
    assert "NOT equal" in verdict_table(verdict, BOUND, faults=1)
    for side in (a, b):
        (tmp_path / str(id(side))).mkdir()
        side.save(tmp_path / str(id(side)))
    read = [Record.load(tmp_path / str(id(side))) for side in (a, b)]
    assert said in compare_records(*read, BOUND).faults


def test_state_that_differs_is_a_fault() -> None:
    a, b = record(), record()
    a.state, b.state = {"bias": torch.ones(3)}, {"bias": torch.ones(3)}
    assert compare_records(a, b, BOUND).equal
    b.state = {"bias": torch.tensor([1.0, 1.0, 1.1])}
    assert [
        fault
        for fault in compare_records(a, b, BOUND).faults
        if "bias differs by 5.8e-02 after the last step" in fault
    ]
    b.state = {}
    assert "bias is missing in b" in compare_records(a, b, BOUND).faults


def test_a_gradient_that_vanishes_by_mathematics_may_be_rounding_and_no_more() -> None:
    a, b = record(), record()
    for side in (a, b):
        side.gradients[0][NAMES[1]] = torch.randn(3, 4, dtype=torch.float64) * 1e-17
    assert any(NAMES[1] in fault for fault in compare_records(a, b, BOUND).faults)
    assert compare_records(a, b, BOUND, may_vanish=("wk.bias",)).equal
    b.gradients[0][NAMES[1]] = torch.randn(3, 4, dtype=torch.float64) * 1e-9
    assert any(
        NAMES[1] in fault for fault in compare_records(a, b, BOUND, may_vanish=("wk.bias",)).faults
    )


def test_stages_and_copies_are_put_together() -> None:
    """Four ranks in two stages: each has its own parameter, and both a tied one, of which the last
    rank's copy has drifted.
    """

    def work(rank: int) -> None:
        host = dist.new_group()
        assert isinstance(host, dist.ProcessGroup)
        model = nn.ParameterDict(
            {f"stage{rank // 2}": torch.full((2, 3), float(rank // 2)), "tied": torch.ones(4)}
        )
        with torch.no_grad():
            model["tied"][0] += 1e-7 * (rank == 3)
        ranks = Ranks(rank=rank, size=4, host=host)
        found = gather_on_main(model.named_parameters(), ranks)
        assert found.differing == ["tied"]
        model["tied"].grad = None if rank == 2 else torch.ones(4)
        gradients = gather_on_main(
            ((name, parameter.grad) for name, parameter in model.named_parameters()), ranks
        )
        if rank == 0:
            assert set(found.tensors) == {"stage0", "stage1", "tied"}
            for stage in (0, 1):
                tensor = found.tensors[f"stage{stage}"]
                assert torch.equal(tensor, torch.full((2, 3), float(stage)))
            assert gradients.tensors["tied"] is None

    on_ranks(4, work)
