"""YAML files of the user's own: what works, and how each mistake in one is refused, with the file's name and no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from refusing import only, problems, resolved

from forge.config import cli

Write = Callable[[str, str], str]
CORRECT = "correct the file"
GLOBAL = "# @package _global_\n"

BROKEN = {
    "an unknown option of a group": (
        "defaults:\n  - override /optimizer: adamv\n",
        "",
        "there is no optimizer named 'adamv', which the file asks for.",
        "did you mean optimizer: adamw?",
    ),
    "an unknown group": (
        "defaults:\n  - override /modl: tiny\n",
        "",
        "this does not compose: Could not override 'modl'. No match in the defaults list.",
        CORRECT,
    ),
    "an unknown key": ("optimizer:\n  lr: 1e-3\n  lrr: 1\n", ":4", "AdamW has no option 'lrr'.", "did you mean lr?"),
    "an unknown section": ("optimiser:\n  lr: 1\n", ":2", "there is no group or option 'optimiser'.", "did you mean optimizer?"),
    "Hydra's settings": ("hydra:\n  run: {dir: x}\n", ":2", "there is no group or option 'hydra'.", "remove it from the file"),
    "a wrong type": (
        "train:\n  max_steps: soon\n",
        ":3",
        "train.max_steps: Value 'soon' of type 'str' could not be converted to Integer.",
        CORRECT,
    ),
    "a section that is a number": ("optimizer: 5\n", "", "Merge error: int is not a subclass of AdamW. value: 5.", CORRECT),
    "a section that is null": ("model: null\n", ":2", "model: field 'model' is not Optional.", CORRECT),
    "no model": ("defaults:\n  - override /model: null\n", "", "this leaves no model.", "choose one: model=..."),
    "two models": (
        "defaults:\n  - /model: tiny\n",
        "",
        "this does not compose: schema/model@model appears more than once in the final defaults list.",
        CORRECT,
    ),
    "an open bracket": ("optimizer: {betas: [1\n", ":3", "the file is not YAML: expected ',' or ']', but got '<stream end>'.", CORRECT),
    "a tab": ("\toptimizer: 1\n", ":2", "the file is not YAML: found character '\\t' that cannot start any token.", CORRECT),
    "a key twice": ("optimizer:\n  lr: 1\n  lr: 2\n", ":4", "the file is not YAML: found duplicate key lr.", CORRECT),
    "a Python object": (
        "seed: !!python/object/apply:os.getpid []\n",
        ":2",
        "the file is not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.getpid'.",
        CORRECT,
    ),
    "a defaults list that is none": (
        "defaults: tiny\n",
        "",
        "this does not compose: Invalid defaults list in 'experiment/mine', defaults must be a list (got str).",
        CORRECT,
    ),
    "a file that includes itself": ("defaults:\n  - mine\n", "", "the defaults list leads back to this file.", CORRECT),
    "a missing file": ("defaults:\n  - yours\n", "", "there is no experiment named 'yours', which the file asks for.", ""),
}


@pytest.mark.parametrize(("text", "line", "what", "fix"), BROKEN.values(), ids=BROKEN)
def test_a_broken_experiment(text: str, line: str, what: str, fix: str, write: Write):
    folder = write("experiment/mine.yaml", GLOBAL + text)
    found = only(["experiment=mine"], config_dirs=[folder])
    assert (found.what, found.key, found.where) == (what, "experiment=mine", f"{folder}/experiment/mine.yaml{line}")
    assert found.fix == fix or (not fix and found.fix)


CHECKED_LATER = {
    "a value out of bounds": ("optimizer:\n  lr: -1\n", "optimizer.lr=-1.0", ":3", "optimizer.lr must be greater than 0."),
    "a target outside the allow-list": (
        "optimizer:\n  _target_: os.system\n",
        "optimizer._target_=os.system",
        ":3",
        "os.system is not under forge., torch.optim., torch.nn. or a trusted prefix.",
    ),
    "trust": ("run:\n  trust: [os.]\n", "run.trust", ":3", "a file sets run.trust."),
    "trust by interpolation": ("run:\n  trust: ${eval.sample_prompts}\n", "run.trust", ":3", "a file sets run.trust."),
    "an interpolation to nothing": (
        "run:\n  name: ${nokey}\n",
        "run.name",
        ":3",
        "its interpolation fails: Interpolation key 'nokey' not found.",
    ),
    "a list in a list": (
        "eval:\n  sample_prompts: [[a]]\n",
        "eval.sample_prompts=[['a']]",
        ":3",
        "eval.sample_prompts must be a list of texts.",
    ),
    "a rule": ("train:\n  seq_len: 99999\n", "train.seq_len=99999", ":3", None),
}


@pytest.mark.parametrize(("text", "key", "line", "what"), CHECKED_LATER.values(), ids=CHECKED_LATER)
def test_an_experiment_that_composes_and_cannot_run(text: str, key: str, line: str, what: str | None, write: Write):
    folder = write("experiment/mine.yaml", GLOBAL + text)
    found = only(["experiment=mine"], config_dirs=[folder])
    assert (found.key, found.where) == (key, f"{folder}/experiment/mine.yaml{line}")
    assert what is None or found.what == what


@pytest.mark.parametrize("text", ["", "x", "- a\n", "optimizer:\n  lr: 1\n"], ids=["empty", "a word", "a list", "no package"])
def test_an_experiment_without_its_first_line(text: str, write: Write):
    folder = write("experiment/mine.yaml", text)
    found = only(["experiment=mine"], config_dirs=[folder])
    assert (found.what, found.fix) == ("its values have no place under 'experiment'.", "start the file with # @package _global_")


def test_bytes_that_are_no_text(write: Write):
    folder = write("experiment/mine.yaml", "")
    Path(folder, "experiment", "mine.yaml").write_bytes(b"\xff\xfe\x00")
    assert only(["experiment=mine"], config_dirs=[folder]).what == "the file is not UTF-8 text."


def test_a_broken_file_takes_nothing_else_with_it(write: Write):
    folder = write("experiment/mine.yaml", GLOBAL + "optimizer: {betas: [1\n")
    told = ["data=text", "experiment=mine", "data.path=/nowhere", "optimizer.lrr=1", "model=small", "train.seq_len=2049"]
    found = problems(told, config_dirs=[folder])
    assert [p.key for p in found] == ["experiment=mine", "data.path=/nowhere", "optimizer.lrr=1", "train.seq_len=2049"]
    assert "(2048)" in found[-1].what, "model=small still counts"


def test_two_broken_files_are_both_reported(write: Write):
    write("experiment/mine.yaml", GLOBAL + "nokey: 1\n")
    folder = write("model/mine.yaml", "dim: 64\n")
    first, second = problems(["experiment=mine", "model=mine"], config_dirs=[folder])
    assert (first.key, second.key) == ("experiment=mine", "model=mine")
    assert second.fix == "start the file with 'defaults: [/schema/model@_here_: decoder, _self_]'"


def test_a_model_without_a_schema(write: Write):
    folder = write("model/mine.yaml", "vocab_size: 300\n")
    found = only(["model=mine"], config_dirs=[folder])
    assert found.what == "the file of model does not say which of these it is: decoder."
    assert found.fix == "start the file with 'defaults: [/schema/model@_here_: decoder, _self_]'"


def test_a_key_that_a_model_does_not_have(write: Write):
    folder = write("model/mine.yaml", "defaults:\n  - tiny\n  - _self_\nn_layer: 3\n")
    found = only(["model=mine"], config_dirs=[folder])
    assert (found.what, found.fix, found.where) == (
        "Decoder has no option 'n_layer'.",
        "did you mean n_layers?",
        f"{folder}/model/mine.yaml:4",
    )


def test_a_broken_local_file_is_named(write: Write):
    folder = write("local/default.yaml", GLOBAL + "nokey: 1\n")
    found = only(["model=small"], config_dirs=[folder])
    assert (found.key, found.where) == ("local=default", f"{folder}/local/default.yaml:2")


def test_what_works(write: Write):
    write("local/default.yaml", GLOBAL + "run:\n  root: elsewhere\n")
    write("experiment/mine.yaml", GLOBAL + "defaults:\n  - override /scheduler: wsd\noptimizer:\n  lr: 0.25\nrun:\n  name: ${seed}\n")
    write("experiment/deep/er.yaml", GLOBAL + "seed: 7\n")
    folder = write("model/mine.yaml", "defaults:\n  - tiny\n  - _self_\ndim: 128\n")
    config = resolved(["experiment=[mine,deep/er]", "model=mine"], config_dirs=[folder]).config
    assert (config.optimizer.lr, config.run.name, config.seed, config.model.dim, config.run.root) == (0.25, "7", 7, 128, "elsewhere")
    assert type(config.scheduler).__name__ == "WSD"
    assert resolved([f"hydra.searchpath=[{folder}]", "+experiment/deep=er", "local=null"]).config.run.root == "runs"


def test_a_group_of_the_users_own_is_added_with_a_plus(write: Write):
    folder = write("setup/fast.yaml", GLOBAL + "train:\n  max_steps: 3\n")
    assert resolved(["+setup=fast"], config_dirs=[folder]).config.train.max_steps == 3
    found = only(["setup=fast"], config_dirs=[folder])
    assert (found.what, found.fix) == ("setup has no place of its own in the config.", "write +setup=fast")


def test_a_value_that_a_file_leaves_to_the_command_line(write: Write):
    folder = write("data/mine.yaml", "defaults:\n  - text\n  - _self_\npath: ???\n")
    found = only(["data=mine"], config_dirs=[folder])
    assert (found.key, found.what) == ("data.path", "data=text needs the path of your text.")
    assert resolved(["data=mine", f"data.path={folder}"], config_dirs=[folder]).config.data.path == folder  # type: ignore[attr-defined]


def test_a_relative_search_path(write: Write, monkeypatch: pytest.MonkeyPatch):
    folder = write("experiment/mine.yaml", GLOBAL + "seed: 9\n")
    monkeypatch.chdir(Path(folder).parent)
    assert resolved(["hydra.searchpath=[conf]", "experiment=mine"]).config.seed == 9
    composition, _ = cli.resolved(["experiment=mine"], ["conf"])
    assert composition.choices["experiment"] == "mine"


def test_trust_on_the_command_line_does_not_excuse_trust_in_a_file(write: Write):
    folder = write("experiment/mine.yaml", GLOBAL + "run:\n  trust: [os.]\n")
    assert [p.what for p in problems(["experiment=mine", "run.trust=[mypkg.]"], config_dirs=[folder])] == ["a file sets run.trust."]
