"""An optimizer with a train and an eval mode: its mean is evaluated, sampled from and saved, while
training resumes from the other weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from example_helpers import SMALL, USE
from helpers.optimizers import params_of
from helpers.ranks import on_ranks
from torch.distributed.tensor import DTensor

import forge
from forge.models.decoder import Decoder
from forge.optim.train_eval_modes import reading
from forge.parallel.apply import apply
from forge.parallel.mesh import make_mesh
from forge.rundir import directory
from forge.rundir.checkpoints import WEIGHTS
from forge.training.build import build_loop
from forge.training.build_session import build_session
from forge.training.callback import Callback
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.restore import load_run
from forge.training.loop import Loop

pytestmark = pytest.mark.usefixtures("example")
BETA, LR, DECAY = 0.8, 0.5, 0.1
SIZES = ["model.dim=16", "model.n_layers=2", "model.n_heads=2", "model.max_seq_len=32"]
OPTIMIZER = [
    *("optimizer=schedule_free", f"optimizer.beta={BETA}", f"optimizer.lr={LR}"),
    *(f"optimizer.weight_decay={DECAY}", "scheduler=constant", "train.grad_clip_norm=0"),
    "scheduler.warmup_steps=0",
]
EVALUATED = ["eval.interval=5", "checkpoint.interval=5", "checkpoint.keep_last_n=0"]
Arrays = dict[str, np.ndarray]


class Reference:
    """Algorithm 1 of arXiv:2405.15682 in float64, with z and x written out."""

    def __init__(self, first: np.ndarray, decay: float = 0.0) -> None:
        self.z, self.x, self.y, self.steps, self.decay = first, first, first, 0, decay

    def step(self, gradient: np.ndarray) -> None:
        self.steps += 1
        c = 1 / (self.steps + 1)
        self.z = self.z - LR * (gradient + self.decay * self.y)
        self.x = (1 - c) * self.x + c * self.z
        self.y = (1 - BETA) * self.z + BETA * self.x


def optimizer_of(model: torch.nn.Module) -> Any:
    from forge_example.conf import ScheduleFree as Section
    from forge_example.schedule_free import ScheduleFree

    section = Section(lr=LR, beta=BETA, weight_decay=DECAY)
    return ScheduleFree(section, params_of(section, model))


def test_both_weights_are_those_of_numpy_and_change_places_without_a_trace() -> None:
    model = torch.nn.Linear(3, 2, bias=False).double()
    optimizer, drawn = optimizer_of(model), np.random.default_rng(0)
    reference = Reference(model.weight.detach().numpy().copy(), DECAY)
    for number in range(20):
        gradient = drawn.normal(size=(2, 3))
        model.weight.grad = torch.tensor(gradient)
        optimizer.step()
        reference.step(gradient)
        before = model.weight.detach().clone()
        np.testing.assert_allclose(before.numpy(), reference.y, rtol=1e-12)
        if number % 3 == 0:
            with reading(model, optimizer):
                np.testing.assert_allclose(model.weight.detach(), reference.x, rtol=1e-12)
            assert torch.equal(model.weight, before)


class Recorder(Callback):
    """The weights that gradients are taken at, and those gradients, of each step."""

    def __init__(self) -> None:
        self.weights: list[Arrays] = []
        self.gradients: list[Arrays] = []

    def on_gradients(self, loop: Loop) -> None:
        named = list(loop.model.named_parameters())
        self.weights.append({name: arrays(p) for name, p in named})
        self.gradients.append({name: arrays(p.grad) for name, p in named})


def arrays(tensor: Any) -> np.ndarray:
    return tensor.detach().double().numpy().copy()


def loop_of(folder: Path, *overrides: str) -> Loop:
    words = [*USE, *SMALL, *SIZES, *OPTIMIZER, "train.max_steps=10", *overrides]
    config = forge.compose([*words, f"run.dir={folder}"])
    return build_loop(build_session(directory.create(config.validate(), overrides=words)[0]))


def stored(run: Path, step: int, below: str = "model/") -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / f"step_{step}" / WEIGHTS
    tensors = {
        name: torch.empty(what.size, dtype=what.properties.dtype)
        for name, what in tensor_storage.stored_metadata(folder).items()
    }
    tensor_storage.load_tensors(tensors, folder)
    return {k.removeprefix(below): tensors[k] for k in tensors if k.startswith(below)}


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.nightly
def test_a_run_reads_the_mean_and_trains_the_others(desk: Path, monkeypatch: Any) -> None:
    """Evaluations, samples and checkpoints, compared with numpy over the gradients of the run."""
    monkeypatch.chdir(desk)
    loop, recorder, read = loop_of(desk / "run", *EVALUATED), Recorder(), []
    loop.callbacks.append(recorder)
    parameters = dict(loop.model.named_parameters())

    def note(*_: Any) -> None:
        if not loop.model.training:
            read.append((loop.state.step, {name: p.clone() for name, p in parameters.items()}))

    loop.model.norm.register_forward_hook(note)
    loop.run()
    decays = {
        p: group["weight_decay"] for group in loop.optimizer.param_groups for p in group["params"]
    }
    references = {
        name: Reference(first, decays[parameters[name]])
        for name, first in recorder.weights[0].items()
    }
    means: dict[int, Arrays] = {}
    for number, (weights, gradients) in enumerate(
        zip(recorder.weights, recorder.gradients, strict=True), start=1
    ):
        for name, reference in references.items():
            np.testing.assert_allclose(weights[name], reference.y, rtol=1e-4, atol=1e-5)
            reference.step(gradients[name])
        means[number] = {name: reference.x for name, reference in references.items()}
    assert {step for step, _ in read} == {5, 10}
    for step, weights in read:
        assert equal(weights, stored(desk / "run", step)), "what is evaluated is what is saved"
        for name, mean in means[step].items():
            np.testing.assert_allclose(arrays(weights[name]), mean, rtol=1e-4, atol=1e-5)
    far = [np.abs(references[name].y - mean).max() for name, mean in means[10].items()]
    assert max(far) > 1e-2, "the two differ by more than rounding"
    loaded = load_run(desk / "run", trust=("forge_example.",)).model
    assert equal(dict(loaded.named_parameters()), stored(desk / "run", 10))
    plain = loop_of(desk / "plain", "eval=off", "checkpoint=off")
    plain.run()
    assert equal(dict(plain.model.named_parameters()), parameters), "reading leaves no trace"


@pytest.mark.nightly
def test_a_run_that_goes_on_is_the_one_that_never_stopped(desk: Path, monkeypatch: Any) -> None:
    """A checkpoint has the mean as the model, and z and the trained weights as state."""
    monkeypatch.chdir(desk)
    loop_of(desk / "whole", *EVALUATED).run()
    kinds = {name.rpartition("/")[2] for name in stored(desk / "whole", 5, "optimizer/")}
    assert kinds == {"z", "step", "y"}
    from_5 = f"checkpoint.resume_from={desk}/whole/checkpoints/step_5"
    resumed = loop_of(desk / "resumed", *EVALUATED, from_5)
    named = resumed.model.named_parameters()
    trained = {f"{name}/y": p for name, p in named}
    kept = stored(desk / "whole", 5, "optimizer/")
    assert all(torch.equal(p, kept[name]) for name, p in trained.items())
    resumed.run()
    for below in ("model/", "optimizer/"):
        ours, theirs = (stored(desk / run, 10, below) for run in ("resumed", "whole"))
        assert equal(ours, theirs)
    rows = [
        [json.loads(line) for line in (desk / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("whole", "resumed")
    ]
    assert [row for row in rows[0] if row["step"] > 5] == rows[1] != []


def whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def trained(layout: list[str], ranks: int) -> list[dict[str, torch.Tensor]]:
    """Both weights and the logits of the mean after each of three steps, in float64."""
    words = [*USE, *SIZES, *OPTIMIZER, "tokenizer.vocab_size=300", "model.init_std=0.2", *layout]
    words += ["train.seq_len=16", "train.batch_size=2", "run.device=cpu", "precision=fp32"]
    config = forge.compose(words).validate(world_size=ranks).config
    mesh = make_mesh(config.parallel, "cpu") if ranks > 1 else None
    cpu = torch.device("cpu")
    model = apply(lambda: Decoder(config.model).double(), config, mesh, cpu)
    optimizer, found = optimizer_of(model), []
    tokens = torch.randint(300, (2, 16), generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        (model(tokens).square().sum() / (1e3 * ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
        with reading(model, optimizer), torch.no_grad():
            found.append({"logits": whole(model(tokens))})
        found.append({name: whole(p) for name, p in model.named_parameters()})
    return found


@pytest.mark.parametrize("reshard", ["always", "never"])
def test_sharded_weights_change_places_as_those_of_one_device(reshard: str) -> None:
    """Also those that are still gathered from the forward pass of the other mode."""
    expected = trained([], 1)

    def work(rank: int) -> None:
        found = trained(["parallel=fsdp", f"parallel.reshard_after_forward={reshard}"], 2)
        for ours, theirs in zip(found, expected, strict=True):
            for name, value in theirs.items():
                torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-10, msg=name)

    on_ranks(2, work)
