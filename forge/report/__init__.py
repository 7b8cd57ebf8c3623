"""Reading sweeps: statistics over seeds, tables, a page, and the same as data frames.

forge.report.frame("sweeps/mine")     # a row a run
forge.report.arms("sweeps/mine")      # a row an arm: mean, interval, difference to the baseline
forge.report.curves("sweeps/mine")    # a row a log
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.report.frames import arms, curves, frame

__all__ = ["arms", "curves", "frame"]


def __getattr__(name: str) -> Any:
    """Import on first use: the verb needs no pandas."""
    if name in __all__:
        from forge.report import frames

        return getattr(frames, name)
    raise AttributeError(f"module 'forge.report' has no attribute '{name}'")
