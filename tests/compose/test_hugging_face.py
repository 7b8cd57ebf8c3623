"""`model=hf`: config.json stands below all that files and overrides set, and torch stays out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.folders import write_folder

from forge import cli, explain
from forge.compose.composition import compose
from forge.compose.many import Composer
from forge.config.model.hub_folder import FolderDecoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path, num_key_value_heads=2, rope_theta=777.0)
    vocab = {"model": {"vocab": {"a": 0, "<s>": 1, "</s>": 2}}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocab))
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    return tmp_path


def words(folder: Path, *more: str) -> list[str]:
    return ["model=hf", f"model.path={folder}", "train.seq_len=32", "parallel=single", *more]


def test_values_come_from_the_folder_unless_they_are_typed_or_in_a_file(folder: Path) -> None:
    conf = folder / "conf" / "experiment"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text("# @package _global_\nmodel: {norm_eps: 0.5}\n")
    typed = words(folder, "experiment=mine", "model.activation=gelu", "run.device=cpu")
    composition, resolution = cli.resolved(typed, [str(folder / "conf")])
    model = resolution.config.model
    assert isinstance(model, FolderDecoder)
    assert (model.n_layers, model.rope_theta, model.n_kv_heads) == (2, 777, 2)
    assert (model.norm_eps, model.activation) == (0.5, "gelu")
    assert composition.origin("model.rope_theta") == str(folder / "config.json")
    assert composition.origin("model.activation") == "command line"
    assert composition.origin("model.norm_eps").endswith("mine.yaml:2")


def test_tokenizer_and_weights_are_those_of_the_folder(folder: Path) -> None:
    config = cli.resolved(words(folder, "run.device=cpu"))[1].config
    assert config.tokenizer.path == str(folder / "tokenizer.json")
    assert config.tokenizer.add_bos
    assert config.checkpoint.init_from == str(folder)
    own = words(folder, "tokenizer=bytes", "model.pretrained=false", "run.device=cpu")
    config = cli.resolved(own)[1].config
    assert config.checkpoint.init_from is None
    assert not config.tokenizer.add_bos
    off = words(folder, "tokenizer.add_bos=false", "run.device=cpu")
    assert not cli.resolved(off)[1].config.tokenizer.add_bos


def test_explain_names_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(["model.rope_theta", *words(folder, "run.device=cpu")]) == 0
    assert f"from          {folder / 'config.json'}" in capsys.readouterr().out


def test_points_of_a_sweep_are_composed_as_one_run_is(folder: Path, tmp_path: Path) -> None:
    """Of several folders, and with values over them."""
    other = tmp_path / "other"
    other.mkdir()
    write_folder(other, rope_theta=3.0)
    composer = Composer()
    for place in (folder, other, folder):
        for more in (("model.n_kv_heads=1",), ("seed=3", "model.norm_eps=0.25"), ()):
            typed = words(place, "tokenizer=bytes", *more)
            assert composer(typed)[1].model == compose(typed).typed().model


def test_a_folder_is_checked_without_torch(folder: Path) -> None:
    typed = words(folder, "run.device=cpu")
    code = "import sys; from forge import check; check.main(sys.argv[1:]); "
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *typed], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
