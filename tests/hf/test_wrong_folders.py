"""A folder that is wrong, torn, truncated or unknown: one clear error each, before a run starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.refusing import problems
from safetensors.numpy import load_file, save_file

Damage = Callable[[Path], Any]
INDEX = "model.safetensors.index.json"


def keys(**changed: Any) -> Damage:
    """Give config.json other keys."""

    def damage(folder: Path) -> None:
        file = folder / "config.json"
        content = json.loads(file.read_text()) | changed
        kept = {name: value for name, value in content.items() if value != "absent"}
        file.write_text(json.dumps(kept))

    return damage


def tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Damage:
    """Change the tensors of the first shard; the index stays."""

    def damage(folder: Path) -> None:
        file = folder / "model-00001-of-00004.safetensors"
        found = load_file(file)
        change(found)
        save_file(found, file)

    return damage


def whole(change: Callable[[dict[str, np.ndarray]], Any]) -> Damage:
    """The same of all tensors, in one file without an index."""

    def damage(folder: Path) -> None:
        found: dict[str, np.ndarray] = {}
        for file in folder.glob("*.safetensors"):
            found |= load_file(file)
            file.unlink()
        (folder / INDEX).unlink()
        change(found)
        save_file(found, folder / "model.safetensors")

    return damage


def cut(bytes_left: int | float) -> Damage:
    """Cut the first shard off."""

    def damage(folder: Path) -> None:
        file = folder / "model-00001-of-00004.safetensors"
        content = file.read_bytes()
        kept = bytes_left if isinstance(bytes_left, int) else int(len(content) * bytes_left)
        file.write_bytes(content[:kept])

    return damage


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def pickled(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), folder / INDEX]:
        file.unlink()
    (folder / "pytorch_model.bin").touch()


Q = "model.layers.0.self_attn.q_proj.weight"
SHARD = "{folder}/model-00001-of-00004.safetensors"
WRONG: dict[str, tuple[Damage, str, str]] = {
    "no config.json": (
        remove("config.json"),
        "{folder} has no config.json.",
        "give the folder of a model, as save_pretrained of transformers writes it",
    ),
    "no folder": (shutil.rmtree, "there is no folder {folder}.", "give the folder of a model"),
    "a torn config.json": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "lla'),
        "{folder}/config.json is no config of a model: Unterminated string",
        "download it again",
    ),
    "no model_type": (
        keys(model_type="absent"),
        "{folder}/config.json is no config of a model: it has no model_type.",
        "download it again",
    ),
    "an unknown model_type": (
        keys(model_type="rwkv"),
        "{folder}/config.json: model_type='rwkv' is no family of forge.",
        "a model of one that is: llama, mistral",
    ),
    "quantised": (
        keys(quantization_config={"quant_method": "hqq"}),
        "{folder}/config.json: quantization_config: quant_method='hqq' is none of awq, ",
        "a model without it",
    ),
    "an unknown key": (
        keys(hydra_heads=3),
        "{folder}/config.json: hydra_heads=3 is a key that forge does not know here.",
        "what forge does not compute is not left out silently",
    ),
    "a key of another value": (
        keys(hidden_act="xielu"),
        "{folder}/config.json: hidden_act='xielu' is none of silu, swish",
        "a model without it",
    ),
    "a size that is no number": (
        keys(num_hidden_layers="three"),
        "{folder}/config.json: num_hidden_layers='three' is no number.",
        "a model without it",
    ),
    "an unknown rotation": (
        keys(rope_parameters={"rope_type": "spiral", "rope_theta": 10.0}),
        "{folder}/config.json: rope_type='spiral' is none of default, linear",
        "a model without it",
    ),
    "a missing shard": (
        remove("model-00002-of-00004.safetensors"),
        "{folder}: 1 of 4 shards are missing, such as model-00002-of-00004.safetensors.",
        "download them",
    ),
    "a torn index": (
        lambda folder: (folder / INDEX).write_text('{"weight_map": {'),
        "{folder}/model.safetensors.index.json cannot be read (Expecting property name",
        "download it again",
    ),
    "a header that is cut off": (cut(40), SHARD + " is torn: it ends in its header.", "again"),
    "an empty shard": (cut(0), SHARD + " is torn: it ends in its header.", "download it again"),
    "a shard that is cut off": (cut(0.7), SHARD + " is torn: ", "download it again"),
    "a header of noise": (
        lambda folder: (folder / "model-00001-of-00004.safetensors").write_bytes(
            (20).to_bytes(8, "little") + b"x" * 40
        ),
        SHARD + " cannot be read as safetensors",
        "download it again",
    ),
    "a tensor of another shape": (
        whole(lambda found: found.update({Q: np.zeros((32, 31), dtype=np.float32)})),
        "{folder} does not fit this model: " + Q + " is (32, 31) there and (32, 32) here.",
        "the options of its config.json, or checkpoint.exclude_from_loading",
    ),
    "a missing tensor": (
        whole(lambda found: found.pop(Q)),
        "{folder} does not fit this model: " + Q + " is missing there.",
        "checkpoint.exclude_from_loading",
    ),
    "a tensor that an index names and no shard has": (
        tensors(lambda found: found.pop("model.embed_tokens.weight")),
        SHARD + " has no tensor model.embed_tokens.weight, which",
        "download the folder again",
    ),
    "a tensor that is unknown": (
        whole(lambda found: found.update({"model.mystery": np.zeros(3, dtype=np.float32)})),
        "{folder} does not fit this model: model.mystery is missing here.",
        "checkpoint.exclude_from_loading",
    ),
    "numbers of 8 bits": (
        whole(lambda found: found.update({Q: np.zeros((32, 32), dtype=np.int8)})),
        "{folder}/model.safetensors: " + Q + " is in I8, and forge reads F64, F32, F16, BF16.",
        "give the folder of the model before quantisation",
    ),
    "pickles": (
        pickled,
        "{folder} has its weights in pytorch_model.bin: a pickle, which may run any code.",
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER)",
    ),
    "two files and no index": (
        remove(INDEX),
        "{folder} has 4 .safetensors files and no model.safetensors.index.json.",
        "download it, or join the files",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_clear_error(name: str, llama: Path, tmp_path: Path) -> None:
    damage, what, fix = WRONG[name]
    folder = tmp_path / "folder"
    shutil.copytree(llama, folder)
    damage(folder)
    typed = ["model=hf", f"model.path={folder}", "tokenizer=bytes", "train.seq_len=32"]
    found = problems([*typed, "run.device=cpu", "parallel=single"])
    assert len(found) == 1, found
    assert found[0].what.startswith(what.format(folder=folder)), found[0].what
    assert fix.format(folder=folder) in found[0].fix
    assert found[0].where
