"""The steps of reinforcement learning: prompts, completions, rewards, advantages, updates.

Rollout n is a function of the seed and of the weights at its beginning, and lies in the run
directory before the first of its updates: a run that continues in the middle of one reads it there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from forge.config.environments.entry import NAME as ENVIRONMENT
from forge.config.objectives.grpo import GRPO as Section
from forge.config.rollouts.rollout import SampledRollout
from forge.config.root import Config
from forge.data.batches.loader import Batch, Step
from forge.data.batches.order import SampleOrder
from forge.data.batches.source import StepSource
from forge.data.sources.prompts import PromptRow
from forge.models.reading_mode import evaluating
from forge.objectives.grpo import GRPO
from forge.parallel.ranks import Ranks
from forge.rewards.scorer import Scorer
from forge.rollouts.advantages import advantages_of, degenerate
from forge.rollouts.batches import collate, learnt_tokens, weights_of, width_of
from forge.rollouts.completion import (
    LENGTH,
    STOP,
    Completion,
    forget,
    read_rollout,
    write_rollout,
)
from forge.rollouts.gae import advance_by_values
from forge.rollouts.report import report_of, report_of_dropped, report_of_held_out
from forge.rollouts.writing import Sampler
from forge.rundir.rollouts import rollout_path

PARTS = ("writing", "rewards", "log_probs")


class Rollouts(StepSource):
    """An endless iterator of steps for one rank: `objective.updates` of each rollout.

    A rollout has num_mini_batches * global_batch_size completions; update u learns from those of
    mini-batch u % num_mini_batches. Each micro-batch takes the next ranks * batch_size of these,
    and each rank its contiguous part.
    """

    def __init__(
        self,
        config: Config,
        rows: Sequence[PromptRow],
        *,
        run_dir: Path | None,
        version: int,
        model: nn.Module,
        objective: GRPO,
        scorer: Scorer | None,
        sampler: Sampler,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        """run_dir: None = rollouts are not stored. version: of the config; a rollout of another one
        is made again. scorer: None on ranks other than the main one.
        """
        assert isinstance(config.rollout, SampledRollout)
        assert isinstance(config.objective, Section)
        self.config, self.section, self.rollout = config, config.objective, config.rollout
        self.run_dir, self.version, self.scorer = run_dir, version, scorer
        self.model, self.objective, self.ranks, self.device = model, objective, ranks, device
        self.size = config.train.global_batch_size or 1
        self.group = self.rollout.num_generations
        self.n_prompts = self.size * self.section.num_mini_batches // self.group
        self.rows = rows
        self.order = order_of(config, len(rows))
        self.sampler = sampler
        parameter = next(model.parameters())
        self.dtype = torch.promote_types(parameter.dtype, torch.float32)
        entries = {**config.rewards, ENVIRONMENT: config.environment}
        self.weights = {name: float(e.get("weight", 1.0)) for name, e in entries.items()}
        self.samples, self.waited, self.parts = 0, 0.0, dict.fromkeys(PARTS, 0.0)
        self.current: tuple[int, dict[str, Any], list[Completion]] | None = None

    @property
    def epoch(self) -> float | None:
        prompts = self.samples / self.size / self.section.updates * self.n_prompts
        return prompts / len(self.rows)

    def range_of_last(self, steps: int) -> tuple[int, int]:
        return max(self.samples - steps * self.size, 0), self.samples - 1

    def close(self) -> None:
        if self.scorer is not None:
            self.scorer.close()

    def __next__(self) -> Step:
        rollout, update = divmod(self.samples // self.size, self.section.updates)
        begin = time.perf_counter()
        if self.current is None or self.current[0] != rollout:
            self.current = rollout, *self._rollout(rollout, update)
        _, head, completions = self.current
        means = report_of(completions, self.group)
        if self.section.refill:
            means |= report_of_dropped(head.get("dropped", ()))
        first = update % self.section.num_mini_batches * self.size
        step = self._step(completions[first : first + self.size], means)
        self.samples += self.size
        self.waited += time.perf_counter() - begin
        return step

    def evaluate(
        self, prompts: Sequence[PromptRow], name: str, watch: Callable[[], None]
    ) -> dict[str, float]:
        """The report of a group of completions of each prompt, which nothing is learnt from. A
        collective.

        name: of the streams to draw from. watch: called between the parts.
        """
        completions: list[Completion] = []
        for first in range(0, len(prompts), self.n_prompts):
            watch()
            part = prompts[first : first + self.n_prompts]
            rows = self.sampler.write(part, name, first=first)
            self._judge(rows, [prompts[row.prompt] for row in rows])
            completions += rows
        return report_of_held_out(completions, self.group)

    def preview(self, groups: int) -> list[Completion]:
        """The first groups of the first rollout, with their rewards. A collective."""
        places = range(min(groups, self.n_prompts))
        prompts = [self.rows[self.order.window(place)] for place in places]
        return self._judged(prompts, 0, 0, dict.fromkeys(PARTS, 0.0))

    def written(self) -> list[Completion]:
        """The completions of the rollout at hand."""
        return self.current[2] if self.current is not None else []

    def _rollout(self, number: int, update: int) -> tuple[dict[str, Any], list[Completion]]:
        """Read a rollout of an earlier start, or make it. A collective."""
        path, saved = rollout_path(self.run_dir or Path(), number), None
        if self.ranks.main and self.run_dir is not None:
            saved = read_rollout(path)
            if saved is not None and not update and saved[0].get("version") != self.version:
                saved = None
        saved = self.ranks.from_main(saved)
        if saved is not None:
            return saved
        if update:
            message = f"{path} has no complete rollout, and the run continues in the middle of it"
            hint = "resume from a step that is a multiple of"
            raise ValueError(f"{message}; {hint} {self.section.updates}: checkpoint.resume_from")
        return self._make(number)

    def _make(self, number: int) -> tuple[dict[str, Any], list[Completion]]:
        """Write, judge and store the completions of a rollout. A collective."""
        places = range(number * self.n_prompts, (number + 1) * self.n_prompts)
        prompts = [self.rows[self.order.window(place)] for place in places]
        seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        begin = time.perf_counter()
        self.sampler.prepare(number)
        seconds["writing"] = time.perf_counter() - begin
        completions = self._judged(prompts, number, 0, seconds)
        dropped = self._refill(completions, number, seconds)
        begin = time.perf_counter()
        self._read_log_probs(completions)
        self._advance(completions, [completion.reward for completion in completions])
        seconds["log_probs"] = time.perf_counter() - begin
        self.parts = {name: self.parts[name] + seconds[name] for name in seconds}
        head: dict[str, Any] = {"rollout": number, "version": self.version, "seconds": seconds}
        if self.section.refill:
            head["dropped"] = dropped
        if self.ranks.main and self.run_dir is not None:
            write_rollout(rollout_path(self.run_dir, number), head, completions)
            forget(self.run_dir, number, self.rollout.keep_last)
        return head, completions

    def _judged(
        self, prompts: Sequence[PromptRow], number: int, first: int, seconds: dict[str, float]
    ) -> list[Completion]:
        """Completions of prompts with their rewards. first: the place of the first prompt."""
        begin = time.perf_counter()
        completions = self.sampler.write(prompts, number, first=first)
        written = time.perf_counter()
        self._judge(completions, [prompts[row.prompt - first] for row in completions])
        seconds["writing"] += written - begin
        seconds["rewards"] += time.perf_counter() - written
        return completions

    def _refill(
        self, completions: list[Completion], number: int, seconds: dict[str, float]
    ) -> list[float | None]:
        """Put groups of further prompts in the place of groups of equal rewards, and return the
        reward of each group that was dropped. A collective.

        Each round has an order of its own: which prompts are read depends on the rewards, but what
        is drawn for each does not.
        """
        dropped: list[float | None] = []
        for turn in range(1, self.section.refill + 1):
            equal = degenerate([row.reward for row in completions], self.group).nonzero()[0]
            if not len(equal):
                break
            order = order_of(self.config, len(self.rows), role=f" refill {turn}")
            places = range(number * self.n_prompts, number * self.n_prompts + len(equal))
            prompts = [self.rows[order.window(place)] for place in places]
            rows = self._judged(prompts, number, turn * self.n_prompts, seconds)
            for index, place in enumerate((equal * self.group).tolist()):
                dropped.append(completions[place].reward)
                group = slice(index * self.group, (index + 1) * self.group)
                completions[place : place + self.group] = rows[group]
        return dropped

    def _judge(self, completions: list[Completion], prompts: Sequence[PromptRow]) -> None:
        """Give completions their rewards, by the main rank for all. prompts: of each completion. A
        collective.
        """
        scores: Any = None
        if self.ranks.main:
            assert self.scorer is not None
            columns: dict[str, list[Any]] = {}
            own = [prompt.columns for prompt in prompts]
            for name in dict.fromkeys(name for row in own for name in row):
                columns[name] = [row.get(name) for row in own]
            columns.pop(getattr(self.config.data, "prompt_field", "prompt"), None)
            texts = [
                row.text
                if isinstance(row.prompt_text, str)
                else [{"role": "assistant", "content": row.text}]
                for row in completions
            ]
            try:
                scores = self.scorer.score(
                    [row.prompt_text for row in completions],
                    texts,
                    [row.ids for row in completions],
                    columns,
                )
            except Exception as error:
                scores = error
        scores = self.ranks.from_main(scores)
        if isinstance(scores, Exception):
            raise scores
        for index, completion in enumerate(completions):
            completion.reward = scores.total[index]
            by_name = {name: values[index] for name, values in scores.by_name.items()}
            completion.rewards = by_name | completion.rewards
        self._add_environment(completions)

    def _add_environment(self, completions: list[Completion]) -> None:
        """Add the rewards of the environment to the sums, where it gave any."""
        given = any(ENVIRONMENT in completion.rewards for completion in completions)
        for completion in completions if given else ():
            value = completion.rewards.setdefault(ENVIRONMENT, None)
            if value is not None:
                weighted = self.weights[ENVIRONMENT] * value
                completion.reward = (completion.reward or 0.0) + weighted

    def _advance(self, completions: list[Completion], totals: list[float | None]) -> None:
        """Give completions their advantages, and mark those that count."""
        section = self.section
        for index, row in enumerate(completions if section.missing_eos_penalty else ()):
            if row.finish == LENGTH and (total := totals[index]) is not None:
                totals[index] = total - section.missing_eos_penalty
        if section.has_critic:
            for row in completions:
                row.learnt = not section.mask_truncated or row.finish == STOP
            advance_by_values(section, completions, totals)
            return
        if section.beta and section.kl_in == "reward":
            for index, (row, total) in enumerate(zip(completions, totals, strict=True)):
                if total is not None:
                    pairs = zip(row.old, row.reference, strict=True)
                    totals[index] = total - section.beta * math.fsum(a - b for a, b in pairs)
        names = completions[0].rewards
        values = advantages_of(
            section.advantage,
            totals,
            {name: [row.rewards[name] for row in completions] for name in names},
            {name: self.weights[name] for name in names},
            self.group,
        )
        dropped = degenerate(totals, self.group).repeat(self.group)
        for row, advantage, is_equal in zip(completions, values.tolist(), dropped, strict=True):
            row.advantage = advantage
            row.learnt = not (
                (section.drop_degenerate and is_equal)
                or (section.mask_truncated and row.finish != STOP)
            )

    def _read_log_probs(self, completions: list[Completion]) -> None:
        """Compute what trained weights and the reference say of completions, where needed."""
        section = self.section
        by_reference, model = section.beta > 0, cast(Any, self.model)
        in_reward = by_reference and section.kl_in == "reward"

        def read(batch: Batch) -> dict[str, Tensor]:
            reading, values = self.objective.read(model, batch), {}
            if section.updates > 1 or in_reward:
                values["old"] = reading.logp
            if reading.values is not None:
                values["values"] = reading.values
            return values

        if section.updates > 1 or in_reward or section.has_critic:
            self._compute(completions, read)
        if by_reference:
            of_reference = self.objective.read_reference
            self._compute(completions, lambda batch: {"reference": of_reference(model, batch)})

    @torch.no_grad()
    def _compute(self, completions: list[Completion], read: Any) -> None:
        """Fill in numbers of tokens by name, each rank those of its rows of every micro-batch."""
        index, shares = self.ranks.batch
        per_rank, results = self.config.train.batch_size, dict[tuple[int, str], list[float]]()
        along = self.objective.along_sequence
        with evaluating(self.model):
            for first in range(0, len(completions), per_rank * shares):
                start = first + index * per_rank
                rows = completions[start : start + per_rank]
                batch = self._batch(rows, [0.0] * len(rows))
                by_name = read(self.ranks.own_batch(batch, along, self.device))
                for name, values in by_name.items():
                    for place, (row, line) in enumerate(zip(rows, values.tolist(), strict=True)):
                        begin = len(row.prompt_ids) - 1
                        results[start + place, name] = line[begin : begin + len(row.ids)]
        for part in self.ranks.of_all(results):
            for (place, name), line in part.items():
                setattr(completions[place], name, line)

    def _batch(
        self, rows: Sequence[Completion], weights: Sequence[float], noise: Any = None
    ) -> Batch:
        multiple, most = self.config.data.pad_to_multiple_of, self.config.train.seq_len
        width = width_of(rows, multiple, most)
        return collate(rows, weights, width, dtype=self.dtype, noise=noise)

    def _step(self, rows: list[Completion], means: dict[str, float]) -> Step:
        """This rank's share of an update from the completions of all ranks."""
        index, shares = self.ranks.batch
        per_rank = self.config.train.batch_size
        weights = weights_of(self.section, rows, self.rollout.max_new_tokens)
        batches, places = [], 0
        for first in range(0, self.size, per_rank * shares):
            for share in range(shares):
                part = slice(first + share * per_rank, first + (share + 1) * per_rank)
                width = width_of(
                    rows[part], self.config.data.pad_to_multiple_of, self.config.train.seq_len
                )
                places += width * len(rows[part])
                if share == index:
                    numbers = range(self.samples + part.start, self.samples + part.stop)
                    noise = (self.config.seed, numbers) if self.config.draws else None
                    batches.append(self._batch(rows[part], weights[part], noise))
        return Step(
            batches=batches,
            n_tokens=sum(len(row.prompt_ids) + len(row.ids) - 1 for row in rows),
            n_targets=learnt_tokens(rows),
            n_places=places,
            means=means,
        )


