"""A folder of adapters as PEFT writes it: what its config says, read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.config.hf.shards import AGAIN, FolderError
from forge.config.regular import read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
UNREAD = {
    "layers_to_transform": None,
    "layer_replication": None,
    "trainable_token_indices": None,
    "target_parameters": None,
    "exclude_modules": None,
    "lora_bias": False,
    "use_qalora": False,
}
"""Keys that change what adapters are, with the value by which they do not."""


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
    for key, inert in UNREAD.items():
        if content.get(key) not in (inert, None, [], {}):
            what = f"{file}: {key}={content[key]!r}, which forge does not compute"
            raise FolderError(what, "another folder")
    return content


def options(content: dict[str, Any]) -> dict[str, Any]:
    """The options of `adapter` that make what the folder has, but for those that name matrices."""
    return {
        "rank": content["r"],
        "alpha": float(content["lora_alpha"]),
        "rank_stabilized": bool(content.get("use_rslora")),
        "dora": bool(content.get("use_dora")),
    }
