"""The other scalings: OLMo-core's ladder, MaxText's powers of two, muP and CompleteP."""

from __future__ import annotations

import math
from typing import Any

import pytest
from helpers.refusing import only, resolved

from forge.config.model.decoder import Decoder
from forge.config.optimizers.param_groups import groups, tensors_in
from forge.config.root import Config
from forge.models.decoder import Decoder as Model
from forge.models.init import init_weights
from forge.resolve.resolve import Resolution

HERE = ["tokenizer=bytes", "parallel=single", "run.device=cpu"]
LADDER = [*HERE, "scaling=ladder", "optimizer=adamw_large", "scheduler=wsd"]
LADDER += ["model.vocab_size=100352", "model.tie_embeddings=false"]
POWER = [*HERE, "model=small", "scaling=power_of_two"]


def config_of(words: list[str], *overrides: str) -> Config:
    return resolved([*words, *overrides], as_point=True).config


def decoder_of(config: Config) -> Decoder:
    assert config.decoder is not None
    return config.decoder


@pytest.mark.parametrize(
    ("size", "millions"),
    [("190M", 190), ("370M", 371), ("760M", 758), ("1B", 1280), ("3B", 3168), ("7B", 6888)],
)
def test_a_rung_has_the_size_and_the_laws_of_olmo_core(size: str, millions: int) -> None:
    config = config_of(LADDER, f"scaling.size={size}")
    model, train = decoder_of(config), config.train
    number = model.num_params_estimate - 100352 * model.dim
    assert number == pytest.approx(millions * 1e6, rel=0.005)
    # the laws of its WSDSChinchillaRunConfigurator, on the parameters of the rung
    target = round(2048 * 160 * (number / 108_000_000) ** (2 / 3))
    batch = train.global_batch_tokens or 0
    assert abs(batch - target) <= 4 * 8192  # half of 8 sequences
    assert batch % (8 * 8192) == 0
    assert config.optimizer.lr == 0.0047 * (number / 108_000_000) ** (-1 / 3) / 2
    assert train.max_steps == round(20 * number / batch)
    assert config.scheduler.warmup_steps == round(number / batch)  # type: ignore[attr-defined]
    assert config.optimizer.betas == (0.9, 0.95 if batch >= 524_288 else 0.99)  # type: ignore[attr-defined]
    assert (train.seq_len, config.optimizer.decay_embeddings) == (8192, False)


def test_a_rung_of_another_length_schedule_and_optimizer() -> None:
    base = config_of(LADDER)
    long = config_of(LADDER, "scaling.chinchilla_multiple=4", "scaling.lr_multiplier=0.5")
    assert long.train.max_steps == pytest.approx(4 * base.train.max_steps, abs=2)
    assert long.optimizer.lr == base.optimizer.lr / 2
    cosine = config_of(LADDER, "scheduler=cosine")
    assert cosine.optimizer.lr == 2 * base.optimizer.lr
    muon = resolved([*LADDER, "optimizer=muon"], as_point=True)
    assert muon.config.optimizer.lr == 0.01
    why = next(value.why for value in muon.derived if value.key == "optimizer.lr")
    assert why == "the law is of AdamW: the rate stays as it is"


