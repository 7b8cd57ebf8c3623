"""Which schema each option of a polymorphic group has, and their registration with Hydra."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator

from hydra.core.config_store import ConfigStore

from forge.config import data, model, objective, optimizer, scheduler, tokenizer
from forge.config.field import Section
from forge.config.root import Config

SCHEMAS: dict[str, dict[str, type[Section]]] = {
    "model": {"decoder": model.Decoder},
    "tokenizer": {"bpe": tokenizer.BPE, "file": tokenizer.TokenizerFile},
    "data": {"python": data.PythonSource, "text": data.Text},
    "objective": {"pretrain": objective.Pretrain},
    "optimizer": {"adamw": optimizer.AdamW},
    "scheduler": {
        "none": scheduler.NoSchedule,
        "constant": scheduler.Constant,
        "cosine": scheduler.Cosine,
        "linear": scheduler.Linear,
        "wsd": scheduler.WSD,
        "rex": scheduler.Rex,
    },
}


def register() -> None:
    """Store every schema under `schema/<group>`, apart from the options a user chooses from."""
    store = ConfigStore.instance()
    store.store(group="schema", name="config", node=Config)
    for group, variants in SCHEMAS.items():
        for name, node in variants.items():
            store.store(group=f"schema/{group}", name=name, node=node)


def sections() -> dict[str, type[Section]]:
    """The class of each root section: the base class where the group has variants."""
    hints = typing.get_type_hints(Config)
    return {f.name: hints[f.name] for f in dataclasses.fields(Config) if f.name != "seed"}


def variants(group: str) -> dict[str, type[Section]]:
    """The schemas of one group by option name; a group without variants has one, under its own name."""
    return SCHEMAS.get(group) or {group: sections()[group]}


def walk_options() -> Iterator[tuple[str, str, type[Section], dataclasses.Field]]:
    """Every option: (key, variant name, schema, field); a field shared by variants comes once each."""
    yield "seed", "", Config, next(f for f in dataclasses.fields(Config) if f.name == "seed")
    for group in sections():
        for name, schema in variants(group).items():
            for field in dataclasses.fields(schema):
                yield f"{group}.{field.name}", name, schema, field
