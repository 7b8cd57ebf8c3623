"""A run whose data, tokenizer, model or optimizer is not what it was: refused with nothing lost, or
taken up as it was allowed.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from helpers.going_on_helpers import alter
from run_helpers import assert_bit_equal, built, logged, step_of, stored, weights

from forge import worker
from forge.config.optimizers.adam import AdamW as AdamWSection
from forge.rundir import versions

FINAL = ("result.json", "error.json", "attempts.jsonl", "run.lock", "rank_0.log", "data.json")
FINAL += ("ledger.json", "ledger.jsonl")
CHANGED = "the text has changed under this run"


@pytest.fixture
def own_text(text_file, tmp_path) -> Path:
    file = tmp_path / "own.txt"
    file.write_text(text_file.read_text())
    return file


@pytest.fixture
def broken_off(own_text, new_run) -> Path:
    """A run on a text of its own, killed after a checkpoint of step 3."""
    path = new_run(f"data.path={own_text} checkpoint.interval=3")
    loop = built(path)
    loop.end_step = 3
    loop.run()
    return path


def refused(run: Path, capsys) -> str:
    """What a start says that is refused and leaves all as it was."""

    def kept() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name not in FINAL}

    before = kept()
    capsys.readouterr()
    assert worker.main([str(run)]) == 2
    assert kept() == before
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said.splitlines()[1]


def test_another_text_is_refused_until_it_is_put_back(broken_off, own_text, capsys):
    before = own_text.read_text()
    own_text.write_text(2 * before)  # another text with the same tokenizer
    what = f"{CHANGED}, so its place in the data means something else"
    fix = "put it back, or run.allow_change=[data] continues at the beginning of the new text"
    assert refused(broken_off, capsys) == f"{broken_off}/checkpoints/step_3: {what}; {fix}"
    own_text.write_text(before)
    assert worker.main([str(broken_off)]) == 0
    assert set(logged(broken_off, "train/loss")) == set(range(1, 7))


def test_another_text_is_read_from_its_beginning_where_allowed(
    broken_off, own_text, new_run, capsys
):
    own_text.write_text(2 * own_text.read_text())
    alter(broken_off, run__allow_change=["data"])
    loop = built(broken_off)
    where = "at the beginning of this corpus, which is another one: 3 steps to go"
    said = f"resuming from checkpoints/step_3 at step 3, {where}"
    assert capsys.readouterr().out.splitlines()[-1] == said
    assert (loop.state.step, loop.state.samples, loop.loader.samples) == (3, 0, 0)
    fresh = built(new_run(f"data.path={own_text}"))
    ours, theirs = (next(one.loader).batches[0]["tokens"] for one in (loop, fresh))
    assert torch.equal(ours, theirs)


def test_another_tokenizer_is_refused(broken_off, own_text, capsys):
    """It is trained on the text, so a new text brings a new one; both have to be allowed."""
    own_text.write_text(own_text.read_text()[::-1])
    what = f"{CHANGED}, and with it the tokenizer trained on it"
    own = broken_off / "tokenizer" / "tokenizer.json"
    assert own.is_file()
    fix = f"put it back, or take its own: tokenizer=file tokenizer.path={own}"
    said = f"{broken_off}/checkpoints/step_3: {what}; {fix} run.allow_change=[data,tokenizer]"
    assert refused(broken_off, capsys) == said
    alter(broken_off, run__allow_change=["data"])
    assert refused(broken_off, capsys) == said
    alter(broken_off, run__allow_change=["data", "tokenizer"])
    assert worker.main([str(broken_off)]) == 0


def test_another_model_begins_fresh_where_it_does_not_fit(saved_run, caplog):
    """One more block, allowed: it has initial weights and fresh optimizer state, and all else
    continues.
    """
    allowed = ["model", "scheduler"]
    alter(saved_run, model__n_layers=3, train__max_steps=8, run__allow_change=allowed)
    with caplog.at_level(logging.WARNING):
        loop = built(saved_run)
    (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("forge")]
    assert said.startswith(
        "the model was changed, so what does not fit begins with its initial value: "
        "blocks.2.attention_norm.weight is "
    )
    assert said.endswith("is missing there; and 4 more")
    here = weights(loop.model)
    fresh = [name for name in here if name.startswith("blocks.2.")]
    kept = {name: here[name] for name in here if name not in fresh}
    assert_bit_equal(kept, stored(step_of(saved_run, 6), "model/"))
    state = loop.optimizer.state
    assert [name for name, p in loop.model.named_parameters() if not state[p]] == fresh
    assert versions.read_config_part(saved_run, "changes", 2)[0]["key"] == "model.n_layers"
    loop.run()
    (saved_run / "result.json").unlink(missing_ok=True)
    assert_bit_equal(weights(built(saved_run).model), weights(loop.model))


def sgd(section: AdamWSection, *, params: list) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=section.lr, momentum=0.9)


def test_another_optimizer_begins_anew(saved_run, capsys):
    """Also one of the same section, when another class is built from it."""
    trust = {"run__trust": ["test_changed_run."], "run__allow_change": ["optimizer", "scheduler"]}
    alter(saved_run, optimizer___target_="test_changed_run.sgd", train__max_steps=8, **trust)
    loop = built(saved_run)
    said = "the optimizer begins again: checkpoints/step_6 has the state of another"
    assert capsys.readouterr().out.splitlines()[-1] == said
    assert (loop.state.step, len(loop.optimizer.state)) == (6, 0)
    assert_bit_equal(weights(loop.model), stored(step_of(saved_run, 6), "model/"))
    loop.run()
    names = stored(step_of(saved_run, 8), "optimizer/")
    assert {name.rpartition("/")[2] for name in names} == {"momentum_buffer"}
    built(saved_run)
    assert "begins again" not in capsys.readouterr().out
