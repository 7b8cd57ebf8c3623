"""Steps with a spike of loss or gradient norm, compared with earlier steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from forge.tensors.wide import widest
from forge.training.callback import Callback
from forge.training.step_output import Judged

if TYPE_CHECKING:
    from forge.training.session import Session


class Spikes(Callback):
    """Finds spikes: steps far above the mean of the last `interval` steps.

    Far is more than `factor` standard deviations, as in OLMo and MaxText; no step is a spike until
    half as many steps are known. A spike enters the window too, so a lasting level becomes usual. A
    non-finite step does not enter and is no spike. The window is part of a checkpoint. Nothing
    waits for the device.
    """

    def __init__(self, session: Session) -> None:
        train = session.config.train
        self.interval, self.factor = train.skip_step_interval, train.skip_step_scaling_factor
        # [2, interval], the latest steps last; NaN = none yet.
        self.window = torch.full((2, self.interval), torch.nan, dtype=torch.float64)

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.train.skip_step_on_spikes

    def judge(self, loss: Tensor, grad_norm: Tensor) -> Judged:
        """Judge the loss and gradient norm of one step, and add both to the window."""
        values = torch.stack([x.to(widest(x.device)) for x in (loss, grad_norm)])
        window = self.window.to(values.dtype).to(values.device)
        finite = window.isfinite()
        count = finite.sum(1)
        # NaN slots count as 0: an index by mask would wait for the device.
        means = window.where(finite, 0.0).sum(1) / count.clamp(min=1)
        squares = (window - means[:, None]).square().where(finite, 0.0).sum(1)
        deviations = (squares / (count - 1).clamp(min=1)).sqrt()
        # The sample deviation needs two values at least.
        judgeable = values.isfinite().all() & (count + 1 >= max(3, self.interval // 2))
        spikes = judgeable & (values - means > self.factor * deviations)
        self.window = torch.cat([window[:, 1:], values[:, None]], 1)
        return Judged(values=values, means=means, deviations=deviations, spikes=spikes)

    def state_dict(self) -> dict[str, Any]:
        return {"window": self.window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the window; of another interval only the latest steps."""
        latest = state["window"][:, -self.interval :]
        self.window = torch.full((2, self.interval), torch.nan, dtype=latest.dtype)
        self.window[:, self.interval - latest.shape[1] :] = latest
