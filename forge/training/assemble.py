"""From a resolved config to a loop that can run: every component built, in the order data flows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forge.build import build
from forge.config.root import Config
from forge.data.loader import TrainLoader, count_windows, eval_batches
from forge.data.prepare import Prepared, prepare
from forge.data.shards import TokenStore
from forge.models.contract import check_model
from forge.parallel.apply import apply
from forge.parallel.ranks import Ranks, join
from forge.parallel.rendezvous import Rendezvous
from forge.resolve.derivations import fit_epochs
from forge.resolve.rule import Derived
from forge.rundir import directory, saved_config
from forge.rundir.checkpoints import TOKENIZER
from forge.rundir.files import read_json, write_json
from forge.rundir.saved_config import newest, numbered, version
from forge.training.callback import Callback, user_callbacks
from forge.training.checkpoint import Checkpointer
from forge.training.evaluation import BATCHES_PER_VOTE, Evaluation, evaluate, most_sequences, unless
from forge.training.flops import peak_flops
from forge.training.loop import Loop
from forge.training.metrics import Logger
from forge.training.process import check_dtypes, loss_scaler, say, set_up
from forge.training.profiling import Profiler
from forge.training.samples import Samples, opening
from forge.training.saving import Saving
from forge.training.signals import Signals
from forge.training.start import Start, begin, choose
from forge.training.state import TrainState
from forge.training.step import Update
from forge.training.stopping import (
    Agreement,
    BadSteps,
    EarlyStopping,
    HealthCheck,
    Request,
    StopVote,
    TimeLimit,
)
from forge.training.trackers import Trackers, build_trackers, user_trackers


@dataclass
class Parts:
    """A loop, and the pieces of it that a summary reads."""

    config: Config
    prepared: Prepared
    model: nn.Module
    loop: Loop
    logger: Logger
    evaluation: Evaluation | None
    bad_steps: BadSteps
    ranks: Ranks


def assemble(
    run_dir: Path, rendezvous: Rendezvous | None = None, *, trust: Sequence[str] | None = None
) -> Parts:
    """Build all that the config of a run directory names. Raises ValueError for mistakes.

    rendezvous: where the ranks already met, if they did. trust: prefixes of what may be built
    besides forge's own; None = those of the directory, which this process has made itself.
    """
    if trust is None:
        config = saved_config.load_own(run_dir)
    else:
        config = saved_config.load(newest(run_dir), trust=trust)
    own_code = {"trust": config.run.trust}
    device = set_up(config)
    torch.manual_seed(config.seed)
    users = user_callbacks(config)
    ranks = join(config, device, rendezvous)
    with ranks.main_first():
        announce = cache(lambda stage: say(f"data: {stage}"))  # each stage once
        prepared = prepare(
            config.data,
            config.tokenizer,
            build=partial(build, **own_code),
            progress=lambda stage, share: announce(stage),
        )
    check_vocabulary(config, prepared)
    config, derived = _fit(config, run_dir, prepared)
    train = config.train
    model = build_model(config, device, ranks)
    check_dtypes(model)
    optimizer = build(config.optimizer, path="optimizer", model=model, **own_code)
    update = Update(
        model=model,
        objective=build(config.objective, path="objective", **own_code),
        optimizer=optimizer,
        schedule=build(config.scheduler, path="scheduler", **own_code),
        device=device,
        scaler=loss_scaler(config.precision, device),
        clip_norm=train.grad_clip_norm,
        ranks=ranks,
        max_steps=train.max_steps,
        reduce_each=config.parallel.reduce_gradients == "micro_batch",
    )
    loader = train_loader(config, prepared.train, ranks, device)
    signals = Signals(train.shutdown_timeout_sec, ranks, saves=config.checkpoint.enabled)
    folder, data = run_dir / config.checkpoint.dir, data_identity(prepared)
    checkpointer = Checkpointer(
        folder, config, prepared.tokenizer, directory.run_id(run_dir), ranks
    )
    start = _start(run_dir, config, checkpointer, ranks)
    resumed_at = start.meta.get("step", 0) if start.own else 0
    logger = _logger(config, run_dir, device, ranks, resumed_at=resumed_at)
    saving = Saving(checkpointer, data)
    evaluation = None
    if config.eval.enabled:
        evaluation = _evaluation(config, prepared, model, device, signals, ranks)
    saves_last = config.checkpoint.enabled and config.checkpoint.last != "none"
    bad_steps = BadSteps(
        train, interval=config.metrics.log_interval, checkpoints=folder if saves_last else None
    )
    requests: list[Request] = [signals]
    if train.max_time:
        requests.append(TimeLimit(train.max_time))
    if config.checkpoint.enabled:
        requests.append(saving)
    # Each stands behind those that it looks at; see their docstrings.
    callbacks: list[Callback] = [signals, Agreement(requests, ranks), bad_steps, logger]
    if config.profiling.enable and ranks.rank in (config.profiling.ranks or range(ranks.size)):
        callbacks.append(Profiler(config.profiling, run_dir, device, ranks.rank))
    if evaluation is not None:
        callbacks += [evaluation, EarlyStopping(config.eval)]
        if config.eval.sample_tokens:
            samples = Samples(
                config,
                model=model,
                tokenizer=prepared.tokenizer,
                device=device,
                run_dir=run_dir if ranks.main else None,
                ranks=ranks,
            )
            callbacks.append(samples)
    callbacks += users
    if train.nccl_health_check_interval:
        callbacks.append(HealthCheck(train.nccl_health_check_interval, ranks))
    votes = bool(users) and ranks.size > 1
    if votes:
        callbacks.append(StopVote(ranks))
    if config.checkpoint.enabled:
        callbacks.append(saving)
    loop = Loop(
        update=update,
        loader=loader,
        state=TrainState(),
        callbacks=callbacks,
        end_step=train.max_steps,
        config=config,
        run_dir=run_dir,
        report=lambda step, values: logger.trackers.log(step, values),
        votes=votes,
    )
    begin(start, checkpointer, loop, data)
    if ranks.main:
        write_json(run_dir / "data.json", prepared.manifest)
        write_json(_derived(run_dir), derived)
        if not (run_dir / TOKENIZER).exists():  # kept of the first start, whatever text comes later
            prepared.tokenizer.save(run_dir / TOKENIZER)
    return Parts(config, prepared, model, loop, logger, evaluation, bad_steps, ranks)


def train_loader(
    config: Config, store: TokenStore, ranks: Ranks, device: torch.device
) -> TrainLoader:
    """This rank's part of every batch."""
    train, data = config.train, config.data
    return TrainLoader(
        store,
        seq_len=train.seq_len,
        seed=config.seed,
        batch_size=train.batch_size,
        grad_accum_steps=train.grad_accum_steps,
        rank=ranks.batch[0],
        num_ranks=ranks.batch[1],
        num_workers=data.num_workers,
        pin_memory=data.pin_memory and device.type == "cuda",
        prefetch_factor=data.prefetch_factor,
        overfit_batches=data.overfit_batches,
    )


