"""A config in a run directory: written as YAML, read back equal, and no class from outside the
allow-list.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from refusing import resolved

from forge.compose.engine import Library
from forge.config.root import Config
from forge.rundir import saved_config

CHOICES = [
    [f"{group}={option}"] for group in Library().groups() for option in Library().options(group)
]
NEEDS = {
    "data=text": ["data.path=."],
    "tokenizer=file": ["tokenizer.path={tmp}/t.json"],
    "train=long": ["model.max_seq_len=2048"],
}
NEEDS |= {
    f"parallel={name}": ["model=llama7b"]
    for name in ("pp4", "tp8")
}
NEEDS |= {
    f"parallel={name}": ["model=moe_tiny"] for name in Library().options("parallel") if "ep" in name
}


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice[0])
def test_every_preset_is_read_back_equal(choice: list[str], tmp_path: Path):
    (tmp_path / "t.json").write_text('{"model": {"vocab": {"a": 0, "</s>": 1}}}')
    config = resolved(
        [*choice, *(text.replace("{tmp}", str(tmp_path)) for text in NEEDS.get(choice[0], []))]
    ).config
    saved_config.save(config, tmp_path / "config.yaml")
    again = saved_config.load(tmp_path / "config.yaml", trust=())
    assert again == config
    assert [type(getattr(again, f)) for f in vars(config) if f[0] != "_"] == [
        type(getattr(config, f)) for f in vars(config) if f[0] != "_"
    ]
    assert again.frozen
    assert isinstance(again.optimizer.betas, tuple)  # type: ignore[attr-defined]


def test_awkward_values_survive(tmp_path: Path):
    awkward = [
        "run.name='null'",
        'eval.sample_prompts=["a: b\\n", "ü", "true", "1e3"]',
        "optimizer.lr=1e-30",
        "seed=1000000000000000000",
    ]
    config = resolved(awkward).config
    saved_config.save(config, tmp_path / "config.yaml")
    again = saved_config.load(tmp_path / "config.yaml", trust=())
    assert again.run.name == "null"
    assert again.eval.sample_prompts == ("a: b\\n", "ü", "true", "1e3")
    assert math.isclose(again.optimizer.lr, 1e-30, rel_tol=1e-15)
    assert again == config


def test_what_is_there_twice_is_written_twice(tmp_path: Path):
    """An alias would not be read."""
    config = resolved().config
    config.thaw()
    shared = {"of": [1, 2]}
    config.callbacks = {"a": shared, "b": shared}
    config.freeze()
    saved_config.save(config, tmp_path / "config.yaml")
    assert saved_config.load(tmp_path / "config.yaml", trust=()).callbacks == {
        "a": {"of": (1, 2)},
        "b": {"of": (1, 2)},
    }


def test_the_file_is_plain_yaml_that_names_its_classes(tmp_path: Path):
    saved_config.save(resolved(["scheduler=wsd"]).config, tmp_path / "config.yaml")
    plain = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert plain["scheduler"]["_type_"] == "forge.config.scheduler.WSD"
    assert plain["model"]["_type_"] == "forge.config.model.Decoder"
    assert "_type_" not in plain["train"]
    assert plain["optimizer"]["betas"] == [0.9, 0.99]


@pytest.mark.parametrize(
    "name", ["os.PathLike", "forgery.config.model.Decoder", "collections.OrderedDict"]
)
def test_a_class_outside_the_allow_list_is_refused(name: str):
    plain = saved_config.to_plain(resolved().config)
    plain["model"]["_type_"] = name
    with pytest.raises(
        ValueError,
        match=rf"its schema {name} is not under a trusted prefix; if you trust it: run.trust=\[{name.partition('.')[0]}.\]",
    ):
        saved_config.from_plain(Config, plain)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "forge.cli.refuse",
            "forge.config.model.ACTIVATIONS",
            "torch.nn.Linear",
            "forge.config.problems.Problem",
        ),
        *("forge.config.optimizer.AdamW", "forge.config.model.Section"),
    ],
)
def test_what_is_no_schema_of_the_section_is_refused(name: str):
    plain = saved_config.to_plain(resolved().config)
    plain["model"]["_type_"] = name
    with pytest.raises(ValueError, match=f"the schema {name} is no forge.config.model.Model"):
        saved_config.from_plain(Config, plain)
