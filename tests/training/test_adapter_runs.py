"""Runs with adapters: what their checkpoints hold, and the base that these name."""

from __future__ import annotations

import pytest
import torch
from run_helpers import assert_bit_equal, built, logged, meta, step_of, stored, weights

from forge import resume, worker
from forge.adapters.adapter import adapters_off
from forge.config.adapters.adapter import is_added
from forge.models.plain import make_model
from forge.rundir.checkpoints import CheckpointError
from forge.training.checkpoints.restore import load_run, load_weights

LORA = (
    "adapter=lora adapter.rank=2 adapter.dora=true adapter.modules_to_save=[norm] optimizer=adamw"
)
TOKENS = torch.arange(24).view(2, 12)


@pytest.fixture
def base(trained):
    return trained("train.max_steps=2 checkpoint.interval=2")


@pytest.fixture
def run(trained, base):
    return trained(f"{LORA} checkpoint.init_from={base} train.max_steps=4 checkpoint.interval=2")


@pytest.mark.nightly
def test_a_checkpoint_holds_what_is_trained_and_is_read_with_its_base(base, run, new_run):
    """Whole weights of norms and the adapters; alone, beside their base, or merged with it."""
    saved, beneath = stored(step_of(run, 4), "model/"), stored(step_of(base, 2), "model/")
    assert all(is_added(name) or "norm" in name for name in saved)
    assert sum(map(is_added, saved)) == 3 * 2 * 7
    kept = {name.rpartition("/")[0] for name in stored(step_of(run, 4), "optimizer/")}
    assert kept == set(saved)
    moved = [n for n in saved if n in beneath and not torch.equal(saved[n], beneath[n])]
    assert len(moved) == sum("norm" in name for name in beneath)

    model = load_run(run).model
    expected = beneath | saved
    assert_bit_equal(weights(model), {n: expected[n] for n, _ in model.named_parameters()})
    logits = model(TOKENS)
    plain = make_model(load_run(base).config.model)
    load_weights(step_of(run, 4), model=plain, section=load_run(base).config.model)
    assert torch.allclose(plain.eval()(TOKENS), logits, atol=1e-5)
    with adapters_off(model):
        assert not torch.allclose(model(TOKENS), logits, atol=1e-3)

    upon = built(new_run(f"{LORA} checkpoint.init_from={run}"))  # new adapters of what is merged
    assert torch.allclose(upon.model.eval()(TOKENS), logits, atol=1e-5)


def test_it_goes_on_to_the_bit_and_only_with_its_base(base, run, new_run, capsys):
    path = new_run(f"{LORA} checkpoint.init_from={base} train.max_steps=4 checkpoint.interval=2")
    loop = built(path)
    loop.end_step = 2
    loop.run()
    # The base continues: the adapters are of the weights that they began with.
    built(path).run()
    assert_bit_equal(stored(step_of(path, 4)), stored(step_of(run, 4)))
    assert meta(step_of(path, 4))["base"] == meta(step_of(run, 4))["base"]
    assert logged(path, "train/loss") == logged(run, "train/loss")

    file = max((step_of(base, 2) / "weights").iterdir(), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="which has changed since"):
        load_run(run)
    step_of(base, 2).rename(base / "elsewhere")
    (path / "result.json").unlink(missing_ok=True)
    assert worker.main([str(path)]) == 2
    said = capsys.readouterr().err
    assert (
        f"holds adapters of the weights in {step_of(base, 2)}, which is not there any more" in said
    )


@pytest.mark.nightly
def test_what_was_taken_out_of_a_base_is_taken_out_again(trained, base, new_run):
    """A run in two parts equals one in one, and the rest of the weights is what it was."""
    options = "adapter=lora adapter.init=pissa adapter.rank=2 adapter.dropout=0 optimizer=adamw"
    options += f" checkpoint.init_from={base} train.max_steps=4 checkpoint.interval=2"
    run, path = trained(options), new_run(options)
    loop = built(path)
    name = "blocks.0.attention.wq.weight"
    rest = weights(loop.model)[name]
    assert not torch.allclose(rest, stored(step_of(base, 2), "model/")[name], atol=1e-3)
    loop.end_step = 2
    loop.run()
    again = built(path)
    assert torch.equal(weights(again.model)[name], rest)
    again.run()
    assert_bit_equal(stored(step_of(path, 4)), stored(step_of(run, 4)))
    assert logged(path, "train/loss") == logged(run, "train/loss")
    upon = built(new_run(f"checkpoint.init_from={run}"))  # the sum, without adapters
    assert torch.allclose(upon.model.eval()(TOKENS), load_run(run).model(TOKENS), atol=1e-5)


@pytest.mark.nightly
def test_a_base_that_was_moved_is_found_again(base, run, tmp_path):
    """With the run, or where checkpoint.init_from says."""
    expected = load_run(run).model(TOKENS)
    runs = run.parent.rename(tmp_path / "elsewhere")
    assert torch.equal(load_run(runs / run.name).model(TOKENS), expected)

    alone = (runs / base.name).rename(tmp_path / "alone")
    with pytest.raises(CheckpointError, match="a link to them back, or continue with"):
        load_run(runs / run.name)
    more = [f"checkpoint.init_from={alone}", "run.allow_change=[checkpoint.init_from]"]
    assert resume.main([str(runs / run.name), "train.max_steps=5", *more]) == 0
    assert meta(step_of(runs / run.name, 5))["base"]["path"] == str(step_of(alone, 2))
    load_run(runs / run.name)


@pytest.mark.nightly
def test_what_stands_beside_initial_weights_has_these_again(trained):
    run = trained(f"{LORA} train.max_steps=2 checkpoint.interval=2")
    model = load_run(run).model
    saved = stored(step_of(run, 2), "model/")
    assert meta(step_of(run, 2))["base"]["path"] is None
    assert "blocks.0.attention.wq.weight" not in saved
    other = trained("train.max_steps=1 optimizer=adamw optimizer.lr=1e-30 optimizer.weight_decay=0")
    before = stored(step_of(other, 1), "model/")
    for name, values in weights(model).items():
        assert torch.equal(values, saved[name] if name in saved else before[name]), name
