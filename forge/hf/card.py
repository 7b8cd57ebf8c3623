"""The model card of an exported folder: what was trained, on what, and by what command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.config.adapters.adapter import Adapter
from forge.config.numbers import compact
from forge.config.problems import shown
from forge.config.root import Config
from forge.families.family import Family
from forge.rundir.checkpoints import Saved
from forge.rundir.directory import MADE_WITH
from forge.rundir.files import read_object
from forge.rundir.provenance import typed_command

HEAD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- forge
---
"""


NF4 = """load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant={double},
    bnb_4bit_compute_dtype=torch.bfloat16,"""
BITS = {
    "nf4": NF4.format(double=False),
    "nf4_double": NF4.format(double=True),
    "int8": "load_in_8bit=True,",
}


def card(saved: Saved, config: Config, family: Family, dtype: str) -> str:
    """Return README.md of an exported checkpoint."""
    size = config.model.num_params_estimate  # type: ignore[attr-defined]
    lines = [f"`{family.architecture}` with {size:,} parameters in {dtype}, made with forge.", ""]
    lines += _origin(saved, config)
    lines += ["```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    lines += ['model = AutoModelForCausalLM.from_pretrained("FOLDER")']
    lines += ['tokenizer = AutoTokenizer.from_pretrained("FOLDER")', "```", ""]
    return HEAD + "\n".join([f"# {_name(saved, config)}", "", *lines])


def adapter_card(saved: Saved, config: Config, family: Family, dtype: str) -> str:
    """Return README.md of adapters exported for PEFT, with code to load their base."""
    adapter, base = config.adapter, config.checkpoint.init_from or "BASE"
    lines = [f"Adapters for a `{family.architecture}` in {dtype}, made with forge.", ""]
    lines += _origin(saved, config)
    code = ["from peft import PeftModel", "from transformers import AutoModelForCausalLM", ""]
    extra_options = ""
    if adapter.packed_format:
        lines += [f"They {beside_bits(adapter).removeprefix('they ')}.", ""]
        if adapter.packed_format == "nf4_double":
            lines += [
                "forge rounds the scales of each row by themselves, and bitsandbytes those of"
            ]
            lines += ["a whole matrix, so that logits differ a little.", ""]
        code[1:2] = ["import torch", "from transformers import AutoModelForCausalLM"]
        code[2] += ", BitsAndBytesConfig"
        bits = BITS[adapter.packed_format]
        code += ["bits = BitsAndBytesConfig(", f"    {bits}", ")"]
        extra_options = ", quantization_config=bits"
    code += [f'base = AutoModelForCausalLM.from_pretrained("{base}"{extra_options})']
    model, added = config.decoder, config.tokenizer.added
    if model is not None and model.new_rows[1]:
        tokens = f" {shown(added)}" if added else ""
        lines += [f"The base knows none of the new tokens{tokens}: embedding and head are in this"]
        lines += ["folder too, and are read into a base that `resize_token_embeddings` has given"]
        lines += [f"{model.vocab_size} rows.", ""]
        code += [f"base.resize_token_embeddings({model.vocab_size})"]
    code += ['model = PeftModel.from_pretrained(base, "FOLDER")']
    lines += ["```python", *code, "```", ""]
    head = HEAD.replace("library_name: transformers", "library_name: peft")
    return head + "\n".join([f"# {_name(saved, config)}", "", *lines])


def beside_bits(adapter: Adapter) -> str:
    """Return a warning on adapters trained beside a quantised base."""
    base_format = adapter.packed_format.removesuffix("_double")
    return (
        f"they were trained beside their base in {base_format}, and beside the plain base "
        "are another model: load the base as README.md says, or write --format hf --merge"
    )


def _name(saved: Saved, config: Config) -> str:
    return config.run.name or Path(config.run.dir or saved.path).name


def _origin(saved: Saved, config: Config) -> list[str]:
    """Return Markdown lines on the run of a checkpoint."""
    provenance, meta = _provenance(saved.path), saved.meta
    tokens = meta.get("train", {}).get("tokens")
    rows = [("checkpoint", f"step {saved.step}")]
    if tokens:
        rows.append(("trained on", f"{compact(tokens)} tokens of `data={_data(config)}`"))
    if start := config.checkpoint.init_from:
        rows.append(("weights from", f"`{start}`"))
    rows += [(name, f"{value:.4f}") for name, value in _metrics(meta)]
    rows += [(name, str(value)) for name, value in _made_with(provenance)]
    lines = ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows), ""]
    if provenance:
        lines += ["It was made by", "", "```", typed_command(provenance["argv"]), "```", ""]
    return lines


def _data(config: Config) -> str:
    return type(config.data).schema_name or config.data._target_


def _metrics(meta: dict[str, Any]) -> list[tuple[str, float]]:
    metrics = meta.get("metrics") or {}
    return [(name, value) for name, value in metrics.items() if isinstance(value, float)]


def _made_with(made: dict[str, Any]) -> list[tuple[str, Any]]:
    versions = {f"version of {n}": v for n, v in made.get("versions", {}).items() if v}
    facts = {"run": made.get("run_id"), "time": made.get("time")}
    facts |= {"git revision": made.get("git_revision")} | versions
    return [(name, value) for name, value in facts.items() if value]


def _provenance(path: Path) -> dict[str, Any]:
    """Return the provenance of a checkpoint's run; empty outside of a run."""
    for folder in path.parents[:3]:
        try:
            return read_object(folder / MADE_WITH)
        except (OSError, ValueError):
            continue
    return {}
