"""On-policy distillation: responses of some rows of a step are written again by the student.

Which rows, and what is drawn for each, is a function of the seed, the number of the sample and the
weights: a run that continues draws the same again, on any layout.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from forge.config.objectives.distill import Distill
from forge.config.rollouts.rollout import LocalRollout
from forge.config.root import Config
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch, Step, TrainLoader
from forge.data.batches.noise import noise_of
from forge.data.sources.prompts import PromptRow
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.parallel.ranks import Ranks
from forge.rollouts.completion import STOP
from forge.rollouts.writing import Sampler

WRITING = "writing"
FILLS = {"tokens": 0, "targets": IGNORE_INDEX, "documents": 0}
"""Values behind the text of a row."""


class Row(NamedTuple):
    """A row with one response to learn, as read or as drawn: its prompt, the drawn response, and
    the numbers of targets and of tokens that the model reads.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    n_targets: int
    n_tokens: int


class OnPolicy:
    """Rewrites a step of a loader: objective.lmbda of its rows, each after its prompt."""

    def __init__(
        self,
        config: Config,
        loader: TrainLoader,
        model: nn.Module,
        tokenizer: Tokenizer,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        assert isinstance(config.objective, Distill)
        self.config, self.section, self.loader = config, config.objective, loader
        self.ranks = ranks
        rollout = LocalRollout(
            num_generations=1,
            max_new_tokens=self.section.max_new_tokens,
            temperature=self.section.sampling_temperature,
            batch_size=config.train.batch_size,
        )
        self.sampler = Sampler(model, tokenizer, rollout, config.seed, device, ranks)
        loader.parts = {WRITING: 0.0}

    def __call__(self, step: Step, first: int) -> Step:
        """The step with drawn responses. first: number of its first sample. A collective."""
        begin = time.perf_counter()
        index, shares = self.ranks.batch
        begun: dict[int, Row] = {}
        for micro, batch in enumerate(step.batches):
            begun |= self._begun(batch, self._numbers(batch, first, micro, index))
        widths = [batch["tokens"].shape[1] for batch in step.batches]
        by_share = dict(self.ranks.of_all((index, (begun, widths))))
        begun = {number: row for rows, _ in by_share.values() for number, row in rows.items()}
        drawn = self._drawn(begun, first)
        batches, places = [], 0
        for micro, batch in enumerate(step.batches):
            for share in range(shares):
                numbers = self._numbers(batch, first, micro, share)
                lengths = [drawn[number].n_tokens for number in numbers if number in drawn]
                width = max(by_share[share][1][micro], self._rounded(max(lengths, default=0)))
                places += len(numbers) * width
                if share == index:
                    batches.append(self._rewritten(batch, numbers, drawn, width))
        self._count(time.perf_counter() - begin)
        return replace(
            step,
            batches=batches,
            n_tokens=step.n_tokens + sum(drawn[n].n_tokens - begun[n].n_tokens for n in drawn),
            n_targets=step.n_targets + sum(drawn[n].n_targets - begun[n].n_targets for n in drawn),
            n_places=places,
            means=step.means | self.means,
        )

    def _count(self, seconds: float) -> None:
        loader = self.loader
        loader.waited += seconds
        loader.parts = {WRITING: loader.parts[WRITING] + seconds}

    def _numbers(self, batch: Batch, first: int, micro: int, share: int) -> range:
        """Numbers of a share's samples in a micro-batch, among those of the run."""
        count = len(batch["tokens"])
        start = first + (micro * self.ranks.batch[1] + share) * count
        return range(start, start + count)

    def _begun(self, batch: Batch, numbers: Sequence[int]) -> dict[int, Row]:
        """The rows of a micro-batch to write again, by number: those with a prompt."""
        rows: dict[int, Row] = {}
        for number, tokens, targets in zip(
            numbers, batch["tokens"].numpy(), batch["targets"].numpy(), strict=True
        ):
            learnt = (targets != IGNORE_INDEX).nonzero()[0]
            if not len(learnt) or not self._is_drawn(number):
                continue
            gaps = (np.diff(learnt) > 1).nonzero()[0]  # the last response of several
            start = int(learnt[gaps[-1] + 1 if len(gaps) else 0])
            if start + 1 < self.config.train.seq_len:
                prompt = tuple(tokens[: start + 1].tolist())
                rows[number] = Row(prompt, (), len(learnt), int(learnt[-1]) + 1)
        return rows

    def _is_drawn(self, number: int) -> bool:
        word = f"{self.config.seed} on-policy {number}".encode()
        drawn = int.from_bytes(blake2b(word, digest_size=8).digest(), "little")
        return drawn < self.section.lmbda * 2**64

    def _drawn(self, begun: dict[int, Row], first: int) -> dict[int, Row]:
        """The rows with responses of the student, as long as a row has room, by number."""
        self.means = {"on_policy/rows": float(len(begun))}
        if not begun:
            return {}
        numbers = sorted(begun)
        prompts = [PromptRow(prompt=[], ids=begun[n].prompt, columns={}) for n in numbers]
        completions = self.sampler.write(prompts, first)
        self.means["on_policy/mean_length"] = float(np.mean([len(c.ids) for c in completions]))
        cut = [completion.finish != STOP for completion in completions]
        self.means["on_policy/clipped_ratio"] = float(np.mean(cut))
        rows = {}
        for number, completion in zip(numbers, completions, strict=True):
            prompt = begun[number].prompt
            response = tuple(completion.ids[: self.config.train.seq_len + 1 - len(prompt)])
            rows[number] = Row(prompt, response, len(response), len(prompt) + len(response) - 1)
        return rows

    def _rounded(self, length: int) -> int:
        multiple, most = self.config.data.pad_to_multiple_of, self.config.train.seq_len
        return min(-(-length // multiple) * multiple, most) if multiple else most

    def _rewritten(
        self, batch: Batch, numbers: Sequence[int], drawn: dict[int, Row], width: int
    ) -> Batch:
        """A micro-batch, `width` places wide, with drawn responses as their rows' only targets."""
        more = width - batch["tokens"].shape[1]
        padded = [name for name in FILLS if name in batch]
        wider = {
            name: nn.functional.pad(batch[name], (0, more), value=FILLS[name]) for name in padded
        }
        for index, number in enumerate(numbers):
            if number not in drawn:
                continue
            row = drawn[number]
            text, start, end = [*row.prompt, *row.response], len(row.prompt) - 1, row.n_tokens
            for name in padded:
                wider[name][index] = FILLS[name]
            wider["tokens"][index, :end] = torch.tensor(text[:-1])
            wider["targets"][index, start:end] = torch.tensor(row.response)
        if "noise" in batch and more:
            wider["noise"] = noise_of(self.config.seed, numbers, width)
        return batch | wider
