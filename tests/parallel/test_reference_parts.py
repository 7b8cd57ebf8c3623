"""The reference of a preference run: kept in parts, of what is read alone; and rows cut short."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from parity_run import config_of
from test_preference_layouts import DPO, KTO, Preferred, record

from forge.data.batches.examples import plan_examples
from forge.parallel.ranks import Ranks
from forge.training import references
from forge.training.models import build_objective
from forge.training.references import add_references

CPU = torch.device("cpu")
NUMBERS = [*range(40, 180)]


class Killed(Exception):
    pass


def read_values(folder: Path) -> np.ndarray:
    """Reference log-probabilities of the examples in NUMBERS, with the cache in `folder`."""
    words = f"{DPO} data=preference data.path={__file__} data.cache_dir={folder}"
    config = config_of("llama", f"{words} train.batch_size=2")
    store, objective = Preferred(), build_objective(config, CPU, Ranks())
    add_references(objective, config, [(store, NUMBERS)], CPU, Ranks(), dtype=torch.float64)
    return objective.references[store.fingerprint].values


def test_a_killed_computation_goes_on_where_it_was(tmp_path, monkeypatch, capsys) -> None:
    plan = plan_examples(Preferred(), seq_len=16, too_long="refuse")
    whole = read_values(tmp_path / "whole")
    assert np.array_equal(np.flatnonzero(~np.isnan(whole).any(1)), NUMBERS)
    assert len(plan) > NUMBERS[-1] + 1
    assert "computing the reference of 140 examples" in capsys.readouterr().out

    write = references._write
    parts: list[int] = []

    def killed_at_the_second(entry: Path, numbers: np.ndarray, values: np.ndarray) -> None:
        parts.append(len(numbers))
        if len(parts) == 2:
            raise Killed
        write(entry, numbers, values)

    with monkeypatch.context() as patch:
        patch.setattr(references, "_write", killed_at_the_second)
        with pytest.raises(Killed):
            read_values(tmp_path / "killed")
    assert parts[0] == 64  # 32 batches of 2 examples
    capsys.readouterr()
    again = read_values(tmp_path / "killed")
    assert "computing the reference of 76 examples" in capsys.readouterr().out
    assert np.array_equal(again, whole, equal_nan=True)

    (damaged, *_) = sorted((tmp_path / "killed").glob("references/*/*.npz"))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    again = read_values(tmp_path / "killed")
    assert re.search(r"computing the reference of \d+ examples", capsys.readouterr().out)
    assert np.array_equal(again, whole, equal_nan=True)
    read_values(tmp_path / "killed")
    assert "computing" not in capsys.readouterr().out


@pytest.mark.parametrize("objective", [DPO, KTO])
def test_rows_that_end_with_the_longest_have_the_same_losses(objective: str, tmp_path) -> None:
    short = record(objective, "llama", "train.batch_size=1", Ranks(), tmp_path / "short")
    padded = f"train.batch_size=1 {PADDED}=0"
    whole = record(objective, "llama", padded, Ranks(), tmp_path / "whole")
    assert short.losses == pytest.approx(whole.losses, rel=1e-12)
    for name, gradient in whole.gradients[-1].items():
        assert (short.gradients[-1][name] - gradient).norm() <= 1e-10 * gradient.norm(), name


PADDED = "data.pad_to_multiple_of"


@pytest.mark.parametrize(
    ("model", "words", "multiple"),
    [
        ("llama", "", 8),
        ("llama", "train.compile_model=true", 4),
        ("llama", "parallel.tp=2", 8),
        ("llama", "parallel.pp=2 train.batch_size=4 parallel.pp_microbatches=4", 0),
        ("moe", "", 0),
    ],
)
def test_where_rows_end(model: str, words: str, multiple: int) -> None:
    config = config_of(model, f"{DPO} data=preference data.path={__file__} {words}")
    assert config.train.seq_len == 16
    assert config.data.pad_to_multiple_of == multiple


@pytest.mark.parametrize(
    ("model", "words", "chosen"),
    [
        ("llama", "", "cached"),
        ("lora", "", "adapter"),
        ("lora", "adapter.modules_to_save=[norm]", "cached"),
        ("lora", "objective.reference=copy", "copy"),
    ],
)
def test_the_reference_of_an_adapter_is_its_base(model: str, words: str, chosen: str) -> None:
    config = config_of(model, f"{DPO} data=preference data.path={__file__} {words}")
    assert config.objective.reference == chosen  # type: ignore[attr-defined]
