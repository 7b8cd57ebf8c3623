"""Samples of a model's text during a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forge.config.data.chats import Chats
from forge.config.tokenizers.chat_template import BROKEN
from forge.data.tokenizers.render import prompt_text
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.store import TokenStore
from forge.rundir.files import append_row
from forge.rundir.progress import SAMPLES
from forge.training.callback import Callback
from forge.training.process import say
from forge.training.writing import Prompt, Writer, encode_prompt

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput


def opening(store: TokenStore, tokenizer: Tokenizer, longest: int) -> str:
    """The first words of a split, as a prompt of at most `longest` tokens; empty if none fit."""
    ids = store.read(0, min(len(store), 256)).tolist()
    lines = tokenizer.decode([i for i in ids if i not in tokenizer.borders]).splitlines()
    line = next((line.strip() for line in lines if line.strip()), "").partition("\ufffd")[0]
    words = re.match(r"(?:\S+\s*){1,5}", line)
    text = words[0][:40].strip() if words else ""
    room = longest - (tokenizer.begin_id is not None)
    while text and len(tokenizer.encode(text)) > room:
        text = text[:-1].strip()
    return text


class Samples(Callback):
    """Continues the prompts every sample_interval steps and at the end, unless interrupted.

    On the terminal and in samples.jsonl. All ranks take the tokens drawn by the main rank.
    """

    def __init__(self, session: Session) -> None:
        """Raises ValueError for too long a prompt."""
        section, ranks = session.config.eval, session.ranks
        self.interval = section.sample_interval
        self.prompts = _prompts(session)
        self.path = session.run_dir / SAMPLES if ranks.main else None
        self.show = session.config.metrics.enable_console and ranks.main
        self.writer = Writer(
            session.model,
            session.tokenizer,
            session.device,
            tokens=section.sample_tokens,
            temperature=section.sample_temperature,
            top_k=section.sample_top_k,
            seed=session.config.seed,
            agree=ranks.copy_from_main,
        )
        longest = int(session.model.max_seq_len)  # type: ignore[arg-type]
        for prompt in self.prompts:
            count = len(encode_prompt(session.tokenizer, prompt))
            if count > longest:
                message = f"a prompt has {count} tokens, more than model.max_seq_len={longest}"
                raise ValueError(f"eval.sample_prompts: {message}; shorten it")

    @classmethod
    def wanted(cls, session: Session) -> bool:
        section = session.config.eval
        return section.enabled and section.sample_tokens > 0

    def on_start(self, loop: Loop) -> None:
        if loop.state.step == 0 and loop.config.eval.at_start:
            self.sample(loop)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if self._is_due(loop):
            self.sample(loop)

    def on_end(self, loop: Loop) -> None:
        if not loop.interrupted and not self._is_due(loop):
            self.sample(loop)

    def _is_due(self, loop: Loop) -> bool:
        return self.interval > 0 and loop.state.step % self.interval == 0

    def sample(self, loop: Loop) -> None:
        step = loop.state.step
        with loop.evaluating():
            try:
                written = list(self.writer.write(self.prompts))
            except FloatingPointError as error:
                say(f"no sample at step {step}: {error}")
                return
        for prompt, continuation in zip(self.prompts, written, strict=True):
            text = prompt
            if not isinstance(prompt, str):
                text = prompt_text(prompt, self.writer.tokenizer).replace(BROKEN, "")
            if self.path is not None:
                append_row(self.path, {"step": step, "prompt": text, "text": continuation.text})
            if self.show:
                say(f"--- sample at step {step} ---\n{text}{continuation.text}\n---")


def _prompts(session: Session) -> Sequence[Prompt]:
    """The prompts as texts; for conversations, as messages of a user."""
    prompts = session.config.eval.sample_prompts
    if not isinstance(session.config.data, Chats):
        return prompts
    return [[{"role": "user", "content": text}] for text in prompts]