def build_model(
    config: Config, device: torch.device, ranks: Ranks, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """The model with its initial weights, laid out over the ranks."""

    def make() -> nn.Module:
        model = build(config.model, path="model", trust=config.run.trust)
        check_model(model, config.model._target_)
        return model.to(dtype)

    return apply(make, config, ranks.mesh, device)


def _start(run_dir: Path, config: Config, checkpointer: Checkpointer, ranks: Ranks) -> Start:
    found: Start | Exception | None = None
    if ranks.main:
        try:
            checkpointer.clean()
            found = choose(run_dir, config, checkpointer)
        except (ValueError, OSError) as error:
            found = error
    found = ranks.from_main(found)
    if isinstance(found, Exception):
        raise found
    assert found is not None
    return found


def data_identity(prepared: Prepared) -> dict[str, str]:
    """Fingerprints of what a run reads: tokenizer and training tokens."""
    manifest = prepared.manifest
    return {
        "tokenizer": manifest["tokenizer"]["fingerprint"],
        "train": manifest["splits"]["train"]["sha256"],
    }


def check_vocabulary(config: Config, prepared: Prepared) -> None:
    """Raises ValueError for ids of the tokenizer that the model has no row for."""
    ids, rows = prepared.tokenizer.vocab_size, config.model.vocab_size
    if ids > rows:
        raise ValueError(
            f"model.vocab_size={rows}: the tokenizer has {ids} ids; set model.vocab_size={ids}"
        )


def _fit(config: Config, run_dir: Path, prepared: Prepared) -> tuple[Config, list[dict[str, Any]]]:
    """The config with what follows from the text: steps from train.max_epochs, and a prompt; and
    all values that were ever worked out.
    """
    derived = {one["key"]: one for one in read_json(_derived(run_dir))}
    fitted = copy.deepcopy(config)
    fitted.thaw()
    found = fit_epochs(fitted, count_windows(prepared.train, config.train.seq_len), derived)
    for one in found:
        say(f"{one.key} = {one.value}   ({one.why})")
    if not config.eval.sample_prompts:
        prompt, why = config.data.prompt, "it fits the data"
        if not prompt:
            longest = config.model.max_seq_len // 2
            prompt = opening(prepared.val, prepared.tokenizer, longest)
            why = "the validation split begins with it"
        fitted.eval.sample_prompts = [prompt]
        found.append(Derived("eval.sample_prompts", [prompt], why))
    fitted.freeze()
    return fitted, list((derived | {one.key: asdict(one) for one in found}).values())


def _derived(run_dir: Path) -> Path:
    return run_dir / numbered("derived.json", version(newest(run_dir).name))


def _logger(
    config: Config, run_dir: Path, device: torch.device, ranks: Ranks, *, resumed_at: int
) -> Logger:
    metrics = config.metrics
    trackers = partial(
        build_trackers,
        metrics,
        run_dir,
        total_steps=config.train.max_steps,
        config_dict=saved_config.to_plain(config),
        resumed_at=resumed_at,
        more=user_trackers(config, run_dir),
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    peak = metrics.peak_tflops * 1e12 or peak_flops(name)
    flops = config.model.flops_per_token(config.train.seq_len)
    return Logger(
        trackers if ranks.main else Trackers,
        interval=metrics.log_interval,
        device=device,
        peak_rate=ranks.size * peak / flops if peak and flops else None,
    )


def _evaluation(
    config: Config,
    prepared: Prepared,
    model: nn.Module,
    device: torch.device,
    signals: Signals,
    ranks: Ranks,
) -> Evaluation:
    token_bytes = torch.zeros(config.model.vocab_size, dtype=torch.int64)
    known = torch.as_tensor(prepared.tokenizer.token_bytes(), dtype=torch.int64)
    token_bytes[: len(known)] = known
    token_bytes = token_bytes.to(device)
    train = config.train
    every = 1 if ranks.size == 1 else BATCHES_PER_VOTE

    def run(interrupted: Callable[[], bool]) -> dict[str, float]:
        batches = eval_batches(
            prepared.val,
            seq_len=train.seq_len,
            batch_size=train.batch_size,
            sequences=most_sequences(config.eval, train),  # the same on every layout
            part=ranks.batch,
        )
        batches = unless(interrupted, batches, every=every)
        return evaluate(model, batches, token_bytes=token_bytes, ranks=ranks)

    return Evaluation(run, interval=config.eval.interval, interrupted=signals.interrupted)
