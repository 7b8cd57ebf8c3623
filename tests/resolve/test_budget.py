"""Steps from a budget of tokens, against counts of parameters and sums by hand."""

from __future__ import annotations

import pytest
from helpers.refusing import problems, resolved

from forge.config.data.budget import parameters
from forge.resume import _without_replaced

SHAPE = ["train.seq_len=32", "train.batch_size=2", "run.device=cpu", "parallel=single"]
GPT2 = ["model=gpt2", "tokenizer=bytes", *SHAPE]


def test_counts_of_parameters_are_those_that_are_published() -> None:
    gpt2 = resolved([*GPT2, "model.vocab_size=50257"]).config.model
    assert parameters(gpt2, "all") == parameters(gpt2, "active") == 124_439_808
    assert parameters(gpt2, "non_embedding") == 124_439_808 - (50257 + 1024) * 768 == 85_056_000
    mixtral = resolved(["model=mixtral_8x7b", "tokenizer=bytes", *SHAPE]).config.model
    assert parameters(mixtral, "all") == 46_702_792_704
    assert parameters(mixtral, "active") == 12_879_925_248
    assert parameters(mixtral, "non_embedding") == 12_879_925_248 - 2 * 32000 * 4096


@pytest.mark.parametrize("count", ["all", "non_embedding"])
def test_tokens_for_each_parameter(count: str) -> None:
    words = [*GPT2, "model.vocab_size=50257", "train.global_batch_tokens=4096"]
    budget = ["train.tokens_per_parameter=20", f"train.parameters_counted={count}"]
    number = {"all": 124_439_808, "non_embedding": 85_056_000}[count]
    train = resolved([*words, *budget]).config.train
    assert train.max_steps == 20 * number // 4096


@pytest.mark.parametrize("tokens", [64, 1000, 5000, 7777, 100_000])
def test_a_growing_batch_fits_as_many_steps_as_a_sum_of_its_sizes(tokens: int) -> None:
    grows = ["train.rampup_start=2", "train.rampup_samples=30", "train.global_batch_size=8"]
    train = resolved([*SHAPE, *grows, f"train.max_tokens={tokens}"]).config.train
    steps = samples = 0
    while (samples + train.batch_sizes.of_step_at(samples)) * 32 <= tokens:
        samples += train.batch_sizes.of_step_at(samples)
        steps += 1
    assert train.max_steps == steps > 0


def test_a_preference_has_two_sequences_a_sample() -> None:
    words = ["data=preference_demo", "objective=dpo", *SHAPE, "train.global_batch_size=2"]
    assert resolved([*words, "train.max_tokens=1280"]).config.train.max_steps == 10


def test_the_schedule_spans_the_steps_of_the_budget() -> None:
    config = resolved([*SHAPE, "train.max_tokens=64000", "scheduler=cosine"]).config
    horizon = config.scheduler.warmup_steps + config.scheduler.decay_steps  # type: ignore[attr-defined]
    assert horizon == config.train.max_steps


def test_a_typed_horizon_takes_the_place_of_one_in_a_file() -> None:
    words = [*SHAPE, "train.max_tokens=64000", "train.max_steps=5"]
    (problem,) = problems(words)
    assert problem.rule == "train.horizon"
    assert "train.max_steps=5 and train.max_tokens=64000" in problem.what
    by_file = resolved([*SHAPE, "train=llm", "train.max_steps=5"]).config.train
    assert (by_file.max_steps, by_file.tokens_per_parameter) == (5, None)
    other = resolved([*SHAPE, "train=llm", "train.max_tokens=100000000"]).config.train
    assert other.tokens_per_parameter is None
    assert other.max_steps == 100_000_000 // other.global_batch_tokens  # type: ignore[operator]


def test_a_run_goes_on_with_another_horizon() -> None:
    own = ["seed=1", "train.max_tokens=64000"]
    assert _without_replaced(own, ["train.max_steps=50"]) == ["seed=1"]
    assert _without_replaced(own, ["train.batch_size=1"]) == own


@pytest.mark.parametrize("scaling", ["depth", "ladder"])
def test_a_scaling_takes_a_budget_of_the_run(scaling: str) -> None:
    model = ["model=nanochat"] if scaling == "depth" else []
    words = [f"scaling={scaling}", "tokenizer=bytes", "run.device=cpu", "parallel=single", *model]
    train = resolved([*words, "train.max_tokens=900000000"]).config.train
    assert train.max_steps == 900_000_000 // train.global_batch_tokens  # type: ignore[operator]
    config = resolved([*words, "train.tokens_per_parameter=3"]).config
    number = parameters(config.model, "all")
    assert config.train.max_steps == 3 * number // config.train.global_batch_tokens  # type: ignore[operator]
    two = problems([*words, "train.max_tokens=900000000", "train.max_steps=9"])
    assert [problem.rule for problem in two if not problem.warning] == ["scaling"]
    other = {"depth": "scaling.target_flops=1e18", "ladder": "scaling.chinchilla_multiple=2"}
    (problem,) = problems([*words, "train.max_tokens=900000000", other[scaling]])
    assert "each say how long the run is" in problem.what
