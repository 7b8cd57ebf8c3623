"""The page models.md: every preset with its parameters, and what became of MaxText's names of
models, of tools/models.tsv.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

import forge
from forge.compose.hydra_adapter import CONF
from forge.config.model.decoder import Decoder

TABLE = Path(__file__).with_name("models.tsv")
INTRO = """\
# Models

    python -m forge.check model=qwen3_8b        # parameters, FLOPs and memory, without a GPU
    python -m forge.train model=llama3_2_1b model.max_seq_len=4096 train.seq_len=4096

A preset is a YAML file of `conf/model`: its values are those of `config.json` of the published \
model, so that `model=hf model.path=...` of that model
composes the same section. A size of a family takes what it does not say from another size of it: \
`defaults: [qwen3_0_6b, _self_]`. Nothing hangs on a
name: each fact is an option, and a model of one's own is a preset with other values.

Tests compare every preset with the published `config.json`, as it is read by `model=hf`, and \
with the parameters of transformers' own class.

| `model=` | parameters | of them active |
| --- | ---: | ---: |
"""
NAMES = """
## MaxText's names

What each of MaxText's models is called here, or why it is not there.

| MaxText | here | parameters | |
| --- | --- | ---: | --- |
"""


class Name(NamedTuple):
    """A model of MaxText: overrides that compose it here, none where it is not there, and how it
    differs, or why it is not there.
    """

    name: str
    ours: str
    note: str


def names() -> list[Name]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return [Name(**row) for row in csv.DictReader(lines, delimiter="\t")]


@functools.cache
def section(overrides: str) -> Decoder:
    """The model that they compose."""
    chosen = forge.compose(overrides.split()).model
    assert isinstance(chosen, Decoder), overrides
    return chosen


def presets() -> list[str]:
    """Those of published models, family by family, the smallest first."""
    found = {file.stem: section(f"model={file.stem}") for file in (CONF / "model").glob("*.yaml")}
    sizes = {
        name: model.num_params_estimate
        for name, model in found.items()
        if name != "hf" and model.vocab_size != "auto"
    }
    return sorted(sizes, key=lambda name: (family(name), sizes[name]))


def family(preset: str) -> str:
    """llama3_2_1b is of llama3, gemma_7b of gemma."""
    head = preset.split("_")[0]
    return "llama2" if head in ("llama7b", "llama13b", "llama70b") else head


def models_page() -> str:
    lines = []
    for preset in presets():
        model = section(f"model={preset}")
        active = f"{model.num_active_params:,}" if model.is_moe else ""
        lines.append(f"| `{preset}` | {model.num_params_estimate:,} | {active} |")
    made = "<!-- made by `make docs`; do not edit -->\n\n" + INTRO + "\n".join(lines) + "\n" + NAMES
    for one in names():
        ours = f"`{one.ours}`" if one.ours else ""
        size = f"{section(one.ours).num_params_estimate:,}" if one.ours else ""
        made += f"| {one.name} | {ours} | {size} | {one.note} |\n"
    return made
