"""The example of an objective with a batch, metrics and a frozen model of its own: by hand, from
loader processes, on layouts, and over a run that continues.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from example_helpers import SMALL, USE, Verb
from helpers.ranks import on_ranks

from forge.compose import composition
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.root import Config
from forge.data.batches.loader import TrainLoader, eval_batches
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.parity.side import measure
from forge.parity.verdict import BOUNDS, compare_records, verdict_table
from forge.rundir import saved_config
from forge.training.callbacks.evaluation import evaluate
from forge.training.checkpoints import restore
from forge.training.models import build_model, build_objective

pytestmark = pytest.mark.usefixtures("example")
VOCAB, SEQ, FP64 = 300, 16, torch.float64
SHAPE = {"dim": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 32, "ffn_hidden_dim": 24}
STUDENT = [f"model.{key}={value}" for key, value in SHAPE.items()]


class Tokens:
    """A split of 203 ids, so that its last window is short."""

    counted: Any = None
    ids = np.random.default_rng(0).integers(1, VOCAB, size=203)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.ids[start:stop]


def decoder(seed: int) -> Decoder:
    model = Decoder(DecoderConfig(**SHAPE, vocab_size=VOCAB, init_std=0.3)).to(FP64)
    init_weights(model, seed)
    return model


def distillation(noise: float, teacher: Decoder | None = None) -> Any:
    from forge_example.conf import Distillation as Section
    from forge_example.distillation import Distillation

    models = {} if teacher is None else {"teacher": teacher}
    return Distillation(Section(noise=noise), models=models)


def test_loss_and_metrics_by_hand() -> None:
    student, teacher, store = decoder(0), decoder(1), Tokens()
    objective = distillation(0.3, teacher)
    kl, same, unseen = [], [], 0
    batches = list(eval_batches(store, objective, seq_len=SEQ, batch_size=5))  # type: ignore[arg-type]
    for number, start in enumerate(range(0, len(store) - 1, SEQ)):
        text = store.read(start, min(start + SEQ, len(store) - 1))
        hidden = np.random.default_rng(number).random(len(text)) < 0.3
        unseen += hidden.sum()
        read = [torch.from_numpy(ids)[None] for ids in (np.where(hidden, 0, text), text)]
        with torch.no_grad():
            logits = [model(ids)[0].numpy() for model, ids in zip((student, teacher), read)]  # noqa: B905
        log_p = [one - np.log(np.exp(one).sum(-1, keepdims=True)) for one in logits]
        kl += (np.exp(log_p[1]) * (log_p[1] - log_p[0])).sum(-1).tolist()
        same += (log_p[0].argmax(-1) == log_p[1].argmax(-1)).tolist()
    assert unseen > 30
    assert [len(batch["tokens"]) for batch in batches] == [5, 5, 3]
    found = evaluate(student, objective, batches, device=torch.device("cpu"))
    wanted = {"loss": np.mean(kl), "agreement": np.mean(same), "largest_loss": max(kl)}
    assert found == pytest.approx(wanted, rel=1e-12)
    total = sum(objective(student, batch).total.item() for batch in batches)
    assert total == pytest.approx(sum(kl), rel=1e-12)
    itself = evaluate(teacher, distillation(0.0, teacher), batches[:1], device=torch.device("cpu"))
    assert itself["agreement"] < 1, "these batches are noised"


def test_batches_come_from_loader_processes_which_have_no_models() -> None:
    objective, options = distillation(0.3, decoder(1)), {"seq_len": SEQ, "seed": 1, "batch_size": 3}
    sent = pickle.loads(pickle.dumps(objective))
    assert (sent.models, sent.section) == ({}, objective.section)
    plain, processes = (
        TrainLoader(Tokens(), one, **options, num_workers=workers)  # type: ignore[arg-type]
        for one, workers in ((sent, 0), (objective, 1))
    )
    for _ in range(3):
        ours, theirs = next(plain), next(processes)
        assert ours.n_tokens == ours.n_targets == theirs.n_targets == 3 * SEQ
        for name, values in ours.batches[0].items():
            assert torch.equal(values, theirs.batches[0][name])
    processes.close()


@pytest.mark.nightly
@pytest.mark.ci("tp=2")
@pytest.mark.parametrize("layout", ["dp_shard=2", "tp=2", "cp=2"])
def test_layouts_equal_one_device(layout: str, tiny_run: Path, desk: Path) -> None:
    """The teacher is of another shape, from a checkpoint."""
    given = [*USE, *SMALL, *STUDENT, "parallel=single", "objective=distillation"]
    given += [f"objective.teacher={tiny_run}", f"data.path={desk}", "train.global_batch_size=4"]
    one, many = (
        composition.config([*given, *more]).validate().config
        for more in ([], [f"parallel.{layout}", "train.batch_size=2"])
    )
    tokens: Any = Tokens()

    def metrics(config: Config, ranks: Ranks) -> dict[str, float]:
        model, objective = (
            build(config, torch.device("cpu"), ranks, dtype=FP64)
            for build in (build_model, build_objective)
        )
        batches = eval_batches(tokens, objective, seq_len=SEQ, batch_size=2, part=ranks.batch)
        return evaluate(model, objective, batches, device=torch.device("cpu"), ranks=ranks)

    wanted = measure(one, Ranks(), tokens, dtype=FP64, steps=3), metrics(one, Ranks())
    assert len(set(wanted[0].losses)) == 3

    def work(rank: int) -> None:
        host: Any = dist.new_group()
        ranks = Ranks(rank=rank, size=2, mesh=make_mesh(many.parallel, "cpu"), host=host)
        found = measure(many, ranks, tokens, dtype=FP64, steps=3)
        assert metrics(many, ranks) == pytest.approx(wanted[1], rel=1e-10)
        if rank == 0:
            verdict = compare_records(wanted[0], found, BOUNDS[FP64])
            assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])

    on_ranks(2, work)


def test_without_a_path_the_teacher_has_the_initial_weights(tiny_run: Path) -> None:
    """Those of checkpoint.init_from, but for what is not loaded."""
    config, cpu = saved_config.load_own(tiny_run), torch.device("cpu")
    start = {"init_from": str(tiny_run), "exclude_from_loading": ("embedding",)}
    section, checkpoint = distillation(0.3).section, replace(config.checkpoint, **start)
    run = replace(config.run, trust=("forge_example.",))
    config = replace(config, objective=section, checkpoint=checkpoint, run=run)
    teacher = build_objective(config, cpu, Ranks()).models["teacher"]
    trained, fresh = restore.load_run(tiny_run).model, build_model(config, cpu, Ranks())
    for name, parameter in teacher.named_parameters():
        source = fresh if name.startswith("embedding") else trained
        assert torch.equal(parameter, source.get_parameter(name)), name
        assert not torch.equal(fresh.get_parameter(name), trained.get_parameter(name)), name
        assert not parameter.requires_grad
    assert not teacher.training


@pytest.mark.nightly
def test_a_run_goes_on_with_the_teacher_that_it_began_with(verb: Verb, desk: Path) -> None:
    """Which is the student's first weights; and the best is that of the highest agreement."""
    (desk / "mine.txt").write_text("the sea and the ship " * 40)
    options = [*USE, *SMALL, *STUDENT, "objective=distillation", "scheduler=constant"]
    options += [
        "optimizer.lr=0.003",
        "eval.steps=0",
        "eval.interval=3",
        "+eval.sets.mine.path=mine.txt",
    ]
    options += ["eval.metric=mine/agreement", "checkpoint.interval=3"]
    verb("train", *options, "train.max_steps=6", "run.dir=whole")
    verb("train", *options, "train.max_steps=3", "run.dir=parts")
    verb("resume", "parts", *USE, "train.max_steps=6")
    rows = (desk / "whole" / "metrics.jsonl").read_text()
    assert rows == (desk / "parts" / "metrics.jsonl").read_text()
    agreement = [
        row["eval/mine/agreement"]
        for row in map(json.loads, rows.splitlines())
        if "eval/mine/agreement" in row
    ]
    assert len(set(agreement)) == 2
    found = json.loads(verb("checkpoints", "parts", "--json").stdout)
    assert [one["best"] for one in found] == [value == max(agreement) for value in agreement]


@pytest.mark.nightly
def test_a_teacher_that_cannot_be_used_is_refused(tiny_run: Path, desk: Path, verb: Verb) -> None:
    options = [*USE, *SMALL, *STUDENT, "objective=distillation", "train.max_steps=1"]
    for teacher, what in (
        (tiny_run, f"{tiny_run}/checkpoints/step_6: it was trained with another tokenizer"),
        (desk / "none", f"{desk}/none: there is no such directory"),
    ):
        said = verb("train", *options, f"objective.teacher={teacher}", code=2).stderr
        assert f"objective, its model 'teacher': {what}" in said
    said = verb("check", *options, "parallel.pp=2", code=2).stderr
    assert "A frozen model of an objective is not cut into stages" in said