@pytest.mark.parametrize("exponent", range(7))
def test_a_scale_doubles_heads_then_width_then_depth(exponent: int) -> None:
    """MaxText's rotation: each third doubling is of the layers, and 8 is all dimensions twice."""
    base = decoder_of(config_of(POWER))
    model = decoder_of(config_of(POWER, f"scaling.global_parameter_scale={2**exponent}"))
    heads, width, layers = -(-exponent // 3), (exponent + 1) // 3, exponent // 3
    assert model.n_heads == base.n_heads * 2**heads
    assert model.kv_heads == base.kv_heads * 2**heads
    assert model.ffn_hidden_dim == base.computed_ffn_hidden_dim * 2**heads
    assert model.dim == base.dim * 2**width
    assert model.n_layers == base.n_layers * 2**layers
    assert model.computed_head_dim == base.computed_head_dim


def values_of(resolution: Resolution) -> dict[str, Any]:
    model, entry = decoder_of(resolution.config), groups(resolution.config)
    hidden = entry["hidden"].section
    return {
        "lr": entry[""].section.peak(model.dim),
        "hidden lr": hidden.peak(model.dim),
        "hidden decay": hidden.weight_decay,
        "eps": entry[""].section.eps,  # type: ignore[attr-defined]
        "hidden eps": hidden.eps,  # type: ignore[attr-defined]
        "std": model.init_std,
        "tables std": model.init_std_tables,
        "logits": model.logits_multiplier,
        "residual": model.residual_multiplier,
    }


WIDE = ["model.dim=256", "model.n_layers=8", "model.tie_embeddings=false", "optimizer=adamw"]
BASE = {"lr": 3e-3, "hidden lr": 3e-3, "hidden decay": 0.1, "eps": 1e-8, "hidden eps": 1e-8}
BASE |= {"std": 0.02, "tables std": 0.02, "logits": 1.0, "residual": 1.0}


@pytest.mark.parametrize("name", ["mup", "completep"])
def test_rates_by_role_are_those_of_the_tables(name: str) -> None:
    """arXiv:2505.01618, table 1, alpha = 1: width 4 times the base, depth 4 times."""
    words = [*HERE, f"scaling={name}", *WIDE]
    at_base = ["scaling.base_dim=256", *(["scaling.base_layers=8"] if name == "completep" else [])]
    same = resolved([*words, *at_base], as_point=True)
    assert values_of(same) == pytest.approx(BASE)
    found = resolved([*words, "scaling.base_dim=64"], as_point=True)
    expected = BASE | {"hidden lr": 3e-3 / 4, "hidden decay": 0.4, "eps": 1e-8 / 4}
    expected |= {"std": 0.01, "logits": 0.25, "hidden eps": 1e-8 / 4}
    if name == "completep":
        expected |= {"residual": 0.25, "hidden eps": 1e-8 / 16}
    assert values_of(found) == pytest.approx(expected)
    roles = {tensor.role for tensor in tensors_in(found.config)["hidden"]}
    assert roles == {"matrix"}
    assert not any(tensor.role == "matrix" for tensor in tensors_in(found.config)[""])


def test_a_rate_that_is_swept_is_that_of_the_base() -> None:
    words = [*HERE, "scaling=mup", "scaling.base_dim=64", *WIDE, "optimizer.lr=0.01"]
    found = groups(resolved(words, as_point=True).config)
    assert found[""].section.peak(256) == 0.01
    assert found["hidden"].section.peak(256) == 0.0025


def test_initial_weights_are_drawn_by_the_rule() -> None:
    words = [*HERE, "scaling=mup", "scaling.base_dim=64", *WIDE, "model.init_scale_residual=false"]
    model = Model(decoder_of(config_of(words)))
    init_weights(model, 1)
    values = dict(model.named_parameters())
    stds = {name: values[name].std().item() for name in ("embedding.weight", "output.weight")}
    assert stds == pytest.approx({"embedding.weight": 0.02, "output.weight": 0.02}, rel=0.02)
    assert values["blocks.0.attention.wq.weight"].std().item() == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize(
    ("optimizer", "power"),
    [("muon", -0.5), ("lion", -1.0), ("adam_pax", -1.0), ("schedule_free_adamw", -1.0)],
)
def test_an_optimizer_has_its_own_power_of_the_width(optimizer: str, power: float) -> None:
    schedule = "scheduler=none" if optimizer.startswith("schedule_free") else "scheduler=linear"
    words = [*HERE, "scaling=mup", "scaling.base_dim=64", *WIDE]
    words += [f"optimizer={optimizer}", schedule]
    config = config_of(words)
    hidden = groups(config)["hidden"].section
    assert hidden.peak(256) == config.optimizer.lr * 4**power
    assert hidden.weight_decay == pytest.approx(config.optimizer.weight_decay * 4**-power)


def test_muon_by_the_root_of_the_shape_needs_no_rule() -> None:
    words = [*HERE, "scaling=mup", "scaling.base_dim=64", *WIDE, "optimizer=normuon"]
    assert "hidden" not in config_of(words).optimizer.groups


def test_attention_is_scaled_where_heads_grow() -> None:
    words = [*HERE, "scaling=mup", "scaling.base_dim=64", *WIDE]
    assert decoder_of(config_of(words)).query_scale is None
    model = decoder_of(config_of(words, "scaling.base_head_dim=16"))
    assert (model.computed_head_dim, model.query_scale) == (64, math.sqrt(16) / 64)


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            "scaling=power_of_two scaling.global_parameter_scale=6",
            "6 is no power of two, and widths are doubled.",
            "scaling.global_parameter_scale=4 or scaling.global_parameter_scale=8",
        ),
        (
            "scaling=ladder scaling.chinchilla_multiple=1e-6",
            "2,265 tokens are less than one step, which has 327,680.",
            "scaling.chinchilla_multiple=0.00015",
        ),
        (
            "scaling=ladder scaling.chinchilla_multiple=2 train.max_steps=9",
            "train.max_steps and scaling.chinchilla_multiple each say how long the run is.",
            "leave train.max_steps or scaling.chinchilla_multiple out",
        ),
        (
            "scaling=mup optimizer=sgd",
            "its rules are of Adam, Lion and Muon, and none is of sgd.",
            "optimizer=adamw",
        ),
        (
            "scaling=mup optimizer=adamw model=nanochat model.vocab_size=257",
            "model.initial_law=nanochat has initial weights of its own.",
            "model.initial_law=normal",
        ),
        (
            "scaling=ladder scaling.size=200M",
            "scaling.size is one of 190M, 370M, 600M, 760M, 1B, 3B, 7B, 13B.",
            "",
        ),
        (
            "scaling=ladder sweeper.params={scaling.size:190M}",
            "a ladder of one size, 190M, has no law.",
            "\"sweeper.params={scaling.size:'190M,370M,760M'}\"",
        ),
    ],
)
def test_a_refusal_is_one_message(overrides: str, message: str, fix: str) -> None:
    problem = only([*HERE, *overrides.split()], as_point=True)
    assert (problem.what, problem.fix) == (message, fix)
