"""Paths of this machine. An address such as s3://bucket/runs is no path: taken for a path, the
address would name a folder `s3:` below the working directory.
"""

from __future__ import annotations

import re
from importlib.util import find_spec

ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)


def address_fault(name: str, text: str) -> tuple[str, str] | None:
    """(what is wrong, what to do) of an address given as a file or folder of this machine; None for
    a path. name: the text typed before the value, as run.root=.
    """
    address = ADDRESS.match(text)
    if address is None:
        return None
    scheme = f"{address['scheme']}://"
    message = f"a file or folder of this machine is named here, and {scheme} begins an address."
    if address["scheme"].lower() == "file":
        return message, f"{name}/{address['rest'].lstrip('/')}"
    return message, f"a path: a copy here, or where {scheme} is mounted, as {name}/mnt/storage"


LIBRARIES = {
    "s3": ("s3fs", "s3fs"),
    "gs": ("gcsfs", "gcsfs"),
    "gcs": ("gcsfs", "gcsfs"),
    "hf": ("huggingface_hub", "huggingface_hub"),
    "az": ("adlfs", "adlfs"),
    "abfs": ("adlfs", "adlfs"),
    "file": ("fsspec", "fsspec"),
    "memory": ("fsspec", "fsspec"),
}
"""Schemes of remote stores: the module that reads each, and its package."""


def is_remote(text: str) -> bool:
    """Whether a text is an address in a remote store that fsspec reads."""
    address = ADDRESS.match(text)
    return address is not None and address["scheme"] in LIBRARIES


def missing_library(text: str) -> str:
    """The package that an address needs and that is absent, or ""."""
    address = ADDRESS.match(text)
    module, package = LIBRARIES.get(address["scheme"] if address else "", ("fsspec", "fsspec"))
    return "" if find_spec(module) else package
