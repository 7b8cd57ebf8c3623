"""A checkpoint runs no code: what is no tensor in it is not opened, and what claims to be one is
read as bytes.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from run_helpers import assert_bit_equal, read, step_of, stored, weights, without_pickle

from forge import export, generate, worker
from forge.rundir import checkpoints
from forge.training.checkpoints.restore import load_run


class Hostile:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch) -> Path:
    """A folder that is made when the pickle is opened, as is seen here; from now on nobody may as
    much as try.
    """
    path = tmp_path / "opened"
    pickle.loads(pickle.dumps(Hostile(path)))
    path.rmdir()
    without_pickle(monkeypatch)
    return path


def plant(step: Path, mark: Path):
    """The pickle under every name that torch.distributed.checkpoint or torch.load would open."""
    for folder in (step, step / "weights"):
        for name in (".metadata", "__0_0.distcp", "data.pkl", "model.pt", "rank_1.bin"):
            (folder / name).write_bytes(pickle.dumps(Hostile(mark)))


def rewrite(step: Path, name: str, content: bytes):
    """Also in meta.json, with the sizes and sums, which anybody can make again."""
    (step / name).write_bytes(content)
    if name != "meta.json":
        meta = read(step / "meta.json")
        meta["files"][name] = len(content)
        meta["sha256"] = checkpoints.small_hashes(step)
        del meta["sha256"]["meta.json"]
        (step / "meta.json").write_text(json.dumps(checkpoints.sealed(meta)))


def test_planted_pickles_are_not_opened(saved_run, assembled, mark, tmp_path, capsys):
    """By none of the ways to load: resume, another run's resume_from and init_from, generate,
    export.
    """
    step = step_of(saved_run, 6)
    plant(step, mark)
    theirs = stored(step, "model/")
    assert worker.main([str(saved_run)]) == 0
    for option in ("resume_from", "init_from"):
        assert_bit_equal(weights(assembled(f"checkpoint.{option}={step}").model), theirs)
    assert_bit_equal(dict(load_run(saved_run).model.state_dict()), theirs)
    assert generate.main([str(saved_run), "--tokens", "2", "--temperature", "0"]) == 0
    assert export.main([str(saved_run), str(tmp_path / "weights.safetensors")]) == 0
    assert not mark.exists()


FILES = "meta.json config.yaml weights/tensors.json weights/rank_0.bin tokenizer/tokenizer.json"


@pytest.mark.parametrize("name", FILES.split())
def test_a_pickle_in_the_place_of_a_file_is_damage(saved_run, mark, name, capsys):
    step = step_of(saved_run, 6)
    rewrite(step, name, pickle.dumps(Hostile(mark)))
    assert generate.main([str(step)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not mark.exists()


def test_a_config_that_names_code_is_refused_without_trust(saved_run, mark, tmp_path, capsys):
    """Nothing is imported, whatever trust the file itself claims."""
    step = step_of(saved_run, 6)
    text = (step / "config.yaml").read_text()
    evil = text.replace("_type_: decoder", "_type_: evil.Model")
    trusting = evil.replace("trust: []", "trust: [evil.]")
    assert text != evil != trusting
    rewrite(step, "config.yaml", trusting.encode())
    (tmp_path / "evil.py").write_text(f"import os; os.mkdir({str(mark)!r})")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert generate.main([str(step)]) == 2
        assert worker.main([str(saved_run)]) == 2
    assert "its schema evil.Model is not under a trusted prefix" in capsys.readouterr().err
    assert not mark.exists()
