"""What happens around the updates, named by the moment it happens at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.step import StepOutput


class Callback:
    """Does nothing at any moment; a callback overrides the moments it acts at.

    One that has state says so by `state_dict` and `load_state_dict`; it goes into the checkpoint under the
    name of its class. The order of the moments of a step is: the update, `on_step_end` of every callback in order.
    """

    def on_start(self, loop: Loop) -> None:
        """Before the first update, after a checkpoint was loaded."""

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        """After an update; `loop.state.step` counts it already."""

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        """After an evaluation, with its metrics by plain name."""

    def on_end(self, loop: Loop) -> None:
        """After the last update, however the run ends short of an exception."""

    def close(self) -> None:
        """Always, also after an exception: release what is held."""

    def state_dict(self) -> dict[str, Any]:
        """State to keep in a checkpoint: plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
