"""A folder of Hugging Face: its config.json as the model section, and the fit of its weights."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.config.model.decoder import Decoder
from forge.config.model.hub_folder import grows
from forge.config.model.tensors import EMBEDDING as TABLE
from forge.config.model.tensors import HEAD, misfits
from forge.config.regular import NotRegular, read_json
from forge.families import each as families
from forge.families.family import Family, decoder_section
from forge.families.formats.format import Format, format_of, plain_tensors
from forge.families.keys import QUANTIZATION
from forge.families.peft import is_peft
from forge.families.shards import AGAIN, FolderError, Stored, same_bytes, stored_tensors
from forge.families.table import Row, shapes

CONFIG, TEXT = "config.json", "text_config"
INSIDE = "language_model."
"""Prefix of the language model's tensors in a model that reads images too."""
WITHIN = "model.language_model."
"""The same in Qwen's, whose head stands beside the language model."""
APART = "mtp."
"""Prefix of Qwen's modules for further tokens, which stand beside the model."""
EMBEDDING = "embedding.weight"
ORDER = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gpt2")
"""Families first tried for writing a section; the first able family writes, the others follow."""
MODULES = "mtp_num_layers"
OF_BOTH = ("tie_word_embeddings", QUANTIZATION)
"""Keys of a whole model shared by its language model."""


@functools.cache
def all_families() -> tuple[Family, ...]:
    """Return every family, in the order of trial."""
    for module in pkgutil.walk_packages(families.__path__, f"{families.__name__}."):
        importlib.import_module(module.name)
    ranks = {name: rank for rank, name in enumerate(ORDER)}
    classes = sorted(_below(Family), key=lambda family: family.model_type)
    classes.sort(key=lambda family: ranks.get(family.model_type, len(ranks)))
    return tuple(family() for family in classes)


def _below(base: type[Family]) -> list[type[Family]]:
    concrete = [family for family in base.__subclasses__() if "model_type" in vars(family)]
    return concrete + [family for below in base.__subclasses__() for family in _below(below)]


def family_of(model_type: str) -> Family | None:
    """Return the family of a model_type, None without such a family."""
    for family in all_families():
        if model_type in (family.model_type, *family.model_types):
            return family
    return None


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A Hugging Face folder, with its config.json read.

    content: the config of its language model. options: of the model section. unknown, unread: as in
    `Keys`. inside: whether the language model is part of a model with further inputs than text.
    """

    path: Path
    family: Family
    content: dict[str, Any]
    options: dict[str, Any]
    unknown: dict[str, str]
    unread: list[str]
    inside: bool = False

    @functools.cached_property
    def section(self) -> Decoder:
        """The section of the folder's model."""
        return decoder_section(self.options)

    @property
    def quantization(self) -> Format | None:
        """The format of its quantised weights."""
        config = self.content.get(QUANTIZATION)
        return None if config is None else format_of(config)


def is_folder(path: str | Path) -> bool:
    """Whether a path is a folder of a Hugging Face model.

    False for runs and checkpoints of forge, and for adapters alone.
    """
    root = Path(path)
    return (root / CONFIG).is_file() or (any(root.glob("*.safetensors")) and not is_peft(root))


def read_folder(path: str | Path) -> Folder:
    """Read config.json. Raises FolderError, with every problem of the file."""
    folder = Path(path).expanduser()
    file = folder / CONFIG
    try:
        return _read(folder, file.stat().st_mtime_ns)
    except NotRegular as error:
        raise FolderError(str(error), AGAIN) from None
    except OSError:
        message = f"{folder} has no {CONFIG}" if folder.is_dir() else f"there is no folder {folder}"
        hint = "give the folder of a model, as save_pretrained of transformers writes it"
        raise FolderError(message, hint) from None


@functools.lru_cache(maxsize=8)  # the points of a sweep read the same folder
def _read(place: Path, changed: int) -> Folder:
    file = place / CONFIG
    content, model_type, inside = read_content(file)
    family = family_of(str(model_type))
    if family is None:
        family_names = ", ".join(known_family.model_type for known_family in all_families())
        message = f"{file}: model_type={model_type!r} is no family of forge"
        raise FolderError(message, f"a model of one that is: {family_names}")
    keys = family.keys(content)
    try:
        options = family.options(keys)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"{file} has a value that no model has ({type(error).__name__}: {error})"
        keys.finish()
        raise FolderError("; ".join([message, *keys.faults]), AGAIN) from None
    _count_modules(place, family, options)
    keys.finish()
    if keys.faults:
        hint = "a model without it: what forge does not compute is not left out silently"
        raise FolderError(f"{file}: {'; '.join(keys.faults)}", hint)
    folder = Folder(
        path=place,
        family=family,
        content=content,
        options=options,
        unknown=keys.unknown,
        unread=keys.unread,
        inside=inside,
    )
    try:
        ignored = family.unread(folder.section)
    except (ArithmeticError, TypeError, ValueError) as error:
        message = f"{file} has a value that no model has ({type(error).__name__}: {error})"
        raise FolderError(message, AGAIN) from None
    if ignored:
        hint = (
            "a model without it: transformers reads another model from this folder than forge would"
        )
        raise FolderError(f"{file}: {'; '.join(ignored)}", hint)
    return folder


