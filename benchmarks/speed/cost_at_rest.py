"""What the watching of a run costs its steps: the ledger, signs of life and statistics by layer,
off and on in turn inside of one run.

    python benchmarks/speed/cost_at_rest.py > benchmarks/results/cost_at_rest.md

Blocks of steps in turn, A B B A: with nothing of it, with the defaults (the number of each step on
the disk, the ledger once a second, a sign of each step), and with statistics of activations,
gradients and weights every 10 steps too. Seconds of the CPU of the thread that trains, with one
thread, which those who share the machine add little to; the figure is the median over pairs of
neighbouring blocks. On a loaded machine the pairs scatter by more than what is looked for; so the
calls that a step makes are timed by themselves too, as is the thread that gives signs of life every
20 seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import torch

import forge
from forge.rundir import directory
from forge.rundir.signs import ALIVE, EVERY, SILENT, _file, _Watch
from forge.rundir.stacks import Stacks
from forge.rundir.wall_clock.ledger import Ledger
from forge.training.build import build_loop
from forge.training.build_session import build_session
from forge.training.callback import Callback
from forge.training.callbacks.internals import Internals
from forge.training.callbacks.progress import Steps, StepSigns
from forge.training.loop import Loop
from forge.training.step_output import StepOutput

SMALL = (
    "model.vocab_size=512 tokenizer.vocab_size=512 model.dim=64 model.n_layers=4 model.n_heads=2 "
    "train.batch_size=1 train.seq_len=64"
)
OFF, DEFAULTS, INTERNALS = "off", "the defaults", "statistics every 10 steps too"
AGAIN = "off again"  # what the method itself adds, and how far chance reaches
SIZES = (
    (SMALL, "1 x 64", (OFF, AGAIN), 2, 1500),
    (SMALL, "1 x 64", (OFF, DEFAULTS), 2, 1500),
    (SMALL, "1 x 64", (DEFAULTS, INTERNALS), 10, 30),
    ("", "the default run", (OFF, DEFAULTS), 2, 30),
)
"""Overrides, name, two arms, steps of a block, and pairs of blocks."""
COMMON = "optimizer=adamw eval=off checkpoint=off metrics.enable_console=false run.num_threads=1"
CALLS = 5000  # steps whose calls are timed by themselves
LOOKS, WATCHED = 200, 8  # signs of life that are timed, of a main rank that watches so many


class NoLedger:
    """In place of the ledger: names nothing."""

    run_dir = None

    def span(self, name: str) -> Any:
        return nullcontext()

    long_span = span

    def ignore(self, *arguments: Any) -> None:
        """Take any call."""

    begin = step = enter = rename = saved = write = close = ignore


class Turns(Callback):
    """Takes turns between two arms, a block of steps each: A B B A A B B A ..., so that a drift of
    the machine adds to both alike. Times each block; the first pair is left out.

    Stands last: what is timed is from here to here.
    """

    def __init__(self, ledger: Ledger, arms: tuple[str, str], block: int) -> None:
        self.ledger, self.arms, self.block, self.number = ledger, arms, block, 0
        self.blocks: dict[str, list[float]] = {arm: [] for arm in arms}
        self.internals: Internals | None = None
        self.signs: StepSigns | None = None
        self.mark = 0.0

    @property
    def arm(self) -> str:
        return self.arms[(self.number + 1) // 2 % 2]

    def on_start(self, loop: Loop) -> None:
        """With signs of the whole run: the first ones of a run are written more often."""
        self.signs = next(each for each in loop.callbacks if isinstance(each, StepSigns))
        self.switch(loop)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if loop.state.step % self.block:
            return
        seconds = time.thread_time() - self.mark
        if self.number > 1:
            self.blocks[self.arm].append(seconds / self.block)
        self.number += 1
        self.switch(loop)

    def switch(self, loop: Loop) -> None:
        """Take the callbacks and the ledger of the next arm."""
        if self.internals is not None:
            self.internals.close()
        self.internals = Internals(loop.session) if self.arm == INTERNALS else None
        left = [each for each in loop.callbacks if not isinstance(each, (Internals, StepSigns))]
        added = [] if self.arm in (OFF, AGAIN) or self.signs is None else [self.signs]
        watching = [self.internals] if self.internals is not None else []
        loop.callbacks = [*added, *left[:-1], *watching, self]
        loop._acting.clear()
        loop.ledger = NoLedger() if self.arm in (OFF, AGAIN) else self.ledger  # type: ignore[assignment]
        self.mark = time.thread_time()


def measure(
    overrides: str, arms: tuple[str, str], block: int, pairs: int
) -> tuple[int, dict[str, list[float]]]:
    """Parameters of the model, and seconds a step of each block by arm."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        words = [*COMMON.split(), *overrides.split(), f"train.max_steps={2 * block * (pairs + 1)}"]
        words += ["metrics.internals=10", f"run.dir={folder}/run"]
        run_dir, _ = directory.create(forge.compose(words).validate(), overrides=())
        (Path(run_dir) / ALIVE).mkdir()
        ledger = Ledger.open(Path(run_dir))
        loop = build_loop(build_session(Path(run_dir)), ledger)
        for each in loop.callbacks:
            if isinstance(each, Internals):
                each.close()
        turns = Turns(ledger, arms, block)
        loop.callbacks = [*loop.callbacks, turns]
        size = sum(parameter.numel() for parameter in loop.model.parameters())
        loop.run()
        ledger.close()
    return size, turns.blocks


