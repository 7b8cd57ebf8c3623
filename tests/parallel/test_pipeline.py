"""A pipeline reads, evaluates and writes text as one device does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist
from parity_run import skip_what_torch_cannot, world_of
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from forge.compose import composition
from forge.config.model import Model
from forge.config.parallel import Parallel
from forge.config.problems import ConfigError
from forge.config.root import Config
from forge.data import IGNORE_INDEX
from forge.data.loader import Batch, EvalBatch
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.sampling import generate
from forge.objectives.pretrain import Pretrain
from forge.parallel.apply import apply
from forge.parallel.gradients import clip
from forge.parallel.mesh import Mesh, make_mesh
from forge.parallel.pipeline import Pipeline, cut
from forge.parallel.ranks import Ranks
from forge.resolve.rules.degrees import pp_torch
from forge.training.evaluation import evaluate

ROWS, SEQ = 8, 16
SMALL = (
    "model.n_layers=5 model.max_seq_len=24 train.seq_len=16 tokenizer.vocab_size=300 "
    "model.init_std=0.2 model.tie_embeddings=false model.dim=36 model.n_heads=3 "
    "model.ffn_hidden_dim=53 model.vocab_size=301 precision.mixed_precision=fp32"
)
EVEN = ("model.dim=32", "model.n_heads=4", "model.ffn_hidden_dim=52")
TIED = "model.tie_embeddings=true"
PP2: dict[str, Any] = {"pp": 2, "pp_microbatches": 4, "pp_stages_per_rank": 1, "dp_shard": 1}
LOOPED: dict[str, Any] = {"pp_schedule": "interleaved_zero_bubble", "pp_stages_per_rank": 2}
ZBV: dict[str, Any] = {"pp_schedule": "zbv_zero_bubble", "pp_stages_per_rank": 2}
SCHEDULES = pytest.mark.parametrize("layout", [{}, LOOPED, ZBV], ids=["1f1b", "looped", "zbv"])


def config(*overrides: str, **layout: Any) -> Config:
    resolution = composition.config([*SMALL.split(), *overrides]).validate(world_size=1)
    laid_out = dataclasses.replace(resolution.config, parallel=Parallel(**(PP2 | layout)))
    if problems := list(pp_torch.check(laid_out, resolution.world)):
        skip_what_torch_cannot(ConfigError(problems))
    return laid_out


def batch() -> Batch:
    """Some targets are masked, and not as many in each row."""
    tokens = torch.randint(0, 301, (ROWS, SEQ + 1), generator=torch.Generator().manual_seed(0))
    targets = tokens[:, 1:].clone()
    targets[3:5, 2:9] = IGNORE_INDEX
    return Batch(tokens[:, :-1].clone(), targets)


N_TARGETS = int((batch().targets != IGNORE_INDEX).sum())


def one_device(cfg: Config, dtype: torch.dtype = torch.float64) -> Decoder:
    model = Decoder(cfg.model)  # type: ignore[arg-type]
    init_weights(model, 3)
    return model.to(dtype)


def backward(cfg: Config, model: nn.Module, of: Batch) -> dict[str, Tensor]:
    """Gradients on one device."""
    (Pretrain(cfg.objective)(model, of).total / N_TARGETS).backward()  # type: ignore[arg-type]
    return gradients(model)


def laid_out(cfg: Config, dtype: torch.dtype = torch.float64) -> tuple[Mesh, Pipeline]:
    mesh = make_mesh(cfg.parallel, "cpu")
    seeded = dataclasses.replace(cfg, seed=3)
    cpu = torch.device("cpu")
    model = apply(lambda: Decoder(cfg.model).to(dtype), seeded, mesh, cpu)  # type: ignore[arg-type]
    assert isinstance(model, Pipeline)
    return mesh, model


def own_batches(mesh: Mesh) -> list[Batch]:
    """Two micro-batches of what this rank draws."""
    each = ROWS // mesh.batch_ranks // 2
    starts = [(mesh.batch_rank * 2 + micro) * each for micro in range(2)]
    return [Batch(*(field[start : start + each] for field in batch())) for start in starts]


def step(cfg: Config, mesh: Mesh, model: Pipeline) -> None:
    model.step(own_batches(mesh), Pretrain(cfg.objective), 1 / N_TARGETS)  # type: ignore[arg-type]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        grad = parameter.grad
        found[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()
        assert found[name].norm() > 0, name
    return found


def assert_same(model: nn.Module, wanted: dict[str, Tensor]) -> None:
    for name, gradient in gradients(model).items():
        assert (gradient - wanted[name]).norm() <= 1e-10 * wanted[name].norm(), name


@pytest.mark.parametrize("layout", [LOOPED, {"dp_shard": 2}], ids=["looped", "pp2 x fsdp2"])
def test_the_norm_of_all_gradients_counts_a_tied_table_once(layout: dict[str, Any]) -> None:
    cfg = config(TIED, **layout)
    wanted = torch.nn.utils.get_total_norm(backward(cfg, one_device(cfg), batch()).values())

    def work(_: int) -> None:
        mesh, model = laid_out(cfg)
        step(cfg, mesh, model)
        norm, _ = clip(list(model.named_parameters()), 0.0, counted=model.counted, spread=True)
        assert abs(norm - wanted) <= 1e-10 * wanted

    on_ranks(world_of(cfg), work)


@SCHEDULES
def test_reading_is_as_on_one_device(layout: dict[str, Any]) -> None:
    """Batches of any shape, and no trace of it in the next step's gradients."""
    cfg = config(**layout)
    reference = one_device(cfg)
    tokens = torch.randint(0, 301, (3, 23), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden, logits = reference.hidden(tokens), reference(tokens)
    wanted = backward(cfg, reference, batch())

    def work(_: int) -> None:
        mesh, model = laid_out(cfg)
        for _ in range(2):
            states = model.hidden(tokens)
            assert states.shape == hidden.shape
            assert model.last == (model.own_head() is not None)
            if model.last:
                assert (states - hidden).norm() <= 1e-12 * hidden.norm()
            assert (model(tokens) - logits).norm() <= 1e-6 * logits.norm()
            step(cfg, mesh, model)
            assert_same(model, wanted)
            model.zero_grad()

    on_ranks(world_of(cfg), work)


@pytest.mark.parametrize(
    "layout", [LOOPED, ZBV | {"dp_shard": 2}, {"tp": 2}], ids=["looped", "zbv x fsdp2", "tp2"]
)
def test_text_is_that_of_one_device(layout: dict[str, Any]) -> None:
    tied = [] if layout.get("pp_schedule") == "zbv_zero_bubble" else [TIED]
    cfg = config(*EVEN, *tied, **layout)
    reference, prompt = one_device(cfg, torch.float32), batch().tokens[:2, :5]
    ways: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "top_k": 20, "seed": 7},
        {"temperature": 0.0, "eos_id": 5},
    ]
    if "tp" not in layout:
        ways.append({"seed": 2, "use_cache": False})
    texts = [generate(reference, prompt, 12, **way) for way in ways]

    def work(_: int) -> None:
        _, model = laid_out(cfg, torch.float32)
        trained = dict(model.named_parameters())
        for way, text in zip(ways, texts, strict=True):
            assert torch.equal(generate(model, prompt, 12, **way), text), way
        assert all(parameter is trained[name] for name, parameter in model.named_parameters())

    on_ranks(world_of(cfg), work)


