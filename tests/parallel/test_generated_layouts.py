"""Texts of prompts on layouts: spread over the parts of the batch, equal to those of one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from parity_run import config_of, main_ranks

from forge.evaluation.cache import Cache
from forge.evaluation.engine import Engine
from forge.evaluation.generation import Asked, asked, generated
from forge.evaluation.parts import Agree, continued_in_parts
from forge.evaluation.prepared import PreparedTask
from forge.evaluation.run import Runner
from forge.models.head import head_of
from forge.parallel.ranks import Ranks
from forge.tasks.item import Item, Judged, Prompt
from forge.tasks.task import Task
from forge.training.models import build_model

CPU = torch.device("cpu")


class Letters:
    """A token for each letter; a token below 60 ends a text."""

    eos_id = end_id = 59
    begin_id, vocab_size = None, 301

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def prompts() -> list[Asked]:
    """Prompts of four lengths, greedy and sampled, one ending early at a likely stop."""
    texts, tokenizer = ["a", "bcd", "efghi", "q", "xyzxyz"], Letters()
    made: list[Asked] = []
    stop = tuple(map(chr, range(60, 120)))
    for number, text in enumerate(texts):
        prompt = Prompt(
            text=text,
            stop=stop if number % 2 else (),
            max_tokens=3 + number,
            temperature=float(number > 1),
            samples=1 + (number > 1),
            seed=5,
        )
        made += asked(prompt, tokenizer, 24)  # type: ignore[arg-type]
    return made


def texts_on(config: Any, ranks: Ranks) -> list[str]:
    model = build_model(config, CPU, ranks, torch.float64)
    tokenizer: Any = Letters()
    return generated(model, tokenizer, prompts(), device=CPU, ranks=ranks)


LAYOUTS = ["parallel.dp_shard=2", "parallel.dp_shard=2 parallel.pp=2", "parallel.ep=2"]
NIGHTLY = [
    "parallel.dp_replicate=2",
    "parallel.tp=2",
    "parallel.cp=2",
    "parallel.pp=2",
    "parallel.dp_shard=2 parallel.tp=2",
    "parallel.dp_shard=2 parallel.cp=2",
    "parallel.ep=2 parallel.dp_shard=2 train.batch_size=2",
    "parallel.ep=2 parallel.tp=2",
]
LAYOUTS += [pytest.param(layout, marks=pytest.mark.nightly) for layout in NIGHTLY]  # type: ignore


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_writes_the_texts_of_one_device(layout: str) -> None:
    name = "moe" if "parallel.ep" in layout else "llama"
    alone = texts_on(config_of(name), Ranks())
    assert len(set(alone)) > 4
    assert len(set(map(len, alone))) > 2
    config = config_of(name, layout)
    assert main_ranks(config, lambda ranks: texts_on(config, ranks)) == alone


@pytest.mark.parametrize("count", [1, 5])
def test_a_part_continues_its_rows_by_index(count: int) -> None:
    """The second part has no row of one, and reads along."""
    config = config_of("llama", "parallel.dp_shard=2")

    def on_rank(ranks: Ranks) -> list[str]:
        model = build_model(config, CPU, ranks, torch.float64)

        @torch.no_grad()
        def write(rows: Sequence[int], agree: Agree) -> list[str]:
            part = ranks.batch[0]
            for _ in range(3 * len(rows)):  # passes, as many as the rows ask for
                hidden = model.hidden(torch.zeros((1, 2), dtype=torch.int64))[:, -1]
                head_of(model).logits(hidden)
                agree(torch.zeros((1, 1), dtype=torch.int64))
            return [f"{row} by {part}" for row in rows]

        return continued_in_parts(model, CPU, ranks, list(range(count)), write)

    assert main_ranks(config, on_rank) == [f"{row} by {row % 2}" for row in range(count)]


class Word(Task):
    """Prompts to continue, each judged by the letters of its text."""

    def judge(self, item: Item, answers: Sequence[Any]) -> Judged:
        judged_here.append(item.id)
        return Judged({"letters": float(sum(map(ord, answers[0].texts[0])))})


judged_here: list[str] = []


def rows_on(config: Any, ranks: Ranks) -> list[Any]:
    """Rows of five prompts, and the items that this rank has judged."""
    judged_here.clear()
    model = build_model(config, CPU, ranks, torch.float64)
    tokenizer: Any = Letters()
    asks = [Prompt(text=text, max_tokens=4) for text in ("a", "bcd", "efghi", "q", "xyz")]
    items = [Item(id=str(number), asks=(ask,)) for number, ask in enumerate(asks)]
    ready = PreparedTask(name="word", task=Word(), items=items, requests=[[None]] * 5, of=5)
    engine = Engine(model, device=CPU, ranks=ranks)
    runner = Runner(engine=engine, tokenizer=tokenizer, cache=Cache(None))
    (result,) = runner.run([ready])
    return [result.rows, judged_here]


def test_items_are_judged_by_the_ranks_by_index() -> None:
    alone, _ = rows_on(config_of("llama"), Ranks())
    config = config_of("llama", "parallel.dp_shard=2")
    assert main_ranks(config, lambda ranks: rows_on(config, ranks)) == [alone, ["0", "2", "4"]]


def test_a_text_that_cannot_be_drawn_is_an_error_on_all_ranks() -> None:
    config = config_of("llama", "parallel.dp_shard=2")

    def on_rank(ranks: Ranks) -> str:
        model = build_model(config, CPU, ranks, torch.float64)

        def write(rows: Sequence[int], agree: Agree) -> list[str]:
            if ranks.batch[0]:
                raise FloatingPointError("not finite")
            return [str(row) for row in rows]

        with pytest.raises(FloatingPointError, match="not finite"):
            continued_in_parts(model, CPU, ranks, [0, 1], write)
        return "refused"

    assert main_ranks(config, on_rank) == "refused"
