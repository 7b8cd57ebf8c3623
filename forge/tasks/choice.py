"""Multiple choice: the likeliest of several continuations, normalised in four ways."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forge.tasks.item import Answer, Item, Judged, Pair, scores_of
from forge.tasks.task import Task, bits_per_byte, n_bytes, text_of


class Choice(Task):
    """Base of tasks with one right choice. `data["gold"]` of an item is its index; `asks` has a
    pair for each choice, and, if `data["choices"]` says that there are fewer choices, a pair for
    each without the question.

    accuracy: the gold choice has the largest log-probability; accuracy_per_char, _per_byte and
    _per_token: divided by the choice's characters, UTF-8 bytes or tokens first. accuracy_pmi:
    minus its log-probability without the question. bits_per_byte: of the gold choice alone, which
    is steadier than accuracy for small models. gold_probability: of the gold choice among all.
    """

    def judge(self, item: Item, answers: Sequence[Answer]) -> Judged:
        scores, gold = scores_of(answers), item.data["gold"]
        pairs = [ask for ask in item.asks if isinstance(ask, Pair)]
        count = item.data.get("choices", len(pairs))
        pairs, scores, unconditional = pairs[:count], scores[:count], scores[count:]
        logprobs = [score.logprob for score in scores]
        texts = [pair.continuation for pair in pairs]
        normed = {
            "accuracy": logprobs,
            "accuracy_per_char": [
                value / max(len(text_of(text)), 1)
                for value, text in zip(logprobs, texts, strict=True)
            ],
            "accuracy_per_byte": [
                value / n_bytes(text) for value, text in zip(logprobs, texts, strict=True)
            ],
            "accuracy_per_token": [score.logprob / score.tokens for score in scores],
        }
        if unconditional:
            normed["accuracy_pmi"] = [
                score.logprob - alone.logprob
                for score, alone in zip(scores, unconditional, strict=True)
            ]
        metrics = {
            name: float(max(range(len(values)), key=values.__getitem__) == gold)
            for name, values in normed.items()
        }
        peak = max(logprobs)
        total = sum(math.exp(value - peak) for value in logprobs)
        metrics["gold_probability"] = math.exp(logprobs[gold] - peak) / total
        metrics["bits_per_byte"] = bits_per_byte(logprobs[gold], texts[gold])
        chosen = max(range(len(logprobs)), key=logprobs.__getitem__)
        return Judged(metrics, detail={"gold": gold, "chosen": chosen})
