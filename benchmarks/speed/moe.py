"""One mixture of experts against a dense feed-forward layer of as many active FLOPs: forward and
backward, and what routing takes of it.

    python benchmarks/speed/moe.py > benchmarks/results/moe.md

fp32 on a CPU; where there is a GPU, the experts in bf16 on it, and larger sizes. A dense layer is
as wide as the experts of one token together. Layers take turns, one pass each, so that what else
the machine does meets all of them. The pieces of a layer are timed alone, forward and backward, on
what they get in it. `moe_exchange.py` times two ranks.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys

import torch
from moe_exchange import over_ranks
from moe_layers import (
    CPU,
    CUDA,
    DENSE,
    KERNELS,
    SMALL,
    Case,
    Work,
    clear,
    dense,
    dropped,
    experts,
    forward_backward,
    in_turns,
    inputs,
)
from torch import Tensor, nn

from forge.models.dispatch import (
    Order,
    Room,
    assign_rows,
    capacity,
    empty,
    fill_rows,
    rearrange,
    sort_assignments,
    spread_tokens,
)
from forge.models.moe import MoE
from forge.models.routing_losses import balance_loss, entropy
from forge.training.callbacks.bench import processor

PIECES = {"grouped": "sorted", "capacity 1.25": "batched"}
ABOUT = """Routers and inputs are random, so that the load is nearly even. Of dense: the median,
over that of the dense layer. GFLOP/s counts active experts and their rows alone, neither routers
nor the empty rows of a capacity. Dropped: share of the assignments."""
ABOUT_PIECES = """Pieces of a layer. Router: scores, choice and balance loss. Permute: the sort, the
ways to the experts and back, and the weighted sum. Experts: the products. The share is of the sum
of the three; the last column compares that sum with the whole layer."""
ABOUT_RANKS = """Experts over two ranks (`parallel.ep=2`), gloo, a thread and as many tokens each;
rank 0. Alone: the all-to-alls of a pass, of the same sizes, and nothing else. In it: what they take
within a pass, where a rank also waits for the other one to come."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="passes of each layer that count")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--small", action="store_true", help="one small size, on a CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device("cuda" if torch.cuda.is_available() and not options.small else "cpu")
    cases = SMALL if options.small else CUDA if device.type == "cuda" else CPU
    load = os.getloadavg()[0]
    print(f"# A mixture of experts against a dense layer\n\n    python {' '.join(sys.argv)}\n")
    print(
        f"{versions(options.threads, device)} Medians of {options.rounds} passes, forward and"
        f" backward.\n\n{ABOUT}\n"
    )
    print(
        "| tokens x dim | experts x width | top_k | layer | ms | fastest | of dense | GFLOP/s |"
        " dropped |"
    )
    print("| --- | --- | ---: | --- |" + " ---: |" * 5, flush=True)
    for case in cases:
        print(whole_layers(case, device, options.rounds), flush=True)
    print(f"\n{ABOUT_PIECES}\n")
    print(
        "| tokens x dim | experts x width | top_k | layer | router, ms | permute, ms | experts, ms"
        " | router + permute | sum of whole |"
    )
    print("| --- | --- | ---: | --- |" + " ---: |" * 5, flush=True)
    for case in cases:
        for kernel in PIECES:
            print(pieces_of_layer(case, kernel, device, options.rounds), flush=True)
    if device.type == "cpu":
        print(f"\n{ABOUT_RANKS}\n")
        print(
            "| tokens x dim | experts x width | top_k | layer | ms | sent, MB | all-to-alls alone,"
            " ms | share | in it, ms | share |"
        )
        print("| --- | --- | ---: | --- |" + " ---: |" * 6, flush=True)
        print("\n".join(over_ranks(cases, options.rounds)))
    print(
        f"\nLoad average {load:.1f} before the first pass, {os.getloadavg()[0]:.1f} after the last,"
        f" on {os.cpu_count()} cores."
    )


def versions(threads: int, device: torch.device) -> str:
    """What the numbers were measured with."""
    place = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{os.cpu_count()} x {processor()}, {threads} thread{'s' * (threads > 1)}"
    )
    return (
        f"torch {torch.__version__}, Python {platform.python_version()}, {place},"
        f" {'bf16' if device.type == 'cuda' else 'fp32'}."
    )


