"""Completions of prompts by the trained model, spread over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from forge.config.rollouts.rollout import LocalRollout, SampledRollout
from forge.data.sources.prompts import PromptRow
from forge.data.tokenizers.render import stated_ends, turn_end_ids
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.environments.environments import Environments
from forge.models.reading_mode import evaluating
from forge.models.sampling import DrawOptions
from forge.models.token_distribution import Sampling
from forge.parallel.fsdp import gathered
from forge.parallel.ranks import Ranks
from forge.rollouts.completion import LENGTH, STOP, Completion
from forge.rollouts.slots import write_rows
from forge.rollouts.turns import Dialogue, Drawn, Turns


class Sampler:
    """Writes the groups of completions of a rollout; each rank its contiguous share.

    A completion is drawn from the stream of (seed, rollout, prompt, completion), so that it depends
    on no other completion, nor on the ranks, but for how sums of another shape are rounded.
    """

    section: Any

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        section: LocalRollout,
        seed: int,
        device: torch.device,
        ranks: Ranks,
        environments: Environments | None = None,
    ) -> None:
        """environments: answer between turns; None = a completion is one turn."""
        self._set_up(tokenizer, section, seed, ranks, environments)
        self.model, self.device = model, device

    def _set_up(
        self,
        tokenizer: Tokenizer,
        section: SampledRollout,
        seed: int,
        ranks: Ranks,
        environments: Environments | None,
    ) -> None:
        self.tokenizer, self.section, self.seed, self.ranks = tokenizer, section, seed, ranks
        self.environments = environments
        self.stops = (*section.stop, *(environments.stop if environments else ()))
        # A stop string has no more tokens than bytes; the first tokens of a text may lose a space.
        self.tail = max((len(stop.encode()) for stop in self.stops), default=0) + 4

    def prepare(self, rollout: int) -> None:
        """Act before a rollout is written. A collective."""

    def write(
        self, prompts: Sequence[PromptRow], rollout: int | str, *, first: int = 0
    ) -> list[Completion]:
        """All completions of prompts, those of a prompt in a row; the same on all ranks. rollout:
        its number or name. first: the place of the first prompt in it. A collective.
        FloatingPointError: the logits are not finite.
        """
        rows = [
            Dialogue(
                prompt=place,
                number=number,
                row=prompt,
                key=f"{rollout} {place} {number}",
                room=self.section.max_new_tokens,
            )
            for place, prompt in enumerate(prompts, first)
            for number in range(self.section.num_generations)
        ]
        ends = self._ends(prompts[0])
        if self.environments is not None:
            turns = Turns(self.environments, self.tokenizer, self.ranks, self.stops)
            turns.write(rows, lambda some: self._draw(some, ends), ends)
            return [row.completion(self._text(row.ids, ends)) for row in rows]
        for row, drawn in zip(rows, self._draw(rows, ends), strict=True):
            row.ids, row.logprobs, row.support = drawn
            row.turns = 1
        return [self._completion(row, ends) for row in rows]

    def _share(self) -> tuple[int, int]:
        """(i, n): this rank writes the i-th of n parts."""
        mesh = self.ranks.mesh
        # Experts on other ranks answer in every pass: all ranks write the same, in the same passes.
        return (0, 1) if mesh is not None and mesh.parallel.ep > 1 else self.ranks.batch

    def _agree(self, drawn: Tensor) -> Tensor:
        mesh = self.ranks.mesh
        if mesh is not None and mesh.parallel.ep > 1:
            return self.ranks.copy_from_main(drawn)
        return self.ranks.copy_over_tp(drawn)

    def _ends(self, prompt: PromptRow) -> frozenset[int]:
        """The tokens that end a text, or a turn of a conversation."""
        tokenizer = self.tokenizer
        if isinstance(prompt.prompt, str):
            return frozenset({tokenizer.end_id})
        return frozenset({tokenizer.end_id, *turn_end_ids(tokenizer), *stated_ends(tokenizer)})

    def _draw(self, rows: Sequence[Dialogue], ends: frozenset[int]) -> list[Drawn]:
        """Tokens of the next turn of each row, with their log-probabilities. A collective."""
        index, shares = self._share()
        mine = rows[index * len(rows) // shares : (index + 1) * len(rows) // shares]
        try:
            part: Any = self._continued(mine, ends)
        except FloatingPointError as error:
            part = error
        by_share = dict(self.ranks.of_all((index, part)))
        for part in by_share.values():
            if isinstance(part, FloatingPointError):
                raise part
        return [drawn for share in range(shares) for drawn in by_share[share]]

    def _continued(self, rows: Sequence[Dialogue], ends: frozenset[int]) -> list[Drawn]:
        tokenizer, section = self.tokenizer, self.section
        longest = max((row.room for row in rows), default=0)
        how = DrawOptions(
            sampling=Sampling(
                temperature=section.temperature,
                top_k=section.top_k,
                top_p=section.top_p,
                seed=self.seed,
            ),
            ends=ends,
            n_ids=tokenizer.vocab_size,
            ended=partial(self._ended, [row.room for row in rows])
            if self.stops or any(row.room < longest for row in rows)
            else None,
            agree=self._agree,
            logprobs=True,
            as_drawn=True,
        )
        with evaluating(self.model), gathered(self.model):
            drawn = write_rows(
                self.model,
                [(*row.row.ids, *row.ids) for row in rows],
                [f"{row.key} {row.turns}" if row.turns else row.key for row in rows],
                longest,
                how,
                self.device,
                size=section.batch_size,
            )
        support = drawn.support or [[] for _ in rows]
        return list(map(Drawn, drawn.tokens, drawn.logprobs, support))

    def _ended(self, rooms: Sequence[int], row: int, drawn: list[int]) -> bool:
        """Whether the row is full, or has a stop string: looked for in the last tokens first."""
        if len(drawn) >= rooms[row]:
            return True
        texts = (self.tokenizer.decode(ids) for ids in (drawn[-self.tail :], drawn))
        return all(any(stop in text for stop in self.stops) for text in texts)

    def _text(self, ids: list[int], ends: frozenset[int]) -> str:
        return self.tokenizer.decode([token for token in ids if token not in ends])

    def _completion(self, row: Dialogue, ends: frozenset[int]) -> Completion:
        text = self._text(row.ids, ends)
        begins = [text.find(stop) for stop in self.stops if stop in text]
        row.finish = STOP if begins or row.ids[-1] in ends else LENGTH
        return row.completion(text[: min(begins)] if begins else text)
