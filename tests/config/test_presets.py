"""Every YAML file in conf/: it composes, resolves, explains itself, and is as large as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from refusing import resolved

from forge.compose.engine import CONF, Library
from forge.compose.many import ENTRIES
from forge.config import schemas
from forge.config.field import thaw_value
from forge.optim import schedules
from forge.resolve.resolve import Resolution

FILES = sorted(
    path.relative_to(CONF).with_suffix("").as_posix()
    for path in CONF.rglob("*.yaml")
    if path.parent != CONF
)
PARAMETERS = {
    "gpt2": 124_439_808,
    "llama7b": 6_738_415_616,
    "llama13b": 13_015_864_320,
    "llama70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
}


@pytest.fixture
def needs(tmp_path: Path) -> dict[str, list[str]]:
    """What a file asks of the user: its further overrides."""
    (tmp_path / "my.txt").write_text("some text")
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {"a": 0, "</s>": 1}}, "added_tokens": []})
    )
    return {
        "data/text": [f"data.path={tmp_path / 'my.txt'}"],
        "tokenizer/file": [f"tokenizer.path={tmp_path / 'tokenizer.json'}"],
        "train/long": ["model.max_seq_len=2048"],
        **{
            f"parallel/{name}": ["model=llama7b"]
            for name in ("pp4", "tp8")
        },
        **{
            f"parallel/{name}": ["model=moe_tiny"]
            for name in Library().options("parallel")
            if "ep" in name
        },
    }


@pytest.mark.parametrize("file", FILES)
def test_every_file_composes_and_resolves(file: str, needs: dict[str, list[str]]):
    group, _, option = file.partition("/")
    resolution = resolved([f"{group}={option}", *needs.get(file, [])])
    content = OmegaConf.to_container(OmegaConf.load(CONF / f"{file}.yaml"))
    assert isinstance(content, dict)
    content.pop("defaults", None)
    for key, value in flatten(content, "" if group in ("experiment", "debug") else f"{group}."):
        if value not in (None, "auto", -1):
            assert plain(resolution, key) == value, key


def test_every_group_is_in_the_primary_config_and_every_folder_is_a_group():
    assert set(Library().groups()) == {path.name for path in CONF.iterdir() if path.is_dir()}
    assert set(schemas.sections()) == set(Library().groups()) - {"experiment", "debug"}


@pytest.mark.parametrize("file", FILES)
def test_every_file_says_what_it_is_for(file: str):
    lines = (CONF / f"{file}.yaml").read_text().splitlines()
    comments = [line for line in lines if line.startswith("# ") and "@package" not in line]
    assert comments, "its first line is what --help shows"
    assert lines[0].startswith("#")


@pytest.mark.parametrize(("preset", "count"), PARAMETERS.items())
def test_a_preset_is_as_large_as_published(preset: str, count: int):
    assert resolved([f"model={preset}"]).config.model.num_params_estimate == count


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith("model/")])
def test_a_preset_is_as_large_as_its_comment_says(file: str):
    comment = (CONF / f"{file}.yaml").read_text().splitlines()[0]
    counts = re.findall(r"([\d,]{6,}) parameters|\b([\d.]+)M parameters", comment)
    built = resolved([f"model={file.partition('/')[2]}"]).config.model.num_params_estimate
    for exact, millions in counts:
        if exact:
            assert int(exact.replace(",", "")) == built
        else:
            assert f"{built / 1e6:.{len(millions.partition('.')[2])}f}" == millions
    assert counts or file == "model/tiny"


def test_a_preset_of_a_layout_says_all_degrees():
    for file in (CONF / "parallel").glob("*.yaml"):
        assert list(yaml.safe_load(file.read_text()))[-6:] == [
            "dp_replicate",
            "dp_shard",
            "tp",
            "pp",
            "cp",
            "ep",
        ], file.name


@pytest.mark.parametrize("file", [f for f in FILES if re.search("parallel/.*[0-9_]", f)])
def test_the_name_of_a_layout_says_what_it_is(file: str):
    """tp4_pp2 has these degrees and no other; fsdp and hsdp take the rest, and without them nothing
    is sharded.
    """
    name, degrees = file.partition("/")[2], yaml.safe_load((CONF / f"{file}.yaml").read_text())
    words = name.split("_")
    named = {
        match[1]: int(match[2])
        for word in words
        if (match := re.fullmatch("([a-z]+)([0-9]+)", word))
    }
    assert {axis: degrees[axis] for axis in ("tp", "pp", "cp", "ep")} == {
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 1,
    } | named
    assert degrees["dp_shard"] == (-1 if {"fsdp", "hsdp"} & set(words) else 1)
    assert degrees["dp_replicate"] == (2 if "hsdp" in words else 1)


@pytest.mark.parametrize("name", sorted(schemas.SCHEMAS["scheduler"]))
@pytest.mark.parametrize("steps", [20, 300])
def test_a_short_run_reaches_its_peak_without_a_warning(name: str, steps: int):
    found = resolved([f"scheduler={name}", f"train.max_steps={steps}"], as_point=True)
    build = getattr(schedules, name)
    factors = [build(found.config.scheduler)(step) for step in range(steps)]
    assert found.warnings == ()
    assert max(factors) == 1


def test_every_line_of_the_defaults_list_has_a_comment():
    text = (CONF / "config.yaml").read_text()
    entries = [line for line in text.splitlines() if line.startswith("  - ")]
    assert len(entries) == len(yaml.safe_load(text)["defaults"])
    assert [line for line in entries if not re.search(r" # \w", line)] == []


def test_what_an_experiment_sets_wins_over_the_groups_and_the_command_line_wins_over_both():
    assert resolved(["experiment=wsd"]).config.scheduler.wsd_decay_type == "sqrt"
    assert (
        resolved(
            ["experiment=wsd", "scheduler.wsd_decay_type=linear"]
        ).config.scheduler.wsd_decay_type
        == "linear"
    )
    assert (
        resolved(["debug=fast", "train=long", "model.max_seq_len=2048"]).config.train.max_steps == 3
    )


def flatten(content: dict, prefix: str):
    for name, value in content.items():
        if isinstance(value, dict) and f"{prefix}{name}." not in ENTRIES:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def plain(resolution: Resolution, key: str):
    value = resolution.config
    for part in key.split("."):
        value = getattr(value, part)
    return thaw_value(value)
