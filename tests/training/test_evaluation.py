"""Evaluation: a fixed set, no effect on training, and robust where the model is compiled."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from run_helpers import assert_bit_equal, logged, weights

from forge import cli
from forge.compose import composition
from forge.config.eval import Eval
from forge.config.objectives.base import Objective
from forge.config.problems import ConfigError
from forge.training.callbacks.evaluation import Evaluation, most_sequences

EVALUATE = "eval.enabled=true eval.interval=2 eval.steps=0 eval.sample_prompts=[the] "
EVALUATE += "eval.sample_tokens=4"
BOUNDS = [("eval.steps=2", 8), ("eval.max_tokens=80", 5), ("eval.max_tokens=1", 1)]
BOUNDS += [("eval.steps=1 eval.max_tokens=80", 4)]


def never() -> bool:
    return False


@pytest.mark.parametrize(("bound", "sequences"), BOUNDS)
def test_a_bound_takes_sequences_from_all_over_the_split(assembled, bound, sequences):
    """By steps, which have four sequences of 16 tokens, by tokens, and by the lesser of both."""
    loop = assembled(EVALUATE, bound)
    store = loop.session.prepared.val
    windows = -(-(len(store) - 1) // 16)
    assert windows > 3 * sequences
    starts = [16 * (index * windows // sequences) for index in range(sequences)]
    rows = np.stack([store.read(start, start + 17) for start in starts])
    tokens = torch.from_numpy(rows.astype(np.int64))
    with torch.no_grad():
        logits = loop.model(tokens[:, :-1]).flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()).item()
    for _ in range(2):
        assert evaluation_of(loop).run(never)["loss"] == pytest.approx(expected, rel=1e-6)


def test_a_named_set_is_all_of_its_text_in_the_tokens_of_the_run(assembled, tmp_path):
    """A text, and pairs of which the response counts; by hand, and beside the validation split."""
    (tmp_path / "a.txt").write_text("the white whale of the sea, said the captain\n")
    pair = {"prompt": "the ship ", "response": "was in the sea"}
    (tmp_path / "b.jsonl").write_text(json.dumps(pair))
    loop = assembled(
        EVALUATE,
        f"+eval.sets.mine.path={tmp_path}/a.txt eval.metric=mine/loss",
        f"+eval.sets.qa={{data:pairs,path:{tmp_path}/b.jsonl}}",
    )
    plain = assembled(EVALUATE)
    encode, end = loop.session.tokenizer.encode, loop.session.tokenizer.eos_id
    texts = {"mine": ["", (tmp_path / "a.txt").read_text()], "qa": [*pair.values()]}
    found = evaluation_of(loop).run(never)
    for name, (prompt, text) in texts.items():
        ids = [*encode(prompt), *encode(text), end]
        nats = []
        for start in range(0, len(ids) - 1, 16):
            window = torch.tensor(ids[start : start + 17])
            with torch.no_grad():
                logits = loop.model(window[None, :-1])[0]
            nats += torch.nn.functional.cross_entropy(logits, window[1:], reduction="none").tolist()
        counted = nats[max(len(encode(prompt)) - 1, 0) :]
        assert found.pop(f"{name}/loss") == pytest.approx(np.mean(counted), rel=1e-5)
    assert {name for name in found if "/" not in name} == set(loop.config.objective.metrics)
    validation = {name: value for name, value in found.items() if "/" not in name}
    assert validation == evaluation_of(plain).run(never)
    loop.run()
    assert set(logged(loop.run_dir, "eval/mine/loss")) == {2, 4, 6}
    assert loop.config.run.objective == "eval/mine/loss"


def test_a_set_that_cannot_be_read_is_named(assembled, tmp_path):
    (tmp_path / "b.jsonl").write_text("{}")
    with pytest.raises(ValueError, match=r"^eval\.sets\.qa: data\.path: .*b\.jsonl line 1 has no"):
        assembled(EVALUATE, f"+eval.sets.qa={{data:pairs,path:{tmp_path}/b.jsonl}}")


def test_an_objective_reports_what_its_section_names(assembled):
    loop = assembled(EVALUATE)
    objective = loop.session.objective
    objective.metrics = lambda totals: {"loss": totals["nats"]}
    with pytest.raises(
        ValueError, match=r"Pretrain: metrics\(\) gives loss, and its section names"
    ):
        evaluation_of(loop).run(never)


def test_an_objective_without_metrics_is_not_evaluated():
    @dataclass(kw_only=True)
    class Silent(Objective):
        _target_: str = "forge.objectives.pretrain.Pretrain"

    config = composition.config()
    config.objective = Silent()
    with pytest.raises(ConfigError, match="the objective reports no metrics"):
        config.validate()
    config.eval.enabled = False
    config.validate()


def test_evaluation_is_bounded_unless_it_is_asked_otherwise():
    for preset, tokens in (("quick", 999_936), ("long", 999_424)):
        config = cli.resolved([f"train={preset}", "model.max_seq_len=2048"])[1].config
        assert most_sequences(config.eval, config.train) == 32 * config.train.global_batch_size
        by_tokens = dataclasses.replace(config.eval, steps=0)
        assert most_sequences(by_tokens, config.train) * config.train.seq_len == tokens
        assert most_sequences(Eval(steps=0, max_tokens=0), config.train) == 0, "all of it"


def evaluation_of(loop) -> Evaluation:
    return next(one for one in loop.callbacks if isinstance(one, Evaluation))


def test_the_mode_of_the_model_is_restored_also_after_an_error(assembled):
    loop = assembled(EVALUATE)
    modes: list[bool] = []
    hook = loop.model.norm.register_forward_hook(lambda module, *_: modes.append(module.training))
    for training in (True, False):
        loop.model.train(training)
        evaluation_of(loop).run(never)
        assert loop.model.training is training
    assert set(modes) == {False}
    hook.remove()
    loop.model.train()
    loop.model.norm.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluation_of(loop).run(never)
    assert loop.model.training


def test_evaluation_and_samples_do_not_change_training_and_come_when_they_are_due(assembled):
    plain = assembled("train.max_steps=5")
    often = "eval.at_start=true eval.sample_interval=1 train.max_steps=5"
    evaluated = assembled(EVALUATE, often)
    for loop in (plain, evaluated):
        loop.run()
    assert_bit_equal(weights(evaluated.model), weights(plain.model))
    assert set(logged(evaluated.run_dir, "eval/loss")) == {0, 2, 4, 5}
    rows = (evaluated.run_dir / "samples.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1, 2, 3, 4, 5]


@pytest.mark.nightly
def test_compiled_models_are_evaluated_and_sampled_without_compiling_anew(assembled):
    """The last batch is smaller, and eval mode alone would compile every block again."""
    torch.compiler.reset()
    both = [
        assembled(EVALUATE, "model.n_layers=3", more)
        for more in ("", "train.compile_model=true train.compile_backend=eager")
    ]
    with torch._dynamo.config.patch(recompile_limit=1):
        for loop in both:
            loop.run()
    plain, compiled = both
    assert compiled.model.blocks["0"]._compiled_call_impl is not None
    for ours, theirs in zip(compiled.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert evaluation_of(compiled).metrics == pytest.approx(evaluation_of(plain).metrics, rel=1e-5)
    rows = (compiled.run_dir / "metrics.jsonl").read_text().splitlines()
    assert sum("eval/loss" in row for row in rows) == 3, "once at the end, where it is due twice"


def test_batches_of_an_evaluation_have_a_size_of_their_own(assembled):
    """The loss is the same, of three rows at a time where a step has two."""
    loop, other = assembled(EVALUATE), assembled(EVALUATE, "eval.batch_size=3")
    rows = []
    embedding = next(m for m in other.model.modules() if isinstance(m, torch.nn.Embedding))
    embedding.register_forward_pre_hook(lambda module, given: rows.append(len(given[0])))
    expected = evaluation_of(loop).run(never)
    assert evaluation_of(other).run(never) == pytest.approx(expected, rel=1e-6)
    assert rows[0] == 3


def test_a_run_without_a_validation_split_evaluates_its_sets(trained, tmp_path):
    (tmp_path / "a.txt").write_text("the white whale of the sea, said the captain\n")
    run = trained(
        EVALUATE.replace("eval.sample_prompts=[the]", ""),
        f"data.val_fraction=0 +eval.sets.mine.path={tmp_path}/a.txt eval.metric=mine/loss",
    )
    assert logged(run, "eval/loss") == {}
    assert set(logged(run, "eval/mine/loss")) == {2, 4, 6}
    derived = {one["key"]: one for one in json.loads((run / "derived.json").read_text())}
    assert derived["eval.sample_prompts"]["why"] == "the training split begins with it"
