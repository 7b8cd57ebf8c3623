"""Whether documents that are kept apart (data.pack_sequences) change the validation loss of the
default run at equal tokens: three seeds, each evaluated by both ways of reading.

    python benchmarks/parity/isolation.py 400 > benchmarks/results/isolation.md

The number is train.max_steps. Read as one text, a token after a border sees the document before;
read apart it does not, and the first token of a document is no target. So losses of one column
compare, and those of a row do not.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from forge.build import build
from forge.data.batches.loader import eval_batches
from forge.data.preparing.cached import prepare_tokens
from forge.training.callbacks.evaluation import evaluate
from forge.training.checkpoints.restore import load_run

SEEDS = (1, 2, 3)


def losses(run: Path) -> list[float]:
    """Of the whole validation split, read as one text and apart."""
    trained = load_run(run)
    config, tokenizer = trained.config, trained.tokenizer
    text = prepare_tokens(config.data, config.tokenizer, build=partial(build, trust=()))
    objective = build(config.objective, path="objective", tokenizer=tokenizer)
    found = []
    for end_of_text in (None, tokenizer.eos_id):
        options = {"seq_len": config.train.seq_len, "batch_size": 16, "end_of_text": end_of_text}
        batches = eval_batches(text.val, objective, **options)
        metrics = evaluate(trained.model, objective, batches, device=torch.device("cpu"))
        found.append(metrics["loss"])
    return found


def main() -> None:
    steps = int(sys.argv[1])
    print(f"`python benchmarks/parity/isolation.py {steps}`,", end=" ")
    print(f"torch {torch.__version__}; loss in nats.\n")
    print("| trained with data.pack_sequences | seed | read as one text | read apart |")
    print("| --- | --- | --- | --- |")
    means = []
    with tempfile.TemporaryDirectory() as place:
        for apart in ("false", "true"):
            found = []
            for seed in SEEDS:
                run = Path(place, f"{apart}_{seed}")
                command = [sys.executable, "-m", "forge.train", f"data.pack_sequences={apart}"]
                command += [
                    f"seed={seed}",
                    f"train.max_steps={steps}",
                    "eval=off",
                    "optimizer=adamw",
                ]
                subprocess.run([*command, f"run.dir={run}"], check=True, stdout=sys.stderr)
                found.append(losses(run))
                one, other = found[-1]
                print(f"| {apart} | {seed} | {one:.4f} | {other:.4f} |", flush=True)
            means.append([statistics.mean(column) for column in zip(*found, strict=True)])
            spread = [statistics.stdev(column) for column in zip(*found, strict=True)]
            cells = (f"{m:.4f} ± {s:.4f}" for m, s in zip(means[-1], spread, strict=True))
            print(f"| {apart} | mean ± standard deviation | {' | '.join(cells)} |", flush=True)
    first, second = (b - a for a, b in zip(*means, strict=True))
    print(
        f"\nKeeping documents apart in training changes the means by {first:+.4f}, {second:+.4f}."
    )


if __name__ == "__main__":
    main()
