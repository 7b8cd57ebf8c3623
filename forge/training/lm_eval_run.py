"""A run as a model of lm-eval's own command line."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from forge.evaluation.engine import BATCH_TOKENS, Engine
from forge.evaluation.lm_eval_model import EngineLM
from forge.families.folder import is_folder
from forge.training.loaded import Loaded, load

LM_EVAL_DEVICE = "cuda:0"


class RunLM(EngineLM):
    """The model `forge` of lm-eval: --model_args run=RUN[,step=100|best][,device=cuda].

    run: a run directory, a checkpoint, or a folder of Hugging Face. trust: prefixes of modules to
    build from, separated by +. batch_tokens: tokens scored at once; lm-eval's batch_size, which it
    always passes, has no effect, since the scores do not depend on it. Its device cuda:0, which it
    passes by default, means the run's device on a machine without a GPU.
    """

    def __init__(
        self,
        run: str = "",
        *,
        step: int | str = "last",
        device: str | None = None,
        trust: str = "",
        batch_tokens: int = BATCH_TOKENS,
        max_gen_toks: int = 256,
        seed: int = 0,
        batch_size: Any = None,
        max_batch_size: Any = None,
    ) -> None:
        if not run:
            raise ValueError("which run? --model_args run=runs/mine")
        if device == LM_EVAL_DEVICE and not torch.cuda.is_available():
            device = None
        prefixes = [prefix for prefix in trust.split("+") if prefix]
        loaded = _loaded(str(run), step, device, prefixes)
        engine = Engine(loaded.model, device=loaded.device, batch_tokens=batch_tokens)
        super().__init__(engine, loaded.tokenizer, max_gen_toks=max_gen_toks, seed=seed)
        self.loaded = loaded

    def get_model_info(self) -> dict[str, Any]:
        """Facts on the model for lm-eval's file of results."""
        return {
            "model_num_parameters": sum(p.numel() for p in self.loaded.model.parameters()),
            "model_dtype": str(next(self.loaded.model.parameters()).dtype),
            "model_sha": str(self.loaded.path),
        }


def _loaded(run: str, step: Any, device: str | None, trust: list[str]) -> Loaded:
    options: dict[str, Any] = {"device": device, "trust": trust}
    if not is_folder(Path(run)):
        return load(run, step, **options)
    with tempfile.TemporaryDirectory(prefix="forge_lm_eval_") as name:
        run_dir = Path(name) / "run"
        importlib.import_module("forge.import").run_of_folder(Path(run), run_dir)
        return load(run_dir, **options)
