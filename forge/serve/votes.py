"""Votes between two models, kept as pairs of answers that data=preference trains on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge.serve.asking import Limits, Refusal, checked_messages, checked_text
from forge.statistics.items import wilson

FIELDS = {"prompt", "messages", "answers", "better"}


class Votes:
    """Two models' answers to the same prompts, and which one a reader preferred.

    path: of the pairs, `{"prompt", "chosen", "rejected"}` and the names of both models; votes for
    neither stand in a file beside it. Raises ValueError for a file that cannot be added to.
    """

    def __init__(self, path: Path, names: tuple[str, str], limits: Limits) -> None:
        self.path, self.names, self.limits = path, names, limits
        self.ties_path = path.with_name(f"{path.stem}_ties.jsonl")
        if path.suffix != ".jsonl" or not path.absolute().parent.is_dir():
            raise ValueError(f"--votes {path}: give a .jsonl in a folder that exists")
        both = set(names)
        pairs = _models(path, lambda row: [row["chosen_model"], row["rejected_model"]])
        self.wins = Counter(models[0] for models in pairs if set(models) == both)
        ties = _models(self.ties_path, lambda row: list(row["models"]))
        self.ties = sum(set(models) == both for models in ties)

    def tally(self) -> dict[str, Any]:
        """Wins of each, ties, and the first model's share of the wins with its 95 % interval."""
        wins = {name: self.wins[name] for name in self.names}
        total = sum(wins.values())
        share = wilson(wins[self.names[0]], total) if total else None
        interval = [share.low, share.high] if share else None
        rate = wins[self.names[0]] / total if total else None
        about = {"wins": wins, "ties": self.ties, "share": rate, "interval": interval}
        return {**about, "file": str(self.path)}

    def add(self, body: dict[str, Any]) -> dict[str, Any]:
        """Keep a vote; returns the tally. Raises Refusal naming the field at fault."""
        if extra := set(body) - FIELDS:
            raise Refusal(400, f"there is no field {min(extra)[:100]!r}", param=min(extra)[:100])
        if ("prompt" in body) == ("messages" in body):
            raise Refusal(400, "give prompt, or messages", param="prompt")
        of_chat = "messages" in body
        prompt = checked_messages(body, self.limits) if of_chat else self._text(body["prompt"])
        answers = self._answers(body.get("answers"))
        better = body.get("better")
        if better is None:
            self._write(self.ties_path, {"prompt": prompt, "models": answers})
            self.ties += 1
            return self.tally()
        if better not in self.names:
            names = " or ".join(map(repr, self.names))
            raise Refusal(400, f"better: {names}, or null for neither", param="better")
        (worse,) = set(self.names) - {better}
        row = {"prompt": prompt, "chosen": answers[better], "rejected": answers[worse]}
        self._write(self.path, row | {"chosen_model": better, "rejected_model": worse})
        self.wins[better] += 1
        return self.tally()

    def _answers(self, answers: Any) -> dict[str, str]:
        if not isinstance(answers, dict) or set(answers) != set(self.names):
            raise Refusal(400, "answers: the text of each of the two models", param="answers")
        texts = {name: self._text(answers[name]) for name in self.names}
        if len(set(texts.values())) == 1:
            raise Refusal(400, "answers: both are the same", param="answers")
        return texts

    def _text(self, text: Any) -> str:
        if not isinstance(text, str):
            raise Refusal(400, "a prompt and an answer are texts", param="answers")
        return checked_text(text, "answers", self.limits)

    def _write(self, path: Path, row: dict[str, Any]) -> None:
        """Add a row."""
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        except OSError as error:
            raise Refusal(500, f"the vote is not kept: {error}") from None


def _models(path: Path, models_of: Callable[[Any], list[str]]) -> list[list[str]]:
    """The models of each row of a file of votes; none where there is no file."""
    models = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            models.append([str(name) for name in models_of(json.loads(line))])
        except (ValueError, KeyError, TypeError):
            other = "give another --votes FILE"
            raise ValueError(f"{path}, line {number}: no vote of forge.serve; {other}") from None
    return models
