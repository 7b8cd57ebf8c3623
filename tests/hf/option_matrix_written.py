"""Every option of a model of forge, one at a time, in a tiny folder that forge writes: logits of
transformers and of forge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from matrix_models import distance, drawn, logits_of
from option_matrix import BOUND, Finding, base_of, broken
from tiny_families import LONGEST

from forge.config.model.decoder import Decoder as Section
from forge.families import folder as folders
from forge.families.family import OF_TRAINING, Family
from forge.hf.write import write_weights
from forge.models.decoder import Decoder


def sections(case: str, place: Path) -> Iterator[tuple[str, Section]]:
    """The model of a case with one option of forge otherwise, and with every rotation."""
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(base_of(case)))
    base = folders.read_folder(place).section
    yield "as it is", base
    for name, value, field in options_of(base):
        for other in values_of(field, value):
            if other != value:
                yield f"{name}={other!r}", changed(base, {name: other})
    for part in ("moe", "mixer"):
        for name, value, field in options_of(getattr(base, part)):
            for other in values_of(field, value):
                tied = name == "indexer_n_heads" and other < value  # as in `others`
                if other != value and not tied:
                    yield f"{part}.{name}={other!r}", changed(base, {name: other}, part)
    yield from own_mixers(base)
    width = base.rotary_dim // 2
    pairs = {"rope_short_factor": [1.3] * width, "rope_long_factor": [2.5] * width}
    stretched = {"rope_factor": 4.0, "original_max_position_embeddings": 32, **pairs}
    for kind in ("linear", "dynamic", "llama3.1", "yarn", "longrope", "proportional"):
        yield f"rope_type={kind}", changed(base, {"rope_type": kind, **stretched})
        for name, value in OF_ROTATIONS.items():
            made = {"rope_type": kind, **stretched, name: value}
            yield f"rope_type={kind} {name}={value}", changed(base, made)


def own_mixers(base: Section) -> Iterator[tuple[str, Section]]:
    """Options that only the mixers of other kinds of layers have, such as linear attention's."""
    for kind, stated in base.kinds.items():
        for name, value, field in options_of(base.of_kind(kind).mixer):
            is_own = name in stated.get("mixer", {}) and not hasattr(base.mixer, name)
            for other in values_of(field, value) if is_own else ():
                if other != value and (name, other) != ("gdn_key_head_dim", 1):  # as in `others`
                    yield f"{kind}.{name}={other!r}", changed(base, {name: other}, "mixer")


OF_ROTATIONS: dict[str, Any] = {
    "partial_rotary_factor": 0.5,
    "beta_fast": 6.0,
    "beta_slow": 2.0,
    "rope_truncate": False,
    "mscale": 0.5,
    "mscale_all_dim": 0.7,
    "rope_attention_scaling": True,
    "rope_attention_factor": 1.4,
    "original_max_position_embeddings": LONGEST,
    "rope_theta": 77.0,
}


def options_of(section: Any) -> Iterator[tuple[str, Any, Field[Any]]]:
    """Options of a section that make it compute something else."""
    skipped = {*OF_TRAINING, "vocab_size", "max_seq_len", "mixer", "feed_forward", "moe", "dropout"}
    skipped.add("force_balance")  # of benchmarks, where routing is not the model's
    for field in fields(section):
        if field.name not in skipped:
            yield field.name, getattr(section, field.name), field


def values_of(field: Field[Any], value: Any) -> list[Any]:
    """Other values that an option might have."""
    if choices := field.metadata.get("choices"):
        return list(choices)
    if isinstance(value, list | tuple):
        return []
    if "bool" in str(field.type):
        return [True, False]
    if "int" in str(field.type):
        return [*({0, 1, 8, (value or 0) * 2} - {value})]
    if "float" in str(field.type):
        return [0.0, 0.3, 1.0, 2.5]
    return []


def changed(base: Section, values: dict[str, Any], part: str = "") -> Section:
    """A copy with other options of the model or of a section in it, and of the kinds of layers that
    state them.
    """
    made = base.clone()
    made.thaw()
    section = getattr(made, part) if part else made
    for name, value in values.items():
        if hasattr(section, name):
            setattr(section, name, value)
    if part == "mixer":
        made.kinds = {kind: _mixed(each, values) for kind, each in made.kinds.items()}
    if not part:
        made.kinds = {kind: each | _shared(each, values) for kind, each in made.kinds.items()}
    return made


def _mixed(kind: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The options of a kind, with values of a mixer that states them itself."""
    mixer = kind.get("mixer") or {}
    return kind | {"mixer": mixer | values} if {*values} <= {*mixer} else kind


def _shared(kind: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in kind}


def exported(section: Section, family: Family, place: Path) -> tuple[str, float]:
    """What comes of a model of forge that a family says, and transformers reads."""
    try:
        if broken(section):
            return "refused by rules", 0.0
        if family.unsaid(section):
            return "refused", 0.0
        torch.manual_seed(0)
        ours = Decoder(section).eval()
    except Exception as error:
        return f"forge fails ({type(error).__name__}: {error})", 0.0
    drawn(ours)
    place.mkdir(parents=True)
    own, rows = ours.state_dict(), family.rows(section)
    write_weights(place, rows, own.__getitem__, dtype=torch.float32, shard_bytes=10**9)
    content = family.content(section) | {"model_type": family.model_type}
    (place / "config.json").write_text(json.dumps(content))
    theirs, said = transformers.AutoModelForCausalLM.from_pretrained(
        place, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    own = theirs.state_dict()
    missing = [name for name in said["missing_keys"] if own[name].numel()]
    unexpected = [name for name in said["unexpected_keys"] if not _is_further(name, section)]
    if missing or unexpected or said["mismatched_keys"]:
        return "read", float("inf")
    return "read", distance(logits_of(theirs.eval()), ours, BOUND)


def _is_further(name: str, section: Section) -> bool:
    """Whether a tensor is of a module for a further token, which transformers does not have."""
    layer = re.search(r"layers\.(\d+)\.", name)
    return name.startswith("mtp.") or bool(layer and int(layer[1]) >= section.n_layers)


def exports(case: str, place: Path) -> Iterator[Finding]:
    """Every change of a case's model, as its family says it."""
    family = folders.family_of(base_of(case)["model_type"])
    assert family is not None
    for number, (change, section) in enumerate(sections(case, place / "base")):
        try:
            yield Finding(change, *exported(section, family, place / str(number)))
        except Exception as error:  # of transformers, which cannot read what was written
            yield Finding(change, f"transformers cannot read it ({type(error).__name__})")
