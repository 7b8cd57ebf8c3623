"""The reward of a reward model: a run of objective=reward_model, or a folder of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from forge.data.tokenizers.render import prompt_ids
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.families.folder import is_folder, read_folder
from forge.models.plain import make_model
from forge.objectives.reward_model import score_id, scores_of
from forge.parallel.materialize import allocate
from forge.rewards.completion import Completion, completion_text
from forge.training.checkpoints import restore


class _Loaded(NamedTuple):
    model: Any
    tokenizer: Tokenizer
    token: str | None
    device: torch.device


class LearnedReward:
    """The score of a prompt with its completion, read without the token that ends it.

    path: a run, a checkpoint or a folder of Hugging Face written of one. token: with the row for
    scores; None = as the run was trained, of a folder the token that ends documents. device: None =
    as in the run. Texts are encoded by the reward model's own tokenizer; a beginning too long for
    the model is cut off.
    """

    def __init__(
        self,
        path: str,
        token: str | None = None,
        batch_size: int = 16,
        device: str | None = None,
    ) -> None:
        self.path, self.token, self.batch_size, self.device = path, token, batch_size, device

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Completion]
    ) -> list[float | None]:
        model, tokenizer, token, device = self._loaded
        longest = int(model.max_seq_len)
        rows = [
            self._ids(tokenizer, prompt, completion_text(completion))[-longest:]
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        values = scores_of(
            model,
            [row or [tokenizer.eos_id] for row in rows],
            score_id(tokenizer, token),
            batch_size=self.batch_size,
            device=device,
        )
        return list(values)

    @staticmethod
    def _ids(tokenizer: Tokenizer, prompt: Any, text: str) -> list[int]:
        if isinstance(prompt, str):
            begin = [] if tokenizer.begin_id is None else [tokenizer.begin_id]
            before = [*begin, *tokenizer.encode(prompt)]
        else:
            before = prompt_ids(prompt, tokenizer)
        return [*before, *tokenizer.encode(text)]

    @cached_property
    def _loaded(self) -> _Loaded:
        path = Path(self.path)
        device = None if self.device is None else torch.device(self.device)
        if is_folder(path):
            section, device = read_folder(path).section, device or torch.device("cpu")
            with torch.device("meta"):
                model = make_model(section)
            allocate(model, device)
            model.reset_buffers()
            restore.load_weights(path, model=model, section=section)
            return _Loaded(model.eval(), Tokenizer.load(path), self.token, device)
        trained = restore.load_run(path, device=device)
        token = self.token or getattr(trained.config.objective, "score_token", None)
        return _Loaded(trained.model, trained.tokenizer, token, trained.device)
