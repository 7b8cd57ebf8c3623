"""YAML files of the user's own: what works, and what is said of mistakes, with file and line.

`FORGE_WRITE_SCREENS=1 pytest tests/compose/test_files.py` writes the screens again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from helpers.refusing import only, problems, resolved

from forge import check, cli
from forge.compose.many import Composer

SCREENS = Path(__file__).with_name("screens")
GLOBAL = "# @package _global_\n"
OF_MODEL = "defaults:\n  - tiny\n  - _self_\n"
VALUES = """\
# @package _global_
defaults:
  - override /scheduler: wsd
  - override /launch: slurm
  - override /optimizer: adamw
  - override /tokenizer: file
  - override /model: tinyy
  - override /objective: pretrain,sft
optimizer:
  lrr: 1
  learning_rate: 1e-3
  lr: 1e-3,3e-3
  betas: 0.9
  eps: 1.0e-6
scheduler:
  warmup_fraction: 0.1
train:
  seq_len: 4096
  max_steps: 1e3
  batch_size: [8, 16]
eval:
  sample_prompts: Hello, you
  interval: soon
run:
  name: [a]
tokenizer:
  eos_token: [SEP]
launch:
  time: 1-00:00:00
metrics: 5
data: text
model:
  moe: 3
modl:
  dim: 3
sweep:
  params: {}
  ablation:
    seeds: 1,2
    arms: {other: model.dim=64, dict: {seed: 1}, yes: [], empty: null}
sweeper:
  params: {1: a, seed: null, optimizer: {lr: '1e-3,3e-3', eps: [1, 2]}}
hydra:
  run: {dir: x}
