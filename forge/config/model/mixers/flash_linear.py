"""Whether the installed kernels of flash-linear-attention compute a gated delta net."""

from __future__ import annotations

import importlib.util

PACKAGE = "fla-core"
OLDEST = (0, 5)
"""Its first release whose kernels share a key head among value heads; an older one reads the memory
of as many key heads as there are value heads, and says nothing.
"""
FAULTY = ((3, 4), (3, 7, 1))
"""From which Triton to which one (left out) its backward pass is wrong on Hopper: issue 640 of
flash-linear-attention, which raises an error there (983).
"""
KNOWS_MENDED = (0, 6)
"""Its first release that runs with a Triton from the end of `FAULTY` on."""


def kernels_lack(hopper: bool = False) -> str:
    """Why the kernels cannot be used, or ''. hopper: on a GPU of compute capability 9."""
    if importlib.util.find_spec("fla") is None:
        return "they are not installed"
    version = release_of(PACKAGE)
    if version and version < OLDEST:
        return f"{PACKAGE} is {dotted(version)}, and must be {dotted(OLDEST)} or later"
    triton, (begin, end) = release_of("triton"), FAULTY
    if not hopper or triton < begin or importlib.util.find_spec("tilelang") is not None:
        return ""
    if triton < end:
        wrong = f"their gradients are wrong on Hopper with Triton {dotted(begin)} to 3.7.0"
        return f"{wrong}, and here it is {dotted(triton)}; torch 2.13 has {dotted(end)}"
    if version and version < KNOWS_MENDED:
        return f"on Hopper {PACKAGE} must be {dotted(KNOWS_MENDED)} or later"
    return ""


def release_of(package: str) -> tuple[int, ...]:
    """The numbers of an installed version; () for a package that tells none."""
    from importlib import metadata  # both take a while to load, and few runs ask

    from packaging.version import Version

    try:
        return Version(metadata.version(package)).release
    except metadata.PackageNotFoundError:
        return ()


def dotted(version: tuple[int, ...]) -> str:
    """3.7.1 of (3, 7, 1)."""
    return ".".join(map(str, version))