def calls() -> float:
    """Seconds of the CPU a step of all calls that a step of a run with the defaults makes."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / ALIVE).mkdir()
        ledger, signs = Ledger.open(Path(name)), Steps(Path(name), 0)
        signs.begin(0)
        began = time.thread_time()
        for step in range(1, CALLS + 1):
            ledger.enter("data_wait")
            ledger.enter("step")
            with ledger.span("checkpoint"):
                pass
            signs.finished(step)
            ledger.step(step)
        taken = (time.thread_time() - began) / CALLS
        ledger.close()
    return taken


def looks() -> float:
    """Seconds of the CPU that a main rank takes to give a sign of life, and to look at others."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ALIVE).mkdir()
        files = [_file(folder, rank) for rank in range(WATCHED + 1)]
        stacks = Stacks(folder, 0, frozen=SILENT)
        for rank in range(1, WATCHED + 1):
            _Watch(files[rank], [], EVERY, SILENT, Stacks(folder, rank, frozen=SILENT))
        watch = _Watch(files[0], files[1:], EVERY, SILENT, stacks)
        watch.names_stalls = True
        began = time.thread_time()
        for _ in range(LOOKS):
            watch.look()
        taken = (time.thread_time() - began) / LOOKS
        stacks.close()
    return taken


def main() -> None:
    arguments = argparse.ArgumentParser(description="What the watching of a run costs.")
    arguments.add_argument("--small", action="store_true", help="the small model alone")
    sizes = SIZES[:3] if arguments.parse_args().small else SIZES
    inside = calls()
    torch.set_num_threads(1)
    print(f"`python {' '.join(sys.argv)}`, torch {torch.__version__}, {os.cpu_count()} cores, one")
    print("thread, seconds of the CPU, blocks of steps in turn.\n")
    heads = "model, from, to, pairs, median a step, added: median of pairs, quartiles, calls alone"
    print(f"| {' | '.join(heads.split(', '))} |\n|{' --- |' * 8}")
    for overrides, name, arms, block, pairs in sizes:
        size, taken = measure(overrides, arms, block, pairs)
        without, with_it = (taken[arm] for arm in arms)
        ratios = [b / a - 1 for a, b in zip(without, with_it, strict=False)]
        low, half, high = statistics.quantiles(ratios, n=4)
        middle = statistics.median(without) * 1e3
        cells = [f"{name} ({size / 1e6:.2f}M)", *arms, f"{len(ratios)} x {block}"]
        cells += [f"{middle:.3f} ms", f"{half:+.2%}", f"{low:+.2%} to {high:+.2%}"]
        cells += [f"{inside * 1e3 / middle:.3%}" if arms[1] == DEFAULTS else ""]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\nThe calls of the defaults alone, {CALLS:,} times: {inside * 1e6:.0f} microseconds of")
    print("the CPU a step; the last column has them as a share of the step.")
    seconds = looks()
    print(f"\nA sign of life, and a look at {WATCHED} other ranks: {seconds * 1e3:.2f} ms of the")
    print(f"CPU, every {EVERY:.0f} s: {seconds / EVERY:.4%}.")


if __name__ == "__main__":
    main()
