"""Every option of a family, one at a time, in a tiny folder: logits of transformers and of forge.

Values are made from the keys of the configuration classes, and from the options of forge's model.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from matrix_models import LENGTHS, distance, drawn, logits_of, made
from tiny_families import CASES, DEFAULT, LLAMA3, LONGEST, SLACK, YARN
from transformers.activations import ACT2FN

from forge.config.bounds import check_bounds
from forge.config.model.decoder import Decoder as Section
from forge.config.model.moe import group_choice
from forge.families import folder as folders
from forge.families.family import OF_TRAINING, Family
from forge.families.keys import QUANTIZATION
from forge.families.shards import FolderError
from forge.hf.read import load_folder
from forge.hf.write import write_weights
from forge.models.decoder import Decoder

BOUND = 5e-4
"""Of the standard deviation of logits; fp32 itself is below a tenth of it."""
ABSENT = "absent"
"""In place of a value: the key is left out."""
NO_MODEL = {
    *("model_type", "architectures", "transformers_version", "dtype", "id2label", "label2id"),
    *("_name_or_path", "vocab_size", "problem_type", "is_encoder_decoder", "return_dict"),
    *("output_hidden_states", "output_attentions", "output_router_logits", "use_cache"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "add_cross_attention"),
}
"""Keys that say nothing of how logits are computed, and the sizes of the files."""
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
ROTATIONS: dict[str, dict[str, Any]] = {
    "default": DEFAULT | {"rope_theta": 77.0},
    "partial": DEFAULT | {"partial_rotary_factor": 0.5},
    "linear": LINEAR,
    "linear, partial": LINEAR | {"partial_rotary_factor": 0.5},
    "dynamic": LINEAR | {"rope_type": "dynamic"},
    "dynamic, original": LINEAR | {"rope_type": "dynamic", "original_max_position_embeddings": 32},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, whole length": LINEAR | {"rope_type": "yarn"},
    "yarn, mscale": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, mscale alone": YARN | {"mscale": 0.7},
    "yarn, mscale of all alone": YARN | {"mscale_all_dim": 0.7},
    "yarn, attention_factor": YARN | {"attention_factor": 1.4},
    "yarn, betas": YARN | {"beta_fast": 4, "beta_slow": 2, "truncate": False},
    "longrope": DEFAULT | {"rope_type": "longrope", "factor": 4.0},
    "proportional": DEFAULT | {"rope_type": "proportional", "partial_rotary_factor": 0.5},
}
LONGROPE = {"short_factor": 1.3, "long_factor": 2.5}


class Finding(NamedTuple):
    """What came of one change. off: the greatest difference of logits, by their deviation."""

    change: str
    outcome: str
    off: float = 0.0

    def wrong(self, case: str) -> bool:
        """Whether two models were read from one folder without a word, or forge crashed."""
        crashed = self.outcome.startswith("forge fails")
        return crashed or (self.outcome == "read" and not self.off <= BOUND * SLACK.get(case, 1))


def base_of(case: str) -> dict[str, Any]:
    """config.json of a case, as its class writes it."""
    return json.loads(CASES[case]().to_json_string(use_diff=False))


def changes(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """config.json with one key of it otherwise, or one that other families have besides."""
    for name, value in content.items():
        if name in NO_MODEL:
            continue
        for other in (ABSENT, None, *others(name, value)):
            if other != value:
                yield f"{name}={other!r}", with_key(content, name, other)
    for case in CASES:
        for name, value in base_of(case).items():
            if name in content or name in NO_MODEL or name.startswith("rope"):
                continue
            for other in (value, *others(name, value)):
                yield f"+{name}={other!r}", with_key(content, name, other)
    yield from rotations(content)


def with_key(content: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    made = {key: each for key, each in content.items() if key != name}
    return made if value == ABSENT else made | {name: value}


def others(name: str, value: Any) -> list[Any]:
    """Other values that a key might have."""
    if name in ("hidden_act", "hidden_activation", "activation_function"):
        return sorted(ACT2FN)
    if isinstance(value, bool):
        return [not value]
    if name == "index_n_heads":  # with few heads scores are equal, and transformers takes any
        return [value + 1, value * 2]
    if name == "linear_key_head_dim":  # a key of one channel is a sign, which rounding flips
        return [0, value + 1, value * 2, value // 2]
    if isinstance(value, int):
        return [0, 1, value + 1, value * 2, value // 2]
    if isinstance(value, float):
        return [0.0, value * 3 + 0.1, value / 3 + 0.01]
    if value is None:
        return [True, 2, 16, 0.5]
    if name == "layer_types":
        kinds = ["full_attention", "sliding_attention", "chunked_attention", "linear_attention"]
        return [value[::-1], value[:1] + value[:-1], *([kind] * len(value) for kind in kinds)]
    if isinstance(value, list):
        numbers = range(len(CASES["llama"]().to_dict()))
        return [value[::-1], [0], [1], [0, 1], [1, 3], list(numbers[: len(value)])]
    return ["greedy", "group_limited_greedy", "noaux_tc"] if name == "topk_method" else []


def rotations(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every type of rotation, by the names of newer files and of older ones."""
    stated = content.get("rope_parameters")
    if not isinstance(stated, dict):
        return
    kinds = [kind for kind in stated if isinstance(stated[kind], dict)]
    plain = {key: each for key, each in content.items() if not key.startswith("rope")}
    width = content.get("qk_rope_head_dim") or content.get("head_dim")
    width = width or content["hidden_size"] // content["num_attention_heads"]
    for name, rotation in ROTATIONS.items():
        if rotation["rope_type"] == "longrope":
            rotation = rotation | {key: [n] * (width // 2) for key, n in LONGROPE.items()}
        for kind in kinds:
            yield f"{kind}: {name}", plain | {"rope_parameters": stated | {kind: rotation}}
        yield f"rotation: {name}", plain | {"rope_parameters": rotation}
        scaling = {key: each for key, each in rotation.items() if key != "rope_theta"}
        older = {"rope_theta": rotation["rope_theta"]}
        if len(scaling) > 1:
            older["rope_scaling"] = scaling
        yield f"older rotation: {name}", plain | older
        if rotation["rope_type"] == "longrope":
            above = {"original_max_position_embeddings": 32}
            yield f"rotation: {name}, original", plain | {"rope_parameters": rotation | above}
            yield f"older rotation: {name}, above", plain | older | above
    for factor in (0.5, 0.25):
        yield f"+partial_rotary_factor={factor}", content | {"partial_rotary_factor": factor}
    yield "+rope_theta=77.0", content | {"rope_theta": 77.0}
    yield "+rope_scaling", content | {"rope_scaling": LINEAR}
    yield "+rope_local_base_freq", content | {"rope_local_base_freq": 77.0}


class Base(NamedTuple):
    """A folder that forge has read. logits: of transformers; off: as in `Finding`."""

    folder: folders.Folder
    logits: list[torch.Tensor]
    off: float

    def equals(self, folder: folders.Folder, logits: list[torch.Tensor]) -> bool:
        """Whether both sides have this model again; files and difference are the same then."""
        both = self.folder, folder
        one, other = ((x.section, x.inside, x.content.get(QUANTIZATION)) for x in both)
        return one == other and all(map(torch.equal, self.logits, logits))


def imported(
    content: dict[str, Any], place: Path, base: list[Base] | None = None
) -> tuple[str, float]:
    """What comes of a config.json that transformers makes a model of and forge reads.

    base: the first folder that was read; added where there is none yet.
    """
    file = place / "config.json"
    place.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    try:
        folder = folders.read_folder(place)
        section = folder.section
        if broken(section) or folders.unknown_keys(folder, ()):
            return "refused", 0.0
        if section.max_seq_len < max(LENGTHS):
            return "too short to be compared", 0.0
    except FolderError:
        return "refused", 0.0
    except Exception as error:
        return f"forge fails ({type(error).__name__}: {error})", 0.0
    try:
        theirs = made(content)
        expected = logits_of(theirs)
        if base and base[0].equals(folder, expected):
            return "read", base[0].off
        theirs.save_pretrained(place)
    except Exception as error:  # of its own many kinds: then there is nothing to compare with
        return f"no model of transformers ({type(error).__name__})", 0.0
    file.write_text(json.dumps(content))
    folder = folders.read_folder(place)
    if folders.weight_faults(folder, folder.section):
        return "refused", 0.0
    try:
        ours = Decoder(folder.section)
        load_folder(place, folder.section, ours.state_dict())
        off = distance(expected, ours.eval(), BOUND)
        if base is not None and not base:
            base.append(Base(folder, expected, off))
        return "read", off
    except Exception as error:
        return f"forge fails ({type(error).__name__}: {error})", 0.0


def imports(case: str, place: Path) -> Iterator[Finding]:
    """Every change of a case's config.json."""
    base: list[Base] = []
    yield Finding("as it is", *imported(base_of(case), place / "base", base))
    seen = set()
    for number, (change, content) in enumerate(changes(base_of(case))):
        if (key := json.dumps(content, sort_keys=True)) in seen:
            continue
        seen.add(key)
        yield Finding(change, *imported(content, place / str(number), base))


@contextmanager
def quiet() -> Iterator[None]:
    """No word of transformers about values that are changed on purpose."""
    before = logging.root.manager.disable
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def broken(section: Section) -> bool:
    """Whether rules refuse a model before a run."""
    wrong = [*check_bounds(section, "model."), *check_bounds(section.moe, "model.moe.")]
    lists = section.rope_short_factor, section.rope_long_factor
    if wrong:
        return True
    if section.rope_type == "longrope" and {*map(len, lists)} != {section.rotary_dim // 2}:
        return True
    wrong = wrong or [*group_choice.body(section)]
    wrong = wrong or bool(section.n_heads % section.kv_heads or section.dim % section.n_heads)
    layers = [layer for _, layer in section.in_use()]
    wrong = wrong or any(layer.is_rotary and layer.rotary_dim % 2 for layer in layers)
    return bool(wrong or (section.moe.num_experts and not section.is_moe))


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
    width = base.rotary_dim // 2
    pairs = {"rope_short_factor": [1.3] * width, "rope_long_factor": [2.5] * width}
    stretched = {"rope_factor": 4.0, "original_max_position_embeddings": 32, **pairs}
    for kind in ("linear", "dynamic", "llama3.1", "yarn", "longrope", "proportional"):
        yield f"rope_type={kind}", changed(base, {"rope_type": kind, **stretched})
        for name, value in OF_ROTATIONS.items():
            made = {"rope_type": kind, **stretched, name: value}
            yield f"rope_type={kind} {name}={value}", changed(base, made)


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
    """A copy with other options, of the model or of a section in it; kinds have them too."""
    made = base.clone()
    made.thaw()
    for name, value in values.items():
        setattr(getattr(made, part) if part else made, name, value)
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
