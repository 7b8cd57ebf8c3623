"""Every key of a family, one at a time, in a tiny folder that forge reads: logits of transformers
and of forge. Values are made from the keys of the configuration classes.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from matrix_models import LENGTHS, distance, logits_of, made
from tiny_families import CASES, DEFAULT, LLAMA3, SLACK, YARN
from transformers.activations import ACT2FN

from forge.config.bounds import check_bounds
from forge.config.model.decoder import Decoder as Section
from forge.config.model.moe import group_choice
from forge.families import folder as folders
from forge.families.keys import QUANTIZATION
from forge.families.shards import FolderError
from forge.hf.read import load_folder
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
