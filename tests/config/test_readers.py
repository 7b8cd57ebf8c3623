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
from forge.config.problems import literal
from forge.config.schemas import walk_options
from forge.resolve.rule import get

ROOT = Path(__file__).parents[2]
FIELDS = [(key, name, field) for key, name, _, field in walk_options() if field.name != "_target_"]
OPTIONS = sorted({key for key, *_ in FIELDS})
INNER = {key.split(".")[-2] for key in OPTIONS if key.count(".") > 1}
SCHEMA_FILES = {f"{group}.py" for group in schemas.sections()} | {"root.py"}


@cache
def reads() -> dict[tuple[str, str], set[str]]:
    """(owner, name) of every attribute that code loads, with the files; `config.train.seq_len` is
    (train, seq_len).

    A section passed on as `section` or `schedule` counts for the groups whose module the file
    imports, or that it takes out of the config.
    """
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    rules = ROOT / "forge" / "resolve" / "rules"
    for file in [*ROOT.glob("forge/**/*.py"), *ROOT.glob("launch/**/*.py")]:
        is_schema = file.parent.name == "config" and file.name in SCHEMA_FILES
        if is_schema or file.parent == rules:
            continue
        nodes = list(ast.walk(ast.parse(file.read_text())))
        imports = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        known = {*schemas.sections(), *INNER}
        groups = known.intersection(node.attr for node in attributes)
        groups |= known.intersection(module.rpartition(".")[2] for module in imports)
        for node in attributes:
            value = node.value
            owner = getattr(value, "attr", getattr(value, "id", ""))
            for name in [owner, *(groups if owner in ("section", "schedule") else ())]:
                if isinstance(node.ctx, ast.Load):
                    found[name, node.attr].add(str(file.relative_to(ROOT)))
    return found


def test_every_option_has_a_reader():
    found = reads()
    owners = {key: key.rpartition(".")[0].rpartition(".")[2] or "config" for key in OPTIONS}
    unread = [key for key in OPTIONS if not found[owners[key], key.rpartition(".")[2]]]
    assert unread == []


SECOND = {
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
    "data.path": "b.txt",
    "tokenizer.path": "u.json",
    "checkpoint.resume_from": ".",
    "checkpoint.init_from": ".",
    "data.cache_dir": "new",
}
"""Second values where another rule narrows what is legal."""
ABLATION = ["sweep.ablation.baseline=a", "sweep.ablation.arms={a: ['seed=1']}"]
NEEDS = {
    "parallel.ep": ["model.moe.num_experts=4"],
    "launch.gpu_type": ["launch.gpus_per_node=1"],
    "metrics.enable_wandb": ["metrics.wandb_mode=offline"],
    **dict.fromkeys(("sweep.ablation.baseline", "sweep.ablation.seeds"), ABLATION),
    "sweep.ablation.arms": ABLATION[:1],
    **{key: ["run.trust=[mypkg.]"] for key in schemas.free_dicts()},
}


@pytest.mark.parametrize(
    ("key", "variant", "field"), FIELDS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_second_legal_value_composes(
    key: str,
    variant: str,
    field: dataclasses.Field,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "t.json", "u.json"):
        (tmp_path / name).write_text('{"model": {"vocab": {"another": 0, "</s>": 1}}}')
    group = key.rpartition(".")[0]
    needs = {
        "text": ["data=text", "data.path=a.txt"],
        "file": ["tokenizer=file", "tokenizer.path=t.json", "model.vocab_size=2"],
    }
    has_variant = variant in schemas.SCHEMAS.get(group, {}) and group != "model"
    small = list(SMALL)
    if has_variant and variant != "bpe":
        small = [text for text in small if not text.startswith((f"{group}.", f"{group}="))]
    if variant == "file":
        small = [text for text in small if not text.startswith("model.vocab_size")]
    choice = needs.get(variant, [f"{group}={variant}"] if has_variant else [])
    value = SECOND.get(key) or literal(second(field))
    overrides = [*small, *choice, *NEEDS.get(key, []), f"{key}={value}"]
    config = resolved(overrides, as_point=True).config
    found, wanted = getattr(get(config, group) if group else config, field.name), value
    if field.metadata["path"]:
        assert found == str(tmp_path / wanted).removesuffix("/.")
    else:
        assert found == freeze_value(yaml.safe_load(wanted))


def second(field: dataclasses.Field) -> object:
    """A legal value of an option other than its default, from its type, bounds and choices."""
    default, kind, bounds = default_of(field), str(field.type), field.metadata["bounds"]
    if field.metadata["choices"]:
        return next(choice for choice in field.metadata["choices"] if choice != default)
    if "bool" in kind:
        return not default
    for name, value in {
        "list[str]": ["another"],
        "list[int]": [1],
        "dict": {"another": {"_target_": "mypkg.Mine"}},
        "str": "another",
    }.items():
        if name in kind:
            return value
    below = bounds.get("lt", bounds.get("le"))
    number = (default or 0) + 1 if below is None else ((default or 0) + below) / 2
    return int(number) if "int" in kind else number
