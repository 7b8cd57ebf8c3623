"""From a run directory to its session: ranks, data, model, objective and optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from forge.optim.build import build_optimizer
from forge.optim.own_schedule import build_schedule
from forge.optim.schedules import scaled
from forge.parallel.modules import FORMATS
from forge.parallel.ranks import join
from forge.parallel.rendezvous import Rendezvous
from forge.rundir import saved_config
from forge.training.callbacks.signals import Signals
from forge.training.data import check_vocabulary, fit, prepare_data
from forge.training.entries import check_entries
from forge.training.first_lines import first_lines
from forge.training.models import build_model, build_objective
from forge.training.process import check_dtypes, loss_scaler, record_collectives, set_up, stage
from forge.training.references import add_references, examples_read
from forge.training.session import Session


def build_session(
    run_dir: Path, rendezvous: Rendezvous | None = None, *, trust: Sequence[str] | None = None
) -> Session:
    """Join the ranks of a run, and build model, objective and optimizer from the config.

    rendezvous: of ranks already met. trust: prefixes of modules outside of forge; None = as in the
    directory, made by this process itself. Raises ValueError for mistakes.
    """
    if trust is None:
        config = saved_config.load_own(run_dir)
    else:
        config = saved_config.load(saved_config.newest(run_dir), trust=trust)
    device = set_up(config)
    torch.manual_seed(config.seed)
    check_entries(config)  # before ranks wait for each other
    record_collectives(run_dir / "collectives", device)
    ranks = join(config, device, rendezvous)
    prepared = prepare_data(config, ranks)
    check_vocabulary(config, prepared)
    config, derived = fit(config, run_dir, prepared)
    for line in first_lines(config, prepared, device, ranks):
        stage(config, line)
    stage(config, "start: build the model")
    model = build_model(config, device, ranks, trained=True)
    for line in first_lines(config, prepared, device, ranks, model):
        stage(config, line)
    check_dtypes(model, FORMATS[config.precision.param_dtype])
    objective = build_objective(config, device, ranks, tokenizer=prepared.tokenizer)
    texts = examples_read(config, prepared, objective, ranks, device)
    add_references(objective, config, texts, device, ranks, tokenizer=prepared.tokenizer)
    return Session(
        config=config,
        run_dir=run_dir,
        device=device,
        ranks=ranks,
        prepared=prepared,
        derived=derived,
        model=model,
        objective=objective,
        optimizer=build_optimizer(config, model),
        schedule=scaled(build_schedule(config.scheduler, config), config.data),
        scaler=loss_scaler(config.precision, device),
        signals=Signals(config.train.shutdown_timeout_sec, ranks, saves=config.checkpoint.enabled),
    )
