"""Nothing is accepted and ignored: every option is read by some code, and a second legal value of
it composes.
"""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
import yaml
from refusing import SMALL, resolved

from forge.config import schemas
from forge.config.field import default_of, freeze_value
from forge.config.schemas import walk_options
from forge.resolve.rule import get

ROOT = Path(__file__).parents[2]
OPTIONS = sorted({key for key, *_ in walk_options()})
INNER = sorted({key.split(".")[-2] for key in OPTIONS if key.count(".") > 1})
SCHEMA_FILES = {f"{group}.py" for group in schemas.sections()} | {"root.py"}


@cache
def reads() -> dict[tuple[str, str], set[str]]:
    """(owner, name) of every attribute that code loads, with the files; `config.train.seq_len` is
    (train, seq_len).

    A section passed on as `section` or `schedule` counts for the groups whose config module the
    file imports, and one inside of another, as model.moe is, for the files that take it out.
    """
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for file in [*ROOT.glob("forge/**/*.py"), *ROOT.glob("launch/*.py")]:
        if file.parent.name == "config" and (
            file.name in SCHEMA_FILES or file.name.startswith("rules")
        ):
            continue
        tree = ast.parse(file.read_text())
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        taken = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        groups = [
            group
            for group in (*schemas.sections(), *INNER)
            if f"forge.config.{group}" in modules or group in taken.intersection(INNER)
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                value = node.value
                owner = (
                    value.attr
                    if isinstance(value, ast.Attribute)
                    else value.id
                    if isinstance(value, ast.Name)
                    else ""
                )
                for name in [owner, *(groups if owner in ("section", "schedule") else [])]:
                    found[name, node.attr].add(str(file.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("key", [key for key in OPTIONS if not key.endswith("._target_")])
def test_every_option_has_a_reader(key: str):
    group, _, name = key.rpartition(".")
    assert reads()[group.rpartition(".")[2] or "config", name], f"no code reads {key}"


def test_targets_are_read_by_build():
    assert "forge/config/build.py" in reads()["section", "_target_"]


FIELDS = [(key, name, field) for key, name, _, field in walk_options() if field.name != "_target_"]
WITH = {
    "model.dim": "128",
    "train.seq_len": "64",
    "precision.mixed_precision": "fp16",
    "model.n_kv_heads": "2",
    "model.n_heads": "2",
    "model.ffn_hidden_dim": "96",
    "model.max_seq_len": "64",
    "model.vocab_size": "301",
    "model.moe.num_experts": "3",
    "tokenizer.vocab_size": "299",
    "train.global_batch_size": "4",
    "train.global_batch_tokens": "128",
    "train.max_steps": "99",
    "run.num_processes": "1",
    "checkpoint.async_mode": "async",
    "scheduler.decay_steps": "50",
    "scheduler.stable_steps": "50",
    "optimizer.betas": "[0.8,0.99]",
    "profiling.end_step": "9",
    "profiling.start_step": "4",
    "run.device": "cpu",
    "precision.residual_dtype": "fp32",
    "parallel.dp_shard": "2",
    "parallel.layout": "auto",
    "parallel.backend": "gloo",
    "parallel.pp_layers": "[1,1]",
    "run.allow_change": "[optimizer.lr]",
    "launch.sbatch": "{mail-type: FAIL}",
    "launch.mem": "64G",
    "launch.nodes": "1",
    "launch.signal_before": "30",
    "sweep.ablation.baseline": "a",
    "sweep.ablation.arms": "{a: ['seed=2']}",
    "sweep.ablation.seeds": "[1]",
    "sweeper.params": "{seed: '1'}",
}
"""Second values where another rule narrows what is legal."""


@pytest.mark.parametrize(
    ("key", "variant", "field"), FIELDS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_second_legal_value_composes(
    key: str, variant: str, field: dataclasses.Field, tmp_path: Path
):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "t.json").write_text('{"model": {"vocab": {"another": 0, "</s>": 1}}}')
    group = key.rpartition(".")[0]
    needs = {
        "text": ["data=text", f"data.path={tmp_path / 'a.txt'}"],
        "file": ["tokenizer=file", f"tokenizer.path={tmp_path / 't.json'}", "model.vocab_size=2"],
    }
    needs |= (
        {"sweep": ["sweep.ablation.baseline=a", "sweep.ablation.arms={a: ['seed=1']}"]}
        if group == "sweep.ablation"
        else {}
    )
    choice = needs.get(variant, [f"{group}={variant}"] if variant in choices(group) else [])
    small = [
        text
        for text in SMALL
        if not text.startswith(f"{group}.")
        or group in ("model", "train", "run")
        or variant == "bpe"
    ]
    small = [
        text
        for text in small
        if variant != "file" or not text.startswith(("tokenizer.", "model.vocab_size"))
    ]
    value = paths(tmp_path).get(key) or WITH.get(key) or as_text(second(key))
    more = {
        "parallel.ep": ["model.moe.num_experts=4"],
        "launch.gpu_type": ["launch.gpus_per_node=1"],
        "metrics.enable_wandb": ["metrics.wandb_mode=offline"],
    }.get(key, [])
    more += ["run.trust=[mypkg.]"] if key in schemas.free_dicts() else []
    config = resolved([*small, *choice, *more, f"{key}={value}"], as_point=True).config
    section = get(config, group) if group else config
    wanted = yaml.safe_load(value)
    assert getattr(section, field.name) == freeze_value(wanted)


def choices(group: str) -> dict:
    return schemas.SCHEMAS.get(group, {}) if group != "model" else {}


def paths(folder: Path) -> dict[str, str]:
    """Second values of options that must exist on disk."""
    (folder / "b.txt").write_text("b")
    (folder / "u.json").write_text('{"model": {"vocab": {"another": 0, "</s>": 1}}}')
    return (
        {
            "data.path": str(folder / "b.txt"),
            "tokenizer.path": str(folder / "u.json"),
            "checkpoint.resume_from": str(folder),
        }
        | {"checkpoint.init_from": str(folder)}
        | {key: str(folder / "new") for key in ("run.dir", "data.cache_dir")}
    )


def second(key: str) -> object:
    """A legal value of an option other than its default, from its type, bounds and choices."""
    field = next(field for other, _, _, field in walk_options() if other == key)
    default, kind = default_of(field), str(field.type)
    if field.metadata["choices"]:
        return next(choice for choice in field.metadata["choices"] if choice != default)
    if "bool" in kind:
        return not default
    if "list[str]" in kind:
        return ["another"]
    if "list[int]" in kind:
        return [1]
    if "dict" in kind:
        return {"another": {"_target_": "mypkg.Mine"}}
    if "str" in kind:
        return "another"
    bounds = field.metadata["bounds"]
    below = bounds.get("lt", bounds.get("le"))
    number = ((default or 0) + below) / 2 if below is not None else (default or 0) + 1
    return int(number) if "int" in kind else number


def as_text(value: object) -> str:
    return (
        {True: "true", False: "false"}.get(value, str(value))
        if isinstance(value, bool)
        else str(value).replace("'", "")
    )  # type: ignore[call-overload]
