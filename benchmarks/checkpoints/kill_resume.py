r"""A run that is killed again and again ends with the bits of one that was left alone.

    python benchmarks/checkpoints/kill_resume.py > RESULTS   # benchmarks/results/kill_resume.md
    python benchmarks/checkpoints/kill_resume.py --signal TERM,INT --to group,parent >> RESULTS
    python benchmarks/checkpoints/kill_resume.py --to parent >> RESULTS
    python benchmarks/checkpoints/kill_resume.py --kills 10 --micro-batch 4,8,2 \
        train.max_steps=400 >> RESULTS

The default run is trained undisturbed, then in another directory, where it is killed at random
times and at the places that kill_marks.py names, and the same command typed after each. Then every
tensor of the last checkpoint, metrics.jsonl, samples.jsonl and result.json are compared. Exit code
1 when anything differs. With --micro-batch both runs are in float64 and their losses are compared:
the sums of another micro-batch are rounded otherwise, which fp32 and AdamW make grow with every
step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kill_compare
import torch
import yaml
from kill_marks import ORDER, PLACES, REACHED, STEP

HERE = Path(__file__).resolve().parent
COMMON = [
    "run.num_threads=1",
    "checkpoint.async_mode=async",
    "checkpoint.interval=50",
    "checkpoint.keep_last_n=2",
    "eval.interval=150",
]
DOUBLE = "+callbacks.double._target_=kill_double.Double"
TRUST = "run.trust=[kill_marks.,kill_double.]"
LAUNCH, IMPORTS, DATA, STEPS = (
    "composing the config",
    "the worker starts",
    "preparing the data",
    "between or inside steps",
)
PATIENCE = 600.0


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Where a run is to be killed: at `place`, from `step` on, `delay` seconds after it is seen
    there.

    skip: passages of the place that are let through. number: the signal. to: "group", or "parent"
    for the process of the command alone.
    """

    place: str
    step: int = 0
    delay: float = 0.0
    skip: int = 0
    number: int = signal.SIGKILL
    to: str = "group"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A start of the run and how it ended: the exit code, the step and what stood in the checkpoint
    folder when it was gone.

    kill: None for the start that nothing was to end. refused: how often it was refused since the
    one before still held the directory.
    """

    kill: Kill | None
    code: int
    went_on_from: str
    step: int
    left: str
    refused: int
    log: str


def plan(
    count: int, draw: random.Random, *, last_step: int, interval: int, hold: float
) -> list[Kill]:
    """`count` kills, in the order of the steps: each kind of place once or more, the rest at random
    times.
    """
    first = [
        Kill(place=LAUNCH, delay=draw.uniform(0.05, 0.5)),
        Kill(place=DATA, delay=draw.uniform(0, 1)),
        Kill(place=IMPORTS, delay=draw.uniform(0.6, 2.5)),
        Kill(place=STEPS, step=draw.randrange(1, interval)),
    ]
    last_places = ("last save", "last evaluation", "end", "close")
    last = [_at(name, last_step, draw, hold) for name in last_places]
    places = ["commit", "evaluation", "tensors", "prune", "commit", "evaluation", "tensors"]
    places.append("commit")
    between = max(count - len(first) - len(last), 0)
    chosen = (places + [STEPS] * count)[:between]
    draw.shuffle(chosen)
    steps = sorted(draw.randrange(2 * interval, last_step - 3 * interval) for _ in chosen)
    return [
        *first,
        *(_at(name, step, draw, hold) for name, step in zip(chosen, steps, strict=True)),
        *last,
    ][:count]


def _at(place: str, step: int, draw: random.Random, hold: float) -> Kill:
    delay = draw.uniform(0, 0.2 if place == STEPS else hold)
    skip = draw.randrange(3) if "evaluation" in place else 0
    return Kill(place=place, step=step, delay=delay, skip=skip)


def run_killed(
    command: Callable[[int], Sequence[str]],
    run_dir: Path,
    kills: Sequence[Kill],
    *,
    scratch: Path,
    env: dict[str, str],
) -> Iterator[Outcome]:
    """Start a run and kill it, as often as there are kills, then let it end. command: of the n-th
    start, with `marks(scratch)`.

    A start that is refused, since the process before has not ended yet, is made again. One that
    comes to the end of the run is the last. Raises RuntimeError when a start does not end as it
    should.
    """
    pending: list[Kill | None] = [*kills, None]
    for attempt in range(len(pending)):
        kill, refused = pending[attempt], 0
        while True:
            outcome = _start(command(attempt), run_dir, kill, scratch, env, refused)
            if outcome.code != 2 or "is in use by process" not in outcome.log:
                break
            refused += 1
            time.sleep(0.2)
        _check(outcome)
        yield outcome
        if outcome.code == 0:
            break


def _start(
    command: Sequence[str],
    run_dir: Path,
    kill: Kill | None,
    scratch: Path,
    env: dict[str, str],
    refused: int,
) -> Outcome:
    for name in (STEP, REACHED, ORDER):
        (scratch / name).unlink(missing_ok=True)
    if kill is not None and kill.place in PLACES:
        order = {"place": kill.place, "step": kill.step, "skip": kill.skip}
        order["seconds"] = kill.delay + 1
        (scratch / ORDER).write_text(json.dumps(order))
    with tempfile.NamedTemporaryFile("w", dir=scratch, prefix="log_", delete=False) as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=env
        )
    try:
        if kill is not None and _is_there(process, kill, scratch, Path(file.name)):
            time.sleep(kill.delay)
            whom = os.killpg if kill.to == "group" else os.kill
            whom(process.pid, kill.number)
        code = process.wait(PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    said = Path(file.name).read_text()
    return Outcome(
        kill=kill,
        code=code,
        went_on_from=_went_on_from(said),
        step=_step(scratch),
        left=_left(run_dir),
        refused=refused,
        log=said,
    )


def _is_there(process: subprocess.Popen[Any], kill: Kill, scratch: Path, log: Path) -> bool:
    """Wait until the run is at the place; False when it ended before."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None:
        if kill.place in PLACES:
            there = (scratch / REACHED).exists()
        elif kill.place == STEPS:
            there = _step(scratch) >= kill.step
        else:
            there = kill.place != DATA or "data: " in log.read_text()
        if there:
            return True
        if time.monotonic() > deadline:
            raise RuntimeError(f"the run did not come to {kill}")
        time.sleep(0.002)
    return False


