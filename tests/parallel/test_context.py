"""Context parallelism has the loss, the gradients and the generated text of one device."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from forge.compose import composition
from forge.config.parallel import Parallel
from forge.config.root import Config
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.sampling import generate
from forge.models.sdpa import causal_attention
from forge.parallel.activation_checkpoint import recompute
from forge.parallel.context import Part, own_part, spread_context
from forge.parallel.fsdp import reduce_in_backward, shard
from forge.parallel.materialize import materialize
from forge.parallel.mesh import Mesh, make_mesh
from forge.parallel.modules import compile_blocks

ROWS, SEQ = 4, 16
LAYOUTS = {
    "all_gather, balanced": Parallel(dp_shard=1, cp=2),
    "all_gather, contiguous": Parallel(dp_shard=1, cp=2, cp_load_balance=False),
    "ulysses": Parallel(dp_shard=1, cp=2, cp_method="ulysses"),
}
WIDER_LAYOUTS = {
    "cp4, balanced": Parallel(dp_shard=1, cp=4),
    "cp4, contiguous": Parallel(dp_shard=1, cp=4, cp_load_balance=False),
    "cp2 x fsdp2": Parallel(dp_shard=2, cp=2),
    "cp2 x replicate2, ulysses": Parallel(dp_shard=1, dp_replicate=2, cp=2, cp_method="ulysses"),
}
MODELS = {
    "rope, grouped": ["model.n_kv_heads=2", "model.qk_norm=false"],
    "learned": ["model.position=learned", "model.bias=true", "model.norm_type=layernorm"],
}


def config(parallel: Parallel, *overrides: str) -> Config:
    small = [
        "model.n_layers=2",
        "model.dim=32",
        "model.n_heads=4",
        "model.ffn_hidden_dim=53",
        "model.vocab_size=301",
    ]
    sizes = ["model.max_seq_len=32", f"train.seq_len={SEQ}", "tokenizer.vocab_size=300"]
    whole = composition.config([*small, *sizes, *overrides]).validate(world_size=1).config
    return dataclasses.replace(whole, parallel=parallel)


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 301, (ROWS, SEQ + 1), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """The sum over these targets divided by the number of all."""
    logits = F.linear(model.hidden(tokens), model.output_weight)  # type: ignore[operator, arg-type]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (ROWS * SEQ)


def on_one_device(cfg: Config, dtype: torch.dtype) -> tuple[Decoder, float]:
    model = Decoder(cfg.model)
    init_weights(model, 3)
    model = model.to(dtype)
    loss = loss_of(model, *batch())
    loss.backward()
    return model, loss.item()


def laid_out(cfg: Config, dtype: torch.dtype, *, technique: str = "plain") -> tuple[Mesh, Decoder]:
    mesh = make_mesh(cfg.parallel, "cpu")
    with torch.device("meta"):
        model = Decoder(cfg.model).to(dtype)
    spread_context(model, cfg, mesh)
    if technique != "plain":
        recompute(model, "full")
        compile_blocks(model, "aot_eager")
    shard(model, mesh)
    materialize(model, torch.device("cpu"), 3)
    return mesh, model


def check(
    cfg: Config,
    dtype: torch.dtype,
    loss_bound: float,
    gradient_bound: float,
    technique: str = "plain",
) -> None:
    """Loss and every gradient of a step of two micro-batches, or of as many as there are rows for."""
    whole, whole_loss = on_one_device(cfg, dtype)

    def work(_: int) -> None:
        mesh, model = laid_out(cfg, dtype, technique=technique)
        tokens, targets = (own_part(tensor, mesh) for tensor in batch())
        each = ROWS // mesh.batch_ranks // 2
        total = torch.zeros((), dtype=dtype)
        for micro in range(2):
            reduce_in_backward(model, last=micro == 1, each=False)
            rows = slice(
                (mesh.batch_rank * 2 + micro) * each, (mesh.batch_rank * 2 + micro + 1) * each
            )
            part = loss_of(model, tokens[rows], targets[rows])
            part.backward()
            total += part.detach()
        dist.all_reduce(total, group=mesh.loss_group)
        assert abs(total.item() - whole_loss) <= loss_bound * whole_loss
        for (name, parameter), of_whole in zip(
            model.named_parameters(), whole.parameters(), strict=True
        ):
            assert isinstance(parameter.grad, DTensor), name
            assert of_whole.grad is not None
            assert of_whole.grad.norm() > 0
            assert (
                parameter.grad.full_tensor() - of_whole.grad
            ).norm() <= gradient_bound * of_whole.grad.norm(), name

    parallel = cfg.parallel
    on_ranks(parallel.cp * parallel.dp_shard * parallel.dp_replicate, work)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", LAYOUTS | WIDER_LAYOUTS)
def test_loss_and_gradients(name: str, model: str) -> None:
    cfg = config((LAYOUTS | WIDER_LAYOUTS)[name], *MODELS[model])
    check(cfg, torch.float64, 1e-12, 1e-10)
    check(cfg, torch.float32, 1e-6, 1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_recomputed_and_compiled_without_a_break(name: str) -> None:
    check(
        config(LAYOUTS[name], *MODELS["rope, grouped"]),
        torch.float32,
        1e-6,
        1e-5,
        technique="recomputed and compiled",
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_text_of_one_device(name: str, model: str) -> None:
    """Also after whole sequences were read, of which each rank reads a part."""
    cfg = config(LAYOUTS[name], *MODELS[model])
    whole, _ = on_one_device(cfg, torch.float64)
    prompt = torch.randint(0, 301, (2, 5), generator=torch.Generator().manual_seed(1))
    text = generate(whole, prompt, 9, temperature=0.0)
    logits = whole(text).detach()

    def work(_: int) -> None:
        mesh, model = laid_out(cfg, torch.float64)
        with torch.no_grad():
            hidden = model.hidden(own_part(batch()[0], mesh))
            assert hidden.shape[:2] == (ROWS, SEQ // cfg.parallel.cp)
            assert torch.equal(generate(model, prompt, 9, temperature=0.0), text)
            cache = model.new_cache(14)
            for run in text.split(4, 1):  # runs of tokens, not only one by one
                seen = cache.length
                here = F.linear(model.hidden(run, cache=cache), whole.output_weight)
                assert (here - logits[:, seen : seen + run.shape[1]]).abs().max() < 1e-12

    on_ranks(cfg.parallel.cp, work)


def test_parts_cover_a_sequence_with_equal_work() -> None:
    for ranks in (1, 2, 4):
        parts = [
            Part(rank=rank, ranks=ranks, balanced=True).of(torch.arange(16), 0)
            for rank in range(ranks)
        ]
        assert sorted(torch.cat(parts).tolist()) == list(range(16))
        assert len({int(part.sum()) for part in parts}) == 1  # keys that the queries of a rank read
    assert Part(rank=1, ranks=2, balanced=True).of(torch.arange(8), 0).tolist() == [2, 3, 4, 5]
    assert Part(rank=1, ranks=2, balanced=False).of(torch.arange(8)[None], 1).tolist() == [
        [4, 5, 6, 7]
    ]
    with pytest.raises(AssertionError):
        Part(rank=0, ranks=2, balanced=True).of(torch.arange(6), 0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_flash_after_a_past(compiled: bool) -> None:
    """Queries of a late chunk over all keys before them, with the kernel that no mask fits, against
    one with a mask.
    """
    q, k, v = (
        torch.randn(2, heads, seq, 64, device="cuda", dtype=torch.bfloat16)
        for heads, seq in ((8, 128), (2, 512), (2, 512))
    )
    function = (
        torch.compile(causal_attention, backend="aot_eager", fullgraph=True)
        if compiled
        else causal_attention
    )
    results = []
    for backend in ("flash", "math"):
        inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        out = function(*inputs, backend)
        out.float().square().sum().backward()
        results.append([out.detach(), *(tensor.grad for tensor in inputs)])
    for mine, reference in zip(*results, strict=True):
        assert (mine.float() - reference.float()).norm() <= 2e-2 * reference.float().norm()
