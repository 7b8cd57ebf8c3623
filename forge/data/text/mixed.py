"""The corpora of `data=mix`."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.data.mixture import Mix, Phase
from forge.config.data.text import Data


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Sources by name, each prepared separately, and the share of each from a given update on."""

    sections: dict[str, Data]
    phases: tuple[Phase, ...]


def mixed(section: Mix) -> Mixed:
    return Mixed(sections=section.source_sections(), phases=section.schedule())
