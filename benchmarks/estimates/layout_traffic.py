r"""Bytes that one rank sends in one optimizer step, and memory, for layouts side by side; computed
from the config, nothing runs.

    python benchmarks/estimates/layout_traffic.py fsdp single+tp=8 ddp+dp_replicate=8 -- \
        run.num_processes=8 model=llama7b train.global_batch_size=64

First the layouts: presets of conf/parallel, with values of `parallel` added by '+'. After '--'
what they share. Give the global batch, so that all of them do the same work. GPUs have 80 GiB.
"""

from __future__ import annotations

import sys

from forge.compose import composition
from forge.planning.memory import memory_of
from forge.planning.traffic import bytes_per_step
from forge.planning.world import Devices
from forge.resolve.resolve import resolve

MEMORY = 80 << 30
"""Bytes of a GPU. How often gradients are reduced and weights gathered follows from the memory that
there is.
"""
TECHNIQUES = ("fsdp", "hsdp", "ep", "tp", "loss", "cp", "pp")


def row(layout: str, shared: list[str]) -> str:
    """One layout as a line of a Markdown table."""
    preset, *values = layout.split("+")
    config = composition.config(
        [
            f"parallel={preset}",
            *(f"parallel.{value}" for value in values),
            "run.device=cuda",
            *shared,
        ]
    )
    ranks = config.run.num_processes or 1
    config = resolve(
        config, world_size=ranks, devices=Devices(gpus=ranks, source="the table", memory=MEMORY)
    ).config
    sent = bytes_per_step(config)
    by_technique = [
        sum(count for name, count in sent.items() if name.startswith(f"{technique}:"))
        for technique in TECHNIQUES
    ]
    cells = [f"{count / 1e9:.3g}" if count else "" for count in (*by_technique, sum(sent.values()))]
    memory = memory_of(config).allocated / 2**30
    return (
        f"| {layout.replace('+', ' ')} | {config.train.grad_accum_steps} | {' | '.join(cells)} |"
        f" {memory:.3g} |"
    )


def main(words: list[str]) -> None:
    """Print the table."""
    middle = words.index("--")
    layouts, shared = words[:middle], words[middle + 1 :]
    print(f"    python benchmarks/estimates/layout_traffic.py {' '.join(words)}\n")
    print(f"| layout | accumulated | {' | '.join(TECHNIQUES)} | all, GB | memory, GiB |")
    print(f"| --- |{' ---: |' * (len(TECHNIQUES) + 3)}")
    for layout in layouts:
        print(row(layout, shared))


if __name__ == "__main__":
    main(sys.argv[1:])
