"""`python -m forge.generate` and `python -m forge.export`: what they read of a run, and refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file

from forge import export, generate
from forge.training.checkpoints.restore import load_run

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("verb", [generate.main, export.main])
def test_a_run_without_a_checkpoint_is_refused(
    verb: Callable[[list[str]], int], tmp_path: Path, capsys: Capture
) -> None:
    more = [str(tmp_path / "w.safetensors")] if verb is export.main else []
    assert verb([str(tmp_path), *more]) == verb([str(tmp_path / "absent"), *more]) == 2
    fix = "give a step_N directory, or a run that has one"
    assert capsys.readouterr() == (
        "",
        f"{tmp_path}: there is no complete checkpoint; {fix}\n"
        f"{tmp_path}/absent: there is no such directory; {fix}\n",
    )


def test_a_text_goes_on_the_same_way_for_a_seed(tiny_run: Path, capsys: Capture) -> None:
    def text(*options: str, prompt: str = "the sea") -> str:
        words = [str(tiny_run), "--tokens", "12", "--prompt", prompt, *options]
        assert generate.main(words) == 0
        return capsys.readouterr().out

    first = text("--seed", "3")
    assert first.startswith("the sea")
    assert text("--seed", "3") == first
    assert len({text("--seed", str(seed)) for seed in range(3)}) > 1
    greedy = text("--temperature", "0")
    assert greedy == text("--temperature", "0", "--seed", "9")
    assert greedy == text("--top-k", "1") == text("--top-p", "1e-9")
    assert text("--temperature", "0", "--prompt", "the sea", prompt="ship").endswith(greedy)
    trained = load_run(tiny_run)
    tokens = trained.tokenizer.encode("the sea")
    for _ in range(12):
        with torch.no_grad():
            tokens.append(int(trained.model(torch.tensor([tokens]))[0, -1].argmax()))
    assert greedy == trained.tokenizer.decode(tokens) + "\n"


def test_a_run_of_a_gpu_is_read_on_a_machine_without_one(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    step = tiny_run / "checkpoints" / "step_6"
    config, meta = step / "config.yaml", step / "meta.json"
    plain = yaml.safe_load(config.read_text())
    plain["run"]["device"], plain["precision"]["mixed_precision"] = "cuda", "bf16"
    config.write_text(yaml.safe_dump(plain))
    about = json.loads(meta.read_text())
    about["files"]["config.yaml"] = config.stat().st_size
    del about["checksum"], about["sha256"]  # as a checkpoint of before them
    meta.write_text(json.dumps(about))
    trained = load_run(step)
    assert trained.device.type == "cpu"
    assert trained.model(torch.zeros(1, 4, dtype=torch.int64)).dtype == torch.float32


def test_export_writes_the_weights_of_the_checkpoint(
    tiny_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    """In a folder that it makes; by default in that of training."""
    weights = load_run(tiny_run).model.state_dict()
    for name, options in (("bfloat16", ["--dtype", "bfloat16"]), ("float32", [])):
        file = tmp_path / "a" / "b" / f"{name}.safetensors"
        assert export.main([str(tiny_run), str(file), *options]) == 0
        assert capsys.readouterr().out == f"{file}: {len(weights)} tensors of step 6 in {name}\n"
        written, dtype = load_file(file), getattr(torch, name)
        assert written.keys() == weights.keys()
        for key, value in weights.items():
            assert torch.equal(written[key], value.to(dtype))
            assert written[key].dtype == dtype
    assert len(list((tmp_path / "a" / "b").iterdir())) == 2


def test_export_says_why_a_file_cannot_be_written(
    tiny_run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert export.main([str(tiny_run), str(tmp_path / "file")]) == 2
    assert "file exists; give another name, or --overwrite" in capsys.readouterr().err
    assert export.main([str(tiny_run), str(tmp_path / "file" / "w.safetensors")]) == 2
    assert f"{tmp_path / 'file'}" in capsys.readouterr().err

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    assert export.main([str(tiny_run), str(tmp_path / "w.safetensors")]) == 2
    assert "w.safetensors cannot be written: No space left" in capsys.readouterr().err
