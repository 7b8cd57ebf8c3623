"""The corpora of `data=mix`."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.data import Data
from forge.config.mixture import Mix, Phase


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Sources by name, each prepared by itself, and what share each has from which update on."""

    sections: dict[str, Data]
    phases: tuple[Phase, ...]


def mixed(section: Mix) -> Mixed:
    return Mixed(sections=section.source_sections(), phases=section.schedule())
