"""A format of quantised weights, found by the quantization_config of a folder."""

from __future__ import annotations

import functools
import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from forge.config.problems import listed
from forge.families.formats import each
from forge.families.shards import AGAIN, PLAIN, FolderError, Stored, stamp, stored_tensors

METHOD = "quant_method"
BEFORE = "give the folder of the model before quantisation"


class Format:
    """A way to store weights in few bits, by its `quant_method`.

    methods: values of quant_method. name: the format in words. rounded: whether it rounds weights
    to few bits after training, so that training all of them begins with a rounded model. inert:
    suffixes of stored tensors without effect on weights, such as scales of activations and caches.
    """

    methods: ClassVar[tuple[str, ...]]
    name: str
    rounded: bool = False
    inert: ClassVar[tuple[str, ...]] = (".k_scale", ".v_scale", ".input_scale", ".q_scale")

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises ValueError for options without a decoder."""
        self.config = config

    def plain(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        """Plain tensors by name, of the stored tensors. faults: gains what does not fit."""
        raise NotImplementedError


@functools.cache
def _formats() -> dict[str, type[Format]]:
    for module in pkgutil.iter_modules(each.__path__, f"{each.__name__}."):
        importlib.import_module(module.name)
    return {method: cls for cls in Format.__subclasses__() for method in cls.methods}


def format_of(config: Any) -> Format:
    """The format of a quantization_config. Raises ValueError with the reason if it has none."""
    method = config.get(METHOD) if isinstance(config, Mapping) else None
    chosen = _formats().get(str(method))
    if chosen is None:
        known = ", ".join(sorted(_formats()))
        raise ValueError(f"{METHOD}={method!r} is none of {known}; {BEFORE}")
    try:
        return chosen(config)
    except (AttributeError, LookupError, TypeError) as error:
        message = f"{METHOD}={method!r} has options that cannot be read ({error})"
        raise ValueError(message) from None


def plain_tensors(folder: Path, config: Any) -> dict[str, Stored]:
    """Every plain tensor of a folder by its name; those in codes are decoded when read.

    config: the quantization_config of the folder, None without. Raises FolderError.
    """
    if config is None:
        files = stored_tensors(folder)
        _check_formats(files, "forge reads")
        return files
    return dict(_plain(folder, stamp(folder), json.dumps(config)))


@functools.lru_cache(maxsize=4)  # rules, ranks and points of a sweep ask
def _plain(folder: Path, stamped: Any, config: str) -> dict[str, Stored]:
    try:
        chosen = format_of(json.loads(config))
    except ValueError as error:
        raise FolderError(f"{folder}: quantization_config: {error}", BEFORE) from None
    files = stored_tensors(folder)
    used = {name: tensor for name, tensor in files.items() if not name.endswith(chosen.inert)}
    faults: list[str] = []
    tensors = chosen.plain(used, faults)
    if faults:
        raise FolderError(f"{folder}, in {chosen.name}: {listed(faults)}", AGAIN)
    _check_formats(tensors, f"beside {chosen.name} forge reads")
    return tensors


def _check_formats(tensors: Mapping[str, Stored], reads: str) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in PLAIN:
            message = f"{tensor.file}: {name} is in {tensor.dtype}, and {reads} {', '.join(PLAIN)}"
            raise FolderError(message, BEFORE)


def grouped_parts(
    files: Mapping[str, Stored],
    suffixes: tuple[str, ...],
    rest: dict[str, Stored],
    faults: list[str],
) -> Iterator[tuple[str, dict[str, Stored]]]:
    """Yield stems of names with the stored tensors behind them, by suffix; others go to `rest`.

    suffixes: the first is that of the codes, without which the others are a fault.
    """
    by_stem: dict[str, dict[str, Stored]] = {}
    for name, tensor in files.items():
        suffix = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
        if suffix is None:
            rest[name] = tensor
        else:
            by_stem.setdefault(name.removesuffix(suffix), {})[suffix] = tensor
    for stem, parts in by_stem.items():
        if not lacks_parts(stem, parts, suffixes[:1], faults):
            yield stem, parts


def lacks_parts(
    stem: str, parts: Mapping[str, Stored], needed: tuple[str, ...], faults: list[str]
) -> bool:
    """Whether parts of a tensor are missing; each is a fault."""
    missing = [suffix for suffix in needed if suffix not in parts]
    faults += [f"{stem}{suffix} is missing" for suffix in missing]
    return bool(missing)


def misfit(name: str, stored: Stored, expected: tuple[int, ...], faults: list[str]) -> bool:
    """Whether a stored tensor has another shape than its tensor needs, which is a fault."""
    if stored.shape == expected:
        return False
    faults.append(f"{name} has the shape {list(stored.shape)}, not {list(expected)}")
    return True