def _check(outcome: Outcome) -> None:
    """The exit code: of a signal that came before the loop has begun, that of any process; 0 when
    the run came to its end.
    """
    kill = outcome.kill
    if kill is None:
        right = [0]
    elif kill.number == signal.SIGKILL:
        right = [-kill.number] if kill.to == "group" else [-kill.number, 0]
    else:
        right = [0, 128 + kill.number] if outcome.step >= 0 else [128 + kill.number, -kill.number]
    if outcome.code not in right:
        raise RuntimeError(
            f"exit code {outcome.code} of a start that was to end by {kill}:\n{outcome.log}"
        )


def _step(scratch: Path) -> int:
    try:
        return int((scratch / STEP).read_text() or -1)
    except FileNotFoundError:
        return -1


def _went_on_from(said: str) -> str:
    for line in said.splitlines():
        if line.startswith("resuming from "):
            source = line.removeprefix("resuming from ").partition(" at step")[0]
            return source.removeprefix("checkpoints/")
        if line.startswith("this run is finished"):
            return "finished"
    return "the beginning"


def _left(run_dir: Path) -> str:
    if not (run_dir / "config.yaml").exists():
        return "no run" if not run_dir.exists() else "a directory without config.yaml"
    names = sorted(path.name for path in run_dir.glob("checkpoints/*"))
    return ", ".join(names) or "no checkpoint"


def marks(scratch: Path) -> list[str]:
    """The overrides that put the marks into a run, besides TRUST."""
    return ["+callbacks.marks._target_=kill_marks.Marks", f"+callbacks.marks.folder={scratch}"]


def environment(cache: Path) -> dict[str, str]:
    """For a run that finds kill_marks and prepares its data again."""
    return {**os.environ, "PYTHONPATH": str(HERE), "FORGE_CACHE": str(cache)}


