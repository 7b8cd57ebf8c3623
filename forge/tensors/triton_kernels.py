"""Whether Triton kernels can run: a CUDA build of torch brings Triton, the machine a compiler."""

from __future__ import annotations

import importlib.util
from functools import cache

from forge.config.optimizers.compiler import compiler_fault


@cache
def triton_works() -> bool:
    """Whether Triton is installed, and has the C compiler for its launchers."""
    return importlib.util.find_spec("triton") is not None and not compiler_fault()
