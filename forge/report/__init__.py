"""Reading sweeps: statistics over seeds as tables, as a page, and as data frames.

forge.report("sweeps/mine")           # all of these, and the page
forge.report.frame("sweeps/mine")     # a row a run
forge.report.arms("sweeps/mine")      # a row an arm: mean, interval, difference to the baseline
forge.report.curves("sweeps/mine")    # a row a log
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.report.framed import Framed
    from forge.report.frames import Places, arms, curves, frame

__all__ = ["arms", "curves", "frame"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forge.report import frames  # on first use: slow to import

    return getattr(frames, name)


class ReportModule(types.ModuleType):
    """`forge.report`: this package, callable as the function `forge.report`."""

    if TYPE_CHECKING:
        arms, curves, frame = staticmethod(arms), staticmethod(curves), staticmethod(frame)

    def __call__(
        self,
        sweep: Places,
        *,
        metric: str | None = None,
        baseline: str | None = None,
        reach: float | None = None,
    ) -> Framed:
        """The results of a sweep, or of a list of runs, as data frames.

        The content is that of python -m forge.report; the page of a sweep or of a single run is
        written too. metric, baseline, reach: like its options. Raises ConfigError.
        """
        from forge.report.framed import framed

        return framed(sweep, metric=metric, baseline=baseline, reach=reach)


sys.modules[__name__].__class__ = ReportModule