@pytest.mark.parametrize("layout", [ZBV, {"dp_shard": 2}, {"tp": 2}], ids=["zbv", "fsdp2", "tp2"])
def test_evaluation_counts_each_target_once(layout: dict[str, Any]) -> None:
    """Also with fewer rows than micro-batches."""
    cfg = config(*EVEN, **layout)
    tokens, targets = batch()
    sizes = torch.arange(301) % 4

    def metrics(model: nn.Module, parts: list[slice], ranks: Ranks | None) -> dict[str, float]:
        batches = [
            EvalBatch(
                tokens=tokens[rows],
                targets=targets[rows],
                n_targets=int((targets[rows] != IGNORE_INDEX).sum()),
                n_bytes=None,
            )
            for rows in parts
        ]
        return evaluate(model, batches, token_bytes=sizes, ranks=ranks)

    wanted = metrics(one_device(cfg, torch.float32), [slice(6)], None)

    def work(rank: int) -> None:
        mesh, model = laid_out(cfg, torch.float32)
        share = 6 // mesh.batch_ranks
        firsts = range(mesh.batch_rank * share, (mesh.batch_rank + 1) * share)
        ranks = Ranks(rank=rank, size=world_of(cfg), mesh=mesh)
        found = metrics(model, [slice(first, first + 1) for first in firsts], ranks)
        assert found == pytest.approx(wanted, rel=1e-6)

    on_ranks(world_of(cfg), work)


def test_a_step_of_another_shape() -> None:
    """torch's stages remember the first shape; ours are made anew."""
    cfg = config()

    def half(of: Batch) -> Batch:
        return Batch(*(field[:, : SEQ // 2] for field in of))

    wanted = backward(cfg, one_device(cfg), half(batch()))

    def work(_: int) -> None:
        mesh, model = laid_out(cfg)
        for shape in (half, lambda of: of, half):
            model.zero_grad()
            batches = [shape(one) for one in own_batches(mesh)]
            model.step(batches, Pretrain(cfg.objective), 1 / N_TARGETS)  # type: ignore[arg-type]
        assert_same(model, wanted)

    on_ranks(world_of(cfg), work)


def test_a_rank_holds_its_stages_only() -> None:
    cfg = config("model.n_layers=8", pp=4)
    names = [name for name, _ in one_device(cfg).named_parameters()]

    def work(rank: int) -> None:
        _, model = laid_out(cfg)
        held = {name.split(".")[1] for name in model.state_dict() if name.startswith("blocks.")}
        assert held == {str(2 * rank), str(2 * rank + 1)}
        assert ("embedding.weight" in model.state_dict()) == (rank == 0)
        everyones: list[Any] = [None] * 4
        dist.all_gather_object(everyones, [name for name, _ in model.named_parameters()])
        assert sorted(name for own in everyones for name in own) == sorted(names)

    on_ranks(4, work)


@SCHEDULES
def test_a_stage_runs_on_what_it_is_sent_and_on_nothing_else(layout: dict[str, Any]) -> None:
    """Left to itself, torch finds shapes by running every stage on uninitialised memory."""
    cfg = config(**layout)

    def work(_: int) -> None:
        mesh, model = laid_out(cfg)
        calls = []
        for part in model.parts:
            part.register_forward_pre_hook(lambda *_: calls.append(1))
        step(cfg, mesh, model)
        assert len(calls) == len(model.parts) * cfg.parallel.pp_microbatches

    on_ranks(world_of(cfg), work)


def test_a_model_that_cannot_be_cut_is_refused() -> None:
    cfg = dataclasses.replace(config(), model=Model(_target_="mine.Net"))
    what = (
        r"^parallel.pp=2: mine.Net cannot be cut into stages, only decoders can; set parallel.pp=1$"
    )
    with pytest.raises(ValueError, match=what):
        cut(lambda: nn.Linear(1, 1), cfg, mesh=None)  # type: ignore[arg-type]
