"""The base of adapters: the weights that a run does not train, and that its checkpoints name and do
not hold.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from forge.config.regular import open_regular
from forge.families.folder import is_folder
from forge.rundir import checkpoints
from forge.rundir.checkpoints import WEIGHTS, CheckpointError, Saved

BASE = "base"
"""Under which name meta.json of a checkpoint says what its base is."""
WHOLE_UP_TO = 64 << 20
SAMPLES, SAMPLE = 64, 1 << 20


def place_of(init_from: str) -> Path:
    """The checkpoint, file or folder that checkpoint.init_from means. Raises CheckpointError."""
    path = Path(init_from)
    if path.is_file() or is_folder(path):
        return path
    return checkpoints.find(path, name="checkpoint.init_from=")[0].path


def identity(path: Path | None, folder: Path) -> dict[str, Any]:
    """What meta.json keeps of a base. path: null = initial weights, which the seed makes. folder:
    of the checkpoints.
    """
    if path is None:
        return {"path": None, "from_here": None, "fingerprint": None}
    return {
        "path": str(path.absolute()),
        "from_here": os.path.relpath(path, folder),
        "fingerprint": fingerprint(path),
    }


def located(base: dict[str, Any], checkpoint: Path, init_from: str | None = None) -> Path | None:
    """Where a base is now: where it was, as it was to the checkpoint's folder, or what
    checkpoint.init_from means; null = the seed makes it. Raises CheckpointError for one that is
    gone or another one.
    """
    if base["path"] is None:
        return None
    was = Path(base["path"])
    for place in (was, checkpoint.parent.absolute() / base["from_here"], _named(init_from)):
        if place is not None and place.exists() and fingerprint(place) == base["fingerprint"]:
            return Path(os.path.normpath(place))
    what = "has changed since" if was.exists() else "is not there any more"
    said = f"{checkpoint} holds adapters of the weights in {was}, which {what}"
    fix = "Put them or a link to them back, or go on with checkpoint.init_from=PATH"
    raise CheckpointError(f"{said}. {fix} run.allow_change=[checkpoint.init_from,tokenizer.path]")


def _named(init_from: str | None) -> Path | None:
    try:
        return place_of(init_from) if init_from else None
    except CheckpointError:
        return None


def fingerprint(path: Path) -> str:
    """A hash of the weights of a checkpoint, file or folder: of small files all they hold, of large
    ones pieces at even distances.
    """
    found = hashlib.blake2b(digest_size=16)
    if path.is_file():
        files = [path]
    elif is_folder(path):
        files = sorted(path.glob("*.safetensors"))
    else:
        files = sorted(file for file in (path / WEIGHTS).rglob("*") if file.is_file())
        below = Saved(path).meta.get(BASE, {})
        found.update(str(below.get("fingerprint")).encode())
    for file in files:
        size = file.stat().st_size
        found.update(f"{file.name} {size}".encode())
        with open_regular(file) as content:
            if size <= WHOLE_UP_TO:
                found.update(content.read())
                continue
            for number in range(SAMPLES):
                content.seek(number * (size - SAMPLE) // (SAMPLES - 1))
                found.update(content.read(SAMPLE))
    return found.hexdigest()