def _count_modules(folder: Path, family: Family, options: dict[str, Any]) -> None:
    """Leave out modules for further tokens that are stated, but not in the weights, in place:
    transformers does not save them. Where none is stated, but a family may have one, the weights
    say so.
    """
    if MODULES not in options or options[MODULES] == 0:
        return
    try:
        names = list(stored_tensors(folder))
    except FolderError:
        names = []
    projection = family.further["projection.weight"]
    assert isinstance(projection, str)
    place = family.further_place(options["n_layers"] or 0, 0)[0].removeprefix(family.prefix)
    place += projection.removesuffix("weight")
    if not any(place in name for name in names):
        options[MODULES] = 0
    elif options[MODULES] is None:
        options[MODULES] = 1


def read_content(file: Path) -> tuple[dict[str, Any], Any, bool]:
    """The keys and type of the language model in a config.json; whether a section has the keys."""
    try:
        content = read_json(file)
        inside = isinstance(content.get(TEXT), dict) and "model_type" in content[TEXT]
        if inside:
            above = {key: content[key] for key in OF_BOTH if key in content}
            content = above | content[TEXT]
        model_type = content["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        reason = "it has no model_type" if isinstance(error, KeyError) else str(error)
        raise FolderError(f"{file} is no config of a model: {reason}", AGAIN) from None
    return content, model_type, inside


def unknown_keys(folder: Folder, ignored: Collection[str]) -> tuple[str, str] | None:
    """Return the unknown, unignored keys of config.json with a remedy, None without such keys.

    An unknown key may change the model.
    """
    unknown = {name: text for name, text in folder.unknown.items() if name not in ignored}
    if not unknown:
        return None
    kind = "is a key" if len(unknown) == 1 else "are keys"
    message = f"{', '.join(unknown.values())} {kind} that forge does not know here."
    message = f"{folder.path / CONFIG}: {message}"
    names = ", ".join([*ignored, *unknown])
    hint = "a model without it: what forge does not compute is not left out silently"
    return message, f"{hint}; or model.ignore_keys=[{names}] where it changes nothing"


def stored_rows(folder: Folder, section: Decoder) -> tuple[list[Row], dict[str, Stored]]:
    """Return the rows of a section's tensors, and the stored tensors by the names of the table.

    Raises FolderError.
    """
    rows = folder.family.rows(section)
    prefix, files = (
        folder.family.prefix,
        plain_tensors(folder.path, folder.content.get(QUANTIZATION)),
    )
    files = _of_text(folder, files)
    if prefix and not any(name.startswith(prefix) for name in files):
        head = folder.family.head  # `save_pretrained` of a body without head writes no prefix
        files = {name if name == head else f"{prefix}{name}": x for name, x in files.items()}
    return rows, files


def _of_text(folder: Folder, files: dict[str, Stored]) -> dict[str, Stored]:
    """Return the tensors of the language model, by their names in a folder of it alone."""
    head, prefix = folder.family.head, folder.family.prefix
    if any(name.startswith(WITHIN) for name in files):
        apart = (WITHIN, APART) if folder.family.further else (WITHIN,)
        of_text = {name: x for name, x in files.items() if name == head or name.startswith(apart)}
        return {name.replace(WITHIN, "model.", 1): x for name, x in of_text.items()}
    if not folder.inside:
        return files
    if any(name.startswith(INSIDE) for name in files):
        of_text = {name: x for name, x in files.items() if name.startswith(INSIDE)}
        return {name.removeprefix(INSIDE): x for name, x in of_text.items()}
    return {name: x for name, x in files.items() if name == head or name.startswith(prefix)}


def weight_faults(folder: Folder, section: Decoder, exclude: Sequence[str] = ()) -> list[str]:
    """Return the misfits between the weights of a folder and a section.

    exclude: prefixes of unread tensors, without faults. Raises FolderError for unreadable files.
    """
    rows, files = stored_rows(folder, section)
    if differing := _other_head(folder, section, files):
        return [differing]
    section_shapes = shapes(rows)
    left_out = {n for row in rows if row.ours.name.startswith(tuple(exclude)) for n in row.names}
    in_files = {
        name: tensor.shape
        for name, tensor in files.items()
        if name in section_shapes or not folder.family.ignored(name, section)
    }
    for name in grown(rows, in_files, section):
        in_files[name] = section_shapes[name]
    return [
        fault for name, fault in misfits(section_shapes, in_files).items() if name not in left_out
    ]


def grown(
    rows: Sequence[Row], theirs: Mapping[str, tuple[int, ...]], section: Decoder
) -> dict[str, int]:
    """Return the missing rows, by name, of token tables stored with fewer rows than the section's.

    theirs: the stored shapes.
    """
    missing = {}
    for row in rows:
        ours, shape = row.ours, theirs.get(row.theirs.name, ())
        is_shorter = shape[1:] == ours.shape[1:] and shape < ours.shape
        if ours.role in (TABLE, HEAD) and is_shorter and (grows(section) or ours.takes(shape)):
            missing[row.theirs.name] = ours.shape[0] - shape[0]
    return missing


def _other_head(folder: Folder, section: Decoder, files: dict[str, Stored]) -> str:
    """Return a fault for a stored head that differs from the tied embedding.

    transformers would read this head. Empty without a head, or for equal values.
    """
    head = files.get(folder.family.head)
    embedding = next(row for row in folder.family.rows(section) if row.ours.name == EMBEDDING)
    table = files.get(embedding.theirs.name)
    if not section.tie_embeddings or head is None or table is None or head == table:
        return ""
    equal = (head.dtype, head.shape) == (table.dtype, table.shape) and same_bytes(head, table)
    says = f"tie_word_embeddings=true, and {folder.family.head} is another than the embedding"
    return "" if equal else f"{says}, which transformers reads: say tie_word_embeddings=false there"
