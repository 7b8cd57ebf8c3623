"""A checkpoint runs no code: what is no tensor in it is not opened, and what claims to be one is
read as bytes.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_helpers import assert_bit_equal, stored, weights

from forge import export, generate, worker
from forge.training.assemble import Parts
from forge.training.restore import load_run


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


def reached(*_: object, **__: object) -> None:
    raise AssertionError("a pickle is opened")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is made when the pickle is opened, as is seen here; from now on nobody may as
    much as try.
    """
    path = tmp_path / "opened"
    pickle.loads(pickle.dumps(Hostile(path)))
    path.rmdir()
    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
    ):
        monkeypatch.setattr(module, name, reached)
    return path


def plant(step: Path, mark: Path) -> None:
    """The pickle under every name that torch.distributed.checkpoint or torch.load would open."""
    content = pickle.dumps(Hostile(mark))
    for folder in (step, step / "weights"):
        for name in (
            ".metadata",
            "__0_0.distcp",
            "data.pkl",
            "model.pt",
            "weights.bin",
            "rank_1.bin",
        ):
            (folder / name).write_bytes(content)


def test_planted_pickles_are_not_opened(
    saved_run: Path,
    assembled: Callable[..., Parts],
    mark: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By none of the ways to load: resume, another run's resume_from and init_from, generate,
    export.
    """
    step = saved_run / "checkpoints" / "step_6"
    plant(step, mark)
    tensors = stored(step)
    theirs = {key[6:]: value for key, value in tensors.items() if key.startswith("model/")}
    assert worker.main([str(saved_run)]) == 0
    for option in ("resume_from", "init_from"):
        assert_bit_equal(weights(assembled(f"checkpoint.{option}={step}").model), theirs)
    assert_bit_equal(dict(load_run(saved_run).model.state_dict()), theirs)
    assert generate.main([str(saved_run), "--tokens", "2", "--temperature", "0"]) == 0
    assert export.main([str(saved_run), str(tmp_path / "weights.safetensors")]) == 0
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "meta.json",
        "config.yaml",
        "weights/tensors.json",
        "weights/rank_0.bin",
        "tokenizer/tokenizer.json",
    ],
)
def test_a_pickle_in_the_place_of_a_file_is_damage(
    saved_run: Path, mark: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where meta.json, which is theirs too, names its size."""
    step = saved_run / "checkpoints" / "step_6"
    file = step / name
    content = pickle.dumps(Hostile(mark))
    file.write_bytes(content)
    if name != "meta.json":
        meta = json.loads((step / "meta.json").read_text())
        meta["files"][name] = len(content)
        (step / "meta.json").write_text(json.dumps(meta))
    assert generate.main([str(step)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not mark.exists()


def test_a_config_that_names_code_is_refused_without_trust(
    saved_run: Path, mark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is imported, whatever trust the file itself claims."""
    step = saved_run / "checkpoints" / "step_6"
    for option, text in (
        ("_type_: forge.config.model.Decoder", "_type_: evil.Model"),
        ("trust: []", "trust: [evil.]"),
    ):
        before = (step / "config.yaml").read_text()
        assert option in before
        (step / "config.yaml").write_text(before.replace(option, text))
    meta = json.loads((step / "meta.json").read_text())
    meta["files"]["config.yaml"] = (step / "config.yaml").stat().st_size
    (step / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "evil.py").write_text(f"import os; os.mkdir({str(mark)!r})")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert generate.main([str(step)]) == 2
        assert worker.main([str(saved_run)]) == 2
    assert "its schema evil.Model is not under a trusted prefix" in capsys.readouterr().err
    assert not mark.exists()
