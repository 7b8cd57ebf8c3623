"""Completions of a rollout, and their file in the run directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from forge.rundir.files import write_text
from forge.rundir.rollouts import read_lines, rollout_numbers, rollout_path

STOP, LENGTH, TURNS = "stop", "length", "turns"


@dataclass(kw_only=True)
class Completion:
    """A completion of a prompt.

    prompt: the prompt's place in the rollout; number: of the completion in its group. prompt_ids,
    ids: tokens, the ending token too. finish: `stop`, `length` where it was cut off, or `turns`
    where it had as many as it may have. mask: 0 for each token of a reply of an environment, which
    is not learnt; empty = all are the model's. turns: of the model. logprobs, old, reference: of
    the completion's tokens, by the sampler, by the trained weights at the rollout, and by the
    reference; 0 in replies, empty where not needed. reward: the weighted sum of `rewards`, None =
    not judged. learnt: whether the completion counts. support: ids that top_k and top_p left to
    draw each token from; empty without them.
    """

    prompt: int
    number: int
    prompt_text: Any
    text: str
    finish: str
    reward: float | None = None
    rewards: dict[str, float | None] = field(default_factory=dict)
    advantage: float = 0.0
    learnt: bool = True
    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]
    old: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    turns: int = 1
    support: list[list[int]] = field(default_factory=list)

    @property
    def n_targets(self) -> int:
        """Tokens that the model wrote."""
        return sum(self.mask) if self.mask else len(self.ids)


NAMES = tuple(entry.name for entry in fields(Completion))


def write_rollout(path: Path, head: dict[str, Any], rows: Sequence[Completion]) -> None:
    """Write a rollout, complete or not at all: a line about it, then a completion a line.

    Floats are written with all digits: what is read has the same bits.
    """
    path.parent.mkdir(exist_ok=True)
    lines = [head | {"completions": len(rows)}]
    lines += [{name: getattr(row, name) for name in NAMES} for row in rows]
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def read_rollout(path: Path) -> tuple[dict[str, Any], list[Completion]] | None:
    """The first line and the completions of a file; None where there is no complete one."""
    lines = read_lines(path)
    if lines is None:
        return None
    head, rows = lines
    try:
        return head, [Completion(**row) for row in rows]
    except TypeError:  # of another version
        return None


def forget(run_dir: Path, last: int, keep: int) -> None:
    """Delete rollouts but the last `keep` up to `last`; keep: 0 = all."""
    for number in rollout_numbers(run_dir) if keep else ():
        if number <= last - keep:
            rollout_path(run_dir, number).unlink(missing_ok=True)
