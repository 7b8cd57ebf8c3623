"""What happens around the updates, named by the moment it happens at."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    import torch
    from torch import nn

    from forge.config.root import Config
    from forge.training.session import Session
    from forge.training.step_output import StepOutput


class CallbackError(Exception):
    """A user's callback failed: which, when and why; the cause is chained."""


class Counters(Protocol):
    """Updates, sequences and target tokens that a run was trained on so far, over all ranks."""

    step: int
    samples: int
    tokens: int


class LoopView(Protocol):
    """The part of the training loop that callbacks may use.

    state: counters so far. interrupted: whether a signal ends the run. stop_reason: why it ends;
    None while it goes on.
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
        """The same, and inside the weights are those that are evaluated and saved."""
        ...


class Callback:
    """Does nothing at any moment; a callback overrides the moments it acts at.

    The moments of a step are, each for every callback in order: on_step_start, on_gradients, the
    update, on_step_end. config_path: where it stands in the config, if it does. reads_gradients:
    whether its on_gradients looks at gradients; where no callback does, the update clips them.
    """

    config_path = ""
    reads_gradients = True

    @classmethod
    def wanted(cls, session: Session) -> bool:
        """Whether a run has a use for it; if not, it is not built."""
        return True

    def on_start(self, loop: LoopView) -> None:
        """Before the first update, after a checkpoint was loaded."""

    def on_step_start(self, loop: LoopView) -> None:
        """Before an update; `loop.state.step` does not count it yet, and its data is loaded."""

    def on_gradients(self, loop: LoopView) -> None:
        """The gradient of the whole step is there and clipped, and may be changed in place; also
        where the update will be skipped because it is not finite.
        """

    def on_step_end(self, loop: LoopView, output: StepOutput) -> None:
        """After an update; `loop.state.step` counts it already."""

    def on_evaluation(self, loop: LoopView, metrics: dict[str, float]) -> None:
        """After an evaluation, with its metrics by plain name."""

    def on_checkpoint(self, loop: LoopView, path: Path) -> None:
        """A checkpoint is complete on the disk; an asynchronous one may be of an earlier step. On
        the main rank alone.
        """

    def on_end(self, loop: LoopView) -> None:
        """After the last update, however the run ends short of an exception."""

    def requested(self, loop: LoopView) -> int:
        """What this rank asks of all ranks at any time, such as to stop, as a number above 0."""
        return 0

    def act(self, loop: LoopView, number: int) -> None:
        """Do what was requested; called on all ranks after the same step, with the largest number
        of any rank.
        """

    def on_failure(self, loop: LoopView, error: BaseException) -> None:
        """The run has failed, which was said; callbacks are not closed yet."""

    def results(self) -> dict[str, float]:
        """Metrics for result.json, by name, once the run has ended."""
        return {}

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


def is_users(callback: Callback) -> bool:
    """Whether it is none of forge's own."""
    return bool(callback.config_path) and not type(callback).__module__.startswith("forge.")


def call(callback: Callback, method: str, step: int, *arguments: Any) -> Any:
    """Call a method; what a user's callback raises becomes a CallbackError that names it."""
    try:
        return getattr(callback, method)(*arguments)
    except (Exception, SystemExit) as error:
        raise_named(callback, method, step, error)


def raise_named(callback: Callback, method: str, step: int, error: BaseException) -> NoReturn:
    if not is_users(callback) or isinstance(error, CallbackError):
        raise error
    target = f"{type(callback).__module__}.{type(callback).__qualname__}"
    raise failure(callback.config_path, target, method, error, step) from error


def failure(
    path: str, target: str, method: str, error: BaseException, step: int | None = None
) -> CallbackError:
    at = "" if step is None else f" at step {step}"
    what = f"{path} ({target}) failed in {method}{at}: {type(error).__name__}: {error}"
    return CallbackError(what.rstrip(": "))
