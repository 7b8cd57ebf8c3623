"""Every value in metrics.jsonl and performance.jsonl against a reference that is computed apart:
the data order, a plain loop, numpy.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from run_helpers import at_step, built, logged

from forge.compose import composition
from forge.data import IGNORE_INDEX
from forge.data.batches.order import SampleOrder
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.parallel.ranks import Ranks
from forge.training.callbacks.evaluation import evaluate
from forge.training.callbacks.metrics import Logger
from forge.training.loop import Loop

STEPS, BATCH, ACCUMULATION, SEQ = 5, 2, 2, 16
RUN = f"""
    train.max_steps={STEPS} train.batch_size={BATCH} train.grad_accum_steps={ACCUMULATION}
    metrics.log_interval=2 train.grad_clip_norm=0.3 objective.z_loss_weight=0.01 eval.enabled=true
    eval.interval=3 eval.steps=0 eval.sample_tokens=0
"""


@pytest.fixture
def run(new_run) -> tuple[Path, Loop]:
    path = new_run(RUN)
    loop = built(path)
    loop.run()
    return path, loop


def reference(loop: Loop) -> tuple[list[dict[str, float]], dict[int, Decoder]]:
    """ce, z and gradient norm of every step from a plain loop in fp32; the model after steps 3 and
    5.
    """
    config, store = loop.config, loop.session.prepared.train.stores[""]
    tokens = store.read(0, len(store)).astype(np.int64)
    model = Decoder(config.model)
    init_weights(model, config.seed)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    o = config.optimizer
    groups = [
        {"params": matrices, "weight_decay": o.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=o.betas, eps=o.eps)
    order = SampleOrder((len(tokens) - 1) // SEQ, seed=config.seed)
    seen, kept = [], {}
    for step in range(STEPS):
        size = BATCH * ACCUMULATION
        starts = [order.window(step * size + i) * SEQ for i in range(size)]
        windows = torch.from_numpy(np.stack([tokens[s : s + SEQ + 1] for s in starts]))
        logits = model(windows[:, :-1]).flatten(0, 1)
        ce = F.cross_entropy(logits, windows[:, 1:].flatten())
        z = logits.logsumexp(-1).square().mean()
        (ce + 0.01 * z).backward()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        for p in model.parameters():
            p.grad *= min(1.0, 0.3 / norm)
        warm, decay = 2, STEPS - 2
        factor = 0.1 + 0.9 * (1 + math.cos(math.pi * (step - warm + 1) / decay)) / 2
        if step < warm:
            factor = (step + 1) / warm
        for group in optimizer.param_groups:
            group["lr"] = o.lr * factor
        optimizer.step()
        optimizer.zero_grad()
        seen.append({"ce": ce.item(), "z": z.item(), "norm": norm, "lr": o.lr * factor})
        if step + 1 in (3, STEPS):
            kept[step + 1] = Decoder(config.model)
            kept[step + 1].load_state_dict(model.state_dict())
    return seen, kept


def test_training_values_are_what_they_say(run):
    path, loop = run
    steps, _ = reference(loop)
    assert all(step["norm"] > 0.3 for step in steps), "clipping must act"
    windows = {2: steps[0:2], 4: steps[2:4], 5: steps[4:5]}  # the last is logged all the same
    names = ("train/loss", "train/z_loss", "train/grad_norm", "lr")
    loss, z_loss, norm, lr = (logged(path, name) for name in names)
    assert set(loss) == set(z_loss) == set(norm) == set(lr) == set(windows)
    for step, window in windows.items():
        assert loss[step] == pytest.approx(np.mean([s["ce"] for s in window]), rel=2e-6)
        assert z_loss[step] == pytest.approx(np.mean([s["z"] for s in window]), rel=2e-6)
        assert norm[step] == pytest.approx(window[-1]["norm"], rel=2e-5)
        assert lr[step] == pytest.approx(window[-1]["lr"], rel=1e-12)
    assert logged(path, "tokens") == {step: step * BATCH * ACCUMULATION * SEQ for step in windows}


def test_evaluation_values_are_those_of_full_logits_in_float64(run):
    path, loop = run
    _, models = reference(loop)
    for step, model in models.items():
        for name, expected in by_numpy(loop, model.double()).items():
            found = logged(path, f"eval/{name}")
            assert set(found) == set(models)
            assert found[step] == pytest.approx(expected, rel=1e-5), name


def by_numpy(loop: Loop, model: Decoder) -> dict[str, float]:
    """The metrics of a model over every target of the validation split, each once, by their
    definitions.
    """
    val, sizes = loop.session.prepared.val, loop.session.prepared.tokenizer.token_bytes()
    tokens = val.read(0, len(val)).astype(np.int64)
    assert (len(tokens) - 1) % SEQ, "the last sequence must be partial"
    nats, hits = [], []
    for start in range(0, len(tokens) - 1, SEQ):
        window = tokens[start : start + SEQ + 1]
        with torch.no_grad():
            logits = model(torch.from_numpy(window[None, :-1]))[0].numpy()
        top = logits.max(-1, keepdims=True)
        log_partition = (top + np.log(np.exp(logits - top).sum(-1, keepdims=True)))[:, 0]
        nats.append(log_partition - logits[np.arange(len(window) - 1), window[1:]])
        hits.append(logits.argmax(-1) == window[1:])
    all_nats, targets = np.concatenate(nats), tokens[1:]
    is_special = targets == loop.session.prepared.tokenizer.eos_id
    assert is_special.any()
    decode = loop.session.prepared.tokenizer.decode
    n_bytes = sum(len(decode([int(token)]).encode()) for token in targets[~is_special])
    assert n_bytes == sizes[targets].sum()
    loss = all_nats.mean()
    return {
        "loss": loss,
        "perplexity": np.exp(loss),
        "token_accuracy": np.concatenate(hits).mean(),
        "bits_per_byte": all_nats[~is_special].sum() / math.log(2) / n_bytes,
    }


def test_masked_targets_count_nowhere(run):
    """A batch with masked targets gives the sums of the same batch without them."""
    _, loop = run
    tokens = torch.randint(300, (3, SEQ), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, dims=1)
    masked = targets.clone()
    masked[1:] = IGNORE_INDEX
    objective, cpu = loop.session.objective, torch.device("cpu")

    def metrics(tokens, targets) -> dict[str, float]:
        batch = {"tokens": tokens, "targets": targets}
        return evaluate(loop.model, objective, [batch], device=cpu)

    found = metrics(tokens, masked)
    assert found == pytest.approx(metrics(tokens[:1], targets[:1]), rel=1e-6)
    assert found["loss"] != pytest.approx(metrics(tokens, targets)["loss"], rel=1e-3)


def test_speed_and_mfu_leave_out_pauses(assembled):
    """30 ms a step that count as training, and 200 ms that do not."""
    loop = assembled("train.max_steps=4 metrics.log_interval=2 metrics.peak_tflops=0.001")

    def slow(loop):
        time.sleep(0.03)
        with loop.paused():
            time.sleep(0.2)

    at_step(loop, None, slow)
    read = loop.loader._dataset.objective.collate
    loop.loader._dataset.objective.collate = lambda own: (time.sleep(0.02), read(own))[1]
    loop.run()
    waits = logged(loop.run_dir, "data_seconds", file="performance.jsonl")
    assert all(0.02 <= wait < 0.1 for wait in waits.values())
    names = ("step_seconds", "tokens_per_second", "mfu", "memory_gib")
    seconds, rate, mfu, memory = (
        logged(loop.run_dir, name, file="performance.jsonl") for name in names
    )
    assert set(memory) == set(seconds) == {2, 4}
    model = loop.config.model
    for step in (2, 4):
        assert 0.03 <= seconds[step] < 0.2
        assert rate[step] == pytest.approx(4 * 16 / seconds[step])
        assert mfu[step] == pytest.approx(rate[step] * model.flops_per_token(16) / 1e9)
    assert loop.results()["tokens_per_second"] == pytest.approx(rate[4])  # all logs but the first


def test_values_that_are_not_finite_survive_a_stop():
    config, device = composition.config([]).validate().config, torch.device("cpu")
    objective = SimpleNamespace(counts={})
    session: Any = SimpleNamespace(config=config, device=device, ranks=Ranks(), objective=objective)
    logger, other = Logger(session), Logger(session)
    logger.gathered.sums, logger.gathered.grad_norm = {"ce": math.nan}, math.inf
    logger.last = {"train/loss": math.nan, "lr": 0.1}
    kept = json.dumps(logger.state_dict(), allow_nan=False)
    other.load_state_dict(json.loads(kept))
    assert math.isnan(other.gathered.sums["ce"])
    assert math.isnan(other.gathered.grad_norm)
    assert json.dumps(other.state_dict()) == kept