def main() -> int:
    arguments = argparse.ArgumentParser(
        description="Kill a run again and again, and compare it with one that was left alone."
    )
    arguments.add_argument("--kills", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument(
        "--signal",
        default="KILL",
        help="KILL, TERM, INT, USR1, or several of them, of which each kill draws one",
    )
    arguments.add_argument(
        "--to",
        default="group",
        help="group, parent, or both, as group,parent; an interrupt goes to the group",
    )
    arguments.add_argument(
        "--micro-batch",
        default="",
        help="train.batch_size of the starts in turn, as 4,8,2; the largest is the global batch",
    )
    arguments.add_argument(
        "--hold",
        type=float,
        default=1.0,
        help="most seconds between reaching a place and the kill there",
    )
    arguments.add_argument("overrides", nargs="*", help="of the run")
    options = arguments.parse_intermixed_args()
    sizes = [int(size) for size in options.micro_batch.split(",") if size]
    batch = [f"train.global_batch_size={max(sizes)}"] if sizes else []
    common = [*COMMON, *batch, *options.overrides]
    typed = " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    print(f"`{typed}`, torch {torch.__version__}, {os.cpu_count()} cores.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        return _compare(Path(folder), options, sizes, common)


def _compare(folder: Path, options: argparse.Namespace, sizes: list[int], common: list[str]) -> int:
    # What is started by a shell in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    alone, killed, scratch = folder / "alone", folder / "killed", folder / "marks"
    scratch.mkdir()

    def command(run_dir: Path, attempt: int, *more: str) -> list[str]:
        size = [f"train.batch_size={sizes[attempt % len(sizes)]}", DOUBLE] if sizes else []
        train = [sys.executable, "-m", "forge.train", *common, *size]
        return [*train, f"run.dir={run_dir}", TRUST, *more]

    begin = time.perf_counter()
    done = subprocess.run(
        command(alone, 0), env=environment(folder / "cache_alone"), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    steps = json.loads((alone / "result.json").read_text())["step"]
    interval = yaml.safe_load((alone / "config.yaml").read_text())["checkpoint"]["interval"]
    print(f"Undisturbed: {steps} steps, {time.perf_counter() - begin:.0f} s.\n")
    print(
        "| start | resumed from | at step | where | signal | left in checkpoints/ | exit code |\n"
        + "| --- " * 7
        + "|",
        flush=True,
    )
    begin, refused = time.perf_counter(), 0
    draw = random.Random(options.seed)
    kills = plan(options.kills, draw, last_step=steps, interval=interval, hold=options.hold)
    names, targets = options.signal.split(","), options.to.split(",")
    kills = list(_with_signals(kills, names, targets, random.Random(options.seed)))
    env = environment(folder / "cache_killed")
    starts = run_killed(
        lambda attempt: command(killed, attempt, *marks(scratch)),
        killed,
        kills,
        scratch=scratch,
        env=env,
    )
    for row, outcome in enumerate(starts, start=1):
        refused += outcome.refused
        print(_row(row, outcome), flush=True)
    print(f"\nAll starts: {time.perf_counter() - begin:.0f} s.", end="")
    print(
        f" {refused} were refused since the process before had not ended yet, and typed again."
        if refused
        else ""
    )
    same, different = kill_compare.compare(
        alone, killed, exact=not sizes, tidy=(options.signal, options.to) == ("KILL", "group")
    )
    print("\nAgainst the undisturbed run:\n")
    print(
        "\n".join(
            [
                *(f"* the same: {line}" for line in same),
                *(f"* DIFFERENT: {line}" for line in different),
            ]
        )
        + "\n"
    )
    return 1 if different else 0


def _with_signals(
    kills: Sequence[Kill], names: Sequence[str], targets: Sequence[str], draw: random.Random
) -> Iterator[Kill]:
    for kill in kills:
        name, to = draw.choice(names), draw.choice(targets)
        yield replace(
            kill, number=signal.Signals[f"SIG{name}"], to="group" if name == "INT" else to
        )


def _row(number: int, outcome: Outcome) -> str:
    kill = outcome.kill
    where, sent = (
        (PLACES.get(kill.place, kill.place), f"{signal.Signals(kill.number).name} to {kill.to}")
        if kill
        else ("the end", "")
    )
    step = str(outcome.step) if outcome.step >= 0 else "before the first"
    return (
        f"| {number} | {outcome.went_on_from} | {step} | {where} | {sent} | {outcome.left} |"
        f" {outcome.code} |"
    )


if __name__ == "__main__":
    sys.exit(main())
