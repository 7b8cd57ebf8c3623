"""Samples of text in the loop."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from forge.config.eval import Eval
from forge.data.tokenizer import Tokenizer
from forge.models.sampling import generate
from forge.training.callback import Callback
from forge.training.device import Autocast
from forge.training.load_run import encode_prompt
from forge.training.loop import Loop
from forge.training.step import StepOutput


class Samples(Callback):
    """Continues each prompt every sample_interval steps and at the end; on the terminal and in samples.jsonl."""

    def __init__(
        self, section: Eval, *, model: nn.Module, tokenizer: Tokenizer, autocast: Autocast, run_dir: Path, seed: int, show: bool
    ) -> None:
        self.section, self.model, self.tokenizer, self.autocast = section, model, tokenizer, autocast
        self.file, self.seed, self.show = run_dir / "samples.jsonl", seed, show

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if self.section.sample_interval and loop.state.step % self.section.sample_interval == 0:
            self.sample(loop)

    def on_end(self, loop: Loop) -> None:
        if not self.section.sample_interval or loop.state.step % self.section.sample_interval:
            self.sample(loop)

    def sample(self, loop: Loop) -> None:
        """Sample now."""
        with loop.paused(), self.file.open("a", encoding="utf-8") as file:
            for prompt in self.section.sample_prompts:
                text = continue_text(self.model, self.tokenizer, prompt, self.section, self.autocast, seed=self.seed)
                file.write(json.dumps({"step": loop.state.step, "prompt": prompt, "text": text}, ensure_ascii=False) + "\n")
                if self.show:
                    print(f"--- sample at step {loop.state.step} ---\n{prompt}{text}\n---", flush=True)


def continue_text(model: nn.Module, tokenizer: Tokenizer, prompt: str, section: Eval, autocast: Autocast, *, seed: int) -> str:
    """What the model writes after a prompt; an empty prompt begins a new document."""
    tokens = encode_prompt(tokenizer, prompt, autocast.device)
    with autocast():
        out = generate(
            model,  # type: ignore[arg-type]
            tokens,
            section.sample_tokens,
            temperature=section.sample_temperature,
            top_k=section.sample_top_k,
            seed=seed,
            eos_id=tokenizer.eos_id,
        )
    return tokenizer.decode([i for i in out[0, tokens.shape[1] :].tolist() if i != tokenizer.eos_id])
