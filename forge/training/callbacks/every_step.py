"""After each step: the requests of all ranks, and steps whose updates were skipped."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

log = logging.getLogger(__name__)


class Agreement(Callback):
    """Asks after each step whether any rank has a request, and only if so, for the requests.

    The first question takes no message: the answer is summed along with the gradient's norm. On a
    GPU the answer is read a step later, so nothing waits for the device.
    """

    def __init__(self, session: Session) -> None:
        self.ranks = session.ranks
        self._pending: tuple[Tensor, torch.cuda.Event] | None = None

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if self.ranks.size > 1 and not self._any(output.requests):
            return
        requests = loop.requests()
        largest = self.ranks.largest(*(number for _, number in requests))
        for (callback, _), number in zip(requests, largest, strict=True):
            if number:
                callback.act(loop, number)

    def _any(self, requests: Tensor) -> bool:
        if not requests.is_cuda:
            return bool(requests.item())
        host = torch.empty_like(requests, device="cpu", pin_memory=True)
        host.copy_(requests, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        # Read a step later, when the copy has long arrived.
        earlier, self._pending = self._pending, (host, arrived)
        if earlier is None:
            return False
        earlier[1].synchronize()
        return bool(earlier[0].item())


class BadSteps(Callback):
    """Warns of the first non-finite step, and stops the run after too many in a row.

    The limit is `train.max_bad_steps`; 0 = never. The update of a step with a non-finite loss or
    gradient is skipped. Every step skipped as a spike is reported. Stands before the callbacks for
    logging and saving. On a GPU the check is made only with logged metrics and at the end, since a
    check waits for the device.
    """

    def __init__(self, session: Session) -> None:
        config, saved = session.config, session.config.checkpoint
        self.limit, self.interval = config.train.max_bad_steps, config.metrics.log_interval
        saves_last = saved.enabled and saved.last != "none"
        self.checkpoints = session.run_dir / saved.dir if saves_last else None
        self.at_logs = session.device.type == "cuda"
        self.warned = False

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        state = loop.state
        state.record(output)
        if self.at_logs and not loop.ending and state.step % self.interval:
            return
        state.count_skipped()
        if 0 < self.limit <= state.bad_in_a_row:
            loop.end("bad_steps", fault=self._fault(loop))
            # A resumed run ends at the next bad step, unless a good step comes first.
            state.bad_in_a_row = self.limit - 1
        self._warn(loop)

    def on_end(self, loop: Loop) -> None:
        loop.state.count_skipped()
        self._warn(loop)

    def _warn(self, loop: Loop) -> None:
        spikes, loop.state.spikes = loop.state.spikes, []
        for step, report in spikes:
            log.warning("step %d is skipped: %s", step, report)
        bad, loop.state.bad = loop.state.bad, []
        if bad and not self.warned:
            self.warned = True
            advice = "a lower optimizer.lr may help, and debug=anomaly names the operation"
            log.warning("step %d is skipped, since its %s is not finite; " + advice, *bad[0])

    def _fault(self, loop: Loop) -> str:
        state, bad = loop.state, loop.state.bad_in_a_row
        first, last = loop.loader.range_of_last(bad)
        steps = f"steps {state.step - bad + 1} to {state.step}" if bad > 1 else f"step {state.step}"
        saved = ""
        if self.checkpoints:
            path = self.checkpoints / f"step_{state.step}"
            saved = f": {path} holds the weights as they were before them"
        return (
            f"the {state.bad[-1][1]} was not finite in {steps}, "
            f"which is train.max_bad_steps={self.limit} or more in a row. "
            f"Their updates were skipped{saved}. Lower optimizer.lr or train.grad_clip_norm; "
            f"debug=anomaly names the operation; the data were samples {first} to {last}"
        )
