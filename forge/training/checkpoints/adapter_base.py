"""The base of adapters: untrained weights, named by a run's checkpoints but stored elsewhere."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from forge.config.regular import open_regular
from forge.families.folder import is_folder
from forge.rundir import checkpoints
from forge.rundir.checkpoints import WEIGHTS, CheckpointError, Saved
from forge.rundir.remote.local_copy import local_copy_of

BASE = "base"
"""Key of the base in a checkpoint's meta.json."""
WHOLE_UP_TO = 64 << 20
SAMPLES, SAMPLE = 64, 1 << 20


def _base_path(init_from: str) -> Path:
    """Resolve checkpoint.init_from to a checkpoint, file or folder. Raises CheckpointError."""
    path = local_copy_of(init_from)
    if path.is_file() or is_folder(path):
        return path
    return checkpoints.find_checkpoint(path, name="checkpoint.init_from=")[0].path


def describe_base(path: Path | None, folder: Path) -> dict[str, Any]:
    """Describe a base for meta.json.

    path: null = initial weights from the seed. folder: of the checkpoints.
    """
    if path is None:
        return {"path": None, "from_here": None, "fingerprint": None}
    return {
        "path": str(path.absolute()),
        "from_here": os.path.relpath(path, folder),
        "fingerprint": hash_weights(path),
    }


def located(base: dict[str, Any], checkpoint: Path, init_from: str | None = None) -> Path | None:
    """Find a base at its old path, at the old relative path, or at checkpoint.init_from.

    Relative to the checkpoint's folder. null = initial weights from the seed. Raises
    CheckpointError for a missing or changed base.
    """
    if base["path"] is None:
        return None
    was = Path(base["path"])
    for candidate in (was, checkpoint.parent.absolute() / base["from_here"], _named(init_from)):
        if (
            candidate is not None
            and candidate.exists()
            and hash_weights(candidate) == base["fingerprint"]
        ):
            return Path(os.path.normpath(candidate))
    message = "has changed since" if was.exists() else "is not there any more"
    problem = f"{checkpoint} holds adapters of the weights in {was}, which {message}"
    hint = "Put them or a link to them back, or continue with checkpoint.init_from=PATH"
    raise CheckpointError(
        f"{problem}. {hint} run.allow_change=[checkpoint.init_from,tokenizer.path]"
    )


def _named(init_from: str | None) -> Path | None:
    try:
        return _base_path(init_from) if init_from else None
    except CheckpointError:
        return None


def hash_weights(path: Path) -> str:
    """Hash the weights of a checkpoint, file or folder.

    Small files are hashed in full, large files by pieces at even distances.
    """
    digest = hashlib.blake2b(digest_size=16)
    if path.is_file():
        files = [path]
    elif is_folder(path):
        files = sorted(path.glob("*.safetensors"))
    else:
        files = sorted(file for file in (path / WEIGHTS).rglob("*") if file.is_file())
        # A checkpoint of adapters depends on the weights of its base too.
        below = Saved(path).meta.get(BASE, {})
        digest.update(str(below.get("fingerprint")).encode())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with open_regular(file) as content:
            if size <= WHOLE_UP_TO:
                digest.update(content.read())
                continue
            for number in range(SAMPLES):
                content.seek(number * (size - SAMPLE) // (SAMPLES - 1))
                digest.update(content.read(SAMPLE))
    return digest.hexdigest()
