"""The model card of an exported folder: what was trained, on what, and by what command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.config.hf.family import Family
from forge.config.numbers import compact
from forge.config.root import Config
from forge.rundir.checkpoints import Saved
from forge.rundir.directory import MADE_WITH
from forge.rundir.files import read_object
from forge.rundir.provenance import typed

HEAD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- forge
---
"""


def card(saved: Saved, config: Config, family: Family, dtype: str) -> str:
    """README.md of a checkpoint that is exported."""
    made, meta = _provenance(saved.path), saved.meta
    size = config.model.num_params_estimate  # type: ignore[attr-defined]
    tokens = meta.get("train", {}).get("tokens")
    lines = [
        f"# {config.run.name or Path(config.run.dir or saved.path).name}",
        "",
        f"`{family.architecture}` with {size:,} parameters in {dtype}, made with forge.",
        "",
        "| | |",
        "| --- | --- |",
        f"| checkpoint | step {saved.step} |",
        *(
            [f"| trained on | {compact(tokens)} tokens of `data={_data(config)}` |"]
            if tokens
            else []
        ),
        *([f"| weights from | `{start}` |"] if (start := config.checkpoint.init_from) else []),
        *(f"| {name} | {value:.4f} |" for name, value in _metrics(meta)),
        *(f"| {name} | {value} |" for name, value in _made_with(made)),
        "",
    ]
    lines += ["It was made by", "", "```", typed(made["argv"]), "```", ""] if made else []
    lines += ["```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    lines += ['model = AutoModelForCausalLM.from_pretrained("FOLDER")']
    lines += ['tokenizer = AutoTokenizer.from_pretrained("FOLDER")', "```", ""]
    return HEAD + "\n".join(lines)


def _data(config: Config) -> str:
    return type(config.data).schema_name or config.data._target_


def _metrics(meta: dict[str, Any]) -> list[tuple[str, float]]:
    found = meta.get("metrics") or {}
    return [(name, value) for name, value in found.items() if isinstance(value, float)]


def _made_with(made: dict[str, Any]) -> list[tuple[str, Any]]:
    versions = {f"version of {n}": v for n, v in made.get("versions", {}).items() if v}
    named = {"run": made.get("run_id"), "time": made.get("time")}
    named |= {"git revision": made.get("git_revision")} | versions
    return [(name, value) for name, value in named.items() if value]


def _provenance(path: Path) -> dict[str, Any]:
    """That of the run that a checkpoint is in; empty where it is elsewhere."""
    for folder in path.parents[:3]:
        try:
            return read_object(folder / MADE_WITH)
        except (OSError, ValueError):
            continue
    return {}
