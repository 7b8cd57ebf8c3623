"""forge: composable experiments for training language models.

cfg = forge.compose(["model=small", "train.max_steps=100"])
cfg.validate()
result = forge.train(cfg)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, overload

    from forge.compose.engine import Composed
    from forge.compose.options import Options
    from forge.config.problems import ConfigError
    from forge.config.root import Config
    from forge.launch.local.background import Background
    from forge.report import ReportModule
    from forge.rundir.directory import Place
    from forge.rundir.outcome import Result
    from forge.sweeps import sweep
    from forge.training.loaded import load

    report: ReportModule

    def compose(overrides: Options = (), *, config_dirs: Sequence[str] = ()) -> Composed:
        """Compose a config from groups and values: overrides as typed, or a dict of options, also
        nested. Raises ConfigError with every problem.
        """
        ...

    @overload
    def train(config: Config, *, background: Literal[False] = False) -> Result: ...
    @overload
    def train(config: Config, *, background: Literal[True]) -> Background: ...
    def train(config: Config, *, background: bool = False) -> Result | Background:
        """Train and return the result, or at once the run in the background. Raises ConfigError,
        RuntimeError when the run fails, KeyboardInterrupt.
        """
        ...

    @overload
    def resume(
        run: Place,
        overrides: Options = (),
        *,
        config_dirs: Sequence[str] = (),
        background: Literal[False] = False,
    ) -> Result: ...
    @overload
    def resume(
        run: Place,
        overrides: Options = (),
        *,
        config_dirs: Sequence[str] = (),
        background: Literal[True],
    ) -> Background: ...
    def resume(
        run: Place,
        overrides: Options = (),
        *,
        config_dirs: Sequence[str] = (),
        background: bool = False,
    ) -> Result | Background:
        """Let a run continue with its own overrides, then `overrides`; otherwise as `train`."""
        ...


MODULES = ("compose", "report", "resume", "train")
"""Those that are modules too, with a verb or more names in them, and are called themselves."""
OTHERS = {
    "ConfigError": "forge.config.problems",
    "load": "forge.training.loaded",
    "sweep": "forge.sweeps",
}

__all__ = ["ConfigError", "compose", "load", "report", "resume", "sweep", "train"]


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> Any:
    """Import on first use: `import forge` itself costs nothing."""
    import importlib

    if name in MODULES:
        return importlib.import_module(f"forge.{name}")
    if name in OTHERS:
        return getattr(importlib.import_module(OTHERS[name]), name)
    raise AttributeError(f"module 'forge' has no attribute '{name}'")
