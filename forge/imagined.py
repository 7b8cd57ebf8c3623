"""What `forge.plan --dry-run` adds: a layout in small over imagined ranks, in a process with torch,
beside what the plan says it holds and sends.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from typing import Any

from forge import cli
from forge.config.model import Decoder
from forge.config.numbers import percent
from forge.config.problems import refusal
from forge.config.root import Config
from forge.plan.sharding import held, in_small
from forge.plan.traffic import Rank

WORKER = "forge.training.dry_run"
ROUNDED = 64
"""Bytes by which collectives that are rounded down one by one differ from their sum."""


def report(config: Config) -> tuple[str, bool]:
    """What ranks of a resolved layout hold and send, in lines; whether it is as the plan says, and
    within plan.sharding_tolerance.
    """
    small, stages = in_small(config), sorted({0, config.parallel.pp - 1})
    found = take_a_step(small, stages)
    lines, right = [], True
    size = config.run.num_processes or 1
    lines.append(f"in small, one process as rank of {size:,} (torch's fake process group)")
    for stage, one in zip(stages, found, strict=True):
        expected = held(small, stage).parameters
        right &= one["held"] == expected
        lines.append(f"  rank {one['rank']:,} holds {one['held']:,} values; the plan: {expected:,}")
        sent, planned = one.get("sent", {}), _planned(small, stage) if "sent" in one else {}
        for kind in sorted({*sent, *planned}):
            counted, said = sent.get(kind, 0), planned.get(kind, 0)
            right &= abs(counted - said) <= ROUNDED
            lines.append(f"    {kind:<16} {counted:>12,} bytes sent; the plan: {said:,}")
        excess, most = held(config, stage).excess, config.plan.sharding_tolerance
        right &= excess <= most or size == 1
        said = f"  of the model itself it holds {percent(excess)} more than an equal share"
        lines.append(f"{said}; plan.sharding_tolerance is {percent(most)}")
    if config.parallel.pp > 1:
        lines.append("  a pipeline takes no step here: its ranks wait for one another")
    lines += ["", "what rank 0 holds of the small model", *_table(found[0]["parameters"])]
    lines += ["", "all of it is as the plan says" if right else "NOT as the plan says, or too much"]
    return "\n".join(lines), right


def take_a_step(config: Config, stages: list[int]) -> list[dict[str, Any]]:
    """What `forge.training.dry_run` finds of ranks of the pipeline. Raises ConfigError."""
    command = [sys.executable, "-m", WORKER]
    done = subprocess.run(command, input=pickle.dumps((config, stages)), capture_output=True)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [""]
        what = f"the layout cannot be laid out: {last[0]}"
        raise refusal("--dry-run", what, "python -m forge.doctor, which says whether torch is here")
    return json.loads(done.stdout.decode().strip().splitlines()[-1])


def _planned(config: Config, stage: int) -> dict[str, int]:
    """Bytes that the rank sends, by kind of collective."""
    assert isinstance(config.model, Decoder)
    kinds: Counter[str] = Counter()
    for sent in Rank(config, config.model, stage).sent():
        kinds[sent.kind] += sent.bytes
    return dict(kinds)


def _table(parameters: list[list[Any]]) -> list[str]:
    """Parameters of the first block and of what is outside: shapes, and what cuts them."""
    first = min((name.split(".")[1] for name, *_ in parameters if "blocks." in name), default="0")
    rows = [("", "shape", "here", "cut by")]
    for name, shape, here, cuts in parameters:
        if "blocks." not in name or f"blocks.{first}." in name:
            rows.append((name, str(shape), str(here), cuts))
    return [f"  {line}" for line in cli.lines_of(rows)]
