"""`forge.import FOLDER --diagnose`: what is known of a model, and what is missing."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import transformers
from tiny_families import SIZES, peer

forge_import = importlib.import_module("forge.import")


def diagnosed(place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert forge_import.main([str(place), "--diagnose"]) == 0
    return capsys.readouterr().out


def renamed(place: Path, **keys: object) -> None:
    file = place / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def test_a_family_by_another_name_lacks_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("qwen3").save_pretrained(tmp_path)
    renamed(tmp_path, model_type="mine")
    out = diagnosed(tmp_path, capsys)
    assert "model_type='mine' is no family of forge." in out
    assert "Read as qwen3:" in out
    assert "nothing else is missing" in out
    assert '"model_type": "qwen3" in a copy' in out
    assert "tensors that fit: 46 of 46" in out


def test_what_no_family_has_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = transformers.ApertusConfig(**(SIZES | {"hidden_act": "xielu"}))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    out = diagnosed(tmp_path, capsys)
    assert "model_type='apertus' is no family of forge." in out
    assert "hidden_act='xielu' is none of" in out
    assert "model.layers.*.mlp.act_fn.alpha_p" in out
    assert "missing: what is listed above" in out


def test_a_known_family_with_an_unknown_key_and_other_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("llama").save_pretrained(tmp_path)
    renamed(tmp_path, third_rail=0.5, intermediate_size=96)
    out = diagnosed(tmp_path, capsys)
    assert "model_type='llama' is the family llama." in out
    assert "keys unknown: third_rail=0.5" in out
    assert "model.layers.*.mlp.up_proj.weight [80, 32] in place of [96, 32]" in out


def test_a_config_alone_is_diagnosed_by_its_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "hidden_size": 8}))
    out = diagnosed(tmp_path, capsys)
    assert "tensors not compared" in out or "a value that no model has" in out
    assert "it has no vocab_size" in out


@pytest.mark.parametrize(
    ("after", "message"),
    [([], "has no config.json"), (["out"], "--diagnose takes a folder, or the id of a model")],
)
def test_bad_input(
    after: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forge_import.main([str(tmp_path / "gone"), *after, "--diagnose"]) == 2
    assert message in capsys.readouterr().err
