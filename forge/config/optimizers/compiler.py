"""What a compiler of kernels needs of a machine: a C compiler, and the header files of Python."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

C_COMPILERS = ("gcc", "clang", "cc")
"""Names Triton looks for where CC is not set."""


def c_compiler(environ: Mapping[str, str] = os.environ) -> str | None:
    """The path of the C compiler: CC, else the first on the PATH."""
    names = [environ["CC"].split()[0]] if environ.get("CC", "").strip() else C_COMPILERS
    paths = (shutil.which(name, path=environ.get("PATH")) for name in names)
    return next(filter(None, paths), None)


def headers(include: str | None = None) -> Path:
    """Python.h, whether or not it exists. include: its folder; None = of this Python."""
    return Path(include or sysconfig.get_path("include"), "Python.h")


def compiler_fault(environ: Mapping[str, str] = os.environ, include: str | None = None) -> str:
    """The missing need of Triton's launchers, or an empty text."""
    if c_compiler(environ) is None:
        return f"no C compiler: {environ.get('CC') or ', '.join(C_COMPILERS)} not found"
    return "" if headers(include).is_file() else f"no {headers(include)}"
