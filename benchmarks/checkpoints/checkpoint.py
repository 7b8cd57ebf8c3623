"""What a checkpoint costs: the stall of a step by a save, against torch.save, and the time from
forge.resume to the first step.

    python benchmarks/checkpoints/checkpoint.py > benchmarks/results/checkpoint.md

Saves are made by the callback that makes them in any run, between steps of training, each from a
clean start: what earlier ones wrote is on the disk. forge's are durable when they are done;
torch.save alone leaves the bytes to the operating system. Where memory for files has to be found
first, any of them may take a second longer: the fastest of each compare best.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import forge
from forge.rundir import directory
from forge.training import build, data
from forge.training.build_session import build_session
from forge.training.callback import Callback
from forge.training.callbacks.saving import Saving
from forge.training.loop import Loop
from forge.training.step_output import StepOutput

STATE = "model=small model.dim=768 train.batch_size=1 train.seq_len=64 optimizer=adamw"
COMMON = (
    "eval=off metrics.enable_console=false checkpoint.interval=1000000 checkpoint.keep_last_n=1"
)
ROUNDS = 11
QUIET_STEPS = 3
TORCH_SAVE, TORCH_SAVE_FSYNC = (
    "`torch.save`, left to the operating system",
    "`torch.save` and fsync",
)
SYNCHRONOUS, FSYNC = "synchronous save, durable", "of it fsync"
CHECKSUMS = "of it checksums"
ASYNCHRONOUS, DURABLE, COPY = (
    "asynchronous save: the stall",
    "asynchronous save: until it is durable",
    "copy of the tensors in memory",
)
PARENT, LOADED, FIRST_STEP = (
    "shell to the start of the worker: compose and check",
    "shell to the checkpoint loaded",
    "shell to the first step done",
)
IMPORTS, DATA, MODEL, LOAD = (
    "in the worker: imports, torch above all",
    "prepared data opened",
    "model and the rest built",
    "checkpoint loaded",
)
IMPORT = f"""import json, time
begin = time.perf_counter()
import forge.training.build
print(json.dumps({{{IMPORTS!r}: time.perf_counter() - begin}}))"""


class Measure(Callback):
    """Between steps: every way to save, each after a sync of the disk; then the steps that an
    asynchronous save slows.

    The first round, in which buffers are made, is kept apart: `seconds` has all rounds, the first
    one first.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "torch_save.pt"
        self.copies: list[torch.Tensor] = []
        self.draw = random.Random(0)
        self.seconds: dict[str, list[float]] = {}
        self.bytes = 0
        self.begin: float | None = None
        self.pending = False

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        now = time.perf_counter()
        saving = next(one for one in loop.callbacks if isinstance(one, Saving))
        if self.begin is not None:
            self._note("step meanwhile" if self.pending else "step", now - self.begin)
        if saving.checkpointer.committed():
            self.pending = False
        if len(self.seconds.get(DURABLE, ())) > ROUNDS:
            loop.stop("measured")
        elif not self.pending and loop.state.step % QUIET_STEPS == 0:
            with loop.paused():
                self._save(loop, saving)
        self.begin = time.perf_counter()

    def _save(self, loop: Loop, saving: Saving) -> None:
        state = {"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}
        self.bytes = sum(t.numel() * t.element_size() for t in _tensors(state))
        ways = [
            lambda: self._copy(state),
            lambda: self._torch_save(state, False),
            lambda: self._torch_save(state, True),
        ]
        ways.append(lambda: self._synchronous(loop, saving))
        for way in self.draw.sample(
            ways, len(ways)
        ):  # so that none has always the same one before it
            way()
        saving.checkpointer.section.async_mode = "async"
        begin = self._time(ASYNCHRONOUS, lambda: saving.save(loop, "benchmark"))
        saving.checkpointer._pending[-1].add_done_callback(
            lambda _: self._note(DURABLE, time.perf_counter() - begin)
        )
        self.pending = True

    def _copy(self, state: dict[str, Any]) -> None:
        self.copies = self.copies or [torch.empty_like(t).zero_() for t in _tensors(state)]
        pairs = list(zip(self.copies, _tensors(state), strict=True))
        self._time(COPY, lambda: [copy.copy_(t) for copy, t in pairs])

    def _torch_save(self, state: dict[str, Any], durable: bool) -> None:
        self._time(
            TORCH_SAVE_FSYNC if durable else TORCH_SAVE,
            lambda: _torch_save(state, self.file, durable),
        )
        self.file.unlink()

    def _synchronous(self, loop: Loop, saving: Saving) -> None:
        saving.checkpointer.section.thaw()
        saving.checkpointer.section.async_mode = "disabled"
        with _counted(os, "fsync") as synced, _counted(zlib, "crc32") as checked:
            self._time(SYNCHRONOUS, lambda: saving.save(loop, "benchmark"))
        saving.checkpointer.wait()  # until what it replaces is removed
        saving.checkpointer.committed()
        for name, taken in ((FSYNC, synced), (CHECKSUMS, checked)):
            self._note(name, sum(taken))

    def _time(self, name: str, action: Callable[[], Any]) -> float:
        os.sync()
        begin = time.perf_counter()
        action()
        self._note(name, time.perf_counter() - begin)
        return begin

    def _note(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)


def _torch_save(state: dict[str, Any], file: Path, durable: bool) -> None:
    with file.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


@contextmanager
def _counted(module: Any, name: str) -> Iterator[list[float]]:
    """The seconds of each call of a function of a module."""
    taken: list[float] = []
    function = getattr(module, name)

    def timed(*arguments: Any, **keywords: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            taken.append(time.perf_counter() - begin)

    setattr(module, name, timed)
    try:
        yield taken
    finally:
        setattr(module, name, function)


def stalls() -> Measure:
    """Seconds of every kind of save of one model."""
    with tempfile.TemporaryDirectory() as folder:
        measure = Measure(Path(folder))
        config = forge.compose([*COMMON.split(), *STATE.split(), f"run.dir={folder}/run"])
        run_dir, _ = directory.create(config.validate(), overrides=())
        loop = build.build_loop(build_session(Path(run_dir)))
        loop.callbacks = [measure, *loop.callbacks]
        loop.run()
    return measure


def killed_run(folder: Path) -> Path:
    """A default run that was killed after its first checkpoint."""
    run_dir = folder / "killed"
    command = [
        sys.executable,
        "-m",
        "forge.train",
        "checkpoint.interval=20",
        "metrics.log_interval=1",
        "eval=off",
        f"run.dir={run_dir}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    _kill_when(process, lambda: (run_dir / "checkpoints" / "step_20").exists())
    return run_dir


def resume_seconds(killed: Path, folder: Path) -> dict[str, float]:
    """Seconds until each sign of life of `python -m forge.resume` on a copy of a run."""
    run_dir = folder / "copy"
    shutil.copytree(killed, run_dir)
    output, rows = folder / "output", run_dir / "performance.jsonl"
    begin = time.time()
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "forge.resume", str(run_dir)],
            stdout=file,
            start_new_session=True,
        )
    seen: dict[str, float] = {}

    def done() -> bool:
        said = output.read_text()
        for name, sign in ((PARENT, "run directory: "), (LOADED, "resuming from ")):
            if sign in said:
                seen.setdefault(name, time.time() - begin)
        times = [
            json.loads(row)["time"]
            for row in rows.read_text().splitlines(keepends=True)
            if row.endswith("\n")
        ]
        if times[-1] > begin:
            seen[FIRST_STEP] = next(one for one in times if one > begin) - begin
        return FIRST_STEP in seen

    _kill_when(process, done)
    for command in (["-c", IMPORT], [__file__, "--parts", str(run_dir)]):
        parts = subprocess.run(
            [sys.executable, *command], check=True, capture_output=True, text=True
        )
        seen |= json.loads(parts.stdout.splitlines()[-1])
    shutil.rmtree(run_dir)
    return seen


def _kill_when(process: subprocess.Popen[Any], condition: Callable[[], bool]) -> None:
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode}")
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def print_parts(run_dir: Path) -> None:
    """Build a run as its worker does, in a process of its own, and say how long the parts of
    that took.
    """
    with _counted(data, "prepare_tokens") as read, _counted(build, "begin") as load:
        begin = time.perf_counter()
        build.build_loop(build_session(run_dir))
    rest = time.perf_counter() - begin - sum(read) - sum(load)
    print(json.dumps({DATA: sum(read), MODEL: rest, LOAD: sum(load)}))


