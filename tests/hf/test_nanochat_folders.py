"""Checkpoints of nanochat come in with its logits, and go out as they came."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch
from helpers import nanochat as reference
from torch import Tensor

from forge import export
from forge.training.checkpoints.restore import load_run

import_ = importlib.import_module("forge.import")
Capture = pytest.CaptureFixture[str]
# Rows are padded to a multiple of 64; short windows are 128 of the 512 tokens.
SHAPE = reference.Shape(layers=3, heads=4, kv_heads=2, windows=(128, 512, 512), vocab=301)
CONFIG = {
    "sequence_len": 512,
    "vocab_size": 301,
    "n_layer": 3,
    "n_head": 4,
    "n_kv_head": 2,
    "n_embd": 64,
    "window_pattern": "SL",
}
TOKENIZER = ["tokenizer=bytes"]


def state(rows: int = 320) -> reference.Weights:
    draw, dim, layers = torch.Generator().manual_seed(0), 64, 3
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (rows, dim),
        "lm_head.weight": (rows, dim),
        "resid_lambdas": (layers,),
        "x0_lambdas": (layers,),
        "smear_gate.weight": (1, 24),
        "smear_lambda": (1,),
        "backout_lambda": (1,),
    }
    for layer in range(layers):
        name = f"transformer.h.{layer}"
        for matrix in ("q", "proj"):
            shapes[f"{name}.attn.c_{matrix}.weight"] = (dim, dim)
        for matrix in ("k", "v"):
            shapes[f"{name}.attn.c_{matrix}.weight"] = (dim // 2, dim)
        shapes[f"{name}.mlp.c_fc.weight"] = (4 * dim, dim)
        shapes[f"{name}.mlp.c_proj.weight"] = (dim, 4 * dim)
        if SHAPE.has_values(layer):
            shapes[f"{name}.attn.ve_gate.weight"] = (2, 12)
            shapes[f"value_embeds.{layer}.weight"] = (rows, dim // 2)
    values = {name: 0.3 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    tables = ("wte.weight", "lm_head.weight")
    for name, table in values.items():
        if name.endswith(tables) or name.startswith("value_embeds"):
            table[SHAPE.vocab :] = 0
    return values


def checkpoint(folder: Path, weights: dict[str, Tensor], **config: object) -> Path:
    folder.mkdir()
    torch.save(weights, folder / "model_000250.pt")
    torch.save({"of": "an optimizer"}, folder / "optim_000250_rank0.pt")
    meta = {"step": 250, "val_bpb": 1.0, "model_config": CONFIG | config}
    (folder / "meta_000250.json").write_text(json.dumps(meta))
    return folder


def test_logits_are_nanochats_and_weights_go_out_as_they_came(tmp_path: Path) -> None:
    weights = state()
    compiled = {f"_orig_mod.{name}": values for name, values in weights.items()}
    folder, run = checkpoint(tmp_path / "d3", compiled), tmp_path / "run"
    assert import_.main([str(folder), str(run), *TOKENIZER]) == 0
    ids = torch.randint(SHAPE.vocab, (1, 300), generator=torch.Generator().manual_seed(1))
    double = {name: values.double() for name, values in weights.items()}
    with torch.no_grad():
        ours = load_run(run).model.double()(ids)
    assert (ours - reference.logits(double, SHAPE, ids)).abs().max() < 1e-12
    out = tmp_path / "out"
    assert export.main([str(run), str(out), "--format", "nanochat"]) == 0
    written = torch.load(out / "model_000000.pt", weights_only=True)
    assert written.keys() == weights.keys()
    assert all(torch.equal(written[name], values) for name, values in weights.items())
    about = json.loads((out / "meta_000000.json").read_text())
    assert about["model_config"] == CONFIG


def test_refusals(tmp_path: Path, capsys: Capture, tiny_run: Path) -> None:
    weights = state()
    older = {name: values for name, values in weights.items() if not name.startswith("smear")}
    cases = {
        "without a tokenizer": (weights, {}, [], "has no tokenizer beside it"),
        "older": (older, {}, TOKENIZER, "smear_lambda is missing there"),
        "newer": (weights, {"n_experts": 8}, TOKENIZER, "forge knows no n_experts"),
    }
    for name, (values, config, words, says) in cases.items():
        folder = checkpoint(tmp_path / name, values, **config)
        assert import_.main([str(folder), str(tmp_path / f"run {name}"), *words]) == 2
        assert says in capsys.readouterr().err
    assert export.main([str(tiny_run), str(tmp_path / "x"), "--format", "nanochat"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("--format nanochat: nanochat has no model.activation=silu")
    assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()
