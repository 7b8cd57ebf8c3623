"""Values of free dicts: frozen deeply once a config is resolved, and plain again for whoever is
given them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn


class FrozenDict(dict):
    """A dict that is read and not changed; it compares, copies and pickles as one."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise dataclasses.FrozenInstanceError("a resolved config is read-only")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


def freeze_value(value: Any) -> Any:
    """Dicts become FrozenDict and lists tuples, all the way down."""
    if isinstance(value, dict):
        return FrozenDict({key: freeze_value(inner) for key, inner in value.items()})
    return (
        tuple(freeze_value(inner) for inner in value) if isinstance(value, list | tuple) else value
    )


def thaw_value(value: Any) -> Any:
    """A copy in plain dicts and lists, all the way down."""
    if isinstance(value, dict):
        return {key: thaw_value(inner) for key, inner in value.items()}
    return [thaw_value(inner) for inner in value] if isinstance(value, list | tuple) else value


def unkeepable(value: Any, key: str) -> str | None:
    """What a config file cannot keep, in words, or None: it keeps texts, numbers, booleans, null,
    lists and dicts.
    """
    if value is None or isinstance(value, str | int | float):
        return None
    if isinstance(value, list | tuple):
        return next(
            (
                fault
                for index, inner in enumerate(value)
                if (fault := unkeepable(inner, f"{key}[{index}]"))
            ),
            None,
        )
    if isinstance(value, dict):
        return next(
            (
                fault
                for name, inner in value.items()
                if (fault := unkeepable(inner, f"{key}.{name}"))
            ),
            None,
        )
    return f"{key} is a {type(value).__name__}"