def whole_layers(case: Case, device: torch.device, rounds: int) -> str:
    """A line for each kernel."""
    x, y_grad = inputs(case, device)
    layers: dict[str, nn.Module] = {DENSE: dense(case, device)} | {
        name: experts(case, name, device) for name in KERNELS
    }
    seconds = in_turns(
        {
            name: lambda layer=layer: forward_backward(layer, x, y_grad)
            for name, layer in layers.items()
        },
        rounds,
        device,
    )
    lines = []
    for name, layer in layers.items():
        median = statistics.median(seconds[name])
        ratio = median / statistics.median(seconds[DENSE])
        share = (
            ""
            if not isinstance(layer, MoE) or layer.section.capacity_factor == 0
            else f"{dropped(layer):.1%}"
        )
        rate = case.flops / median / 1e9
        lines.append(
            f"| {case} | {name} | {1e3 * median:,.2f} | {1e3 * min(seconds[name]):,.2f} |"
            f" {ratio:.2f}x | {rate:,.0f} | {share} |"
        )
    return "\n".join(lines)


def pieces_of_layer(case: Case, kernel: str, device: torch.device, rounds: int) -> str:
    """The line of one kernel: times of its parts."""
    x, y_grad = inputs(case, device)
    layer = experts(case, kernel, device)
    works = pieces(layer, x, y_grad) | {"whole": lambda: forward_backward(layer, x, y_grad)}
    router, permute, products, whole = (
        statistics.median(taken) for taken in in_turns(works, rounds, device).values()
    )
    total = router + permute + products
    cells = " | ".join(f"{1e3 * taken:,.2f}" for taken in (router, permute, products))
    return (
        f"| {case} | {kernel}, {PIECES[kernel]} | {cells} | {(router + permute) / total:.1%} |"
        f" {total / whole:.0%} |"
    )


def pieces(layer: MoE, x: Tensor, y_grad: Tensor) -> dict[str, Work]:
    """Router, permutation and experts, each forward and backward alone."""
    flat, flat_grad = x.detach().flatten(0, 1).requires_grad_(), y_grad.flatten(0, 1)
    routed = layer.router(flat)
    weights = routed.weights.detach().requires_grad_()
    found, rows = places(layer, routed.experts, len(x))
    sent = there(flat.detach(), found, rows).requires_grad_()
    products = run(layer, sent, found, rows).detach().requires_grad_()
    products_grad = torch.randn_like(products)

    def route() -> None:
        clear(layer)
        flat.grad = None
        again = layer.router(flat)
        loss = balance_loss(again.shares, found.counts)
        entropy(again.shares)
        torch.autograd.backward(
            [again.weights, loss], [torch.ones_like(again.weights), torch.ones_like(loss)]
        )

    def permute() -> None:
        flat.grad = products.grad = weights.grad = None
        found, rows = places(layer, routed.experts, len(x))
        y = back(products, weights, found, rows)
        torch.autograd.backward([there(flat, found, rows), y], [products_grad, flat_grad])

    def multiply() -> None:
        clear(layer)
        sent.grad = None
        run(layer, sent, found, rows).backward(products_grad)

    return {"router": route, "permute": permute, "experts": multiply}


def places(layer: MoE, chosen: Tensor, sequences: int) -> tuple[Order, Room | None]:
    """chosen: [tokens, top_k] -> the sorted order, and the rows of a capacity."""
    section = layer.section
    found = sort_assignments(chosen, section.num_experts, sequences, per_sequence=True)
    if not section.capacity_factor:
        return found, None
    size = capacity(
        section.capacity_factor, len(chosen) // sequences, section.top_k, section.num_experts
    )
    return found, assign_rows(found, size, torch.full_like(found.counts, size))


def there(x: Tensor, found: Order, rows: Room | None) -> Tensor:
    """x: [tokens, dim] -> what the experts get, [n, dim]."""
    sent = spread_tokens(x, found)
    return sent if rows is None else fill_rows(sent, rows)


def run(layer: MoE, x: Tensor, found: Order, rows: Room | None) -> Tensor:
    """The experts, [n, dim] -> [n, dim]."""
    if rows is None:
        return layer.run_experts(x, found.counts.sum(0))
    return layer.run_equal(x.unflatten(0, (layer.section.num_experts, -1))).flatten(0, 1)


def back(products: Tensor, weights: Tensor, found: Order, rows: Room | None) -> Tensor:
    """products: [n, dim], of the experts -> [tokens, dim]."""
    if rows is not None:
        products, weights = empty(products, rows), weights * rows.kept[found.place].view_as(weights)
    each = rearrange(products, found.place, found.by_expert).unflatten(0, weights.shape)
    return (each * weights.unsqueeze(-1)).sum(1).to(products.dtype)


if __name__ == "__main__":
    main()
