"""A pipeline of any schedule has the loss, the gradients, the evaluation and the text of one
device.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist
from parity_run import skip_what_torch_cannot
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
SMALL = [
    "model.n_layers=5",
    "model.max_seq_len=24",
    "train.seq_len=16",
    "tokenizer.vocab_size=300",
    "model.init_std=0.2",
    "model.tie_embeddings=false",
]
UNEVEN = ["model.dim=36", "model.n_heads=3", "model.ffn_hidden_dim=53", "model.vocab_size=301"]
PP2: dict[str, Any] = {"pp": 2, "pp_microbatches": 4, "pp_stages_per_rank": 1, "dp_shard": 1}
SCHEDULES: dict[str, dict[str, Any]] = {
    "gpipe": {},
    "1f1b": {},
    "interleaved_1f1b": {"pp_stages_per_rank": 2},
    "interleaved_zero_bubble": {"pp_stages_per_rank": 2},
    "zbv_zero_bubble": {"pp_stages_per_rank": 2},
}
BOUNDS = {torch.float64: (1e-12, 1e-10), torch.float32: (1e-6, 1e-5)}


def config(*overrides: str, **layout: Any) -> Config:
    resolution = composition.config(
        [*SMALL, *UNEVEN, "precision.mixed_precision=fp32", *overrides]
    ).validate(world_size=1)
    laid_out = dataclasses.replace(resolution.config, parallel=Parallel(**(PP2 | layout)))
    if problems := list(pp_torch.check(laid_out, resolution.world)):
        skip_what_torch_cannot(ConfigError(problems))
    return laid_out


def world(cfg: Config) -> int:
    return cfg.parallel.product_without_dp_shard * cfg.parallel.dp_shard


def batch() -> Batch:
    """Some targets are masked, and not as many in each row."""
    tokens = torch.randint(0, 301, (ROWS, SEQ + 1), generator=torch.Generator().manual_seed(0))
    targets = tokens[:, 1:].clone()
    targets[3:5, 2:9] = IGNORE_INDEX
    return Batch(tokens[:, :-1].clone(), targets)


N_TARGETS = int((batch().targets != IGNORE_INDEX).sum())


def one_device(cfg: Config, dtype: torch.dtype) -> Decoder:
    model = Decoder(cfg.model)  # type: ignore[arg-type]
    init_weights(model, 3)
    return model.to(dtype)


def laid_out(cfg: Config, dtype: torch.dtype) -> tuple[Mesh, Pipeline]:
    mesh = make_mesh(cfg.parallel, "cpu")
    seeded = dataclasses.replace(cfg, seed=3)
    model = apply(lambda: Decoder(cfg.model).to(dtype), seeded, mesh, torch.device("cpu"))  # type: ignore[arg-type]
    assert isinstance(model, Pipeline)
    return mesh, model


def own_batches(mesh: Mesh) -> list[Batch]:
    """Two micro-batches of what this rank draws, and reads of each sequence."""
    each, ranks = ROWS // mesh.batch_ranks // 2, Ranks(mesh=mesh)
    starts = [(mesh.batch_rank * 2 + micro) * each for micro in range(2)]
    return [
        Batch(*(ranks.own_part(field[start : start + each]) for field in batch()))
        for start in starts
    ]


def loss_and_sums(cfg: Config, mesh: Mesh, model: Pipeline) -> tuple[Tensor, dict[str, Tensor]]:
    """Of the whole step, on every rank."""
    total, sums = model.step(own_batches(mesh), Pretrain(cfg.objective), 1 / N_TARGETS)
    for value in (total, *sums.values()):
        dist.all_reduce(value, group=mesh.loss_group)
    return total, sums


def whole(values: Tensor) -> Tensor:
    return values.full_tensor() if isinstance(values, DTensor) else values


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        found[name] = whole(parameter.grad).clone()
        assert found[name].norm() > 0, name
    return found


def everyones_names(model: nn.Module) -> set[str]:
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, [name for name, _ in model.named_parameters()])
    return {name for some in names for name in some}


def same(cfg: Config, dtype: torch.dtype, steps: int = 0) -> None:
    """Weights, loss, sums and gradients of one step, then weights after some of SGD, equal those of
    one device.
    """
    reference, objective = one_device(cfg, dtype), Pretrain(cfg.objective)  # type: ignore[arg-type]
    start = {name: parameter.detach().clone() for name, parameter in reference.named_parameters()}

    def update() -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
        losses = objective(reference, batch())
        (losses.total / N_TARGETS).backward()
        return losses.total.item() / N_TARGETS, losses.sums, gradients(reference)

    loss, sums, wanted = update()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    for number in range(steps):
        if number:
            update()
        optimizer.step()
        optimizer.zero_grad()
    loss_bound, gradient_bound = BOUNDS[dtype]

    def work(_: int) -> None:
        mesh, model = laid_out(cfg, dtype)
        assert everyones_names(model) == set(start)
        for name, parameter in model.named_parameters():
            assert torch.equal(whole(parameter.detach()), start[name]), name
        total, all_sums = loss_and_sums(cfg, mesh, model)
        assert abs(total.item() - loss) <= loss_bound * abs(loss)
        assert all_sums.keys() == sums.keys()
        for name, value in all_sums.items():
            assert abs(value - sums[name]) <= loss_bound * abs(sums[name]), name
        for name, gradient in gradients(model).items():
            assert (gradient - wanted[name]).norm() <= gradient_bound * wanted[name].norm(), name
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for number in range(steps):
            if number:
                loss_and_sums(cfg, mesh, model)
            optimizer.step()
            optimizer.zero_grad()
        for name, parameter in model.named_parameters():
            after = reference.get_parameter(name).detach()
            assert (
                whole(parameter.detach()) - after
            ).norm() <= 10 * gradient_bound * after.norm(), name

    on_ranks(world(cfg), work)


@pytest.mark.parametrize("dtype", BOUNDS, ids=["float64", "float32"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule(schedule: str, dtype: torch.dtype) -> None:
    same(
        config(pp_schedule=schedule, **SCHEDULES[schedule]),
        dtype,
        steps=5 if dtype == torch.float64 else 0,
    )


TIED = "model.tie_embeddings=true"
EVEN = ["model.dim=32", "model.n_heads=4", "model.ffn_hidden_dim=52"]
ZERO_BUBBLE: dict[str, Any] = {"pp_schedule": "interleaved_zero_bubble", "pp_stages_per_rank": 2}
ZBV: dict[str, Any] = {"pp_schedule": "zbv_zero_bubble", "pp_stages_per_rank": 2}


@pytest.mark.parametrize(
    ("overrides", "layout"),
    [
        pytest.param([TIED], {}, id="tied"),
        pytest.param([TIED], ZERO_BUBBLE, id="tied, zero bubble"),
        pytest.param(
            ["model.position=learned", "objective.loss_fn=cross_entropy"],
            {"pp_layers": [1, 4]},
            id="layers by hand",
        ),
        pytest.param(
            ["objective.loss_fn=cross_entropy", "objective.z_loss_weight=0.01"],
            ZBV,
            id="zbv with whole logits",
        ),
        pytest.param(["train.activation_checkpointing=full"], ZBV, id="zbv, recompute"),
        pytest.param(["train.activation_checkpointing=selective"], {}, id="selective recompute"),
        pytest.param(
            ["train.compile_model=true", "train.compile_backend=eager"], {}, id="compiled"
        ),
        pytest.param([TIED], {"cpu_offload": True}, id="cpu offload"),
        pytest.param([TIED], {"dp_shard": 2}, id="fsdp2, tied"),
        pytest.param([], ZERO_BUBBLE | {"dp_shard": 2}, id="fsdp2, zero bubble"),
        pytest.param([], ZBV | {"dp_shard": 2}, id="fsdp2, zbv", marks=pytest.mark.slow),
        pytest.param([], ZBV | {"dp_replicate": 2}, id="ddp2, zbv", marks=pytest.mark.slow),
        pytest.param([TIED], {"pp": 4}, id="pp4, tied"),
        pytest.param(
            [], {"pp": 4, "pp_schedule": "gpipe"}, id="pp4, gpipe", marks=pytest.mark.slow
        ),
        pytest.param(["model.n_layers=8"], {"pp": 4} | ZBV, id="pp4, zbv", marks=pytest.mark.slow),
        pytest.param(
            ["model.n_layers=8"],
            {"pp": 4} | ZERO_BUBBLE,
            id="pp4, zero bubble",
            marks=pytest.mark.slow,
        ),
        pytest.param([TIED, *EVEN], {"tp": 2}, id="tp2, tied"),
        pytest.param(
            [TIED, *EVEN],
            {"tp": 2, "sequence_parallel": False, "loss_parallel": False},
            id="tp2 without SP, tied",
        ),
        pytest.param(
            ["model.position=learned", *EVEN],
            {"tp": 2} | ZBV,
            id="tp2, zbv",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [TIED, *EVEN],
            {"tp": 2} | ZERO_BUBBLE,
            id="tp2, zero bubble, tied",
            marks=pytest.mark.slow,
        ),
        pytest.param(EVEN, {"cp": 2}, id="cp2"),
        pytest.param(
            EVEN,
            {"cp": 2, "cp_method": "ulysses"} | ZBV,
            id="cp2 ulysses, zbv",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_with_other_techniques(overrides: list[str], layout: dict[str, Any]) -> None:
    same(config(*overrides, **layout), torch.float64, steps=3)


@pytest.mark.parametrize(
    "layout", [{}, ZERO_BUBBLE, {"dp_shard": 2}], ids=["pp2", "interleaved", "pp2 x fsdp2"]
)
def test_the_norm_of_the_whole_gradient_counts_a_tied_table_once(layout: dict[str, Any]) -> None:
    cfg = config(TIED, **layout)
    reference = one_device(cfg, torch.float64)
    (Pretrain(cfg.objective)(reference, batch()).total / N_TARGETS).backward()  # type: ignore[arg-type]
    wanted = torch.nn.utils.get_total_norm(
        [p.grad for p in reference.parameters() if p.grad is not None]
    )

    def work(_: int) -> None:
        mesh, model = laid_out(cfg, torch.float64)
        loss_and_sums(cfg, mesh, model)
        norm, _ = clip(list(model.named_parameters()), 0.0, counted=model.counted, spread=True)
        assert abs(norm - wanted) <= 1e-10 * wanted

    on_ranks(world(cfg), work)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reading_is_as_on_one_device(schedule: str) -> None:
    """Batches of any shape, and no trace of it in the next step's gradients."""
    cfg = config(pp_schedule=schedule, **SCHEDULES[schedule])
    reference = one_device(cfg, torch.float64)
    tokens = torch.randint(0, 301, (3, 23), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden, logits = reference.hidden(tokens), reference(tokens)
    (Pretrain(cfg.objective)(reference, batch()).total / N_TARGETS).backward()  # type: ignore[arg-type]
    wanted = gradients(reference)

    def work(_: int) -> None:
        mesh, model = laid_out(cfg, torch.float64)
        for _ in range(2):
            states = model.hidden(tokens)
            assert states.shape == hidden.shape
            assert model.last == (model.own_head() is not None)
            if model.last:
                assert (states - hidden).norm() <= 1e-12 * hidden.norm()
            assert (model(tokens) - logits).norm() <= 1e-6 * logits.norm()
            loss_and_sums(cfg, mesh, model)
            for name, gradient in gradients(model).items():
                assert (gradient - wanted[name]).norm() <= 1e-10 * wanted[name].norm(), name
            model.zero_grad()

    on_ranks(world(cfg), work)


@pytest.mark.parametrize(
    "layout",
    [{}, ZERO_BUBBLE, ZBV | {"dp_shard": 2}, {"tp": 2}],
    ids=["1f1b", "interleaved", "zbv x fsdp2", "tp2"],
)
def test_text_is_that_of_one_device(layout: dict[str, Any]) -> None:
    cfg = config(
        *EVEN, *([] if layout.get("pp_schedule") == "zbv_zero_bubble" else [TIED]), **layout
    )
    reference = one_device(cfg, torch.float32)
    prompt = batch().tokens[:2, :5]
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

    on_ranks(world(cfg), work)


@pytest.mark.parametrize(
    "layout", [{}, ZBV, {"dp_shard": 2}, {"tp": 2}], ids=["1f1b", "zbv", "fsdp2", "tp2"]
)
def test_evaluation_counts_each_target_once(layout: dict[str, Any]) -> None:
    """Also with fewer rows than micro-batches."""
    cfg = config(*EVEN, **layout)
    tokens, targets = batch()
    sizes = torch.arange(301) % 4

    def metrics(
        model: nn.Module, parts: list[tuple[Tensor, Tensor]], ranks: Ranks | None = None
    ) -> dict[str, float]:
        batches = [
            EvalBatch(tokens=t, targets=w, n_targets=int((w != IGNORE_INDEX).sum()), n_bytes=None)
            for t, w in parts
        ]
        return evaluate(model, batches, token_bytes=sizes, ranks=ranks)

    wanted = metrics(one_device(cfg, torch.float32), [(tokens[:6], targets[:6])])

    def work(rank: int) -> None:
        mesh, model = laid_out(cfg, torch.float32)
        share = 6 // mesh.batch_ranks
        rows = [
            slice(mesh.batch_rank * share + first, mesh.batch_rank * share + first + 1)
            for first in range(share)
        ]
        ranks = Ranks(rank=rank, size=world(cfg), mesh=mesh)
        found = metrics(model, [(tokens[part], targets[part]) for part in rows], ranks)
        assert found == pytest.approx(wanted, rel=1e-6)

    on_ranks(world(cfg), work)


def test_a_step_of_another_shape() -> None:
    """torch's stages remember the first shape; ours are made anew."""
    cfg = config()

    def half(of: Batch) -> Batch:
        return Batch(*(field[:, : SEQ // 2] for field in of))

    reference = one_device(cfg, torch.float64)
    (Pretrain(cfg.objective)(reference, half(batch())).total / N_TARGETS).backward()  # type: ignore[arg-type]
    wanted = gradients(reference)

    def work(_: int) -> None:
        mesh, model = laid_out(cfg, torch.float64)
        for shape in (half, lambda of: of, half):
            model.zero_grad()
            model.step(
                [shape(one) for one in own_batches(mesh)], Pretrain(cfg.objective), 1 / N_TARGETS
            )
        for name, gradient in gradients(model).items():
            assert (gradient - wanted[name]).norm() <= 1e-10 * wanted[name].norm(), name

    on_ranks(world(cfg), work)


def test_a_rank_holds_its_stages_only() -> None:
    cfg = config("model.n_layers=8", pp=4, pp_schedule="1f1b")
    blocks = {name for name, _ in one_device(cfg, torch.float32).blocks.named_parameters()}

    def work(rank: int) -> None:
        _, model = laid_out(cfg, torch.float32)
        layers = {
            int(name.split(".")[1])
            for name, _ in model.named_parameters()
            if name.startswith("blocks.")
        }
        assert layers == {0: {0, 1}, 1: {2, 3}, 2: {4, 5}, 3: {6, 7}}[rank]
        assert ("embedding.weight" in model.state_dict()) == (rank == 0)
        assert len(blocks) // 4 <= len(model.state_dict()) <= len(blocks) // 4 + 2

    on_ranks(4, work)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_runs_on_what_it_is_sent_and_on_nothing_else(schedule: str) -> None:
    """Left to itself, torch finds shapes in the first step by running every stage on memory that
    nothing was written to.
    """
    cfg = config(pp_schedule=schedule, **SCHEDULES[schedule])

    def work(_: int) -> None:
        mesh, model = laid_out(cfg, torch.float64)
        calls = []
        for part in model.parts:
            part.register_forward_pre_hook(lambda *_: calls.append(1))
        loss_and_sums(cfg, mesh, model)
        assert len(calls) == len(model.parts) * cfg.parallel.pp_microbatches

    on_ranks(world(cfg), work)


def test_a_model_that_cannot_be_cut_is_refused() -> None:
    cfg = dataclasses.replace(config(), model=Model(_target_="mine.Net"))
    with pytest.raises(
        ValueError,
        match=r"parallel.pp=2: mine.Net cannot be cut into stages, only decoders can; set parallel.pp=1",
    ):
        cut(lambda: nn.Linear(1, 1), cfg, mesh=None)  # type: ignore[arg-type]
