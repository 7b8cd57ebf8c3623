"""Steps whose loss or gradient is not finite: counted, told of, and after too many in a row the end
of the run.
"""

from __future__ import annotations

import logging
from pathlib import Path

from forge.config.train import Train
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.step import StepOutput

log = logging.getLogger(__name__)


class BadSteps(Callback):
    """Counts the updates that were skipped, and stops the run once `train.max_bad_steps` of them
    are in a row; 0 = never.

    It stands before the callbacks that log and save. On a GPU it looks every `interval` steps and
    at the end alone, since a look waits for the device. fault: what stopped the run, in one
    message; None otherwise.
    """

    def __init__(self, section: Train, *, interval: int, checkpoints: Path | None) -> None:
        """checkpoints: the folder where the step is saved that the run ends at, for the message;
        None where it is not.
        """
        self.limit, self.interval, self.checkpoints = section.max_bad_steps, interval, checkpoints
        self.warned = False
        self.fault: str | None = None

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        state = loop.state
        state.record(output)
        if output.skipped.is_cuda and not loop.ending and state.step % self.interval:
            return
        state.settle()
        if 0 < self.limit <= state.bad_in_a_row:
            self.fault = self._fault(loop)
            state.bad_in_a_row = (
                self.limit - 1
            )  # what goes on from here ends again at the next one, unless a good step comes first
            loop.end("bad_steps")
        self._report(loop)

    def on_end(self, loop: Loop) -> None:
        loop.state.settle()
        self._report(loop)

    def _report(self, loop: Loop) -> None:
        bad, loop.state.bad = loop.state.bad, []
        if bad and not self.warned:
            self.warned = True
            step, what = bad[0]
            log.warning(
                "step %d is skipped, since its %s is not finite; a lower optimizer.lr may help, and debug=anomaly names the operation",
                step,
                what,
            )

    def _fault(self, loop: Loop) -> str:
        state, per_step = loop.state, loop.loader.samples_per_step
        bad = state.bad_in_a_row
        first, last = state.samples - bad * per_step, state.samples - 1
        kept = (
            f": {self.checkpoints / f'step_{state.step}'} holds the weights as they were before them"
            if self.checkpoints
            else ""
        )
        steps = f"steps {state.step - bad + 1} to {state.step}" if bad > 1 else f"step {state.step}"
        return (
            f"the {state.bad[-1].what} was not finite in {steps}, which is train.max_bad_steps={self.limit} or more in a row. "
            f"Their updates were skipped{kept}. "
            f"Lower optimizer.lr or train.grad_clip_norm; debug=anomaly names the operation; the data were samples {first} to {last}"
        )
