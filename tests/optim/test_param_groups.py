"""Which parameter is in which group, with which options; what is said of groups that are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.refusing import problems

import forge
from forge.config.optimizers.param_groups import groups, members, named_parameters
from forge.config.root import Config
from forge.models.decoder import Decoder
from forge.optim.build import build_optimizer, rates
from forge.optim.combined import CombinedOptimizer
from forge.optim.groups import freeze
from forge.optim.muon import Muon
from forge.optim.schedules import LearningRate
from forge.resolve.horizon import fit_epochs

SMALL = ["model.n_layers=2", "tokenizer.vocab_size=300", "train.max_steps=100", "run.device=cpu"]
REST = "optimizer.groups.rest"


def config_of(*overrides: str) -> Config:
    return forge.compose([*SMALL, "optimizer=adamw", *overrides]).validate().config


def by_group(config: Config) -> dict[str | None, set[str]]:
    found: dict[str | None, set[str]] = {}
    of = members(config, named_parameters(config))
    for name, group in of.items():
        found.setdefault(group, set()).add(name.removesuffix(".weight").rpartition(".")[2])
    return found


def test_muon_takes_matrices_and_adamw_the_rest_whatever_their_shapes() -> None:
    """KempnerForge's muon takes a 32,000 x 4,096 head and leaves one of 128,256 x 8,192."""
    matrices = {"wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down"}
    norms = {"attention_norm", "feed_forward_norm", "norm", "q_norm", "k_norm"}
    for shape in ("model.dim=128", "model.dim=512 model.vocab_size=512"):
        config = config_of("optimizer=muon", "model.tie_embeddings=false", *shape.split())
        assert by_group(config) == {"": matrices, "rest": norms | {"embedding", "output"}}


def test_experts_are_of_muon_and_routers_are_not() -> None:
    found = by_group(config_of("optimizer=muon", "model=moe_tiny"))
    assert {"w_gate", "w_up", "w_down", "wq"} <= found[""]
    assert "router" in found["rest"]


def test_a_name_comes_before_a_role_and_patterns_freeze() -> None:
    group = "+optimizer.groups.first={parameters:['blocks.0.*wq'],lr:0.5}"
    found = by_group(config_of("optimizer=muon", group, "optimizer.freeze_parameters=[embedding]"))
    assert found["first"] == {"wq"}
    assert found[None] == {"embedding"}
    only = by_group(config_of("optimizer.trainable_parameters=['blocks.1']"))
    assert only[None] == {"embedding", "norm", *only[""]}


def test_a_group_of_ones_own_takes_roles_out_of_the_rest() -> None:
    """Wherever it stands among the groups; the rest keeps what it does not name."""
    own = "tables: {roles: [embedding], optimizer: adamw, lr: 0.5}"
    rest = "rest: {roles: [embedding, head, norm], optimizer: adamw, lr: 0.1}"
    typed = [f"+optimizer.groups.{own.replace(': {', '={', 1)}"]
    whole = [[f"optimizer.groups={{{one}, {other}}}"] for one, other in ((own, rest), (rest, own))]
    for overrides in (typed, *whole):
        config = config_of("optimizer=muon", "model.tie_embeddings=false", *overrides)
        found = by_group(config)
        assert found["tables"] == {"embedding"}
        assert found["rest"] >= {"output", "attention_norm"}
        assert not found["rest"] & found["tables"]
        assert groups(config)["tables"].section.lr == 0.5


def test_an_entry_of_the_same_kind_changes_what_it_says_and_another_kind_has_its_own() -> None:
    made = groups(
        config_of(
            "optimizer.betas=[0.8,0.9]",
            "optimizer.lr=0.01",
            "+optimizer.groups.tables={roles:[embedding],lr:0.3,lr_base_dim:512}",
            "+optimizer.groups.matrices={roles:[matrix],optimizer:lion,weight_decay:0.7}",
        )
    )
    tables, matrices = made["tables"].section, made["matrices"].section
    assert (tables.lr, list(tables.betas)) == (0.3, [0.8, 0.9])  # type: ignore[attr-defined]
    assert tables.peak(128) == pytest.approx(0.3 * (128 / 512) ** -0.5)  # as nanochat scales it
    assert (matrices.schema_name, matrices.lr, matrices.weight_decay) == ("lion", 0.01, 0.7)
    assert list(matrices.betas) == [0.9, 0.95]  # type: ignore[attr-defined]


def decays(config: Config) -> dict[str, float]:
    model = Decoder(config.model)  # type: ignore[arg-type]
    names = {p: name for name, p in model.named_parameters()}
    found = build_optimizer(config, model).param_groups
    return {names[p]: group["weight_decay"] for group in found for p in group["params"]}


def test_norms_are_not_decayed_but_where_their_group_says_it() -> None:
    found = decays(config_of("optimizer.no_decay_parameters=[wk, wv]"))
    kept = {
        name.removesuffix(".weight").rpartition(".")[2] for name, decay in found.items() if decay
    }
    assert kept == {"embedding", "wq", "wo", "w_gate", "w_up", "w_down"}
    said = decays(config_of("+optimizer.groups.n={roles:[norm],weight_decay:0.05}"))
    assert said["norm.weight"] == 0.05


