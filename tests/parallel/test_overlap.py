"""Exchanges of experts' rows in parts: what is on its way while a part is computed."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks
from parity_cases import layout_of
from parity_run import config_of, this_rank
from torch.utils._python_dispatch import TorchDispatchMode

from forge.models.dispatch import sort_assignments
from forge.parallel.overlap.expert_parts import order_of_parts, sizes_of_parts
from forge.planning.traffic import busiest_rank
from forge.training.models import build_model

TEXT = torch.randint(301, (2, 12), generator=torch.Generator().manual_seed(0))
ONE_LAYER = " model.n_layers=1 model.moe.first_num_dense_layers=0 model.moe.num_experts=4"
EXCHANGES = ("all_to_all_single", "all_gather_into_tensor", "reduce_scatter_tensor")


class Order(TorchDispatchMode):
    """Records begun collectives by number, waits for them, and products of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[str] = []
        self.begun: dict[int, tuple[int, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = str(func.overloadpacket).partition(".")
        if name == "wait_tensor" and args[0].data_ptr() in self.begun:
            self.acts.append(f"wait {self.begun[args[0].data_ptr()][0]}")
        result = func(*args, **(kwargs or {}))
        # A gather of one rank is no traffic.
        if space == "_c10d_functional" and name in EXCHANGES and 1 not in args[1:2]:
            number = sum(act.startswith("begin") for act in self.acts)
            # held, so that no later result has the same address
            self.begun[result.data_ptr()] = number, result
            self.acts.append(f"begin {number}")
        elif name.startswith(("looped_mm", "_grouped_mm")):
            self.acts.append("experts")
        return result

    def since(self, first: int = 0) -> list[str]:
        """The acts from a number on, products in a row as one."""
        return [act for act, _ in groupby(self.acts[first:])]


@pytest.mark.parametrize(("method", "ahead"), [("", 1), ("gathered", 2)])
def test_the_next_part_travels_while_one_is_computed(method, ahead) -> None:
    """Forward and backward; before, `ahead` exchanges of counts or of choices."""
    config = config_of("moe", layout_of(f"ep=2 overlap {method}") + ONE_LAYER)
    counts = [f"{act} {number}" for number in range(ahead) for act in ("begin", "wait")]
    there, after = ahead, ahead + 4
    forward = [f"begin {there}", f"begin {there + 1}", f"wait {there}", "experts"]
    forward += [f"begin {there + 2}", f"wait {there + 1}", "experts"]
    forward += [f"begin {there + 3}", f"wait {there + 2}", f"wait {there + 3}"]
    backward = [f"begin {after}", f"begin {after + 1}", f"wait {after}", "experts"]
    backward += [f"begin {after + 2}", f"wait {after + 1}", "experts"]
    backward += [f"begin {after + 3}", f"wait {after + 2}", f"wait {after + 3}"]
    if method:  # the gradient of the routing weights, which were gathered whole
        backward += [f"begin {after + 4}", f"wait {after + 4}"]

    def work(rank: int) -> None:
        model = build_model(config, torch.device("cpu"), this_rank(config))
        with Order() as order:
            loss = model(TEXT[rank : rank + 1]).square().sum()
            assert order.since() == counts + forward
            first = len(order.acts)
            loss.backward()
            assert order.since(first) == backward

    on_ranks(2, work)


@pytest.mark.nightly
@pytest.mark.parametrize("words", ["", "gathered", "capacity", "score_on_input"])
def test_a_recomputed_layer_leaves_no_exchange_unwaited(words) -> None:
    """Recomputation stops early; and the closed form of traffic counts as many exchanges."""
    options = {"capacity": " model.moe.capacity_factor=1", "": "", "gathered": ""}
    options["score_on_input"] = " model.moe.score_on_input=true model.moe.router=sigmoid_topk"
    method = "gathered" if words == "gathered" else ""
    layout = layout_of(f"ep=2 overlap {method} recompute=full") + ONE_LAYER + options[words]
    config = config_of("moe", layout)

    def work(rank: int) -> None:
        model = build_model(config, torch.device("cpu"), this_rank(config))
        with Order() as order:
            model(TEXT[rank : rank + 1]).square().sum().backward()
        begun, waited = (
            sorted(act.split()[1] for act in order.acts if act.startswith(word))
            for word in ("begin", "wait")
        )
        assert begun == waited
        calls = sum(sent.calls for sent in busiest_rank(config) if sent.technique == "ep")
        assert len(begun) == calls / config.train.grad_accum_steps

    on_ranks(2, work)


def test_a_part_has_an_equal_piece_of_each_expert() -> None:
    draw = torch.Generator().manual_seed(1)
    experts = torch.stack([torch.randperm(5, generator=draw)[:2] for _ in range(24)])
    found = sort_assignments(experts, 5, 2, per_sequence=True)
    ordered = order_of_parts(found, 3)
    sizes = sizes_of_parts(found.counts.sum(0), 3)
    assert torch.equal(sizes.sum(0), experts.flatten().bincount(minlength=5))
    assert int((sizes.amax(0) - sizes.amin(0)).max()) <= 1
    # Each place by hand: the assignments of an expert in the order of tokens, cut into pieces.
    of_expert = [(experts.flatten() == expert).nonzero().flatten() for expert in range(5)]
    pieces = [list(run.split(n.tolist())) for run, n in zip(of_expert, sizes.t(), strict=True)]
    expected = torch.cat([pieces[expert][part] for part in range(3) for expert in range(5)])
    assert torch.equal(ordered.by_expert, expected)
    assert torch.equal(ordered.by_expert[ordered.place], torch.arange(48))
    assert torch.equal(ordered.expert, experts.flatten()[expected])
    assert torch.equal(ordered.scope, expected // 2 // 12)
