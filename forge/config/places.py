"""Places on this machine, where an address such as s3://bucket/runs is none: taken for a path, it
would be a folder `s3:` below where the command is typed.
"""

from __future__ import annotations

import re

ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)


def address_fault(name: str, text: str) -> tuple[str, str] | None:
    """(what is wrong, what to do) of a text that is given as a file or folder of this machine and
    is an address; None for a path. name: what is before the value where it is typed, as run.root=.
    """
    address = ADDRESS.match(text)
    if address is None:
        return None
    scheme = f"{address['scheme']}://"
    what = f"a file or folder of this machine is named here, and {scheme} begins an address."
    if address["scheme"].lower() == "file":
        return what, f"{name}/{address['rest'].lstrip('/')}"
    return what, f"a path: a copy here, or where {scheme} is mounted, as {name}/mnt/storage"