def test_two_kinds_update_as_one_and_are_skipped_as_one() -> None:
    config = config_of("optimizer=muon", "+optimizer.groups.q={parameters:[wq],optimizer:lion}")
    model = Decoder(config.model)  # type: ignore[arg-type]
    freeze(model, config)
    optimizer = build_optimizer(config, model)
    assert isinstance(optimizer, CombinedOptimizer)
    assert [type(one).__name__ for one in optimizer.optimizers] == ["Muon", "AdamW", "Lion"]
    model(torch.arange(8).view(1, 8)).square().mean().backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.grad_scale, optimizer.found_inf = None, torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
    del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
    optimizer.step()
    moved = [not torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True)]
    assert all(moved)
    assert {p for one in optimizer.optimizers for p in one.state} == set(model.parameters())
    again = build_optimizer(config, model)
    again.load_state_dict(optimizer.state_dict())
    assert isinstance(again, CombinedOptimizer)
    assert all(one.state is again.state for one in again.optimizers)
    assert again.state.keys() == optimizer.state.keys()


def test_a_group_has_a_schedule_of_its_own() -> None:
    config = config_of(
        "scheduler=linear",
        "+optimizer.groups.e={roles:[embedding],lr:1.0,scheduler:{scheduler:constant,warmup_ratio:0.5}}",
    )
    of = rates(config, lambda step: 0.25)
    assert [of["e"](step) for step in (0, 24, 49, 99)] == [0.02, 0.5, 1.0, 1.0]
    assert of[""](7) == 0.25 * config.optimizer.lr
    model = Decoder(config.model)  # type: ignore[arg-type]
    optimizer = build_optimizer(config, model)
    LearningRate(optimizer, lambda step: 0.25).set(24)
    found = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert found == {
        "optimizer": 0.25 * config.optimizer.lr,
        "optimizer, not decayed": 0.25 * config.optimizer.lr,
        "e": 0.5,
    }


def test_weight_decay_and_momentum_have_schedules() -> None:
    config = config_of(
        "optimizer=muon",
        "optimizer.weight_decay_schedule=linear",
        "optimizer.momentum_start=0.85",
        "optimizer.momentum_warmup_steps=10",
    )
    optimizer = build_optimizer(config, Decoder(config.model))  # type: ignore[arg-type]
    rate = LearningRate(optimizer, lambda step: 1.0)
    muon = next(one for one in optimizer.optimizers if isinstance(one, Muon))  # type: ignore[attr-defined]
    for step, momentum, decay in ((0, 0.85, 0.1), (5, 0.9, 0.095), (50, 0.95, 0.05)):
        rate.set(step)
        (group,) = muon.param_groups
        assert group["momentum"] == pytest.approx(momentum)
        assert group["weight_decay"] == pytest.approx(decay)


def test_what_follows_from_the_length_of_a_run_follows_the_length_it_has() -> None:
    """Also where epochs end it sooner: nanochat scales decay by a length it does not train."""
    config = config_of(
        "train.max_epochs=1",
        "train.global_batch_size=4",
        "optimizer.weight_decay_schedule=linear",
        "+optimizer.groups.e={roles:[embedding],scheduler:{scheduler:linear,warmup_steps:0}}",
    )
    config.thaw()
    fit_epochs(config, samples=160, derived=())
    assert config.train.max_steps == 40
    model = Decoder(config.model)  # type: ignore[arg-type]
    optimizer = build_optimizer(config, model)
    LearningRate(optimizer, lambda step: 1.0).set(20)
    main = optimizer.param_groups[0]
    assert main["weight_decay"] == pytest.approx(0.5 * config.optimizer.weight_decay)
    assert rates(config, lambda step: 1.0)["e"](39) == 0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("+optimizer.groups.e=3", "a group has options of an optimizer, and this is a value."),
        ("+optimizer.groups.e={lr:1}", "it does not say which parameters it is of."),
        ("+optimizer.groups.e={roles:[wheel]}", "no parameter has the role wheel."),
        ("+optimizer.groups.e={roles:norm}", "it must be a list of texts."),
        (
            "+optimizer.groups.e={roles:[norm],lr:-1}",
            "optimizer.groups.e.lr must be greater than 0.",
        ),
        ("+optimizer.groups.e={roles:[norm],lr:a}", "it must be a number."),
        ("+optimizer.groups.e={roles:[norm],epss:1}", "AdamW has no option 'epss'."),
        (
            "+optimizer.groups.e={roles:[norm],optimizer:leon}",
            "optimizer has no option 'leon' that a group could have.",
        ),
        ("+optimizer.groups.e={parameters:['(']}", "'(' is no regular expression: "),
        ("optimizer.no_decay_parameters=['(']", "'(' is no regular expression: "),
        (
            "+optimizer.groups.e={roles:[norm],scheduler:linear}",
            "a schedule of a group has options of a schedule, and this is a value.",
        ),
        (
            "+optimizer.groups.e={roles:[norm],scheduler:{scheduler:linear,warm:1}}",
            "Linear has no option 'warm'.",
        ),
        ("+optimizer.groups.a.b={roles:[norm]}", "it does not say which parameters it is of."),
    ],
)
def test_what_is_wrong_with_a_group_is_said(overrides: str, said: str) -> None:
    found: Any = problems([*SMALL, "optimizer=adamw", overrides], gpus=0)
    assert [p for p in found if p.rule == "optimizer.groups" and p.what.startswith(said)], found
