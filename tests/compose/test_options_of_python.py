"""A dict of options makes the config that the overrides make which say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forge
from forge.rundir.saved_config import to_plain

SAME: dict[str, tuple[dict[str, Any], list[str]]] = {
    "groups and options": (
        {"model": "small", "train.max_steps": 100, "optimizer": "lion", "optimizer.lr": 1e-5},
        ["model=small", "train.max_steps=100", "optimizer=lion", "optimizer.lr=1e-5"],
    ),
    "nested": (
        {
            "seed": 7,
            "train": {"max_steps": 100, "global_batch_size": None},
            "eval": {"enabled": False},
        },
        ["seed=7", "train.max_steps=100", "train.global_batch_size=null", "eval.enabled=false"],
    ),
    "lists": (
        {
            "optimizer": "adamw",
            "optimizer.betas": (0.9, 0.95),
            "eval": {"sample_prompts": ["true", "a, b", "{x: 1}"]},
        },
        [
            "optimizer=adamw",
            "optimizer.betas=[0.9,0.95]",
            "eval.sample_prompts=['true','a, b','{x: 1}']",
        ],
    ),
    "texts with signs": (
        {"run.name": """it's "1,2", {a}=[b]""", "run.root": Path("/tmp/a b")},
        [r"""run.name='it\'s "1,2", {a}=[b]'""", "run.root='/tmp/a b'"],
    ),
    "numbers of numpy": (
        {"optimizer.lr": np.float32(0.5), "train.max_steps": np.int64(9)},
        ["optimizer.lr=0.5", "train.max_steps=9"],
    ),
    "another option's value": (
        {"train.max_steps": 50, "run.name": "${train.max_steps}"},
        ["train.max_steps=50", "run.name=${train.max_steps}"],
    ),
    "an entry inside a section": (
        {"+mixer@model.mixer": "mla"},
        ["+mixer@model.mixer=mla"],
    ),
    "entries, new and known": (
        {
            "callbacks": {"mine": {"_target_": "forge.x", "names": ["a,b"], "n": {"k": 1}}},
            "callbacks.early_stopping.patience": 3,
            "eval": {"sets": {"other": {"path": "a b.jsonl"}}},
        },
        [
            "+callbacks.mine={_target_: forge.x, names: ['a,b'], n: {k: 1}}",
            "+callbacks.early_stopping.patience=3",
            "+eval.sets.other={path: 'a b.jsonl'}",
        ],
    ),
    "points of a sweep": (
        {"sweeper": {"params": {"optimizer.lr": "1e-3,3e-3", "seed": "1,2"}}},
        ["sweeper.params.optimizer.lr='1e-3,3e-3'", "sweeper.params.seed='1,2'"],
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_a_dict_is_what_its_overrides_are(case: str) -> None:
    options, overrides = SAME[case]
    ours, theirs = forge.compose(options), forge.compose(overrides)
    assert to_plain(ours) == to_plain(theirs)
    assert to_plain(forge.compose(ours.overrides)) == to_plain(theirs)


def test_all_is_refused_at_once_as_on_the_command_line() -> None:
    wrong = {"model": "lama7b", "optimizer": {"lrr": 1}, "train": {"max_steps": "abc"}}
    typed = ["model=lama7b", "optimizer.lrr=1", "train.max_steps='abc'"]
    said = []
    for options in (wrong, typed):
        with pytest.raises(forge.ConfigError) as refused:
            forge.compose(options)
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert said[0].startswith("3 problems;")


def test_what_is_no_value_and_what_is_no_list() -> None:
    with pytest.raises(forge.ConfigError, match="no option takes a value of type object") as wrong:
        forge.compose({"train": {"max_steps": object()}})
    assert wrong.value.problems[0].key == "train.max_steps"
    assert "a text, a number" in wrong.value.problems[0].fix
    with pytest.raises(forge.ConfigError, match="overrides come as a list of texts, or") as refused:
        forge.compose("model=tiny")
    assert "['model=tiny']" in str(refused.value)
