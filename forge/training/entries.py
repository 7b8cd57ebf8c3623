"""The entries of `callbacks`: forge's entries of conf/config.yaml, and the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forge.build import bind, locate
from forge.config.root import Config
from forge.config.targets.own import GIVEN, NEEDED, Own
from forge.training.callback import Callback, callback_error

if TYPE_CHECKING:
    from forge.training.session import Session


def check_entries(config: Config) -> None:
    """Raise ConfigError for impossible entries, before a session is built."""
    for name in config.callbacks:
        _bound(config, name, None)
    for group, arguments in GIVEN.items():
        section = getattr(config, group)
        if isinstance(section, Own):
            placeholders = {name: None for name in arguments if name in NEEDED}
            offered = {name: None for name in arguments if name not in NEEDED}
            bind(section, path=group, trust=config.run.trust, offered=offered, **placeholders)


def build_entries(session: Session) -> list[Callback]:
    """Build the callbacks of use to the run, in order. Raises CallbackError."""
    built = []
    for name, entry in session.config.callbacks.items():
        path, target = f"callbacks.{name}", entry["_target_"]
        make = _bound(session.config, name, session)
        kind: type[Callback] = locate(target, path=path, trust=session.config.run.trust)  # type: ignore[assignment]
        if not kind.wanted(session):
            continue
        try:
            callback: Callback = make()
        except Exception as error:
            if kind.__module__.startswith("forge."):
                raise
            raise callback_error(path, target, "__init__", error) from error
        callback.config_path = path
        built.append(callback)
    return built


def _bound(config: Config, name: str, session: Any) -> Callable[[], Any]:
    entry, trust = config.callbacks[name], config.run.trust
    return bind(entry, path=f"callbacks.{name}", trust=trust, offered={"session": session})
