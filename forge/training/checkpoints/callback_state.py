"""The state of callbacks in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from forge.training.callback import Callback, call, callback_name, raise_named

TENSOR, TUPLE = "_tensor_", "_tuple_"
BY_PARAMETER = "parameters"
"""Prefix of tensors by name of callback and parameter in a checkpoint."""


def callback_states(
    callbacks: Sequence[Callback], step: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Collect the state of all callbacks: plain values by name, and tensors by `name/path`.

    Raises CallbackError, also for values outside the formats of a checkpoint.
    """
    plain: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for callback in callbacks:
        name = callback_name(callback)
        try:
            if state := callback.state_dict():
                plain[name], state_tensors = split_tensors(state)
                tensors |= {
                    f"{_escape(name)}/{path}": tensor for path, tensor in state_tensors.items()
                }
        except Exception as error:
            raise_named(callback, "state_dict", step, error)
    return plain, tensors


def parameter_states(callbacks: Sequence[Callback]) -> dict[str, Tensor]:
    """The tensors that callbacks have of parameters, as `parameters/CALLBACK/PARAMETER`."""
    return {
        f"{BY_PARAMETER}/{_escape(callback_name(callback))}/{name}": tensor
        for callback in callbacks
        for name, tensor in callback.parameter_state().items()
    }


def load_states(
    callbacks: Sequence[Callback], plain: dict[str, Any], tensors: dict[str, Tensor], step: int
) -> None:
    """Give callbacks the state collected by `callback_states`; an absent one keeps its state."""
    for callback in callbacks:
        name = callback_name(callback)
        if name in plain:
            prefix = f"{_escape(name)}/"
            callback_tensors = {
                p.removeprefix(prefix): t for p, t in tensors.items() if p.startswith(prefix)
            }
            call(callback, "load_state_dict", step, _join_tensors(plain[name], callback_tensors))
        prefix = f"{BY_PARAMETER}/{_escape(name)}/"
        if of_parameters := {
            key.removeprefix(prefix): tensor
            for key, tensor in tensors.items()
            if key.startswith(prefix)
        }:
            call(callback, "load_parameter_state", step, of_parameters)


def split_tensors(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a state into JSON values and tensors by path.

    Raises TypeError naming the key of any other value.
    """
    if not isinstance(state, dict):
        raise TypeError(f"state_dict gives a dict, not {type(state).__name__}")
    tensors: dict[str, Tensor] = {}
    return _split(state, "", tensors), tensors


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return {TENSOR: path}
    if isinstance(value, str | int | float | bool | None):
        return value
    subject, below = f"its state at '{path}'" if path else "its state", f"{path}/" if path else ""
    if isinstance(value, list | tuple):
        items = [_split(item, f"{below}{index}", tensors) for index, item in enumerate(value)]
        # JSON would turn a tuple into a list.
        return {TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key in (TENSOR, TUPLE):
                rule = f"keys are texts other than {TENSOR} and {TUPLE}"
                raise TypeError(f"{subject} has the key {key!r}; {rule}")
        return {key: _split(item, below + _escape(key), tensors) for key, item in value.items()}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    allowed = "tensors, texts, numbers, booleans and None, in dicts, lists and tuples"
    raise TypeError(f"{subject} is a {kind}; a checkpoint keeps {allowed}")


def _join_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_join_tensors(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if TUPLE in value:
        return tuple(_join_tensors(value[TUPLE], tensors))
    return {key: _join_tensors(item, tensors) for key, item in value.items()}


def _escape(key: str) -> str:
    """Escape a key as one part of a path, as in RFC 6901."""
    return key.replace("~", "~0").replace("/", "~1")
