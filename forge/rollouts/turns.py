"""Completions of several turns: the model and an environment write by turns."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forge.config.environments.entry import NAME
from forge.data.sources.prompts import PromptRow
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.environments.environments import Environments, Reply
from forge.parallel.ranks import Ranks
from forge.rollouts.completion import LENGTH, STOP, TURNS, Completion

log = logging.getLogger(__name__)


class Drawn(NamedTuple):
    """Tokens of a turn, their log-probabilities, and with cuts the ids that each was drawn from."""

    ids: list[int]
    logprobs: list[float]
    support: list[list[int]]


@dataclass(kw_only=True)
class Dialogue:
    """A completion as it grows. key: of its random numbers. room: tokens left."""

    prompt: int
    number: int
    row: PromptRow
    key: str
    room: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    support: list[list[int]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    turns: int = 0
    finish: str = ""

    def add(self, ids: Sequence[int], logprobs: Sequence[float], *, learnt: bool) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.mask += [int(learnt)] * len(ids)
        if self.support:
            self.support += [[]] * (len(self.ids) - len(self.support))
        self.room -= len(ids)

    def completion(self, text: str) -> Completion:
        return Completion(
            prompt=self.prompt,
            number=self.number,
            prompt_text=self.row.prompt,
            text=text,
            finish=self.finish,
            rewards={NAME: math.fsum(self.rewards)} if self.rewards else {},
            prompt_ids=list(self.row.ids),
            ids=self.ids,
            logprobs=self.logprobs,
            mask=self.mask,
            support=self.support,
            turns=self.turns,
        )


class Turns:
    """Lets an environment answer after each turn, up to environment.max_turns.

    The main rank calls the environments, and all ranks get their replies: a layout changes nothing,
    even with an environment of random numbers. A turn is drawn from the stream of its completion
    and its number. stops: texts that end a turn.
    """

    def __init__(
        self,
        environments: Environments,
        tokenizer: Tokenizer,
        ranks: Ranks,
        stops: tuple[str, ...],
    ) -> None:
        self.environments, self.tokenizer, self.ranks = environments, tokenizer, ranks
        self.stops = stops

    def write(
        self,
        dialogues: Sequence[Dialogue],
        draw: Callable[[Sequence[Dialogue]], list[Drawn]],
        ends: frozenset[int],
    ) -> None:
        """Write all completions. draw: the next turn of each, up to its end, a stop string, or its
        room. A collective.
        """
        inputs = [{**row.row.columns, "prompt": row.row.prompt} for row in dialogues]
        keys = [dialogue.key for dialogue in dialogues]
        made = self._on_main(lambda: self.environments.begin(inputs, keys), local=True)
        going = list(range(len(dialogues)))
        while going:
            rows = [dialogues[index] for index in going]
            waiting = self._add(dict(zip(going, rows, strict=True)), draw(rows), ends)
            replies = self._on_main(
                lambda made=made, waiting=waiting: self.environments.step(
                    [made[index] for index in waiting], list(waiting.values())
                )
            )
            for index, reply in zip(waiting, replies, strict=True):
                self._take(dialogues[index], reply)
            going = [index for index in going if not dialogues[index].finish]
        cut = sum(dialogue.finish == TURNS for dialogue in dialogues)
        if cut and self.ranks.main:
            most = self.environments.options.max_turns
            log.warning(
                "%d of %d completions ended after environment.max_turns=%d",
                cut,
                len(dialogues),
                most,
            )

    def _add(
        self, rows: dict[int, Dialogue], drawn: Sequence[Drawn], ends: frozenset[int]
    ) -> dict[int, str]:
        """Put turns after their rows; the text of each turn that was not cut off, by index."""
        waiting: dict[int, str] = {}
        for (index, row), (ids, logprobs, support) in zip(rows.items(), drawn, strict=True):
            row.support += support
            row.add(ids, logprobs, learnt=True)
            row.turns += 1
            text = self.tokenizer.decode([token for token in ids if token not in ends])
            if ids[-1] in ends or any(stop in text for stop in self.stops):
                waiting[index] = text
            else:
                row.finish = LENGTH
        return waiting

    def _take(self, dialogue: Dialogue, reply: Reply) -> None:
        """Put a reply after a turn, or end the completion."""
        options = self.environments.options
        if reply.reward is not None:
            dialogue.rewards.append(reply.reward)
        if reply.done:
            dialogue.finish = STOP
            return
        if dialogue.turns == options.max_turns:
            dialogue.finish = TURNS
            return
        ids = self.tokenizer.encode_marked([reply.text])[0][0][: options.max_reply]
        if len(ids) >= dialogue.room:
            dialogue.finish = LENGTH
            return
        dialogue.add(ids, [0.0] * len(ids), learnt=False)

    def _on_main(self, call: Callable[[], Any], *, local: bool = False) -> Any:
        """The result of a call on the main rank; local: only there, other ranks get None."""
        value: Any = None
        if self.ranks.main:
            try:
                value = call()
            except ValueError as error:
                value = error
        failed = isinstance(value, ValueError)
        shared = self.ranks.from_main(value if failed or not local else None)
        if isinstance(shared, ValueError):
            raise shared
        return value if local else shared
