"""Completions of a rollout by a server beside the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any

from forge.config.rollouts.openai import OpenAIRollout
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.environments.environments import Environments
from forge.parallel.ranks import Ranks
from forge.rollouts.client import Client, ServerFailed
from forge.rollouts.turns import Dialogue, Drawn
from forge.rollouts.writing import Sampler

NO_CUTS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Stated, since a server may have other defaults from the folder of its model."""
HandOver = Callable[[int, Callable[[str], None]], None]
"""Writes the weights of a rollout as a folder, and calls a function with it; a collective."""


class ServedSampler(Sampler):
    """Has the groups of completions of a rollout written by a server, asked by the main rank.

    A completion has a seed of its own, by seed, rollout, prompt, completion and turn; whether it is
    written again alike depends on the server.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        section: OpenAIRollout,
        seed: int,
        ranks: Ranks,
        environments: Environments | None = None,
        hand_over: HandOver | None = None,
    ) -> None:
        """hand_over: None = the server keeps its weights."""
        self._set_up(tokenizer, section, seed, ranks, environments)
        self.hand_over, self._client, self._begun = hand_over, None, False

    def prepare(self, rollout: int) -> None:
        interval = self.section.weights_interval
        if self.hand_over is None or not interval:
            return
        # A server may have been started again between two starts of the run.
        if rollout % interval == 0 or not self._begun:
            self.hand_over(rollout, lambda folder: self._asking().reload(folder))
        self._begun = True

    def _draw(self, rows: Sequence[Dialogue], ends: frozenset[int]) -> list[Drawn]:
        part: Any = None
        if self.ranks.main:
            try:
                part = self._answers(rows, ends)
            except ServerFailed as error:
                part = error
        part = self.ranks.from_main(part)
        if isinstance(part, ServerFailed):
            raise part
        return part

    def _asking(self) -> Client:
        self._client = self._client or Client(self.section)
        return self._client

    def _answers(self, rows: Sequence[Dialogue], ends: frozenset[int]) -> list[Drawn]:
        """The next turn of each row, several asked for at a time."""
        client, size = self._asking(), min(self.section.batch_size, len(rows))
        with ThreadPoolExecutor(size, thread_name_prefix="rollouts") as pool:
            asked = [pool.submit(self._answer, client, row, ends) for row in rows]
            try:
                return [each.result() for each in asked]
            except ServerFailed:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _answer(self, client: Client, row: Dialogue, ends: frozenset[int]) -> Drawn:
        key = f"{self.seed} {row.key} {row.turns}".encode()
        options: dict[str, Any] = {
            "max_tokens": row.room,
            "temperature": self.section.temperature,
            "seed": int.from_bytes(blake2b(key, digest_size=7).digest(), "little"),
            "stop_token_ids": sorted(ends),
            **NO_CUTS,
        }
        if self.stops:
            options["stop"] = list(self.stops)
        ids, logprobs, reason = client.complete([*row.row.ids, *row.ids], **options)
        text = self.tokenizer.decode(ids)
        is_end = ids[-1] in ends or any(stop in text for stop in self.stops)
        if reason == "stop" and not is_end:
            fault = f"it ended a completion at token {ids[-1]}, which ends no text of the tokenizer"
            raise ServerFailed(f"rollout.url: {fault}. vLLM: --generation-config vllm")
        if len(ids) > row.room or max(ids) >= self.tokenizer.vocab_size:
            fault = f"{len(ids)} tokens, up to id {max(ids)}"
            limit = f"{row.room} of ids below {self.tokenizer.vocab_size} were asked for"
            raise ServerFailed(f"rollout.model={client.model}: it wrote {fault}, and {limit}")
        return Drawn(ids, logprobs, [])
