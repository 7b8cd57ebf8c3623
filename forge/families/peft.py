"""A folder of adapters as PEFT writes it: what its config says, read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.config.regular import read_json
from forge.families.shards import AGAIN, FolderError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
READ = (
    *("peft_type", "base_model_name_or_path", "r", "lora_alpha", "use_rslora", "use_dora"),
    *("target_modules", "rank_pattern", "modules_to_save", "bias", "init_lora_weights"),
)
"""Keys that are read here, or that the names and shapes of the tensors say too."""
INERT = (
    *("task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "lora_dropout"),
    *("fan_in_fan_out", "layers_pattern", "megatron_config", "megatron_core", "loftq_config"),
    *("eva_config", "qalora_group_size", "layers_to_transform"),
)
"""Keys that change no product of an adapter that is trained."""
BIASES = {"none": "none", "lora_only": "lora", "all": "all"}
"""Theirs and ours."""
BESIDE_ITS_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base as it is; others change it, on loading too."""


def is_peft(path: str | Path) -> bool:
    """Whether a path is such a folder."""
    return (Path(path) / CONFIG).is_file()


def read(path: str | Path) -> dict[str, Any]:
    """adapter_config.json. Raises FolderError for one that cannot be used."""
    file = Path(path) / CONFIG
    try:
        content = read_json(file)
        kind = content.get("peft_type")
    except (OSError, ValueError, AttributeError) as error:
        raise FolderError(f"{file} cannot be read ({error})", AGAIN) from None
    if kind != "LORA":
        raise FolderError(f"{file}: peft_type={kind}, and forge reads LORA", "another folder")
    if not (Path(path) / WEIGHTS).is_file():
        raise FolderError(f"{path} has no {WEIGHTS}", "save it with safe_serialization=True")
    unread = [key for key in content if key not in (*READ, *INERT) and content[key]]
    if content.get("init_lora_weights", True) not in BESIDE_ITS_BASE:
        unread.append("init_lora_weights")
    if unread:
        said = ", ".join(f"{key}={content[key]!r}" for key in unread)
        fix = "another folder, or merge the adapters into their base with merge_and_unload of PEFT"
        raise FolderError(f"{file}: {said}, which forge does not compute", fix)
    return content


def options(content: dict[str, Any]) -> dict[str, Any]:
    """The options of `adapter` that make what the folder has, but for those that name matrices."""
    return {
        "rank": content["r"],
        "alpha": float(content["lora_alpha"]),
        "rank_stabilized": bool(content.get("use_rslora")),
        "dora": bool(content.get("use_dora")),
        # PEFT takes the first that fits, and forge the last
        "ranks": dict(reversed((content.get("rank_pattern") or {}).items())),
        "bias": BIASES.get(content.get("bias") or "none", "none"),
    }