def main() -> None:
    arguments = argparse.ArgumentParser(description="What a checkpoint costs.")
    arguments.add_argument(
        "--parts", type=Path, help="only build this run, and say how long it takes"
    )
    options = arguments.parse_args()
    if options.parts is not None:
        print_parts(options.parts)
        return
    print(
        f"`python {' '.join(sys.argv)}`, torch {torch.__version__}, {torch.get_num_threads()}"
        f" threads, {ROUNDS} times each.\n",
        flush=True,
    )
    measure = stalls()
    size = measure.bytes / 1e9
    print(f"fp32 weights and AdamW state of {size:.2f} GB (`{STATE}`), a virtual disk:\n")
    print("| what | fastest | a GB | median |\n| --- | --- | --- | --- |")
    for name in (
        COPY,
        TORCH_SAVE,
        TORCH_SAVE_FSYNC,
        SYNCHRONOUS,
        FSYNC,
        CHECKSUMS,
        ASYNCHRONOUS,
        DURABLE,
    ):
        later = measure.seconds[name][1:]
        print(
            f"| {name} | {min(later):.3f} s | {min(later) / size:.2f} s |"
            f" {statistics.median(later):.3f} s |"
        )
    print(
        "\nThe first asynchronous save, which makes its buffers, stalls"
        f" {measure.seconds[ASYNCHRONOUS][0]:.3f} s. ",
        end="",
    )
    quiet, meanwhile = (
        statistics.median(measure.seconds[name]) for name in ("step", "step meanwhile")
    )
    print(
        f"A step takes {quiet:.3f} s, and {meanwhile:.3f} s while an asynchronous save is"
        " written.\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        killed = killed_run(Path(folder))
        found = [resume_seconds(killed, Path(folder)) for _ in range(ROUNDS)]
    print("From `python -m forge.resume` on the default run, killed after a checkpoint:\n")
    print("| what | fastest | median |\n| --- | --- | --- |")
    for name in (PARENT, IMPORTS, DATA, MODEL, LOAD, LOADED, FIRST_STEP):
        print(
            f"| {name} | {min(one[name] for one in found):.2f} s |"
            f" {statistics.median(one[name] for one in found):.2f} s |"
        )


if __name__ == "__main__":
    main()
