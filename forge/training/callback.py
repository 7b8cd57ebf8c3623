"""What happens around the updates, named by the moment it happens at; and the state of callbacks in
a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from forge.build import bind
from forge.config.root import Config

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.step import StepOutput

TENSOR, TUPLE = "_tensor_", "_tuple_"


class CallbackError(Exception):
    """A user's callback failed: which, when and why; the cause is chained."""


class Callback:
    """Does nothing at any moment; a callback overrides the moments it acts at.

    The moments of a step are, each for every callback in order: on_step_start, on_gradients, the
    update, on_step_end. config_path: where a user's callback stands in the config.
    """

    config_path = ""

    def on_start(self, loop: Loop) -> None:
        """Before the first update, after a checkpoint was loaded."""

    def on_step_start(self, loop: Loop) -> None:
        """Before an update; `loop.state.step` does not count it yet, and its data is loaded."""

    def on_gradients(self, loop: Loop) -> None:
        """The gradient of the whole step is there and clipped, and may be changed in place; also
        where the update will be skipped because it is not finite.
        """

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        """After an update; `loop.state.step` counts it already."""

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        """After an evaluation, with its metrics by plain name."""

    def on_checkpoint(self, loop: Loop, path: Path) -> None:
        """A checkpoint is complete on the disk; an asynchronous one may be of an earlier step. On
        the main rank alone.
        """

    def on_end(self, loop: Loop) -> None:
        """After the last update, however the run ends short of an exception."""

    def close(self) -> None:
        """Always, also after an exception: release what is held."""

    def state_dict(self) -> dict[str, Any]:
        """State to keep in a checkpoint, under `name_of(callback)`: tensors, texts, numbers,
        booleans and None, nested in dicts, lists and tuples.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; tensors come on the CPU."""


def name_of(callback: Callback) -> str:
    return callback.config_path or type(callback).__name__


def user_callbacks(config: Config) -> list[Callback]:
    """The entries of `callbacks`, in order. Raises ConfigError and CallbackError."""
    built = []
    for name, entry in config.callbacks.items():
        path = f"callbacks.{name}"
        make = bind(entry, path=path, trust=config.run.trust)
        try:
            callback: Callback = make()
        except Exception as error:
            raise _failure(path, entry["_target_"], "__init__", error) from error
        callback.config_path = path
        built.append(callback)
    return built


@contextmanager
def naming(callback: Callback, moment: str, step: int) -> Iterator[None]:
    """What a user's callback raises in here becomes a CallbackError that names it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if not callback.config_path or isinstance(error, CallbackError):
            raise
        target = f"{type(callback).__module__}.{type(callback).__qualname__}"
        raise _failure(callback.config_path, target, moment, error, step) from error


def _failure(
    path: str, target: str, moment: str, error: BaseException, step: int | None = None
) -> CallbackError:
    at = "" if step is None else f" at step {step}"
    what = f"{path} ({target}) failed in {moment}{at}: {type(error).__name__}: {error}"
    return CallbackError(what.rstrip(": "))


def states(callbacks: Sequence[Callback], step: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state of all callbacks that have one: plain values by name, and tensors by `name/path`.
    Raises CallbackError, also for what a checkpoint cannot keep.
    """
    plain: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for callback in callbacks:
        name = name_of(callback)
        with naming(callback, "state_dict", step):
            if state := callback.state_dict():
                plain[name], found = split(state)
                tensors |= {f"{_escape(name)}/{path}": tensor for path, tensor in found.items()}
    return plain, tensors


def load_states(
    callbacks: Sequence[Callback], plain: dict[str, Any], tensors: dict[str, Tensor], step: int
) -> None:
    """Give callbacks what `states` took; one that is not in the checkpoint keeps what it has."""
    for callback in callbacks:
        name = name_of(callback)
        if name in plain:
            prefix = f"{_escape(name)}/"
            own = {p.removeprefix(prefix): t for p, t in tensors.items() if p.startswith(prefix)}
            with naming(callback, "load_state_dict", step):
                callback.load_state_dict(join(plain[name], own))


def split(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Values that JSON keeps exactly, and tensors by their path. Raises TypeError naming the key of
    anything else.
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
    place, below = f"its state at '{path}'" if path else "its state", f"{path}/" if path else ""
    if isinstance(value, list | tuple):
        items = [_split(item, f"{below}{index}", tensors) for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key in (TENSOR, TUPLE):
                wanted = f"keys are texts other than {TENSOR} and {TUPLE}"
                raise TypeError(f"{place} has the key {key!r}; {wanted}")
        return {key: _split(item, below + _escape(key), tensors) for key, item in value.items()}
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    kept = "tensors, texts, numbers, booleans and None, in dicts, lists and tuples"
    raise TypeError(f"{place} is a {kind}; a checkpoint keeps {kept}")


def join(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [join(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if TUPLE in value:
        return tuple(join(value[TUPLE], tensors))
    return {key: join(item, tensors) for key, item in value.items()}


def _escape(key: str) -> str:
    """A key as one part of a path, as RFC 6901 has it."""
    return key.replace("~", "~0").replace("/", "~1")
