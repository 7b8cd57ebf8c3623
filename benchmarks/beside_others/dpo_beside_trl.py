"""Tokens a second of DPO in forge and in TRL, on the same rows, interleaved.

    python benchmarks/beside_others/dpo_beside_trl.py [--steps 12] [--times 2] [--threads 1]

A Llama of six layers in the shape of SmolLM2-135M (random weights, 49,152 rows of vocabulary), rows
of 40 to 57 tokens, 2 pairs a batch, fp32 on the CPU, at most 96 and 512 tokens a row. Seconds are
of the whole training, with the reference's log-probabilities: TRL computes them in each step, forge
before the first. Both begin with the same weights. Writes results/dpo_beside_trl.md beside this
file.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from statistics import median
from typing import Any

import beside_trl
from beside_trl import RESULTS

LENGTHS = (96, 512)
PAIRS = 2
BETA, RATE = 0.1, 1e-5
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def main() -> None:
    """Run all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--steps", type=int, default=12)
    add("--times", type=int, default=2)
    add("--threads", type=int, default=1)
    add("--trl", nargs=2, metavar=("FOLDER", "LENGTH"), help="the side of TRL alone")
    options = parser.parse_args()
    if options.trl:
        print(json.dumps(of_trl(Path(options.trl[0]), int(options.trl[1]), options)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokens = write_inputs(folder, options.steps * PAIRS)
        found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for number in range(options.times):
            for length in LENGTHS:
                ours = of_forge(folder, length, number, options)
                found.setdefault(("forge", length), []).append(ours)
                found.setdefault(("TRL", length), []).append(run_trl(folder, length, options))
    (RESULTS / "dpo_beside_trl.md").write_text(table(found, tokens, options), encoding="utf-8")


def table(found: dict[tuple[str, int], list[dict[str, Any]]], tokens: int, options: Any) -> str:
    """The page of results; tokens: of all rows, those of the prompts once a response."""
    command = " ".join(["python", "benchmarks/beside_others/dpo_beside_trl.py", *sys.argv[1:]])
    lines = [
        "# DPO beside TRL\n",
        f"`{command}`, {beside_trl.versions()}, {options.threads} thread.\n",
    ]
    lines += [(__doc__ or "").partition("\n\n    ")[0] + "\n"]
    lines += [f"{options.steps} steps of {PAIRS} pairs, {tokens:,} tokens in all rows.\n"]
    lines += [
        "| at most | | seconds | tokens a second | forge / TRL |",
        "|---:|---|---:|---:|---:|",
    ]
    for length in LENGTHS:
        speeds = {}
        for name in ("forge", "TRL"):
            seconds = [each["seconds"] for each in found[name, length]]
            speeds[name] = tokens / median(seconds)
            shown = ", ".join(f"{each:.1f}" for each in seconds)
            ratio = f"{speeds['forge'] / speeds['TRL']:.2f}" if name == "TRL" else ""
            lines.append(f"| {length} | {name} | {shown} | {speeds[name]:,.0f} | {ratio} |")
    lines += ["\nLosses of the steps:\n", "| at most | | |", "|---:|---|---|"]
    for (name, length), runs in found.items():
        losses = " ".join(f"{loss:.4f}" for loss in runs[0]["losses"])
        lines.append(f"| {length} | {name} | {losses} |")
    return "\n".join(lines) + "\n"


def write_inputs(folder: Path, pairs: int) -> int:
    """A model's folder and rows; returns the tokens of both responses, each after its prompt."""
    beside_trl.write_model(folder / "model", **SHAPE)
    draw = random.Random(0)
    rows = [beside_trl.pair(draw) for _ in range(pairs)]
    beside_trl.write_rows(folder / "rows.jsonl", rows)
    return sum(2 * len(r["prompt"]) + len(r["chosen"]) + len(r["rejected"]) + 2 for r in rows)


def settings(length: int, options: Any) -> Namespace:
    """Those of both sides."""
    both = {"rate": RATE, "batch": PAIRS, "length": length}
    return Namespace(**both, steps=options.steps, threads=options.threads)


def of_forge(folder: Path, length: int, number: int, options: Any) -> dict[str, Any]:
    """Seconds and losses of `forge.train`."""
    run, both = folder / f"forge-{length}-{number}", settings(length, options)
    words = ["data=preference", "objective=dpo", f"objective.beta={BETA}"]
    words += beside_trl.forge_words(run, folder / "model", folder / "rows.jsonl", both)
    command = [sys.executable, "-u", "-m", "forge.train", *words]
    begin, steps = 0.0, []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("computing the reference"):
                begin = time.perf_counter()
            if line.startswith("step "):
                steps.append(time.perf_counter())
    if process.returncode or not begin or len(steps) != options.steps:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {"seconds": steps[-1] - begin, "losses": beside_trl.forge_losses(run)}


def run_trl(folder: Path, length: int, options: Any) -> dict[str, Any]:
    """Seconds and losses of TRL, in a process of its own."""
    more = ["--steps", str(options.steps), "--threads", str(options.threads)]
    return beside_trl.in_a_process(__file__, "--trl", str(folder), str(length), *more)


def of_trl(folder: Path, length: int, options: Any) -> dict[str, Any]:
    """The same rows, in the same order, by TRL's DPOTrainer."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    class InOrder(beside_trl.InOrder, DPOTrainer):
        pass

    torch.set_num_threads(options.threads)
    both = beside_trl.trl_settings(folder / f"trl-{length}", settings(length, options))
    trainer = InOrder(
        model=beside_trl.plain_model(folder / "model"),
        ref_model=beside_trl.plain_model(folder / "model"),
        args=DPOConfig(beta=BETA, **both),
        train_dataset=Dataset.from_list(beside_trl.read_rows(folder / "rows.jsonl")),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    )
    return beside_trl.train_by_trl(trainer)


if __name__ == "__main__":
    main()
