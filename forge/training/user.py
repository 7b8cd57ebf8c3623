"""The callbacks and trackers of the user's own, from the config's free dicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forge.build import bind
from forge.config.root import Config
from forge.training.callback import Callback, failure
from forge.training.trackers import Tracker


def user_callbacks(config: Config) -> list[Callback]:
    """The entries of `callbacks`, in order. Raises ConfigError for one that cannot be built,
    CallbackError for one that raises.
    """
    return [_callback(config, name) for name in config.callbacks]


def user_trackers(config: Config, run_dir: Path) -> list[tuple[str, Callable[[], Tracker]]]:
    """The entries of `trackers`: what a warning calls each, and what opens it with `run_dir` and
    its keywords.

    Raises ConfigError for one that cannot be built; what one raises when it is opened is its own
    affair.
    """
    names = {name: f"trackers.{name}" for name in config.trackers}
    return [
        (path, bind(config.trackers[name], path=path, trust=config.run.trust, run_dir=run_dir))
        for name, path in names.items()
    ]


def _callback(config: Config, name: str) -> Callback:
    path, entry = f"callbacks.{name}", config.callbacks[name]
    make = bind(entry, path=path, trust=config.run.trust)
    try:
        callback = make()
    except Exception as error:
        raise failure(path, entry["_target_"], "__init__", error) from error
    callback.config_path = path
    return callback
