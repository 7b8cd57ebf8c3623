"""The memory estimate of models with adapters or frozen weights, against what is held."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.ranks import on_ranks
from test_memory import BATCH, MLA, MOE, SEQ, SIZES, WIDE, Live

import forge
from forge.config.root import Config
from forge.optim.build import build_optimizer
from forge.parallel.apply import apply_to_blocks
from forge.parallel.join import join_ranks
from forge.parallel.ranks import Ranks
from forge.planning.memory import FORWARD, memory_of
from forge.resolve.resolve import resolve
from forge.tensors.masters import master
from forge.training.models import build_model

CPU = torch.device("cpu")
LORA = "adapter=lora adapter.rank=4"
NIGHTLY = pytest.mark.nightly
MODELS = {
    "lora": LORA,
    "dora": f"{LORA} adapter.dora=true",
    "ia3": "adapter=ia3",
    "pissa": f"{LORA} adapter.init=pissa adapter.dropout=0",
    "of attention": f"{LORA} adapter.target_modules=[attention]",
    "experts": f"{LORA} adapter.target_modules=[all] adapter.dropout=0",
    "mla": LORA,
    "norms alone": "optimizer.trainable_parameters=[norm]",
}
OPTIONS = {"experts": MOE, "mla": MLA}


def chosen(name: str, *more: str) -> Config:
    sizes = SIZES | {"n_layers": 8} | OPTIONS.get(name, {})
    words = [f"model.{key}={value}" for key, value in sizes.items()]
    words += ["+mixer@model.mixer=mla"] if name == "mla" else []
    words += [f"train.batch_size={BATCH}", f"train.seq_len={SEQ}", "precision=fp32"]
    small = ["tokenizer.vocab_size=300", "run.device=cpu", "optimizer=adamw"]
    return resolve(forge.compose([*words, *small, *MODELS[name].split(), *more])).config


@pytest.mark.parametrize("mode", ["none", pytest.param("selective", marks=NIGHTLY), "full"])
@pytest.mark.parametrize(
    "name", [name if name == "lora" else pytest.param(name, marks=NIGHTLY) for name in MODELS]
)
def test_activations_are_what_forward_leaves_alive(name: str, mode: str) -> None:
    config = chosen(name, f"train.activation_checkpointing={mode}")
    model = build_model(config, CPU, Ranks())
    tokens, noise = torch.zeros(2, BATCH, SEQ, dtype=torch.int64)
    drawn = {"noise": noise.int()} if config.draws else {}
    with Live(model) as live:
        kept = model.logits(model.hidden(tokens, **drawn))  # type: ignore[operator]
        held = live.bytes() - kept.nbytes
    assert held == pytest.approx(memory_of(config).moments[FORWARD]["activations"], rel=0.05)


@pytest.mark.parametrize("formats", ["", "precision.param_dtype=bf16"])
def test_only_what_is_trained_has_gradients_and_state(formats: str) -> None:
    config = chosen("dora", "adapter.dropout=0", *formats.split())

    def work(_: int) -> None:
        model = build_model(config, CPU, join_ranks(config, CPU), trained=True)
        optimizer = build_optimizer(config, model)
        tokens = torch.zeros(1, 4, dtype=torch.int64)
        model(tokens).sum().backward()
        optimizer.step()
        model.train()
        parts, kind = memory_of(config).state, config.precision.param_dtype
        found = {
            f"weights ({kind})": list(model.parameters()),
            f"gradients ({kind})": [p.grad for p in model.parameters() if p.grad is not None],
            "optimizer state": [v for s in optimizer.state.values() for v in s.values() if v.dim()],
        }
        if formats:
            found["fp32 masters"] = [master(p) for p in model.parameters() if hasattr(p, "master")]
        for part, tensors in found.items():
            own = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
            assert parts[part] == sum(t.nbytes for t in own), part

    on_ranks(1, work)


@pytest.mark.parametrize(
    "words",
    [LORA, f"{LORA} adapter.dropout=0", "adapter=qlora adapter.rank=4 adapter.dropout=0.1"],
    ids=["dropout", "plain", "few bits"],
)
def test_compiled_adapters_keep_what_the_estimate_says(words: str) -> None:
    """Storages that autograd saves in forward, with torch's partitioner of compiled graphs: what is
    unpacked again in backward must not be taken for what forward had.
    """
    compiled = ("precision=fp32", "train.compile_model=true")
    sizes = SIZES | WIDE | {"n_layers": 2}
    chosen = [f"model.{key}={value}" for key, value in sizes.items()]
    chosen += [f"train.batch_size={BATCH}", f"train.seq_len={SEQ}", *compiled, *words.split()]
    chosen += ["tokenizer.vocab_size=300", "run.device=cpu", "optimizer=adamw"]
    config = resolve(forge.compose(chosen)).config
    model = build_model(config, CPU, Ranks(), trained=True)
    backend = replace(config.train, compile_backend="aot_eager_decomp_partition")
    apply_to_blocks(model, replace(config, train=backend))
    model.train()
    weights = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = tensor
        return tensor

    tokens, noise = torch.zeros(2, BATCH, SEQ, dtype=torch.int64)
    drawn = {"noise": noise.int()} if config.draws else {}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.logits(model.hidden(tokens, **drawn))  # type: ignore[operator]
    held = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert memory_of(config).moments[FORWARD]["activations"] == pytest.approx(held, rel=0.08)