def order_of(config: Config, rows: int, *, role: str = "") -> SampleOrder:
    """The order of the prompts: each once in every pass. role: of another order."""
    data = config.data
    seed = data.shuffle_seed if data.shuffle_seed is not None else config.seed
    return SampleOrder(rows, seed=(f"{seed}{role}" if role else seed) if data.shuffle else None)


def short_enough(config: Config, rows: Sequence[PromptRow]) -> tuple[list[PromptRow], int]:
    """The rows with room for a completion, and the number of those left out.

    Raises ValueError: a prompt is too long and data.too_long=refuse, or all are.
    """
    assert isinstance(config.rollout, SampledRollout)
    room = config.train.seq_len - config.rollout.max_new_tokens
    short = [row for row in rows if len(row.ids) <= room]
    left_out = len(rows) - len(short)
    why = f"train.seq_len={config.train.seq_len}, less {config.rollout.max_new_tokens} new ones"
    if left_out and config.data.too_long == "truncate":
        cut = [PromptRow(prompt=r.prompt, ids=r.ids[-room:], columns=r.columns) for r in rows]
        return cut, 0
    if left_out and (config.data.too_long == "refuse" or not short):
        raise ValueError(
            f"data: {left_out:,} of {len(rows):,} prompts have more than {room} tokens "
            f"({why}). Set train.seq_len higher, or data.too_long=truncate."
        )
    return short, left_out
