"""Tags and a note on a run by people: annotations.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from forge.rundir.files import read_object, write_json

ANNOTATIONS = "annotations.json"


@dataclass(frozen=True, kw_only=True)
class Annotations:
    tags: tuple[str, ...] = ()
    note: str = ""


def read_annotations(run_dir: Path) -> Annotations:
    """Read the annotations of a run; empty where none exist, or the file is damaged."""
    try:
        content = read_object(run_dir / ANNOTATIONS)
        return Annotations(tags=tuple(map(str, content["tags"])), note=str(content["note"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Annotations()


def annotate(run_dir: Path, *, tags: Sequence[str], note: str) -> None:
    """Replace the annotations, each tag once; without annotations remove the file. Raises
    OSError.
    """
    annotations = Annotations(tags=tuple(dict.fromkeys(tags)), note=note)
    if annotations == Annotations():
        (run_dir / ANNOTATIONS).unlink(missing_ok=True)
    else:
        write_json(run_dir / ANNOTATIONS, asdict(annotations))
