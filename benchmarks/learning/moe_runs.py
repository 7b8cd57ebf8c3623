r"""A mixture of experts beside a dense model of as many active FLOPs a token, on the default
recipe, its load evened in several ways.

    python benchmarks/learning/moe_runs.py --runs DIR --seeds 42 1 2 \
        > benchmarks/results/moe_runs.md

The rate of the selection bias is chosen among --rates by shorter trials, their schedule fitted to
their steps: the one with the lowest load of the busiest expert, over the second half of the trial.
Runs go one after another, each on one thread. Words after `--` are overrides that all runs share.
Runs that DIR has finished already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import forge
from forge.config.model.decoder import Decoder
from forge.rundir.history import METRICS, PERFORMANCE
from forge.training.callbacks.bench import processor

DENSE, BIASED = "dense", "selection bias"
BY_LOSS = ["model=moe_tiny"]
UNEVEN = ["model=moe_tiny", "model.moe.aux_loss_weight=0"]
BY_BIAS = [*UNEVEN, "model.moe.bias_update_rate={rate:g}"]
SCALED = "model.moe.routed_scaling_factor=2"
RUNS = {
    DENSE: ["model=tiny"],
    "auxiliary loss": BY_LOSS,
    BIASED: BY_BIAS,
    "neither": UNEVEN,
    "auxiliary loss, capacity": [*BY_LOSS, "model.moe.capacity_factor=1.25"],
    "auxiliary loss, scaled": [*BY_LOSS, SCALED],
    "selection bias, scaled": [*BY_BIAS, SCALED],
}
SHOWN = {
    "train/loss": "training loss",
    "eval/loss": "validation loss",
    "train/moe/load_max": "busiest expert",
    "train/moe/load_min": "idlest expert",
    "train/moe/entropy": "entropy, nats",
    "train/moe/dropped": "dropped",
    "train/moe/bias": "bias, highest less lowest",
}
POINTS = 16
AT = (1, 4, 8, 12, 16)
"""At which sixteenths of a run the table shows it: means over the sixteenth that ends there, and
the evaluation there.
"""
ABOUT = """Loads are shares of the even load, of the experts of one step, as means over steps and
layers. Numbers of training are means over the {window} steps up to the one named. Nothing is
dropped in validation. Scaled: the weights of a token's two experts add up to 2 instead of 1, so
that two experts give what the two halves of a dense layer give, and not half of it."""


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--runs", type=Path, required=True, help="where the runs are kept")
    parser.add_argument(
        "--steps", type=int, default=1600, help=f"of each run, a multiple of {POINTS}"
    )
    parser.add_argument("--trial-steps", type=int, default=400, help="of each trial of a rate")
    parser.add_argument(
        "--rates",
        type=float,
        nargs="+",
        default=[0.001, 0.003, 0.01],
        help="model.moe.bias_update_rate to try",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[42], help="the first one is the one shown in full"
    )
    parser.add_argument("shared", nargs="*", help="overrides of all runs")
    options = parser.parse_args()
    if options.steps % POINTS:
        parser.error(f"--steps={options.steps}: must be a multiple of {POINTS}")
    print(f"# A mixture of experts beside a dense model, {options.steps:,} steps\n")
    print(
        "    python benchmarks/learning/moe_runs.py"
        f" {' '.join(sys.argv[1:]).replace(str(options.runs), 'DIR')}\n"
    )
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} x {processor()}, one thread a run.\n"
    )
    print(equal_flops(options.shared), flush=True)
    rate, trials = chosen_rate(options)
    print(f"\n{trials}", flush=True)
    for seed in options.seeds:
        for name in RUNS:
            train(
                run_folder(options.runs, name, seed),
                command(name, rate, seed, options.steps, options.shared),
            )
    about = ABOUT.format(window=options.steps // POINTS)
    parts = (what_ran(options, rate), about, over_time(options), by_seed(options))
    print("\n" + "\n\n".join(parts))


def command(name: str, rate: float, seed: int, steps: int, shared: Sequence[str]) -> list[str]:
    """What is typed behind `python` for a run, but for its directory."""
    model = [word.format(rate=rate) for word in RUNS[name]]
    recipe = [
        "optimizer=adamw",
        f"seed={seed}",
        f"train.max_steps={steps}",
        f"eval.interval={max(steps // 4, 1)}",
        "eval.steps=0",
        "run.num_threads=1",
    ]
    return ["-m", "forge.train", *model, *recipe, *shared]


def train(folder: Path, words: Sequence[str]) -> None:
    """Run forge.train into a directory; does nothing where it has ended before."""
    print(f"{folder.name} ...", file=sys.stderr, flush=True)
    quiet = ["metrics.enable_console=false", "eval.sample_tokens=0", "checkpoint.interval=1000000"]
    subprocess.run(
        [sys.executable, *words, *quiet, f"run.dir={folder}"], check=True, stdout=sys.stderr
    )


def run_folder(runs: Path, name: str, seed: int) -> Path:
    """Where a run is kept."""
    return runs / f"{name.replace(', ', '_').replace(' ', '_')}_{seed}"


def composed(name: str, rate: float, shared: Sequence[str]) -> tuple[Decoder, int]:
    """(model, tokens of a sequence) of a run."""
    config = (
        forge.compose([*(word.format(rate=rate) for word in RUNS[name]), *shared]).validate().config
    )
    assert isinstance(config.model, Decoder)
    return config.model, config.train.seq_len


def equal_flops(shared: Sequence[str]) -> str:
    """FLOPs and parameters of all models, in a table; exits unless all spend the same on a token,
    routers aside.
    """
    lines = [
        "| run | parameters | active parameters | FLOPs a token | of routers | without them |",
        "| --- |" + " ---: |" * 5,
    ]
    without = {}
    for name in RUNS:
        model, seq_len = composed(name, 0.001, shared)
        flops = model.flops_per_token(seq_len)
        routers = 6 * model.n_moe_layers * model.moe.num_experts * model.dim
        without[name] = flops - routers
        cells = (
            model.num_params_estimate,
            model.num_active_params,
            flops,
            routers,
            flops - routers,
        )
        lines.append(f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    if len(set(without.values())) > 1:
        raise SystemExit(f"The models do not spend the same on a token: {without}")
    return "\n".join(lines)


def chosen_rate(options: argparse.Namespace) -> tuple[float, str]:
    """The rate of the bias whose trial was the most even, and the table of the trials."""
    if len(options.rates) == 1:
        return options.rates[0], f"The rate of the selection bias was given: {options.rates[0]:g}."
    seed, half = options.seeds[0], options.trial_steps // 2
    lines = [
        f"Trials of the selection bias, {options.trial_steps} steps each, the loads over the second"
        " half:\n"
    ]
    lines += [
        "| model.moe.bias_update_rate | busiest expert | idlest expert | validation loss |",
        "| ---: |" + " ---: |" * 3,
    ]
    loads = {}
    for rate in options.rates:
        folder = options.runs / f"trial_{rate:g}_{seed}"
        train(folder, command(BIASED, rate, seed, options.trial_steps, options.shared))
        busiest, idlest = (
            mean(folder, f"train/moe/{name}", half, options.trial_steps)
            for name in ("load_max", "load_min")
        )
        loads[rate] = busiest
        lines.append(
            f"| {rate:g} | {busiest:.2f} | {idlest:.2f} | {last(folder, 'eval/loss'):.4f} |"
        )
    rate = min(loads, key=lambda rate: loads[rate])
    return rate, "\n".join([*lines, f"\n{rate:g} is taken."])


def what_ran(options: argparse.Namespace, rate: float) -> str:
    """Command and speed of each run of the first seed."""
    seed = options.seeds[0]
    lines = [
        "| run | command | tokens a second, median | fastest tenth |",
        "| --- | --- | ---: | ---: |",
    ]
    for name in RUNS:
        speeds = list(
            values(run_folder(options.runs, name, seed), "tokens_per_second", PERFORMANCE).values()
        )
        words = " ".join(["python", *command(name, rate, seed, options.steps, options.shared)])
        cells = (statistics.median(speeds), statistics.quantiles(speeds, n=10)[-1])
        lines.append(f"| {name} | `{words}` | {' | '.join(f'{cell:,.0f}' for cell in cells)} |")
    return "\n".join(lines)


def over_time(options: argparse.Namespace) -> str:
    """Losses and loads of the first seed, by step."""
    width = options.steps // POINTS
    steps = [part * width for part in AT]
    lines = [
        "| | run | " + " | ".join(f"step {step}" for step in steps) + " |",
        "| --- | --- |" + " ---: |" * len(steps),
    ]
    for key, what in SHOWN.items():
        for name in RUNS:
            folder = run_folder(options.runs, name, options.seeds[0])
            found = values(folder, key)
            if not found:
                continue
            if key.startswith("eval/"):
                cells = [f"{found[step]:.4f}" if step in found else "" for step in steps]
            else:
                cells = [
                    f"{mean(folder, key, step - width, step):.{4 if key == 'train/loss' else 3}f}"
                    for step in steps
                ]
            lines.append(f"| {what} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_seed(options: argparse.Namespace) -> str:
    """Validation loss at the end of all runs, and how far it is from the dense one of the seed."""
    final = {
        name: [last(run_folder(options.runs, name, seed), "eval/loss") for seed in options.seeds]
        for name in RUNS
    }
    heads = [f"seed {seed}" for seed in options.seeds]
    lines = [
        "Validation loss at the end; in brackets less that of the dense run of the same seed. Seeds"
        " differ much, as tiny_search.md"
    ]
    lines += ["shows: one or two say little about small differences.\n"]
    lines += [
        f"| run | {' | '.join(heads)} | mean difference |",
        "| --- |" + " ---: |" * (len(heads) + 1),
    ]
    for name, losses in final.items():
        apart = [loss - dense for loss, dense in zip(losses, final[DENSE], strict=True)]
        cells = [
            f"{loss:.4f} ({difference:+.4f})"
            for loss, difference in zip(losses, apart, strict=True)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {statistics.mean(apart):+.4f} |")
    return "\n".join(lines)


def values(folder: Path, key: str, file: str = METRICS) -> dict[int, float]:
    """Values of a metric by step."""
    found = [json.loads(line) for line in (folder / file).read_text().splitlines()]
    return {row["step"]: row[key] for row in found if key in row}


def mean(folder: Path, key: str, after: int, until: int) -> float:
    """Mean of what was logged of a metric in the steps after one and up to another."""
    return statistics.mean(
        value for step, value in values(folder, key).items() if after < step <= until
    )


def last(folder: Path, key: str) -> float:
    """The last value of a metric."""
    return list(values(folder, key).values())[-1]


if __name__ == "__main__":
    main()
