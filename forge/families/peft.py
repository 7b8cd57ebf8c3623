"""The config of a PEFT folder of adapters, read without torch."""

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
"""Keys read by forge, or repeated by the names and shapes of the tensors."""
INERT = (
    *("task_type", "auto_mapping", "peft_version", "revision", "inference_mode", "lora_dropout"),
    *("fan_in_fan_out", "layers_pattern", "megatron_config", "megatron_core", "loftq_config"),
    *("eva_config", "qalora_group_size", "layers_to_transform"),
)
"""Keys without effect on the products of a trained adapter."""
BIASES = {"none": "none", "lora_only": "lora", "all": "all"}
"""PEFT's names and forge's."""
BESIDE_ITS_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights with an unchanged base; other values change the base, on
loading too.
"""


def is_peft(path: str | Path) -> bool:
    """Whether a path is a PEFT folder."""
    return (Path(path) / CONFIG).is_file()


def read_adapter_config(path: str | Path) -> dict[str, Any]:
    """Read adapter_config.json. Raises FolderError for an unusable folder."""
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
        settings = ", ".join(f"{key}={content[key]!r}" for key in unread)
        hint = "another folder, or merge the adapters into their base with merge_and_unload of PEFT"
        raise FolderError(f"{file}: {settings}, which forge does not compute", hint)
    return content


def adapter_options(content: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `adapter` for a folder, without the names of matrices."""
    return {
        "rank": content["r"],
        "alpha": float(content["lora_alpha"]),
        "rank_stabilized": bool(content.get("use_rslora")),
        "dora": bool(content.get("use_dora")),
        # PEFT takes the first matching pattern, forge the last
        "ranks": dict(reversed((content.get("rank_pattern") or {}).items())),
        "bias": BIASES.get(content.get("bias") or "none", "none"),
    }
