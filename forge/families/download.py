"""Models of the Hugging Face hub: in its cache, or fetched once."""

from __future__ import annotations

import functools
import os
import re

from forge.config.data.hub import ABSENT, reachable

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_id(place: str) -> bool:
    """Whether a text is the id of a model on the hub, ORG/NAME, and no folder on this machine."""
    return ID.fullmatch(place) is not None and not os.path.exists(place)


@functools.cache  # a derivation and the points of a sweep ask for the same model
def fetch_model(name: str, revision: str) -> tuple[str, str]:
    """Return (the folder of a model on this machine, "") or ("", the reason of its absence)."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    options = {"revision": revision, "allow_patterns": list(PATTERNS)}
    try:
        if reachable():
            return snapshot_download(name, **options), ""
        return snapshot_download(name, local_files_only=True, **options), ""
    except LocalEntryNotFoundError:
        return "", ABSENT
    except Exception as error:  # the library raises many kinds of errors
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return "", (lines or [type(error).__name__])[0].rstrip(".")
