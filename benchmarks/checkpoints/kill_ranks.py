"""A run of two ranks, one of whose processes is killed again and again inside the loop, ends with
the bits of one that was left alone.

    python benchmarks/checkpoints/kill_ranks.py >> RESULTS   # benchmarks/results/kill_resume.md
    python benchmarks/checkpoints/kill_ranks.py --kills 5 --seed 1 optimizer=muon

A small model is trained on two ranks of a CPU, undisturbed, then in another directory, where
SIGKILL ends rank 0, rank 1 or the command that has started them, drawn by chance, at a random
moment after a step of this start is in metrics.jsonl. The others have to end by themselves; then
the same command is typed again. At the end every tensor of the last checkpoint, metrics.jsonl,
samples.jsonl and result.json are compared. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kill_compare
import torch

from forge.rundir.files import read_rows
from forge.rundir.outcome import attempts

STEPS_A_KILL = 9
"""The run is so many times as long as there are kills."""
PATIENCE = 300.0
COMMON = [
    "run.num_processes=2",
    "run.device=cpu",
    "run.num_threads=1",
    "parallel=fsdp",
    "tokenizer.vocab_size=300",
    "model.vocab_size=300",
    "model.dim=32",
    "model.n_heads=2",
    "model.n_layers=2",
    "model.ffn_hidden_dim=64",
    "model.max_seq_len=32",
    "train.seq_len=32",
    "train.batch_size=4",
    "optimizer.lr=0.003",
    "checkpoint.interval=5",
    "checkpoint.async_mode=async",
    "checkpoint.keep_last_n=2",
    "eval.enabled=true",
    "eval.interval=11",
    "eval.steps=4",
    "eval.sample_prompts=[ship]",
    "eval.sample_tokens=8",
    "metrics.log_interval=1",
    "metrics.enable_console=true",
]
COMMAND = "the command"
VICTIMS = ("rank 0", "rank 1", COMMAND)
NODES = ("node 0", "node 1")
"""Each of one rank; its disk goes with it."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """A start of the run: from which checkpoint, who was killed when the last step in metrics.jsonl
    was `step`, seconds until all processes were gone, what was left, and the exit code.

    victim: empty for the start that came to the end.
    """

    went_on_from: str
    victim: str
    step: int
    seconds: float
    left: str
    code: int


def storm(
    command: Sequence[str],
    run_dir: Path,
    kills: int,
    draw: random.Random,
    env: dict[str, str],
    disks: Path | None = None,
) -> Iterator[Death]:
    """Start a run and kill one of its processes, so many times, then let it end.

    disks: folder with a `node_N` of each rank, for kills of NODES too. Raises RuntimeError where a
    start does not end as it should.
    """
    victims = VICTIMS if disks is None else (*VICTIMS, *NODES)
    for number in range(1, kills + 1):
        aim = STEPS_A_KILL * number + draw.randrange(-3, 4)
        victim, delay = draw.choice(victims), draw.uniform(0, 0.15)
        yield _start(command, run_dir, env, victim, aim, delay)
        if victim in NODES and disks is not None:
            shutil.rmtree(disks / f"node_{victim[-1]}", ignore_errors=True)
    yield _start(command, run_dir, env)


def _start(
    command: Sequence[str],
    run_dir: Path,
    env: dict[str, str],
    victim: str = "",
    aim: int = 0,
    delay: float = 0.0,
) -> Death:
    """Kill the victim `delay` seconds after step `aim`, or later step of this start, is seen."""
    before = len(_starts(run_dir))
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=env
        )
        try:
            if victim:
                _wait(lambda: len(_starts(run_dir)) > before or process.poll() is not None)
                first = _starts(run_dir)[-1]["step"] + 1
                _wait(lambda: _step(run_dir) >= max(aim, first) or process.poll() is not None)
                time.sleep(delay)
                pid = process.pid if victim == COMMAND else ranks_of(run_dir)[int(victim[-1])]
                step = _step(run_dir)
                os.kill(pid, signal.SIGKILL)
            killed = time.monotonic()
            code = process.wait(PATIENCE)
            _wait(lambda: not ranks_of(run_dir))
        except (KeyError, IndexError, RuntimeError, ProcessLookupError) as error:
            log.seek(0)
            raise RuntimeError(f"a start did not come to step {aim}:\n{log.read()}") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        log.seek(0)
        said = log.read()
    right = {"": 0, COMMAND: -signal.SIGKILL}.get(victim, 128 + signal.SIGKILL)
    if code != right:
        raise RuntimeError(f"exit code {code}, not {right}, after {victim} was killed:\n{said}")
    names = sorted(path.name for path in run_dir.glob("checkpoints/*"))
    return Death(
        went_on_from=_starts(run_dir)[-1]["from"].removeprefix("checkpoints/"),
        victim=victim,
        step=step if victim else _step(run_dir),
        seconds=time.monotonic() - killed,
        left=", ".join(names),
        code=code,
    )


def _starts(run_dir: Path) -> list[dict[str, Any]]:
    """Of the loop: each is noted once checkpoints are loaded and rows are cut."""
    if not (run_dir / "attempts.jsonl").exists():
        return []
    return [row for row in attempts(run_dir) if row["event"] == "start"]


def _step(run_dir: Path) -> int:
    """The last one in metrics.jsonl."""
    return max((row["step"] for row in read_rows(run_dir / "metrics.jsonl")), default=0)


def ranks_of(run_dir: Path) -> dict[int, int]:
    """Processes by rank, of those that are not gone."""
    found: dict[int, int] = {}
    wanted = [b"-m", b"forge.worker", str(run_dir).encode()]
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:4] == wanted:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                if rank := re.search(rb"(?:^|\0)RANK=(\d+)", environ):
                    found.setdefault(int(rank[1]), pid)
    return found


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("waited in vain")
        time.sleep(0.002)


def command_of(run_dir: Path, kills: int, more: Sequence[str] = ()) -> list[str]:
    """That of a run which is long enough for so many kills."""
    steps = [f"train.max_steps={STEPS_A_KILL * (kills + 1)}", f"run.dir={run_dir}"]
    return [sys.executable, "-m", "forge.train", *COMMON, *steps, *more]


def wait_until(
    holds: Callable[[], bool], process: subprocess.Popen[bytes], pause: float = 0.01
) -> None:
    """Wait for a condition of a run, at most ten minutes. Raises AssertionError where it ends."""
    deadline = time.monotonic() + 600.0
    while not holds():
        assert process.poll() is None, "the run has ended"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)


def main() -> int:
    arguments = argparse.ArgumentParser(
        description="Kill one process of a run of two ranks again and again, inside the loop."
    )
    arguments.add_argument("--kills", type=int, default=30)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("overrides", nargs="*", help="of the run")
    options = arguments.parse_intermixed_args()
    typed = " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    print(f"`{typed}`, torch {torch.__version__}, {os.cpu_count()} cores.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        return _compare(Path(folder).resolve(), options)


def _compare(folder: Path, options: argparse.Namespace) -> int:
    alone, killed = folder / "alone", folder / "killed"
    env = {**os.environ, "FORGE_CACHE": str(folder / "cache")}
    begin = time.perf_counter()
    subprocess.run(
        command_of(alone, options.kills, options.overrides),
        env=env,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    steps = json.loads((alone / "result.json").read_text())["step"]
    print(f"Undisturbed: {steps} steps, {time.perf_counter() - begin:.0f} s.\n")
    print(
        "| start | resumed from | at step | killed | all gone after | left in checkpoints/ |",
        end="",
    )
    print(" exit code |\n" + "| --- " * 7 + "|", flush=True)
    begin = time.perf_counter()
    command = command_of(killed, options.kills, options.overrides)
    deaths = storm(command, killed, options.kills, random.Random(options.seed), env)
    for row, death in enumerate(deaths, start=1):
        gone = f"{death.seconds:.1f} s" if death.victim else ""
        cells = [row, death.went_on_from, death.step, death.victim or "the end", gone, death.left]
        print(f"| {' | '.join(map(str, cells))} | {death.code} |", flush=True)
    print(f"\nAll starts: {time.perf_counter() - begin:.0f} s.")
    # What a rank saves as it sees that the command is gone is not pruned before the next save.
    same, different = kill_compare.compare(alone, killed, tidy=False)
    print("\nAgainst the undisturbed run:\n")
    print("\n".join(f"* the same: {line}" for line in same))
    print("\n".join(f"* DIFFERENT: {line}" for line in different))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