"""
BY_PYYAML = "expected ',' or ']', but got '<stream end>'"
ALONE = {
    "a group that does not exist": "defaults:\n  - override /modl: tiny\n",
    "a group without a slash": "defaults:\n  - model: small\n",
    "a second model": "defaults:\n  - /model: small\n",
    "no model": "defaults:\n  - override /model: null\n",
    "a file that does not exist": "defaults:\n  - yours\n",
    "a defaults list that is none": "defaults: tiny\n",
    "an open bracket": "optimizer: {betas: [1\n",
    "a key twice": "optimizer:\n  lr: 1\n  lr: 2\n",
    "Hydra's launcher as a name": "hydra:\n  launcher: submitit_slurm\n",
    "arms as a list": "sweep:\n  ablation:\n    arms: [base, other]\n",
    "trust": "run:\n  trust: [os.]\n",
    "trust by interpolation": "run:\n  trust: ${eval.sample_prompts}\n",
    "a target that is not trusted": "optimizer:\n  _target_: os.system\n",
    "an interpolation to nothing": "run:\n  name: ${nokey}\n",
    "a value that is against a rule": "train:\n  seq_len: 99999\n",
    "a dict that is missing": "callbacks: ${nope}\n",
}


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests run beside a folder `conf`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "conf"


def write(name: str, text: str) -> None:
    file = Path("conf", name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert check.main(["-cd", "conf", *words]) == 2
    return re.sub(r"(forge/\S+\.py):\d+", r"\1:N", capsys.readouterr().err)


def compare(name: str, text: str) -> None:
    screen = SCREENS / f"{name}.txt"
    if "FORGE_WRITE_SCREENS" in os.environ:
        screen.write_text(text, encoding="utf-8")
    assert text == screen.read_text(encoding="utf-8")


def test_all_mistakes_of_a_file_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    write("experiment/mine.yaml", VALUES)
    compare("file", refused(capsys, "experiment=mine", "scheduler.foo=1", "run.device=cpu"))


@pytest.mark.nightly
def test_mistakes_that_hide_others(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for name, text in ALONE.items():
        write("experiment/mine.yaml", GLOBAL + text)
        shown.append(f"{name}: {refused(capsys, 'experiment=mine')}")
    write("experiment/mine.yaml", "optimizer:\n  lr: 1\n")
    shown.append(f"no package: {refused(capsys, 'experiment=mine')}")
    write("model/mine.yaml", "vocab_size: 300\n")
    shown.append(f"a model without a schema: {refused(capsys, 'model=mine')}")
    write("setup/fast.yaml", GLOBAL + "train:\n  max_steps: 3\n")
    shown.append(f"a group without a place: {refused(capsys, 'setup=fast')}")
    write("data/mine.yaml", "defaults:\n  - text\n  - _self_\npath: ???\n")
    shown.append(f"a value that is left open: {refused(capsys, 'data=mine')}")
    text = "\n".join(shown).replace("did not find expected ',' or ']'", BY_PYYAML)  # by libyaml
    compare("files", text)


def test_bytes_that_are_no_text() -> None:
    write("experiment/mine.yaml", "")
    Path("conf/experiment/mine.yaml").write_bytes(b"\xff\xfe\x00")
    found = only(["experiment=mine"], config_dirs=["conf"])
    assert found.what.startswith("this does not compose: 'utf-8' codec can't decode")


def test_a_broken_file_takes_nothing_else_with_it() -> None:
    write("experiment/mine.yaml", GLOBAL + "optimizer: {betas: [1\n")
    typed = ["data=text", "experiment=mine", "data.path=/nowhere", "optimizer.lrr=1"]
    typed += ["model=small", "train.seq_len=2049"]
    found = problems(typed, config_dirs=["conf"])
    assert [p.key for p in found] == [typed[1], typed[2], typed[3], typed[5]]
    assert "(2048)" in found[-1].what, "model=small still counts"


def test_two_broken_files_are_both_reported_and_each_once() -> None:
    write("experiment/mine.yaml", GLOBAL + "defaults:\n  - override /model: mine\nnokey: 1\n")
    write("model/mine.yaml", OF_MODEL + "n_layer: 3\n")
    found = problems(["experiment=mine"], config_dirs=["conf"])
    assert [(p.key, p.where) for p in found] == [
        ("experiment=mine", "conf/experiment/mine.yaml:4"),
        ("model=mine", "conf/model/mine.yaml:4"),
    ]
    assert found[1].fix == "did you mean n_layers: 3?"
    write("local/default.yaml", GLOBAL + "nokey: 1\n")
    found = only(["model=small"], config_dirs=["conf"])
    assert (found.key, found.where) == ("local=default", "conf/local/default.yaml:2")


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("[1e-3, 3e-3]", "0.001,0.003"),
        ("[5]", "5"),
        ("[true, null, a b]", "true,null,a b"),
        ("[[0.9, 0.95], [0.9, 0.99]]", "[0.9,0.95],[0.9,0.99]"),
        ("['range(1,3)', 7]", "range(1,3),7"),
        ("1e-3,3e-3", "1e-3,3e-3"),
    ],
)
def test_several_values_as_a_list(written: str, values: str) -> None:
    write("experiment/mine.yaml", f"{GLOBAL}sweeper:\n  params:\n    train.x: {written}\n")
    params = resolved(["experiment=mine"], config_dirs=["conf"]).config.sweeper.params
    assert (
        params == Composer(["conf"])(["experiment=mine"])[1].sweeper.params == {"train.x": values}
    )


def test_what_works() -> None:
    write("local/default.yaml", GLOBAL + "run:\n  root: elsewhere\n")
    scheduler = "defaults:\n  - override /scheduler: wsd\n"
    values = "optimizer:\n  lr: 0.25\nrun:\n  name: ${seed}\n"
    write("experiment/mine.yaml", GLOBAL + scheduler + values)
    write("experiment/deep/er.yaml", GLOBAL + "seed: 7\n")
    write("model/mine.yaml", OF_MODEL + "dim: 128\n")
    write("setup/fast.yaml", GLOBAL + "train:\n  max_steps: 500\n")
    write("data/mine.yaml", "defaults:\n  - text\n  - _self_\npath: ???\n")
    words = [
        "experiment=[mine,deep/er]",
        "model=mine",
        "+setup=fast",
        "data=mine",
        "data.path=conf",
    ]
    config = resolved(words, config_dirs=["conf"]).config
    assert (config.optimizer.lr, config.run.name, config.seed) == (0.25, "7", 7)
    assert (config.model.dim, config.run.root, config.train.max_steps) == (128, "elsewhere", 500)
    assert type(config.scheduler).__name__ == "WSD"
    again = resolved(["hydra.searchpath=[conf]", "+experiment/deep=er", "local=null"]).config
    assert (again.run.root, again.seed) == ("runs", 7)
    composition, _ = cli.resolved(["experiment=mine"], ["conf"])
    assert composition.choices["experiment"] == "mine"


def test_trust_on_the_command_line_does_not_excuse_trust_in_a_file() -> None:
    write("experiment/mine.yaml", GLOBAL + "run:\n  trust: [os.]\n")
    found = problems(["experiment=mine", "run.trust=[mypkg.]"], config_dirs=["conf"])
    assert [p.what for p in found] == ["a file sets run.trust."]


def test_a_folder_that_does_not_exist_comes_before_what_comes_of_it() -> None:
    first, second = problems(["experiment=mine"], config_dirs=["nope"])
    assert (first.key, first.what) == (
        "--config-dir nope",
        f"there is no directory or package {Path('nope').resolve()}.",
    )
    assert second.what == "there is no experiment named 'mine'."
