"""Runs of forge as models of lm-eval's own command line and of its `simple_evaluate`."""

from __future__ import annotations

MODEL = "forge"
TARGET = "forge.training.lm_eval_run:RunLM"


def register_model() -> None:
    """Add the model `forge` to lm-eval's table. Raises ImportError where lm-eval is missing."""
    import lm_eval.models  # noqa: F401 - registers lm-eval's own
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target=TARGET)
