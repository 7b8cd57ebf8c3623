r"""How long it takes to build a model on one device, and how much memory.

    python benchmarks/waiting/start_of_a_large_model.py \
        > benchmarks/results/start_of_a_large_model.md

Each time in a process of its own, from the config to a model with its initial weights.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time

ROUNDS = 3
MODEL = (
    "model=small model.dim=2048 model.n_layers=16 model.n_heads=16 model.n_kv_heads=16"
    " model.vocab_size=32000 parallel=single"
)


def measure() -> None:
    """Seconds, gibibytes at the peak beyond those before, and parameters, as JSON."""
    import torch

    import forge
    from forge.parallel.ranks import Ranks
    from forge.training.models import build_model

    config = forge.compose(MODEL.split()).validate(world_size=1).config
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    model = build_model(config, torch.device("cpu"), Ranks())
    seconds = time.perf_counter() - begin
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        json.dumps(
            [
                seconds,
                more / 2**20,
                sum(parameter.numel() for parameter in model.parameters()),
                torch.__version__,
            ]
        )
    )


def main() -> None:
    if sys.argv[1:] == ["--once"]:
        measure()
        return
    runs = [
        subprocess.run(
            [sys.executable, __file__, "--once"], check=True, capture_output=True, text=True
        ).stdout
        for _ in range(ROUNDS)
    ]
    found = [json.loads(run.splitlines()[-1]) for run in runs]
    _, _, parameters, version = found[0]
    print(
        f"`python {' '.join(sys.argv)}`, torch {version}, {os.cpu_count()} cores,"
        f" {platform.machine()}, {ROUNDS} times.\n"
    )
    print(f"A decoder of {parameters:,} parameters (`{MODEL}`).\n")
    print("| what | least | most |\n| --- | --- | --- |")
    for name, values, unit in (
        ("build it with its initial weights", [f[0] for f in found], "s"),
        ("memory", [f[1] for f in found], "GiB"),
    ):
        print(f"| {name} | {min(values):.2f} {unit} | {max(values):.2f} {unit} |")


if __name__ == "__main__":
    main()
