"""What forge's loop adds to a bare PyTorch loop: same model, batch size, clipping and fused AdamW,
blocks of steps in turn.

    python benchmarks/speed/loop_overhead.py > benchmarks/results/loop_overhead.md
    python benchmarks/speed/loop_overhead.py --against ../forge_of_yesterday --cpu-time
    python benchmarks/speed/loop_overhead.py --count

The bare loop reads one batch made beforehand and logs nothing. forge's loads its data, follows its
schedule and logs at the default interval; its steps are timed from the end of one to the end of the
next. --against: another checkout of forge, whose blocks, by its own copy of this script, come in
turn with those of this one. --cpu-time: seconds of the CPU, with one thread, which those who share
the machine do not add to.
--count: in place of times the operations and calls of a step, equal on every machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import forge
from forge.models.decoder import Decoder
from forge.rundir import directory
from forge.training.build import build_loop
from forge.training.build_session import build_session
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.step_output import StepOutput

HERE = Path(__file__).resolve().parents[2]
SMALL = (
    "model.vocab_size=512 tokenizer.vocab_size=512 model.dim=64 model.n_layers=4 model.n_heads=2"
    " train.batch_size=1 train.seq_len=64"
)
LARGE = "model.dim=384 model.n_layers=7 model.n_heads=6 train.batch_size=8 train.seq_len=256"
COMMON = "optimizer=adamw eval=off checkpoint.interval=1000000 metrics.enable_console=false"
SIZES = ((SMALL, 3000, "1 x 64"), (LARGE, 150, "8 x 256"))
BLOCK = 25
CPU_TIME = "--cpu-time"
clock = time.thread_time if CPU_TIME in sys.argv else time.perf_counter
NAMES = [
    "model",
    "batch",
    "forge",
    "steps each",
    "bare fastest",
    "forge fastest",
    "bare median",
    "forge median",
    "added fastest",
    "added median",
    "ratio of medians",
]


class Bare:
    """The shortest loop that does the same arithmetic."""

    def __init__(self, model: Decoder, batch: int, seq: int, clip: float) -> None:
        self.model, self.clip = model, clip
        self.tokens = torch.randint(model.section.vocab_size, (batch, seq + 1))
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True
        )

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` steps."""
        taken = []
        for _ in range(count):
            begin = clock()
            logits = self.model(self.tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            taken.append(clock() - begin)
        return taken


class Turns(Callback):
    """After every block of forge's steps a block of the bare loop, then the turn of the other
    checkout; times both.
    """

    def __init__(self, bare: Bare, output: int) -> None:
        self.bare, self.output = bare, output
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.mark: float | None = None

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        now = clock()
        if self.mark is not None:
            self.ours.append(now - self.mark)
        if loop.state.step % BLOCK == 0:
            with loop.paused():
                self.theirs += self.bare.steps(BLOCK)[1:]
                os.write(self.output, b"\n")
                sys.stdin.readline()
            self.mark = None
        else:
            self.mark = clock()


class Ops(TorchDispatchMode):
    """Counts torch's operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Calls:
    """Counts calls of Python functions and of built-in functions."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def __enter__(self) -> None:
        sys.setprofile(lambda frame, event, argument: self.counts.update((event,)))

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


class Counted(Callback):
    """Counts operations in the step after step 12, and calls in the step after step 14: neither
    logs, with a log every 10 steps.
    """

    def __init__(self) -> None:
        self.ops, self.calls = Ops(), Calls()

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        for counter, step in ((self.ops, 12), (self.calls, 14)):
            if loop.state.step == step:
                counter.__enter__()
            elif loop.state.step == step + 1:
                counter.__exit__(None, None, None)


def counts(overrides: str) -> dict[str, tuple[Counter[str], Counter[str]]]:
    """Operations, and calls by kind, of a step of forge and of the bare loop."""
    with tempfile.TemporaryDirectory() as folder:
        loop, bare = loops(folder, overrides, steps=16)
        ours, ops, calls = Counted(), Ops(), Calls()
        loop.callbacks = [*loop.callbacks, ours]
        loop.run()
    bare.steps(2)  # the first makes the optimizer's state
    with ops:
        bare.steps(1)
    with calls:
        bare.steps(1)
    return {
        "forge": (ours.ops.counts, ours.calls.counts),
        "bare": (ops.counts, calls.counts),
    }


def print_counts() -> None:
    (ours, our_calls), (bare, bare_calls) = counts(SMALL).values()
    print(f"`python {' '.join(sys.argv)}`, torch {torch.__version__}.\n")
    print("| of a step, 0.30M | forge | bare |\n| --- | --- | --- |")
    print(f"| operations | {ours.total()} | {bare.total()} |")
    for kind, name in (("call", "calls of Python functions"), ("c_call", "of built-in ones")):
        print(f"| {name} | {our_calls[kind]} | {bare_calls[kind]} |")
    for name in sorted(ours | bare):
        if ours[name] != bare[name]:
            print(f"| `{name}` | {ours[name]} | {bare[name]} |")


def loops(folder: str, overrides: str, steps: int) -> tuple[Loop, Bare]:
    """Forge's loop, and a bare loop from the same weights."""
    options = [*COMMON.split(), *overrides.split(), f"train.max_steps={steps}"]
    config = forge.compose([*options, f"run.dir={folder}/run"])
    run_dir, resolved = directory.create(config.validate(), overrides=())
    loop = build_loop(build_session(Path(run_dir)))
    copy = Decoder(resolved.model)  # type: ignore[arg-type]
    copy.load_state_dict(loop.model.state_dict())
    train = resolved.train
    return loop, Bare(copy, train.batch_size, train.seq_len, train.grad_clip_norm)


def measure(overrides: str, steps: int) -> None:
    """Take turns, then print as JSON what was measured, the first two blocks of each left out."""
    output = os.dup(1)
    os.dup2(2, 1)  # what forge prints
    with tempfile.TemporaryDirectory() as folder:
        loop, bare = loops(folder, overrides, steps)
        turns = Turns(bare, output)
        loop.callbacks = [*loop.callbacks, turns]
        sys.stdin.readline()
        loop.run()
    skip = 2 * (BLOCK - 1)
    found = {"size": sum(p.numel() for p in bare.model.parameters())}
    found |= {"ours": turns.ours[skip:], "bare": turns.theirs[skip:]}
    os.write(output, f"{json.dumps(found)}\n".encode())


def in_turn(checkouts: Sequence[Path], overrides: str, steps: int) -> list[dict[str, Any]]:
    """What the script of each checkout measures with its forge, block by block in turn."""
    arguments = ["--measure", overrides, str(steps)]
    arguments += [CPU_TIME] if CPU_TIME in sys.argv else []
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        children = []
        for checkout in checkouts:
            environment = {**os.environ, "PYTHONPATH": str(checkout)}
            script = next(checkout.glob(f"benchmarks/**/{Path(__file__).name}"))  # it has moved
            command = [sys.executable, str(script), *arguments]
            process = subprocess.Popen(command, env=environment, **pipes)
            children.append(stack.enter_context(process))
        for _ in range(steps // BLOCK):
            for process in children:
                process.stdin.write("\n")
                process.stdin.flush()
                if process.stdout.readline() != "\n":
                    sys.exit("a checkout failed")
        return [json.loads(process.communicate("\n")[0]) for process in children]


def row(found: dict[str, Any], batch: str, name: str) -> str:
    """One line of the table."""
    ours, bare, size = found["ours"], found["bare"], found["size"]
    low, middle = (min(bare), min(ours)), (statistics.median(bare), statistics.median(ours))
    cells = [f"{size / 1e6:.2f}M", batch, name, str(len(ours))]
    cells += [f"{seconds * 1e3:.3f} ms" for seconds in (*low, *middle)]
    cells += [f"{(pair[1] - pair[0]) * 1e3:+.3f} ms" for pair in (low, middle)]
    return f"| {' | '.join([*cells, f'{middle[1] / middle[0]:.4f}'])} |"


def spread(found: dict[str, Any]) -> str:
    middle, cuts = statistics.median(found["bare"]), statistics.quantiles(found["bare"], n=20)
    low_high = f"{cuts[0] / middle:.3f} to {cuts[-1] / middle:.3f}"
    size = f"{found['size'] / 1e6:.2f}M"
    return f"{size}: bare steps, 5th to 95th percentile: {low_high} of the median"


def side_by_side(measured: list[dict[str, Any]]) -> str:
    """This checkout's steps over the other's, of blocks that ran next to each other."""
    timed, medians = BLOCK - 1, []
    for found in measured:
        starts = range(0, len(found["ours"]), timed)
        blocks = (found["ours"][start : start + timed] for start in starts)
        medians.append([statistics.median(block) for block in blocks])
    ratios = [ours / theirs for ours, theirs in zip(*medians, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    size = f"{measured[0]['size'] / 1e6:.2f}M"
    what = "steps of the first over those of the second, median of each block"
    return f"{size}: {what}: {middle:.4f} (quartiles {low:.4f} and {high:.4f})"


def revision(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    arguments = argparse.ArgumentParser(description="What the loop adds to a bare one.")
    arguments.add_argument("--against", type=Path, help="another checkout, to be compared with")
    arguments.add_argument(CPU_TIME, action="store_true", help="with one thread")
    arguments.add_argument("--count", action="store_true", help="operations in place of times")
    arguments.add_argument("--small", action="store_true", help="the small model alone")
    arguments.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.cpu_time:
        torch.set_num_threads(1)
    if options.measure:
        measure(options.measure[0], int(options.measure[1]))
        return
    if options.count:
        print_counts()
        return
    threads = f"{torch.get_num_threads()} threads"
    print(f"`python {' '.join(sys.argv)}`, torch {torch.__version__}, {threads}.\n")
    print(f"| {' | '.join(NAMES)} |\n|{' --- |' * len(NAMES)}")
    checkouts = [HERE, *([options.against.resolve()] if options.against else [])]
    spreads = []
    for overrides, steps, batch in SIZES[:1] if options.small else SIZES:
        measured = in_turn(checkouts, overrides, steps)
        for checkout, found in zip(checkouts, measured, strict=True):
            print(row(found, batch, revision(checkout)), flush=True)
        spreads.append(spread(measured[0]))
        if options.against:
            spreads.append(side_by_side(measured))
    print("\n" + "\n\n".join(spreads))


if __name__ == "__main__":
    main()
