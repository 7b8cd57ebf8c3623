"""Models, groups and folders of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from refusing import only, problems, resolved
from test_user_files import GLOBAL

from forge import cli

Write = Callable[[str, str], str]


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
        "did you mean n_layers: 3?",
        f"{folder}/model/mine.yaml:4",
    )


def test_a_broken_local_file_is_named(write: Write):
    folder = write("local/default.yaml", GLOBAL + "nokey: 1\n")
    found = only(["model=small"], config_dirs=[folder])
    assert (found.key, found.where) == ("local=default", f"{folder}/local/default.yaml:2")


def test_what_works(write: Write):
    write("local/default.yaml", GLOBAL + "run:\n  root: elsewhere\n")
    write(
        "experiment/mine.yaml",
        GLOBAL
        + "defaults:\n  - override /scheduler: wsd\noptimizer:\n  lr: 0.25\nrun:\n  name: ${seed}\n",
    )
    write("experiment/deep/er.yaml", GLOBAL + "seed: 7\n")
    folder = write("model/mine.yaml", "defaults:\n  - tiny\n  - _self_\ndim: 128\n")
    config = resolved(["experiment=[mine,deep/er]", "model=mine"], config_dirs=[folder]).config
    assert (
        config.optimizer.lr,
        config.run.name,
        config.seed,
        config.model.dim,
        config.run.root,
    ) == (0.25, "7", 7, 128, "elsewhere")
    assert type(config.scheduler).__name__ == "WSD"
    assert (
        resolved(
            [f"hydra.searchpath=[{folder}]", "+experiment/deep=er", "local=null"]
        ).config.run.root
        == "runs"
    )


def test_a_group_of_the_users_own_is_added_with_a_plus(write: Write):
    folder = write("setup/fast.yaml", GLOBAL + "train:\n  max_steps: 3\n")
    assert resolved(["+setup=fast"], config_dirs=[folder]).config.train.max_steps == 3
    found = only(["setup=fast"], config_dirs=[folder])
    assert (found.what, found.fix) == (
        "setup has no place of its own in the config.",
        "write +setup=fast",
    )


def test_a_value_that_a_file_leaves_to_the_command_line(write: Write):
    folder = write("data/mine.yaml", "defaults:\n  - text\n  - _self_\npath: ???\n")
    found = only(["data=mine"], config_dirs=[folder])
    assert (found.key, found.what) == ("data.path", "data=text needs the path of your text.")
    assert (
        resolved(["data=mine", f"data.path={folder}"], config_dirs=[folder]).config.data.path
        == folder
    )  # type: ignore[attr-defined]


def test_a_relative_search_path(write: Write, monkeypatch: pytest.MonkeyPatch):
    folder = write("experiment/mine.yaml", GLOBAL + "seed: 9\n")
    monkeypatch.chdir(Path(folder).parent)
    assert resolved(["hydra.searchpath=[conf]", "experiment=mine"]).config.seed == 9
    composition, _ = cli.resolved(["experiment=mine"], ["conf"])
    assert composition.choices["experiment"] == "mine"


def test_trust_on_the_command_line_does_not_excuse_trust_in_a_file(write: Write):
    folder = write("experiment/mine.yaml", GLOBAL + "run:\n  trust: [os.]\n")
    assert [
        p.what for p in problems(["experiment=mine", "run.trust=[mypkg.]"], config_dirs=[folder])
    ] == ["a file sets run.trust."]
