"""A folder of Hugging Face: its config.json as the model section, and whether its weights fit."""

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
from forge.families.family import Family, section_of
from forge.families.peft import is_peft
from forge.families.shards import AGAIN, FolderError, Stored, same_bytes, stored
from forge.families.table import Row, shapes

CONFIG, TEXT = "config.json", "text_config"
INSIDE = "language_model."
"""Before the names of tensors of the language model, where it is part of one that reads images."""
EMBEDDING = "embedding.weight"
ORDER = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gpt2")
"""Families in which a section is said, the first that can; others come behind them."""
OF_BOTH = ("tie_word_embeddings",)
"""Keys of a whole model that its language model has too."""


@functools.cache
def all_families() -> tuple[Family, ...]:
    """Every family, in the order in which they are tried."""
    for module in pkgutil.iter_modules(families.__path__):
        importlib.import_module(f"{families.__name__}.{module.name}")
    places = {name: place for place, name in enumerate(ORDER)}
    found = sorted(_below(Family), key=lambda one: one.model_type)
    found.sort(key=lambda one: places.get(one.model_type, len(places)))
    return tuple(one() for one in found)


def _below(base: type[Family]) -> list[type[Family]]:
    own = [one for one in base.__subclasses__() if "model_type" in vars(one)]
    return own + [one for below in base.__subclasses__() for one in _below(below)]


def family_of(model_type: str) -> Family | None:
    """The family of a model_type; None where there is none."""
    for one in all_families():
        if model_type in (one.model_type, *one.model_types):
            return one
    return None


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder whose config.json was read. content: of its language model. options: of the model
    section. unknown, unread: as of `Keys`. inside: whether that is part of a model that reads more
    than text.
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
        """The model that it describes."""
        return section_of(self.options)


def is_folder(path: str | Path) -> bool:
    """Whether a path is such a folder, and no run or checkpoint of forge, nor adapters alone."""
    place = Path(path)
    return (place / CONFIG).is_file() or (any(place.glob("*.safetensors")) and not is_peft(place))


def read(path: str | Path) -> Folder:
    """Read config.json. Raises FolderError, with all that is wrong in it."""
    place = Path(path).expanduser()
    file = place / CONFIG
    try:
        return _read(place, file.stat().st_mtime_ns)
    except NotRegular as error:
        raise FolderError(str(error), AGAIN) from None
    except OSError:
        what = f"{place} has no {CONFIG}" if place.is_dir() else f"there is no folder {place}"
        fix = "give the folder of a model, as save_pretrained of transformers writes it"
        raise FolderError(what, fix) from None


@functools.lru_cache(maxsize=8)  # the points of a sweep read the same folder
def _read(place: Path, changed: int) -> Folder:
    file = place / CONFIG
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
    family = family_of(str(model_type))
    if family is None:
        known = ", ".join(one.model_type for one in all_families())
        what = f"{file}: model_type={model_type!r} is no family of forge"
        raise FolderError(what, f"a model of one that is: {known}")
    keys = family.keys(content)
    try:
        options = family.options(keys)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{file} has a value that no model has ({type(error).__name__}: {error})"
        keys.finish()
        said = "; ".join([what, *keys.faults])
        raise FolderError(said, AGAIN) from None
    keys.finish()
    if keys.faults:
        fix = "a model without it: what forge does not compute is not left out silently"
        raise FolderError(f"{file}: {'; '.join(keys.faults)}", fix)
    found = Folder(
        path=place,
        family=family,
        content=content,
        options=options,
        unknown=keys.unknown,
        unread=keys.unread,
        inside=inside,
    )
    try:
        ignored = family.unread(found.section)
    except (ArithmeticError, TypeError, ValueError) as error:
        what = f"{file} has a value that no model has ({type(error).__name__}: {error})"
        raise FolderError(what, AGAIN) from None
    if ignored:
        fix = (
            "a model without it: transformers reads another model from this folder than forge would"
        )
        raise FolderError(f"{file}: {'; '.join(ignored)}", fix)
    return found


def unknown_keys(folder: Folder, ignored: Collection[str]) -> tuple[str, str] | None:
    """The keys of config.json that may change the model, and that nobody says to ignore, with what
    to do; None where there are none.
    """
    found = {name: text for name, text in folder.unknown.items() if name not in ignored}
    if not found:
        return None
    kind = "is a key" if len(found) == 1 else "are keys"
    what = f"{', '.join(found.values())} {kind} that forge does not know here."
    what = f"{folder.path / CONFIG}: {what}"
    names = ", ".join([*ignored, *found])
    fix = "a model without it: what forge does not compute is not left out silently"
    return what, f"{fix}; or model.ignore_keys=[{names}] where it changes nothing"


def places(folder: Folder, section: Decoder) -> tuple[list[Row], dict[str, Stored]]:
    """The tensors of a section with their places, and what the files have, by the names of the
    table. Raises FolderError.
    """
    rows = folder.family.rows(section)
    prefix, files = folder.family.prefix, stored(folder.path)
    if folder.inside:
        own = {name: one for name, one in files.items() if name.startswith(INSIDE)}
        files = {name.removeprefix(INSIDE): one for name, one in own.items()}
    if prefix and not any(name.startswith(prefix) for name in files):
        head = folder.family.head  # of the body alone, as `save_pretrained` of one writes it
        files = {name if name == head else f"{prefix}{name}": one for name, one in files.items()}
    return rows, files


def faults(folder: Folder, section: Decoder, exclude: Sequence[str] = ()) -> list[str]:
    """Why the weights of a folder do not fit a section; prefixes of what is not read are left
    out. Raises FolderError for files that cannot be read.
    """
    rows, files = places(folder, section)
    if differing := _other_head(folder, section, files):
        return [differing]
    wanted = shapes(rows)
    left_out = {n for one in rows if one.ours.name.startswith(tuple(exclude)) for n in one.names}
    theirs = {
        name: one.shape
        for name, one in files.items()
        if name in wanted or not folder.family.ignored(name, section)
    }
    for name in grown(rows, theirs, section):
        theirs[name] = wanted[name]
    return [fault for name, fault in misfits(wanted, theirs).items() if name not in left_out]


def grown(
    rows: Sequence[Row], theirs: Mapping[str, tuple[int, ...]], section: Decoder
) -> dict[str, int]:
    """Tensors of theirs with a row for each token that may have fewer than ours, by name, with the
    rows that they have less.
    """
    found = {}
    for row in rows:
        ours, shape = row.ours, theirs.get(row.theirs.name, ())
        is_shorter = shape[1:] == ours.shape[1:] and shape < ours.shape
        if ours.role in (TABLE, HEAD) and is_shorter and (grows(section) or ours.takes(shape)):
            found[row.theirs.name] = ours.shape[0] - shape[0]
    return found


def _other_head(folder: Folder, section: Decoder, files: dict[str, Stored]) -> str:
    """Why a head that stands beside tied embeddings cannot be left out: it has other values, and
    transformers takes it. Empty where there is none, or it has the same.
    """
    head = files.get(folder.family.head)
    embedding = next(row for row in folder.family.rows(section) if row.ours.name == EMBEDDING)
    table = files.get(embedding.theirs.name)
    if not section.tie_embeddings or head is None or table is None or head == table:
        return ""
    same = (head.dtype, head.shape) == (table.dtype, table.shape) and same_bytes(head, table)
    says = f"tie_word_embeddings=true, and {folder.family.head} is another than the embedding"
    return "" if same else f"{says}, which transformers reads: say tie_word_embeddings=false there"
