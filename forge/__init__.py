"""forge: composable experiments for training language models.

cfg = forge.compose(["model=small", "train.max_steps=100"])
cfg.validate()
result = forge.train(cfg)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.compose.engine import Composed
    from forge.config.problems import ConfigError
    from forge.config.root import Config
    from forge.rundir.outcome import Result

    def compose(overrides: Sequence[str] = (), *, config_dirs: Sequence[str] = ()) -> Composed:
        """The config that groups and values compose to. Raises ConfigError with every problem."""
        ...

    def train(config: Config) -> Result:
        """Train and return how it ended. Raises ConfigError, RuntimeError when the run fails,
        KeyboardInterrupt.
        """
        ...


__all__ = ["ConfigError", "compose", "train"]


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> Any:
    """Import on first use: `import forge` itself costs nothing."""
    if name in ("compose", "train"):
        import importlib

        return importlib.import_module(f"forge.{name}")
    if name == "ConfigError":
        from forge.config.problems import ConfigError

        return ConfigError
    raise AttributeError(f"module 'forge' has no attribute '{name}'")
