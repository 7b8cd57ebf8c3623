"""The version of a build; all else stands in setup.cfg.

Of a checkout it is that of the newest tag `vX.Y.Z`: on the tag `X.Y.Z`, behind it that of the next
one with the number of commits since. Of an sdist it is that of the sdist; without either, FIRST.
"""

import re
import subprocess
from pathlib import Path

from setuptools import setup

FIRST = "0.1.0"
HERE = Path(__file__).resolve().parent
TAGGED = re.compile(r"v(\d+(?:\.\d+)*\.)(\d+)-(\d+)-(g\w+)(-dirty)?")


def version() -> str:
    """The version, as PEP 440 spells it."""
    if (HERE / "PKG-INFO").is_file():
        return re.search(r"^Version: (\S+)$", (HERE / "PKG-INFO").read_text("utf-8"), re.M)[1]
    if not (HERE / ".git").exists():  # what is around an unpacked archive says nothing of it
        return FIRST
    command = ["git", "describe", "--tags", "--long", "--dirty", "--match", "v[0-9]*"]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    except OSError:  # no git
        return FIRST
    if not (parts := TAGGED.fullmatch(done.stdout.strip())):
        return FIRST
    begin, last, commits, commit, dirty = parts.groups()
    if commits == "0" and not dirty:
        return f"{begin}{last}"
    return f"{begin}{int(last) + 1}.dev{commits}+{commit}{'.dirty' if dirty else ''}"


setup(version=version())
