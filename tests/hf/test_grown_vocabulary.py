"""A folder without a tokenizer, and with fewer rows of vocabulary than the one that is typed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from helpers.refusing import problems
from llama_folder import write_llama
from safetensors.torch import load_file

import forge
from forge import train

ROWS = 200
TEXT = "The sea is calm. " * 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of 200 rows, of which bytes need 257; without a tokenizer."""
    place = write_llama(tmp_path / "in", vocab_size=ROWS, eos_token_id=None)
    for file in (*place.glob("token*"), place / "chat_template.jinja"):
        file.unlink()
    (tmp_path / "my.txt").write_text(TEXT)
    return place


def words(folder: Path, *more: str) -> list[str]:
    typed = ["model=hf", f"model.path={folder}", "tokenizer=bytes", "data=text"]
    typed += [f"data.path={folder.parent / 'my.txt'}", "train.seq_len=16", "train.max_steps=1"]
    typed += ["run.device=cpu", "parallel=single", "precision=fp32", "eval.enabled=false"]
    return [*typed, "data.val_fraction=0", *more]


@pytest.mark.nightly
def test_new_rows_are_the_mean_of_those_of_the_folder(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of embedding and head, and said; the others are the folder's."""
    run = tmp_path / "run"
    typed = ["model.grow_vocab=true", f"run.dir={run}", "optimizer.lr=1e-30", "optimizer=adamw"]
    assert train.main(words(folder, *typed, "optimizer.weight_decay=0")) == 0
    said = capfd.readouterr().out
    names = "model.embed_tokens.weight, lm_head.weight"
    stored: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        stored |= load_file(file)
    state = forge.load(run).model.state_dict()
    added = len(state["embedding.weight"]) - ROWS
    assert added > 50
    assert f"; {added} new rows of {names}, each the mean of the others" in " ".join(said.split())
    for ours, theirs in (("embedding", "model.embed_tokens"), ("output", "lm_head")):
        table, known = state[f"{ours}.weight"], stored[f"{theirs}.weight"]
        torch.testing.assert_close(table[:ROWS], known, rtol=0, atol=1e-7)
        mean = known.mean(0).expand(added, -1)
        torch.testing.assert_close(table[ROWS:], mean, rtol=0, atol=1e-6)


def test_an_imported_folder_takes_the_tokenizer_that_is_typed(folder: Path, tmp_path: Path) -> None:
    main = importlib.import_module("forge.import").main
    run = tmp_path / "imported"
    assert main([str(folder), str(run), "tokenizer=bytes", "model.grow_vocab=true"]) == 0
    loaded = forge.load(run)
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("sea")) == "sea"
    assert loaded.model.state_dict()["output.weight"].shape[0] == 257


def test_without_the_option_its_name_is_the_advice(folder: Path) -> None:
    (refused,) = problems(words(folder))
    assert refused.fix.startswith("model.grow_vocab=true")
