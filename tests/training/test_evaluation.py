"""Evaluation: a fixed set, no effect on training, and robust where the model is compiled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from run_helpers import assert_bit_equal, logged, weights

from forge import cli
from forge.config.eval import Eval
from forge.training.evaluation import most_sequences

EVALUATE = "eval.enabled=true eval.interval=2 eval.steps=0 eval.sample_prompts=[the] "
EVALUATE += "eval.sample_tokens=4"
BOUNDS = [("eval.steps=2", 8), ("eval.max_tokens=80", 5), ("eval.max_tokens=1", 1)]
BOUNDS += [("eval.steps=1 eval.max_tokens=80", 4)]


def never() -> bool:
    return False


@pytest.mark.parametrize(("bound", "sequences"), BOUNDS)
def test_a_bound_takes_sequences_from_all_over_the_split(assembled, bound, sequences):
    """By steps, which have four sequences of 16 tokens, by tokens, and by the lesser of both."""
    parts = assembled(EVALUATE, bound)
    store = parts.prepared.val
    windows = -(-(len(store) - 1) // 16)
    assert windows > 3 * sequences
    starts = [16 * (index * windows // sequences) for index in range(sequences)]
    rows = np.stack([store.read(start, start + 17) for start in starts])
    tokens = torch.from_numpy(rows.astype(np.int64))
    with torch.no_grad():
        logits = parts.model(tokens[:, :-1]).flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()).item()
    for _ in range(2):
        assert parts.evaluation.run(never)["loss"] == pytest.approx(expected, rel=1e-6)


def test_evaluation_is_bounded_unless_it_is_asked_otherwise():
    for preset, tokens in (("quick", 999_936), ("long", 999_424)):
        config = cli.resolved([f"train={preset}", "model.max_seq_len=2048"])[1].config
        assert most_sequences(config.eval, config.train) * config.train.seq_len == tokens
        assert most_sequences(Eval(steps=0, max_tokens=0), config.train) == 0, "all of it"


def test_the_mode_of_the_model_is_restored_also_after_an_error(assembled):
    parts = assembled(EVALUATE)
    modes: list[bool] = []
    hook = parts.model.norm.register_forward_hook(lambda module, *_: modes.append(module.training))
    for training in (True, False):
        parts.model.train(training)
        parts.evaluation.run(never)
        assert parts.model.training is training
    assert set(modes) == {False}
    hook.remove()
    parts.model.train()
    parts.model.norm.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        parts.evaluation.run(never)
    assert parts.model.training


def test_evaluation_and_samples_do_not_change_training_and_come_when_they_are_due(assembled):
    plain = assembled("train.max_steps=5")
    evaluated = assembled(EVALUATE, "eval.sample_interval=1 train.max_steps=5")
    for parts in (plain, evaluated):
        parts.loop.run()
    assert_bit_equal(weights(evaluated.model), weights(plain.model))
    assert set(logged(evaluated.loop.run_dir, "eval/loss")) == {2, 4, 5}


def test_compiled_models_are_evaluated_and_sampled_without_compiling_anew(assembled):
    """The last batch is smaller, and eval mode alone would compile every block again."""
    torch.compiler.reset()
    both = [
        assembled(EVALUATE, "model.n_layers=3", more)
        for more in ("", "train.compile_model=true train.compile_backend=eager")
    ]
    with torch._dynamo.config.patch(recompile_limit=1):
        for parts in both:
            parts.loop.run()
    plain, compiled = both
    assert compiled.model.blocks["0"]._compiled_call_impl is not None
    for ours, theirs in zip(compiled.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert compiled.evaluation.metrics == pytest.approx(plain.evaluation.metrics, rel=1e-5)
    rows = (compiled.loop.run_dir / "metrics.jsonl").read_text().splitlines()
    assert sum("eval/loss" in row for row in rows) == 3, "once at the end, where it is due twice"
