"""Callbacks around the updates, with a method for each moment of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from forge.config.root import Config
    from forge.training.session import Session
    from forge.training.step_output import StepOutput


class CallbackError(Exception):
    """A failed callback of the user: name, moment and reason; the cause is chained."""


class Counters(Protocol):
    """Updates, sequences and target tokens in training so far, over all ranks."""

    step: int
    samples: int
    tokens: int


class LoopView(Protocol):
    """The part of the training loop open to callbacks.

    state: counters so far. interrupted: whether a signal ends the run. stop_reason: reason of the
    end; None while the run continues.
    """

    session: Session
    model: nn.Module
    optimizer: torch.optim.Optimizer
    config: Config
    run_dir: Path
    interrupted: bool
    stop_reason: str | None

    @property
    def state(self) -> Counters: ...

    @property
    def ending(self) -> bool:
        """Whether no further update follows."""
        ...

    def log(self, values: Mapping[str, Any]) -> None:
        """Give metrics by name to all trackers, at the current step."""
        ...

    def stop(self, reason: str) -> None:
        """End the run after this step, on all ranks."""
        ...

    def interrupt(self, reason: str) -> None:
        """End the run on a signal, without evaluations and samples."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """A context whose time does not count as training."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """A paused context, with the weights for evaluating and saving."""
        ...


class Callback:
    """Does nothing at any moment; a subclass overrides the moments of interest.

    The moments of a step are, each for every callback in order: on_step_start, on_gradients, the
    update, on_step_end. config_path: of the entry in the config, if any. reads_gradients: whether
    on_gradients reads gradients; if no callback does, the update clips the gradients.
    """

    config_path = ""
    reads_gradients = True

    @classmethod
    def wanted(cls, session: Session) -> bool:
        """Whether a run has a use for the callback; if not, none is built."""
        return True

    def on_restore(self, loop: LoopView, checkpoint: Path) -> None:
        """After a checkpoint of the run was loaded into model, optimizer and callbacks."""

    def on_start(self, loop: LoopView) -> None:
        """Before the first update, after a checkpoint was loaded."""

    def on_step_start(self, loop: LoopView) -> None:
        """Before an update, with loaded data; `loop.state.step` does not count the update yet."""

    def on_gradients(self, loop: LoopView) -> None:
        """After clipping the gradient of the whole step, which may be changed in place.

        Also called if the update will be skipped for a non-finite value.
        """

    def on_step_end(self, loop: LoopView, output: StepOutput) -> None:
        """After an update; `loop.state.step` counts the update already."""

    def on_evaluation(self, loop: LoopView, metrics: dict[str, float]) -> None:
        """After an evaluation, with the metrics by plain name."""

    def on_checkpoint(self, loop: LoopView, path: Path) -> None:
        """After a checkpoint is complete on the disk, on the main rank alone.

        An asynchronous checkpoint may be of an earlier step.
        """

    def on_end(self, loop: LoopView) -> None:
        """After the last update, in any case short of an exception."""

    def requested(self, loop: LoopView) -> int:
        """This rank's request to all ranks at any time, such as to stop, as a number above 0."""
        return 0

    def act(self, loop: LoopView, number: int) -> None:
        """Act on a request, on all ranks after the same step.

        number: the largest of any rank.
        """

    def on_failure(self, loop: LoopView, error: BaseException) -> None:
        """After a reported failure of the run, before callbacks close."""

    def results(self) -> dict[str, float]:
        """Metrics for result.json, by name, once the run has ended."""
        return {}

    def close(self) -> None:
        """Release resources; always called, also after an exception."""

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, under `callback_name(callback)`.

        Tensors, texts, numbers, booleans and None, nested in dicts, lists and tuples.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; tensors come on the CPU."""

    def parameter_state(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint by names of parameters, each laid out as its parameter.

        A checkpoint of weights alone holds them too.
        """
        return {}

    def load_parameter_state(self, state: dict[str, Tensor]) -> None:
        """Restore `parameter_state`; called only where a checkpoint has one."""

    def evaluated_weights(self, loop: LoopView) -> AbstractContextManager[None]:
        """A context in which the model has the weights to evaluate, in place of the trained."""
        return nullcontext()


def callback_name(callback: Callback) -> str:
    return callback.config_path or type(callback).__name__


def is_users(callback: Callback) -> bool:
    """Whether the callback is the user's, not forge's."""
    return bool(callback.config_path) and not type(callback).__module__.startswith("forge.")


def call(callback: Callback, method: str, step: int, *arguments: Any) -> Any:
    """Call a method; an error of a user's callback becomes a CallbackError with its name."""
    try:
        return getattr(callback, method)(*arguments)
    except (Exception, SystemExit) as error:
        raise_named(callback, method, step, error)


def raise_named(callback: Callback, method: str, step: int, error: BaseException) -> NoReturn:
    if not is_users(callback) or isinstance(error, CallbackError):
        raise error
    target = f"{type(callback).__module__}.{type(callback).__qualname__}"
    raise callback_error(callback.config_path, target, method, error, step) from error


def callback_error(
    path: str, target: str, method: str, error: BaseException, step: int | None = None
) -> CallbackError:
    when = "" if step is None else f" at step {step}"
    message = f"{path} ({target}) failed in {method}{when}: {type(error).__name__}: {error}"
    return CallbackError(message.rstrip(": "))
