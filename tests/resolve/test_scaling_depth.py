"""nanochat's dial: every number of nanochat_dial.json, worked out by the resolver of a depth, and
what is stated in place of it.

The file holds what nanochat's own classes and formulas gave at 92d63d4 for T=2048, 32768 rows of
vocabulary and 12 tokens a parameter.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.refusing import only, resolved

from forge import check, explain
from forge.compose.composition import compose
from forge.config.optimizers.param_groups import groups
from forge.config.root import Config
from forge.config.scaling.counts import parameters
from forge.resolve.resolve import resolve, worked_out

DIAL = json.loads((Path(__file__).parents[1] / "fixtures" / "nanochat_dial.json").read_text())
DEPTHS = {entry["depth"]: entry for entry in DIAL}
VOCAB = ["tokenizer=bytes", "model.vocab_size=32768"]
HERE = ["scaling=depth", "parallel=single", "run.device=cpu"]
PLAIN = [*HERE, *VOCAB, "model.tie_embeddings=false", "model.activation=relu2"]
NANOCHAT = [*HERE, "model=nanochat", "optimizer=nanochat", "tokenizer=bytes"]


def plain(*overrides: str) -> Config:
    return resolved([*PLAIN, *overrides], as_point=True).config


def reason(key: str, *overrides: str) -> str:
    derived = resolved([*PLAIN, *overrides], as_point=True).derived
    return next(value.why for value in derived if value.key == key)


def counts(config: Config) -> dict[str, int]:
    """Parameters by the names of nanochat."""
    model = config.decoder
    assert model is not None
    sizes: Counter[str] = Counter()
    for spec in model.tensors():
        in_block = spec.name.startswith("blocks.") and spec.role == "matrix"
        sizes["transformer_matrices" if in_block else spec.role] += spec.size
    scalars = sum(sizes[role] for role in ("residual_scalar", "x0_scalar", "gate"))
    names = {"wte": "embedding", "value_embeds": "value_embedding", "lm_head": "head"}
    return {
        "transformer_matrices": sizes["transformer_matrices"],
        **{name: sizes[role] for name, role in names.items()},
        "scalars": scalars,
        "total": model.num_params_estimate,
        "scaling": parameters(model),
        "flops_tok": model.flops_per_token(config.train.seq_len),
    }


def rates(config: Config) -> dict[str, float]:
    """Peak learning rates by the names of nanochat, and the decay of matrices."""
    by_name = groups(config)
    names = {"matrix": "", "wte": "embedding", "ve": "value_embedding", "head": "head"}
    names |= {"resid": "residual_scalar", "x0": "x0_scalar", "smear": "gate"}
    dim = config.model.known_dim
    peaks = {f"lr_{name}": by_name[group].section.peak(dim) for name, group in names.items()}
    return peaks | {"wd": config.optimizer.weight_decay}


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_number_of_nanochats_dial(depth: int) -> None:
    config = resolved([*NANOCHAT, f"scaling.depth={depth}"], as_point=True).config
    entry = DEPTHS[depth]
    model, train = config.decoder, config.train
    assert model is not None
    windows = [model.of_kind(model.kind_of(layer).name).seen(2048) for layer in range(depth)]
    found: dict[str, Any] = {
        **counts(config),
        "depth": model.n_layers,
        "dim": model.dim,
        "heads": model.n_heads,
        "batch": train.global_batch_tokens,
        "steps": train.max_steps,
        "target_tokens": int(12 * parameters(model)),
        "short": min(windows) - 1,  # with the present token
        "windows": "".join("L" if window == 2048 else "S" for window in windows),
    }
    floats = {"lr_batch_scale": config.optimizer.lr / 0.02, **rates(config)}
    assert found == {name: value for name, value in entry.items() if name not in floats}
    assert floats == pytest.approx({name: entry[name] for name in floats}, rel=1e-14)
    assert (model.kv_heads, model.computed_head_dim, model.vocab_size) == (
        model.n_heads,
        128,
        32768,
    )


def test_check_prints_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    entry = DEPTHS[20]
    assert check.main([*NANOCHAT, "scaling.depth=20", "train.max_steps=100"]) in (0, 1)
    printed = capsys.readouterr().out
    for name in ("total", "scaling", "flops_tok", "target_tokens", "batch"):
        assert f" {entry[name]:,} " in f"{printed} ".replace("\n", " "), name
    assert "4980 by scaling, and 100 is stated" in printed


@pytest.mark.parametrize("depth", [6, 12, 20])
def test_a_plain_decoder_has_the_widths_of_its_depth(depth: int) -> None:
    """All but the gates of value embeddings are counted: 12 weights a head in every other block."""
    config, entry = plain(f"scaling.depth={depth}"), DEPTHS[depth]
    model = config.decoder
    assert model is not None
    assert (model.dim, model.n_heads, model.kv_heads) == (entry["dim"], *[entry["heads"]] * 2)
    assert (model.n_layers, model.computed_head_dim, config.train.seq_len) == (depth, 128, 2048)
    assert model.ffn_hidden_dim == 4 * entry["dim"]
    gates = -(-depth // 2) * 12 * entry["heads"]
    assert parameters(model) == entry["scaling"] - gates
    assert config.train.global_batch_tokens == entry["batch"]
    assert config.train.max_steps == 12 * parameters(model) // entry["batch"]


def test_a_width_is_rounded_up_to_whole_heads_and_a_gate_keeps_llamas_rule() -> None:
    model = plain("scaling.depth=5", "model.activation=silu").decoder
    assert model is not None
    assert (model.dim, model.n_heads) == (384, 3)  # 5 * 64 = 320
    assert model.ffn_hidden_dim == 1024  # int(8/3 * 384) = 1024


D12 = 12 * 12 * 768**2 + 768 * 32768
"""Weights of the blocks and the head of a plain decoder of depth 12."""
FLOPS = 6 * D12 + 12 * 12 * 768 * 2048


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        (["scaling.target_flops=1e18"], round(1e18 / (FLOPS * 2**19))),
        (["scaling.target_param_data_ratio=8"], 8 * D12 // 2**19),
        (["train.max_steps=77"], 77),
        (["train.max_tokens=100000000"], 10**8 // 2**19),
        (["train=llm", "train.seq_len=2048"], 12 * D12 // 2**19),
        (["train.global_batch_tokens=1048576"], 12 * D12 // 2**20),
        (["train.global_batch_size=64", "train.seq_len=1024"], 12 * D12 // 2**16),
    ],
)
def test_the_horizon_is_what_is_given_and_else_the_ratio(overrides: list[str], steps: int) -> None:
    assert plain("scaling.depth=12", *overrides).train.max_steps == steps


def law(share: float) -> float:
    return 2**19 * share**0.383


@pytest.mark.parametrize("steps", [100, 3000, 40000])
def test_the_batch_may_follow_the_steps_that_are_taken(steps: int) -> None:
    """The best batch B of a number of steps n is that of n * B tokens: found by bisection here."""
    typed = ["scaling.depth=12", f"train.max_steps={steps}"]
    low, high = 1.0, 1e12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if law(steps * middle / (12 * D12)) > middle else (low, middle)
    batch = plain(*typed, "scaling.horizon_for_batch=actual").train.global_batch_tokens
    assert batch == 2 ** round(math.log2(low))
    assert plain(*typed).train.global_batch_tokens == 2**19  # nanochat's: by the ratio


def test_the_batch_may_follow_a_budget_of_tokens() -> None:
    typed = ["scaling.depth=12", "train.max_tokens=30000000000"]
    batch = plain(*typed, "scaling.horizon_for_batch=actual").train.global_batch_tokens
    assert batch == 2 ** round(math.log2(law(3e10 / (12 * D12)))) > 2**19
    assert plain(*typed).train.global_batch_tokens == 2**19


def test_the_batch_may_follow_the_flops_that_are_spent() -> None:
    typed = ["scaling.depth=12", "scaling.target_flops=3e19"]
    best = law(3e19 / FLOPS / (12 * D12))
    batch = plain(*typed, "scaling.horizon_for_batch=actual").train.global_batch_tokens
    assert batch == 2 ** round(math.log2(best)) > 2**19


def test_rates_are_scaled_where_they_say_which_width_they_are_of() -> None:
    base = ["scaling.depth=4", "optimizer=adamw"]
    small = plain(*base)
    assert (small.optimizer.lr, small.optimizer.weight_decay) == (3e-3, 0.1)
    assert "stay as they are" in reason("scaling.scale_rates", *base)
    scaled = plain(*base, "optimizer.lr_base_dim=768")
    share = parameters(scaled.decoder) / D12  # type: ignore[arg-type]
    assert scaled.optimizer.lr == pytest.approx(3e-3 * math.sqrt(0.5))
    assert scaled.optimizer.weight_decay == pytest.approx(0.1 * math.sqrt(0.5) / share)
    assert scaled.optimizer.peak(256) == pytest.approx(3e-3 * math.sqrt(0.5) * math.sqrt(3))
    typed = [*base, "optimizer.lr_base_dim=768", "optimizer.lr=0.01"]
    assert plain(*typed).optimizer.lr == 0.01
    assert plain(*typed, "scaling.scale_typed=true").optimizer.lr == 0.01 * math.sqrt(0.5)


def test_a_typed_value_stays_and_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    typed = [*PLAIN, "scaling.depth=12", "model.dim=1024"]
    resolution = resolved(typed, as_point=True)
    model = resolution.config.decoder
    assert model is not None
    assert (model.dim, model.n_heads, model.ffn_hidden_dim) == (1024, 8, 4096)
    assert [(value.key, value.value) for value in resolution.overruled] == [("model.dim", 768)]
    assert explain.main(["model.dim", "model.n_heads", *typed]) == 0
    printed = capsys.readouterr().out
    assert "in place of   768 by scaling: 12 * 64, a multiple of 128" in printed
    assert "worked out    1024 / 128" in printed
    check.main(typed)
    assert "model.dim                      768 by scaling, and 1024 is stated" in (
        capsys.readouterr().out
    )


def test_a_value_of_an_experiment_stays_and_a_typed_horizon_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "defaults:\n  - override /scaling: depth\nscaling: {depth: 4}\n"
    text += "train: {max_steps: 50, seq_len: 512}\nmodel: {head_dim: 64}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    where: dict[str, Any] = {"config_dirs": [str(tmp_path)]}
    typed = ["experiment=mine", *VOCAB, "parallel=single", "run.device=cpu"]
    config = resolved(typed, **where).config
    assert (config.train.max_steps, config.train.seq_len) == (50, 512)
    assert (config.decoder.dim, config.decoder.n_heads) == (256, 4)  # type: ignore[union-attr]
    config = resolved([*typed, "scaling.target_flops=1e15"], **where).config
    flops = config.model.flops_per_token(512) or 0
    assert config.train.max_steps == round(1e15 / (flops * config.train.global_batch_tokens))  # type: ignore[operator]


def test_a_config_that_was_worked_out_is_not_scaled_again() -> None:
    """As forge.plan does with the layout it has found."""
    typed = [*PLAIN, "scaling.depth=4", "optimizer=adamw", "optimizer.lr_base_dim=768"]
    config = compose(typed).typed()
    before = resolve(config).config
    again = resolve(worked_out(config)[0]).config
    assert again.optimizer == before.optimizer
    assert again.train == before.train


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            "scaling.target_flops=1e18 train.max_steps=5",
            "train.max_steps and scaling.target_flops each say how long the run is.",
            "leave train.max_steps or scaling.target_flops out",
        ),
        (
            "scaling.target_param_data_ratio=8 train.max_tokens=1000000",
            "train.max_tokens and scaling.target_param_data_ratio each say how long the run is.",
            "leave train.max_tokens or scaling.target_param_data_ratio out",
        ),
        (
            "scaling.depth=12 model.n_kv_heads=4",
            "depth 12 has 6 heads, which 4 key/value heads do not divide.",
            "scaling.depth=15, or model.n_kv_heads=3",
        ),
        (
            "model.dim=700",
            "model.dim=700 is no whole number of heads 128 wide.",
            "model.dim=640",
        ),
        (
            "scaling.depth=12 scaling.target_flops=1e10",
            f"scaling.target_flops=1e+10 is less than one step, which takes {FLOPS << 19:,} FLOPs.",
            "scaling.target_flops=4.65e+14 or more, or a smaller train.global_batch_tokens=...",
        ),
        (
            "scaling.depth=12 scaling.target_param_data_ratio=1e-6",
            "scaling.target_param_data_ratio=1e-06 is less than one step, which takes 524,288 "
            "tokens.",
            "scaling.target_param_data_ratio=0.01 or more, or a smaller "
            "train.global_batch_tokens=...",
        ),
        ("scaling.depth=0", "scaling.depth must be greater than 0.", ""),
    ],
)
def test_a_refusal_is_one_message(overrides: str, message: str, fix: str) -> None:
    problem = only([*PLAIN, *overrides.split()], as_point=True)
    assert (problem.what, problem.fix) == (message, fix)
    assert problem.where == "command line"


@pytest.mark.parametrize("typed", ["depth=12", "--depth=12"])
def test_nanochats_own_word_is_answered_with_the_line_that_composes(typed: str) -> None:
    problem = only([*VOCAB, typed], as_point=False)
    assert "scaling=depth scaling.depth=12" in problem.fix
    assert plain("scaling=depth", "scaling.depth=12").decoder.n_layers == 12  # type: ignore[union-attr]
