"""Reading sweeps: statistics over seeds as tables, as a page, and as data frames.

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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forge.report import frames  # on first use: it is slow to import

    return getattr(frames, name)
