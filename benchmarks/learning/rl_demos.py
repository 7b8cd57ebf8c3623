"""Reinforcement learning, PPO and distillation over three seeds: the demos, with intervals.

    python benchmarks/learning/rl_demos.py [--folder FOLDER] [--table] [--steps N] [PART ...]

Parts: grpo and ppo, the demo from rewards alone by either advantage; distill, a student beside
itself trained alone at equal tokens. Writes results/rl_demos.md of the first two, and
results/distill_demo.md of the last.
FOLDER: where the runs are, which are not made again; default: a temporary one. --table: run
nothing. --steps: of distill's students, without which they have those of the demo. Each run has
one thread, and runs one after another.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from forge.statistics.interval import Interval
from forge.statistics.items import mean

RESULTS = Path(__file__).resolve().parents[1] / "results"
SEEDS = (1, 2, 3)
# One of each prompt, and as many passes over a rollout and learning rate as GRPO has.
PPO = "objective.advantage=gae rollout.num_generations=1 objective.vf_coef=0.5"
REWARDED = {"grpo": "experiment=grpo_demo", "ppo": f"experiment=grpo_demo {PPO}"}
ARMS = {"alone": "objective.hard.value=1 objective.forward_kl.value=0", "distilled": ""}
PARTS = ("writing", "rewards", "log_probs")
SHARE = 0.1  # of the steps, whose mean is a number of the table


def main() -> None:
    """Run what is not there yet, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("parts", nargs="*", default=[*REWARDED, "distill"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        runs = runs_of(options.parts, folder, options.steps)
        for words, name in runs if not options.table else ():
            train(folder, name, words)
        machine = f"{platform.machine()}, torch {torch.__version__}, one thread a run"
        head = f"`python benchmarks/learning/rl_demos.py`, {machine}.\n"
        rewarded = [part for part in options.parts if part != "distill"]
        tables = [row for part in rewarded for row in of_rewards(folder, part)]
        write_page("rl_demos", ["# Reinforcement learning over three seeds\n", head], tables)
        tables = [*of_distillation(folder)] if "distill" in options.parts else []
        write_page("distill_demo", ["# Distillation over three seeds\n", head], tables)


def write_page(name: str, head: Sequence[str], tables: Sequence[str]) -> None:
    if tables:
        text = "\n".join([*head, *tables])
        (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")


def runs_of(parts: Sequence[str], folder: Path, steps: int | None) -> Iterator[tuple[str, str]]:
    """Overrides and name of each run, in the order in which they are needed."""
    for part in parts:
        if part != "distill":
            yield from ((f"{REWARDED[part]} seed={seed}", f"{part}-{seed}") for seed in SEEDS)
            continue
        length = f"train.max_steps={steps} eval.interval={steps}" if steps else ""
        yield "", "base"
        for seed in SEEDS:
            for arm, more in ARMS.items():
                teacher = f"experiment=distill_demo objective.teacher={folder / 'base'}"
                yield f"{teacher} seed={seed} {more} {length}", f"{arm}-{seed}"


def train(folder: Path, name: str, words: str) -> None:
    """Train a run, or continue with it; nothing where it has ended."""
    run = folder / name
    if (run / "result.json").exists():
        return
    common = ["run.num_threads=1", "run.device=cpu", "metrics.enable_console=false"]
    start = ["train", *words.split(), f"run.dir={run}", *common]
    verb, *rest = ["resume", str(run)] if run.exists() else start
    print(f"{name}: {words}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", f"forge.{verb}", *rest], check=True, stdout=sys.stderr)


def rows(run: Path, key: str, file: str = "metrics.jsonl") -> dict[int, float]:
    """Values by step."""
    found = [json.loads(line) for line in (run / file).read_text().splitlines()]
    return {row["step"]: row[key] for row in found if key in row}


def shown(interval: Interval, form: Callable[[float], str]) -> str:
    assert interval.low is not None
    assert interval.high is not None
    return f"{form(interval.value)} | {form(interval.low)} to {form(interval.high)}"


def of_rewards(folder: Path, part: str) -> Iterator[str]:
    """Right answers at the beginning, on the way and at the end, and where the time went."""
    done = [run for seed in SEEDS if (run := folder / f"{part}-{seed}" / "result.json").exists()]
    if len(done) < len(SEEDS):
        return
    curves = [rows(run.parent, "train/rewards/exact/mean") for run in done]
    last = max(curves[0])
    yield f"## {part}\n\n`{REWARDED[part]}`: share of right answers, its mean over the"
    yield f"{last * SHARE:.0f} steps up to each; the interval is Student's t over the seeds,"
    yield "and knows of no 0 and 1.\n"
    yield "| steps | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " | mean | 95 % interval |"
    yield "| ---: |" + " ---: |" * (len(SEEDS) + 2)
    for step in [round(last * share) for share in (SHARE, 0.25, 0.5, 0.75, 1.0)]:
        values = [
            float(np.mean([v for n, v in curve.items() if step - last * SHARE < n <= step]))
            for curve in curves
        ]
        each = " | ".join(f"{value:.1%}" for value in values)
        yield f"| {step} | {each} | {shown(mean(values), '{:.1%}'.format)} |"
    yield from of_time([run.parent for run in done], PARTS)


def of_distillation(folder: Path) -> Iterator[str]:
    """Loss on held-out text of both arms, and their difference, paired by seed."""
    runs = {arm: [folder / f"{arm}-{seed}" for seed in SEEDS] for arm in ARMS}
    if not all((run / "result.json").exists() for arm in runs.values() for run in arm):
        return
    losses = {
        arm: [list(rows(run, "eval/loss").values())[-1] for run in of_arm]
        for arm, of_arm in runs.items()
    }
    steps = max(rows(runs["alone"][0], "train/loss"))
    yield "`experiment=distill_demo`, whose teacher is the default run:"
    yield "cross-entropy with held-out text at the end, in nats, after equally many tokens.\n"
    yield f"Steps of a student: {steps}.\n"
    yield "| arm | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " | mean | 95 % interval |"
    yield "| --- |" + " ---: |" * (len(SEEDS) + 2)
    pairs = zip(losses["distilled"], losses["alone"], strict=True)
    table = losses | {"distilled less alone": [ours - theirs for ours, theirs in pairs]}
    for name, values in table.items():
        each = " | ".join(f"{value:.4f}" for value in values)
        yield f"| {name} | {each} | {shown(mean(values), '{:.4f}'.format)} |"
    yield ""


def of_time(runs: Sequence[Path], names: Sequence[str]) -> Iterator[str]:
    """Shares of the time of a step by part, over all steps and runs."""
    file = "performance.jsonl"
    step = np.mean([np.mean(list(rows(run, "step_seconds", file).values())) for run in runs])
    yield f"\nTime of a step by part ({step:.3f} s here, on a machine that had other work too):\n"
    parts = {
        name: np.mean([np.mean(list(rows(run, f"{name}_seconds", file).values())) for run in runs])
        for name in (*names, "data")
    }
    parts["learning, and all else"] = step - sum(parts.values())
    yield "| part | share |\n| --- | ---: |"
    for name, seconds in parts.items():
        yield f"| {name} | {seconds / step:.1%} |"
    yield ""


if __name__ == "__main__":
    main()
