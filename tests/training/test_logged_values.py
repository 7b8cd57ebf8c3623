"""Every value in metrics.jsonl and performance.jsonl against a reference that is computed apart:
the data order, a plain loop, numpy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from run_helpers import logged

from forge.data import IGNORE_INDEX
from forge.data.order import SampleOrder
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.training.assemble import Parts, assemble
from forge.training.callback import Callback

STEPS, BATCH, ACCUMULATION, SEQ = 5, 2, 2, 16
RUN = (
    f"train.max_steps={STEPS}",
    f"train.batch_size={BATCH}",
    f"train.grad_accum_steps={ACCUMULATION}",
    "metrics.log_interval=2",
    "train.grad_clip_norm=0.3",
    "objective.z_loss_weight=0.01",
    "eval.enabled=true",
    "eval.interval=3",
    "eval.steps=0",
    "eval.sample_tokens=0",
)


@pytest.fixture
def run(new_run: Callable[..., Path]) -> tuple[Path, Parts]:
    path = new_run(*RUN)
    parts = assemble(path)
    parts.loop.run()
    return path, parts


def reference(parts: Parts) -> tuple[list[dict[str, float]], dict[int, Decoder]]:
    """ce, z and gradient norm of every step from a plain loop in fp32; the model after steps 3 and
    5.
    """
    config, tokens = (
        parts.config,
        parts.prepared.train.read(0, len(parts.prepared.train)).astype(np.int64),
    )
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
        starts = [
            order.window(step * BATCH * ACCUMULATION + i) * SEQ for i in range(BATCH * ACCUMULATION)
        ]
        windows = torch.from_numpy(np.stack([tokens[s : s + SEQ + 1] for s in starts]))
        logits = model(windows[:, :-1]).flatten(0, 1)
        ce = F.cross_entropy(logits, windows[:, 1:].flatten())
        z = logits.logsumexp(-1).square().mean()
        (ce + 0.01 * z).backward()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        for p in model.parameters():
            p.grad *= min(1.0, 0.3 / norm)
        warm, decay = 2, STEPS - 2
        factor = (
            (step + 1) / warm
            if step < warm
            else 0.1 + 0.9 * (1 + math.cos(math.pi * (step - warm + 1) / decay)) / 2
        )
        for group in optimizer.param_groups:
            group["lr"] = o.lr * factor
        optimizer.step()
        optimizer.zero_grad()
        seen.append({"ce": ce.item(), "z": z.item(), "norm": norm, "lr": o.lr * factor})
        if step + 1 in (3, STEPS):
            kept[step + 1] = Decoder(config.model)
            kept[step + 1].load_state_dict(model.state_dict())
    return seen, kept


def test_training_values_are_what_they_say(run: tuple[Path, Parts]) -> None:
    path, parts = run
    steps, _ = reference(parts)
    assert all(step["norm"] > 0.3 for step in steps), "clipping must act"
    windows = {
        2: steps[0:2],
        4: steps[2:4],
        5: steps[4:5],
    }  # the last one is partial, and logged all the same
    loss, z_loss, norm, lr = (
        logged(path, key) for key in ("train/loss", "train/z_loss", "train/grad_norm", "lr")
    )
    assert set(loss) == set(z_loss) == set(norm) == set(lr) == set(windows)
    for step, window in windows.items():
        assert loss[step] == pytest.approx(np.mean([s["ce"] for s in window]), rel=2e-6)
        assert z_loss[step] == pytest.approx(np.mean([s["z"] for s in window]), rel=2e-6)
        assert norm[step] == pytest.approx(window[-1]["norm"], rel=2e-5)
        assert lr[step] == pytest.approx(window[-1]["lr"], rel=1e-12)
    assert logged(path, "tokens") == {step: step * BATCH * ACCUMULATION * SEQ for step in windows}


def test_evaluation_values_are_those_of_full_logits_in_float64(run: tuple[Path, Parts]) -> None:
    path, parts = run
    _, models = reference(parts)
    found = {
        key: logged(path, f"eval/{key}")
        for key in ("loss", "perplexity", "token_accuracy", "bits_per_byte")
    }
    for step, model in models.items():
        expected = by_numpy(parts, model.double())
        assert {key: values[step] for key, values in found.items()} == pytest.approx(
            expected, rel=1e-5
        )
    assert all(set(values) == set(models) for values in found.values())


def by_numpy(parts: Parts, model: Decoder) -> dict[str, float]:
    """The metrics of a model over every target of the validation split, each once, by their
    definitions.
    """
    val, sizes = parts.prepared.val, parts.prepared.tokenizer.token_bytes()
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
    is_special = targets == parts.prepared.tokenizer.eos_id
    assert is_special.any()
    n_bytes = sum(
        len(parts.prepared.tokenizer.decode([int(t)]).encode()) for t in targets[~is_special]
    )
    assert n_bytes == sizes[targets].sum()
    loss = all_nats.mean()
    return {
        "loss": loss,
        "perplexity": np.exp(loss),
        "token_accuracy": np.concatenate(hits).mean(),
        "bits_per_byte": all_nats[~is_special].sum() / math.log(2) / n_bytes,
    }


def test_masked_targets_count_nowhere(run: tuple[Path, Parts]) -> None:
    """A batch with masked targets gives the sums of the same batch without them."""
    from forge.data.loader import EvalBatch
    from forge.training.evaluation import evaluate

    _, parts = run
    tokens = torch.randint(300, (3, SEQ), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, dims=1)
    masked = targets.clone()
    masked[1:] = IGNORE_INDEX
    sizes = torch.arange(300) % 3

    def metrics(tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        batch = EvalBatch(tokens=tokens, targets=targets, n_targets=0, n_bytes=None)
        return evaluate(parts.model, [batch], token_bytes=sizes)

    assert metrics(tokens, masked) == pytest.approx(metrics(tokens[:1], targets[:1]), rel=1e-6)
    assert metrics(tokens, masked)["loss"] != pytest.approx(
        metrics(tokens, targets)["loss"], rel=1e-3
    )


class Slow(Callback):
    """Takes 30 ms a step that count as training, and 200 ms that do not."""

    def on_step_end(self, loop: Any, output: Any) -> None:
        time.sleep(0.03)
        with loop.paused():
            time.sleep(0.2)


def test_speed_and_mfu_leave_out_pauses(new_run: Callable[..., Path]) -> None:
    path = new_run("train.max_steps=4", "metrics.log_interval=2", "metrics.peak_tflops=0.001")
    parts = assemble(path)
    parts.loop.callbacks.insert(0, Slow())
    parts.loop.run()
    seconds, rate, mfu = (
        logged(path, key, file="performance.jsonl")
        for key in ("step_seconds", "tokens_per_second", "mfu")
    )
    assert set(seconds) == {2, 4}
    model = parts.config.model
    for step in (2, 4):
        assert 0.03 <= seconds[step] < 0.2
        assert rate[step] == pytest.approx(4 * 16 / seconds[step])
        assert mfu[step] == pytest.approx(rate[step] * model.flops_per_token(16) / 1e9)
    assert parts.logger.mean_rate() == pytest.approx(rate[4])  # all logs but the first
