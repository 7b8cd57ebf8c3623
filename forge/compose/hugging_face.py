"""`model=hf`: the options that config.json of a folder gives, below all that files and overrides
set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from forge.compose.hydra_adapter import Override
from forge.config.field import variant_of
from forge.config.model.mixers.base import Mixer
from forge.config.problems import COMMAND_LINE, Problem
from forge.config.tokenizers.tokenizer_files import TokenizerFile
from forge.config.tokenizers.tokenizer_stated import CONFIG_NAME
from forge.families import folder as folders
from forge.families.download import fetch_model, is_id
from forge.families.shards import FolderError
from forge.families.tokenizer import begins_documents

MODEL, PATH, BEGINS = "model", "model.path", "tokenizer.add_bos"
REVISION, IGNORED = "model.revision", "model.ignore_keys"
ELSE = "check it, or give a folder on this machine, which `hf download ID` fetches where it can"


def fill_model_section(
    tree: DictConfig, assigned: Sequence[Override], lines: Mapping[str, str]
) -> tuple[dict[str, str], list[Problem]]:
    """Fill the model section of a tree, of model=hf, from the folder in model.path; return the file
    of each filled key, and the problems.

    assigned: the overrides of values. lines: lines of the keys set by files, left as set.
    """
    typed = {override.key_or_group: override.value() for override in assigned}
    path = str(typed.get(PATH, tree.model.path) or "")
    if not path:
        return {}, []  # a rule reports the missing path
    where = COMMAND_LINE if PATH in typed else lines.get(PATH, "")
    folder, fault = path, ""
    if is_id(path):
        folder, fault = fetch_model(path, str(typed.get(REVISION, tree.model.revision)))
    if fault:
        message = f"there is no folder {path}, and as the id of a model: {fault}."
        return {}, [Problem(f"{PATH}={path}", message, ELSE, where=where)]
    try:
        model_folder = folders.read_folder(folder)
    except FolderError as error:
        return {}, [Problem(f"{PATH}={path}", error.what, error.fix, where=where)]
    names: Any = typed.get(IGNORED, tree.model.ignore_keys)
    ignored = [str(name) for name in names or ()]
    if fault := folders.unknown_keys(model_folder, ignored):
        return {}, [Problem(f"{PATH}={path}", *fault, where=where)]
    sources = {}
    for key, value in _flat(model_folder.options):
        if key not in lines:
            _set(tree, key, value)
            sources[key] = str(model_folder.path / folders.CONFIG)
    is_file = OmegaConf.get_type(tree, "tokenizer") is TokenizerFile
    from_folder = is_file and not tree.tokenizer.path and BEGINS not in lines
    if from_folder and begins_documents(model_folder.path):
        tree.tokenizer.add_bos = True
        sources[BEGINS] = str(model_folder.path / CONFIG_NAME)
    return sources, []


def _flat(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values from the root; a section with a schema precedes its options."""
    for name, value in options.items():
        if name == "mixer":
            yield "model.mixer", value["schema"]
            yield from ((f"model.mixer.{k}", v) for k, v in value.items() if k != "schema")
        elif name == "moe":
            yield from ((f"model.moe.{k}", v) for k, v in value.items())
        elif value is not None:
            yield f"{MODEL}.{name}", value


def _set(tree: DictConfig, key: str, value: Any) -> None:
    if key == "model.mixer":
        node = tree.model._get_node("mixer")
        assert isinstance(node, DictConfig)
        node._set_value("???")  # empty the section: its value may have another schema
        tree.model.mixer = OmegaConf.structured(variant_of(Mixer, value))
    else:
        OmegaConf.update(tree, key, value, merge=False)
