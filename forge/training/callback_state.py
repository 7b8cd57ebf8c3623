"""The state of callbacks, taken apart for a checkpoint: plain values for its JSON, tensors for its
tensor files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from forge.training.callback import Callback, blaming, name_of

TENSOR, TUPLE = "_tensor_", "_tuple_"
PLAIN = (str, int, float, bool, type(None))


def take(callbacks: Sequence[Callback], step: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state of all callbacks that have one: plain values by name, and tensors by `name/path`.

    Raises CallbackError for a user's callback that fails or whose state holds what a checkpoint
    cannot keep.
    """
    plain: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for callback in callbacks:
        name = name_of(callback)
        with blaming(callback, "state_dict", step):
            state = callback.state_dict()
            if state:
                plain[name], found = split(state)
                tensors |= {f"{_escape(name)}/{path}": tensor for path, tensor in found.items()}
    return plain, tensors


def give(
    callbacks: Sequence[Callback], plain: dict[str, Any], tensors: dict[str, Tensor], step: int
) -> None:
    """Give callbacks the state that `take` took; one that the checkpoint does not know keeps what
    it has.
    """
    for callback in callbacks:
        name = name_of(callback)
        if name in plain:
            prefix = f"{_escape(name)}/"
            own = {
                path.removeprefix(prefix): tensor
                for path, tensor in tensors.items()
                if path.startswith(prefix)
            }
            with blaming(callback, "load_state_dict", step):
                callback.load_state_dict(join(plain[name], own))


def split(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Values that JSON keeps exactly, and tensors by their path. Raises TypeError naming the key of
    anything else.
    """
    tensors: dict[str, Tensor] = {}
    if not isinstance(state, dict):
        raise TypeError(f"state_dict gives a dict, not {type(state).__name__}")
    return _split(state, "", tensors), tensors


def join(plain: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The state that `split` took apart."""
    return _join(plain, tensors)


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return {TENSOR: path}
    if isinstance(value, PLAIN):
        return value
    below = f"{path}/" if path else ""
    if isinstance(value, list | tuple):
        items = [_split(item, f"{below}{index}", tensors) for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key in (TENSOR, TUPLE):
                raise TypeError(
                    f"{_place(path)} has the key {key!r}; keys are texts other than {TENSOR} and {TUPLE}"
                )
        return {key: _split(item, below + _escape(key), tensors) for key, item in value.items()}
    kinds = "tensors, texts, numbers, booleans and None, in dicts, lists and tuples"
    raise TypeError(
        f"{_place(path)} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint keeps {kinds}"
    )


def _join(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_join(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if TUPLE in value:
        return tuple(_join(value[TUPLE], tensors))
    return {key: _join(item, tensors) for key, item in value.items()}


def _escape(key: str) -> str:
    """A key as one part of a path, as RFC 6901 has it."""
    return key.replace("~", "~0").replace("/", "~1")


def _place(path: str) -> str:
    return f"its state at '{path}'" if path else "its state"
