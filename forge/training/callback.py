"""What happens around the updates, named by the moment it happens at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.step import StepOutput


class CallbackError(Exception):
    """A user's callback failed: which, at what moment, at which step and why; the cause is chained."""


class Callback:
    """Does nothing at any moment; a callback overrides the moments it acts at.

    One that has state says so by `state_dict` and `load_state_dict`; it goes into the checkpoint
    under `name_of(callback)`. The moments of a step are, each for every callback in order:
    on_step_start, on_gradients, the update, on_step_end. An instance of the user's knows its place
    in the config, `config_path`, such as callbacks.ema; forge's own have none.
    """

    config_path = ""

    def on_start(self, loop: Loop) -> None:
        """Before the first update, after a checkpoint was loaded."""

    def on_step_start(self, loop: Loop) -> None:
        """Before an update; `loop.state.step` does not count it yet, and its data is loaded."""

    def on_gradients(self, loop: Loop) -> None:
        """The gradient of the whole step is there and clipped, the optimizer has not used it; what
        is changed in place is used.

        Also at a step whose update is skipped because its gradient is not finite.
        """

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        """After an update; `loop.state.step` counts it already."""

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        """After an evaluation, with its metrics by plain name."""

    def on_checkpoint(self, loop: Loop, path: Path) -> None:
        """A checkpoint is complete on the disk; an asynchronous one may be of an earlier step.
        Called on the loop's own thread.

        On the main rank alone, which knows when all is written.
        """

    def on_end(self, loop: Loop) -> None:
        """After the last update, however the run ends short of an exception."""

    def close(self) -> None:
        """Always, also after an exception: release what is held."""

    def state_dict(self) -> dict[str, Any]:
        """State to keep in a checkpoint: tensors, texts, numbers, booleans and None, nested in
        dicts, lists and tuples.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; tensors come on the CPU."""


def name_of(callback: Callback) -> str:
    """What a callback is called, in a checkpoint too: its place in the config, or the class of one
    of forge's own.
    """
    return callback.config_path or type(callback).__name__


@contextmanager
def blaming(callback: Callback, moment: str, step: int | None = None) -> Iterator[None]:
    """What a user's callback raises in here becomes a CallbackError that names it; forge's own
    raise what they raise.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if not callback.config_path or isinstance(error, CallbackError):
            raise
        target = f"{type(callback).__module__}.{type(callback).__qualname__}"
        raise failure(callback.config_path, target, moment, error, step) from error


def failure(
    config_path: str, target: str, moment: str, error: BaseException, step: int | None = None
) -> CallbackError:
    """The error that says which callback failed, where and why."""
    at = "" if step is None else f" at step {step}"
    return CallbackError(
        f"{config_path} ({target}) failed in {moment}{at}: {type(error).__name__}: {error}".rstrip(
            ": "
        )
    )
