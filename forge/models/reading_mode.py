"""The mode of a model outside training: evaluation, uncompiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode and uncompiled, to avoid a compilation for each shape."""
    was_training = model.training
    model.eval()
    try:
        # A plain model need not import dynamo, which takes 2 s.
        compiled = any(module._compiled_call_impl is not None for module in model.modules())
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        model.train(was_training)
