"""Classes mixed in to an existing module."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn


def mix_in(module: nn.Module, mixin: type, **attributes: Any) -> None:
    """Put the class `mixin` before the class of a module, in place. Names of parameters stay."""
    module.__class__ = _mixed(mixin, type(module))
    for name, value in attributes.items():
        assert not hasattr(module, name), f"{type(module).__name__} has its own {name}"
        setattr(module, name, value)


@functools.cache
def _mixed(mixin: type, original: type) -> type:
    return type(f"{mixin.__name__}{original.__name__}", (mixin, original), {})
