"""Documents that share sequences: targets, their number and the loss by hand, and an evaluation
that is the same on every layout.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from parity_models import TOKENIZER
from parity_run import Tokens, config_of, main_ranks, on_one_device
from torch import Tensor

from forge.build import build
from forge.config.root import Config
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Step, eval_batches
from forge.parallel.ranks import Ranks
from forge.training.callbacks.evaluation import evaluate
from forge.training.data import end_of_text, train_loader
from forge.training.models import build_model, build_objective

FP64, CPU, END = torch.float64, torch.device("cpu"), TOKENIZER.eos_id


def first_step(config: Config, ranks: Ranks | None = None) -> Step:
    objective = build(config.objective, path="objective", tokenizer=TOKENIZER)
    tokens: Any = Tokens(documents=True)
    return next(train_loader(config, tokens, objective, ranks or Ranks(), CPU))


def documents_of(row: Tensor) -> list[Tensor]:
    """A row cut after each end of text."""
    cuts = [place + 1 for place, token in enumerate(row.tolist()) if token == END]
    return [each for each in row.tensor_split(cuts) if len(each)]


def test_targets_and_documents_by_hand() -> None:
    config = config_of("packed llama")
    step, plain = first_step(config), first_step(config_of("llama"))
    counted = 0
    for batch, other in zip(step.batches, plain.batches, strict=True):
        assert torch.equal(batch["tokens"], other["tokens"])
        for row, targets, every, numbers in zip(
            *(batch[name] for name in ("tokens", "targets")),
            other["targets"],
            batch["documents"],
            strict=True,
        ):
            document = 0
            for place, token in enumerate(row.tolist()):
                assert numbers[place] == document
                wanted = IGNORE_INDEX if token == END else every[place]
                assert targets[place] == wanted
                counted += token != END
                document += token == END
    assert step.n_targets == counted < step.n_tokens == plain.n_targets
    assert "documents" not in plain.batches[0]
    assert step.batches[0]["documents"].dtype == torch.int32


def test_each_rank_counts_the_targets_of_all() -> None:
    config = config_of("packed llama", "parallel.dp_shard=2")
    steps = main_ranks(config, lambda ranks: ranks.of_all(first_step(config, ranks).n_targets))
    assert steps == [first_step(config_of("packed llama")).n_targets] * 2


@pytest.mark.parametrize("name", ["packed kinds", "packed gpt2", "packed mla"])
def test_the_loss_is_that_of_each_document_alone(name) -> None:
    config = config_of(name)
    model, step = build_model(config, CPU, Ranks(), FP64), first_step(config)
    total, documents = 0.0, 0
    for batch in step.batches:
        for row, targets in zip(batch["tokens"], batch["targets"], strict=True):
            alone = documents_of(row)
            documents += len(alone)
            logits = torch.cat([model(each[None])[0] for each in alone])
            total += F.cross_entropy(logits, targets, reduction="sum").item()
    assert documents > 2 * sum(len(batch["tokens"]) for batch in step.batches)
    first = on_one_device(name, FP64)[0].losses[0]
    assert first == pytest.approx(total / step.n_targets, rel=1e-12)


LAYOUTS = ["parallel.cp=2", "parallel.tp=2", "parallel.pp=2 parallel.pp_microbatches=2"]


def evaluated(config: Config, ranks: Ranks) -> dict[str, float]:
    tokens: Any = Tokens(rows=200, documents=True)
    tokenizer: Any = TOKENIZER
    objective = build_objective(config, CPU, ranks, tokenizer=tokenizer)
    objective.token_bytes = torch.ones(301, dtype=torch.int64)  # type: ignore[attr-defined]
    batches = eval_batches(
        tokens,
        objective,
        seq_len=config.train.seq_len,
        batch_size=2,
        part=ranks.batch,
        end_of_text=end_of_text(config, objective),
    )
    model = build_model(config, CPU, ranks, FP64)
    return evaluate(model, objective, batches, device=CPU, ranks=ranks)


@pytest.mark.nightly
def test_an_evaluation_reads_documents_alone_on_every_layout() -> None:
    one = evaluated(config_of("packed kinds"), Ranks())
    plain = evaluated(config_of("kinds"), Ranks())
    assert abs(one["loss"] - plain["loss"]) > 1e-3
    for layout in LAYOUTS:
        config = config_of("packed kinds", layout)

        def work(ranks: Ranks, config: Config = config) -> dict[str, float]:
            return evaluated(config, ranks)

        assert main_ranks(config, work) == pytest.approx(one, rel=1e-10)
