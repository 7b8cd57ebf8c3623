"""Where a value comes from: an override, a line of a file, or a default of its dataclass."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path

from omegaconf import OmegaConf

from forge.compose.composition import Composition
from forge.compose.lines import display


def origin(composition: Composition, key: str) -> str:
    """'command line', or file and line; empty for a key that does not exist."""
    return composition.written_at(key) or _default(composition, key)


def _default(composition: Composition, key: str) -> str:
    above, _, name = key.rpartition(".")
    node = OmegaConf.select(composition.tree, above) if above else composition.tree
    return _declared(OmegaConf.get_type(node), name) if OmegaConf.is_dict(node) else ""


@functools.cache
def _declared(schema: type | None, name: str) -> str:
    for owner in getattr(schema, "__mro__", ()):
        if name in inspect.get_annotations(owner):
            source, start = inspect.getsourcelines(owner)
            for offset, line in enumerate(source):
                if re.match(rf"\s+{re.escape(name)}\s*:", line):
                    return f"{display(Path(inspect.getfile(owner)))}:{start + offset}, the default"
    return ""
