"""A run whose data, tokenizer, model or optimizer is not what it was: refused with nothing lost, or
taken up as it was allowed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from going_on_helpers import alter, read
from run_helpers import assert_bit_equal, logged, stored, weights

from forge import worker
from forge.config.optimizer import AdamW as AdamWSection
from forge.training.assemble import assemble

FINAL = ("result.json", "error.json", "attempts.jsonl", "run.lock", "logs/rank_0.log", "data.json")


def kept(run: Path) -> dict[str, bytes]:
    """All files that a refused start may not touch."""
    return {
        str(p.relative_to(run)): p.read_bytes()
        for p in run.rglob("*")
        if p.is_file() and str(p.relative_to(run)) not in FINAL
    }


@pytest.fixture
def own_text(text_file: Path, tmp_path: Path) -> Path:
    file = tmp_path / "own.txt"
    file.write_text(text_file.read_text())
    return file


@pytest.fixture
def broken_off(own_text: Path, new_run: Callable[..., Path]) -> Path:
    """A run on a text of its own, killed after a checkpoint of step 3."""
    path = new_run(f"data.path={own_text}", "checkpoint.interval=3")
    loop = assemble(path).loop
    loop.end_step = 3
    loop.run()
    return path


def refused(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    before = kept(run)
    capsys.readouterr()
    assert worker.main([str(run)]) == 2
    assert kept(run) == before
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_another_text_is_refused_until_it_is_put_back(
    broken_off: Path, own_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = own_text.read_text()
    own_text.write_text(2 * before)  # another text with the same tokenizer
    said = refused(broken_off, capsys)
    what = "the text has changed under this run, so its place in the data means something else"
    fix = "put it back, or run.allow_change=[data] goes on at the beginning of the new text"
    assert said.splitlines()[1] == f"{broken_off}/checkpoints/step_3: {what}; {fix}"
    own_text.write_text(before)
    assert worker.main([str(broken_off)]) == 0
    assert set(logged(broken_off, "train/loss")) == set(range(1, 7))


def test_another_text_is_read_from_its_beginning_where_allowed(
    broken_off: Path,
    own_text: Path,
    new_run: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    own_text.write_text(2 * own_text.read_text())
    alter(broken_off, run__allow_change=["data"])
    parts = assemble(broken_off)
    where = "at the beginning of this corpus, which is another one"
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == f"going on from checkpoints/step_3 at step 3, {where}: 3 steps to go"
    )
    assert (parts.loop.state.step, parts.loop.state.samples, parts.loop.loader.samples) == (3, 0, 0)
    first = next(parts.loop.loader).batches[0]
    fresh = assemble(new_run(f"data.path={own_text}"))
    assert torch.equal(first.tokens, next(fresh.loop.loader).batches[0].tokens)


def test_another_tokenizer_is_refused(
    broken_off: Path, own_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is trained on the text, so a new text brings a new one; both have to be allowed."""
    own_text.write_text(own_text.read_text()[::-1])
    said = refused(broken_off, capsys)
    what = "the text has changed under this run, and with it the tokenizer trained on it"
    own = f"{broken_off}/tokenizer/tokenizer.json"
    assert Path(own).is_file()
    fix = (
        f"put it back, or take its own: tokenizer=file tokenizer.path={own} "
        f"run.allow_change=[data,tokenizer]"
    )
    assert said.splitlines()[1] == f"{broken_off}/checkpoints/step_3: {what}; {fix}"
    alter(broken_off, run__allow_change=["data"])
    assert what in refused(broken_off, capsys)
    alter(broken_off, run__allow_change=["data", "tokenizer"])
    assert worker.main([str(broken_off)]) == 0


def test_another_model_begins_fresh_where_it_does_not_fit(
    saved_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One more block, allowed: it has initial weights and fresh optimizer state, and all else goes
    on.
    """
    alter(
        saved_run, model__n_layers=3, train__max_steps=8, run__allow_change=["model", "scheduler"]
    )
    with caplog.at_level(logging.WARNING):
        parts = assemble(saved_run)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("forge")]
    assert len(said) == 1
    assert said[0].startswith(
        "the model was changed, so what does not fit begins with its initial "
        "value: blocks.2.attention_norm.weight is "
    )
    assert said[0].endswith("is missing there; and 4 more")
    there, here = stored(saved_run / "checkpoints" / "step_6"), weights(parts.model)
    fresh = [name for name in here if name.startswith("blocks.2.")]
    assert_bit_equal(
        {name: here[name] for name in here if name not in fresh},
        {k[6:]: v for k, v in there.items() if k.startswith("model/")},
    )
    state = parts.loop.optimizer.state
    assert [name for name, p in parts.model.named_parameters() if not state[p]] == fresh
    assert read(saved_run / "changes.2.json")[0]["key"] == "model.n_layers"
    parts.loop.run()
    (saved_run / "result.json").unlink(missing_ok=True)
    again = assemble(saved_run)
    assert_bit_equal(weights(again.model), weights(parts.model))


def sgd(section: AdamWSection, *, model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=section.lr, momentum=0.9)


def test_another_optimizer_begins_anew(saved_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the same section too, when another class is built from it: state of the one means nothing
    to the other.
    """
    trust = {"run__trust": ["test_changed_run."], "run__allow_change": ["optimizer", "scheduler"]}
    alter(saved_run, optimizer___target_="test_changed_run.sgd", train__max_steps=8, **trust)
    parts = assemble(saved_run)
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "the optimizer begins anew: checkpoints/step_6 has the state of another"
    )
    assert (parts.loop.state.step, len(parts.loop.optimizer.state)) == (6, 0)
    there = stored(saved_run / "checkpoints" / "step_6")
    assert_bit_equal(
        weights(parts.model),
        {key[6:]: value for key, value in there.items() if key.startswith("model/")},
    )
    parts.loop.run()
    kinds = {
        key.rpartition("/")[2]
        for key in stored(saved_run / "checkpoints" / "step_8")
        if key.startswith("optimizer/")
    }
    assert kinds == {"momentum_buffer"}
    assemble(saved_run)
    assert "begins anew" not in capsys.readouterr().out
