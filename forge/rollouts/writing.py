"""Completions of prompts by the trained model, spread over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from forge.config.rollouts.rollout import LocalRollout
from forge.data.sources.prompts import PromptRow
from forge.data.tokenizers.render import stated_ends, turn_end_ids
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.models.reading_mode import evaluating
from forge.models.sampling import How
from forge.models.token_distribution import Sampling
from forge.parallel.fsdp import gathered
from forge.parallel.ranks import Ranks
from forge.rollouts.completion import LENGTH, STOP, Completion
from forge.rollouts.slots import write_rows


class Sampler:
    """Writes the groups of completions of a rollout; each rank its contiguous share.

    A completion is drawn from the stream of (seed, rollout, prompt, completion), so that it depends
    on no other completion, nor on the ranks, but for how sums of another shape are rounded.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        section: LocalRollout,
        seed: int,
        device: torch.device,
        ranks: Ranks,
    ) -> None:
        self.model, self.tokenizer, self.section = model, tokenizer, section
        self.seed, self.device, self.ranks = seed, device, ranks
        # A stop string has no more tokens than bytes; the first tokens of a text may lose a space.
        self.tail = max((len(stop.encode()) for stop in section.stop), default=0) + 4

    def write(self, prompts: Sequence[PromptRow], rollout: int) -> list[Completion]:
        """All completions of a rollout, those of a prompt in a row; the same on all ranks. A
        collective. FloatingPointError: the logits are not finite.
        """
        group = self.section.num_generations
        pairs = [(place, number) for place in range(len(prompts)) for number in range(group)]
        index, shares = self._share()
        mine = pairs[index * len(pairs) // shares : (index + 1) * len(pairs) // shares]
        try:
            part: Any = self._draw(prompts, mine, rollout)
        except FloatingPointError as error:
            part = error
        by_share = dict(self.ranks.of_all((index, part)))
        for part in by_share.values():
            if isinstance(part, FloatingPointError):
                raise part
        return [completion for share in range(shares) for completion in by_share[share]]

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

    def _draw(
        self, prompts: Sequence[PromptRow], pairs: Sequence[tuple[int, int]], rollout: int
    ) -> list[Completion]:
        tokenizer, section = self.tokenizer, self.section
        ends = frozenset(
            {tokenizer.end_id}
            if isinstance(prompts[0].prompt, str)
            else {tokenizer.end_id, *turn_end_ids(tokenizer), *stated_ends(tokenizer)}
        )
        how = How(
            sampling=Sampling(temperature=section.temperature, seed=self.seed),
            ends=ends,
            n_ids=tokenizer.vocab_size,
            ended=self._ended if section.stop else None,
            agree=self._agree,
            logprobs=True,
            logprobs_at=section.temperature,
        )
        texts = [prompts[place].ids for place, _ in pairs]
        numbers = [f"{rollout} {place} {number}" for place, number in pairs]
        with evaluating(self.model), gathered(self.model):
            drawn = write_rows(
                self.model,
                texts,
                numbers,
                section.max_new_tokens,
                how,
                self.device,
                size=section.batch_size,
            )
        return [
            self._completion(prompts[place], place, number, ids, logprobs, ends)
            for (place, number), ids, logprobs in zip(
                pairs, drawn.tokens, drawn.logprobs, strict=True
            )
        ]

    def _ended(self, row: int, drawn: list[int]) -> bool:
        """Whether a stop string is in the text; looked for in the last tokens first."""
        texts = (self.tokenizer.decode(ids) for ids in (drawn[-self.tail :], drawn))
        return all(any(stop in text for stop in self.section.stop) for text in texts)

    def _completion(
        self,
        prompt: PromptRow,
        place: int,
        number: int,
        ids: list[int],
        logprobs: list[float],
        ends: frozenset[int | None],
    ) -> Completion:
        text = self.tokenizer.decode([token for token in ids if token not in ends])
        begins = [text.find(stop) for stop in self.section.stop if stop in text]
        return Completion(
            prompt=place,
            number=number,
            prompt_text=prompt.prompt,
            text=text[: min(begins)] if begins else text,
            finish=STOP if begins or ids[-1] in ends else LENGTH,
            prompt_ids=list(prompt.ids),
            ids=ids,
            logprobs=logprobs,
        )
