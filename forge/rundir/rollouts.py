"""The rollouts in a run directory: a file each, a line about it, then a completion a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = "rollouts"
LONGEST = 2000  # letters of a text in a table


def rollout_path(run_dir: Path, rollout: int) -> Path:
    return run_dir / FOLDER / f"{rollout:06d}.jsonl"


def rollout_numbers(run_dir: Path) -> list[int]:
    """The numbers of the rollouts that are stored."""
    stems = [path.stem for path in (run_dir / FOLDER).glob("*.jsonl")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def read_lines(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The first line and the completions of a file; None where there is no complete one."""
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
        head, rows = lines[0], lines[1:]
        complete = head.get("completions") == len(rows)
    except (OSError, ValueError, AttributeError, IndexError):
        return None
    return (head, rows) if complete else None


def table_rows(completions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table: prompt, completion, reward, each reward, advantage, tokens, finish."""
    rows = []
    for line in completions:
        prompt = line.get("prompt_text", "")
        if isinstance(prompt, list):
            turns = (f"{turn.get('role')}: {turn.get('content')}" for turn in prompt)
            prompt = "\n".join(turns)
        rewards = dict(line.get("rewards") or {})
        rows.append(
            {
                "prompt": str(prompt)[:LONGEST],
                "completion": str(line.get("text", ""))[:LONGEST],
                "reward": line.get("reward"),
                **(rewards if len(rewards) > 1 else {}),
                "advantage": line.get("advantage"),
                "tokens": len(line.get("ids") or ()),
                "finish": line.get("finish"),
            }
        )
    return rows
