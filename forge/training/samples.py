"""Samples of text in the loop."""

from __future__ import annotations

import re
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forge.config.eval import Eval
from forge.data.shards import TokenStore
from forge.data.tokenizer import Tokenizer
from forge.parallel.ranks import Ranks
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.rows import SAMPLES, Rows
from forge.training.step import StepOutput
from forge.training.writing import continue_text, encode_prompt, say

WORDS = re.compile(r"(?:\S+\s*){1,5}")
LONGEST = 40  # characters of a prompt that is found


def opening(store: TokenStore, tokenizer: Tokenizer, longest: int) -> str:
    """The first words of a split, as a prompt of at most `longest` tokens; empty, which begins a
    new document, where none fit.
    """
    ids = store.read(0, min(len(store), 256)).tolist()
    lines = tokenizer.decode([token for token in ids if token != tokenizer.eos_id]).splitlines()
    words = WORDS.match(
        next((line.strip() for line in lines if line.strip()), "").partition("\ufffd")[0]
    )
    text = words[0][:LONGEST].strip() if words else ""
    while len(tokenizer.encode(text)) > longest:
        text = text[:-1].strip()
    return text


class Samples(Callback):
    """Continues each prompt every sample_interval steps and at the end, unless interrupted.

    The texts go to the terminal and into samples.jsonl. All ranks take the tokens that the main one
    draws.
    """

    def __init__(
        self,
        section: Eval,
        *,
        model: nn.Module,
        tokenizer: Tokenizer,
        device: torch.device,
        run_dir: Path | None,
        seed: int,
        show: bool,
        ranks: Ranks,
    ) -> None:
        self.section, self.model, self.tokenizer, self.device = section, model, tokenizer, device
        self.path, self.show = run_dir / SAMPLES if run_dir is not None else None, show
        temperature, top_k = section.sample_temperature, section.sample_top_k
        self.options: dict[str, Any] = {
            "tokens": section.sample_tokens,
            "temperature": temperature,
            "top_k": top_k,
        }
        self.options |= {"seed": seed, "agree": ranks.copy_from_main}
        self._check_prompts(int(model.max_seq_len))  # type: ignore[arg-type]

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if self.section.sample_interval and loop.state.step % self.section.sample_interval == 0:
            self.sample(loop)

    def on_end(self, loop: Loop) -> None:
        interval = self.section.sample_interval
        if not loop.interrupted and not (interval and loop.state.step % interval == 0):
            self.sample(loop)

    def sample(self, loop: Loop) -> None:
        """Sample now."""
        with (
            loop.paused(),
            closing(Rows(self.path)) if self.path is not None else nullcontext() as rows,
        ):
            for prompt in self.section.sample_prompts:
                try:
                    text = continue_text(
                        self.model, self.tokenizer, prompt, self.device, **self.options
                    )
                except FloatingPointError as error:
                    say(f"no sample at step {loop.state.step}: {error}")
                    return
                if rows is not None:
                    rows.append({"step": loop.state.step, "prompt": prompt, "text": text})
                if self.show:
                    say(f"--- sample at step {loop.state.step} ---\n{prompt}{text}\n---")

    def _check_prompts(self, longest: int) -> None:
        for prompt in self.section.sample_prompts:
            count = len(encode_prompt(self.tokenizer, prompt))
            if count > longest:
                raise ValueError(
                    f"eval.sample_prompts: a prompt has {count} tokens, more than model.max_seq_len={longest}; shorten it"
                )
