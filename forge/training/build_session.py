"""From a run directory to its session: ranks, data, model, objective and optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from forge.config.root import Config
from forge.optim.build import build_optimizer
from forge.optim.own_schedule import build_schedule
from forge.optim.schedules import scale_by_phase
from forge.parallel.join import join_ranks
from forge.parallel.modules import FORMATS
from forge.parallel.rendezvous import Rendezvous
from forge.rundir import saved_config
from forge.training.callbacks.signals import Signals
from forge.training.data import check_vocabulary, fit, prepare_data
from forge.training.entries import check_entries
from forge.training.first_lines import first_lines
from forge.training.health.at_start import check_room, check_start
from forge.training.models import build_model, build_objective
from forge.training.process import check_dtypes, loss_scaler, record_collectives, set_up, stage
from forge.training.references import add_references, examples_read
from forge.training.session import Session
from forge.training.teaching import add_stored


def build_session(
    run_dir: Path, rendezvous: Rendezvous | None = None, *, trust: Sequence[str] | None = None
) -> Session:
    """Join the ranks of a run, and build model, objective and optimizer from the config.

    rendezvous: of ranks already met. trust: prefixes of modules outside of forge; None = as in the
    directory, made by this process itself. Raises ValueError for mistakes.
    """
    config = _config_of(run_dir, trust)
    device = set_up(config)
    torch.manual_seed(config.seed)
    check_entries(config)  # before ranks wait for each other
    record_collectives(run_dir / "collectives", device)
    ranks = join_ranks(config, device, rendezvous)
    check_start(run_dir, device, ranks)
    prepared = prepare_data(config, ranks)
    check_vocabulary(config, prepared)
    config, derived = fit(config, run_dir, prepared)
    _show(config, first_lines(config, prepared, device, ranks))
    stage(config, "start: build the model")
    model = build_model(config, device, ranks, trained=True)
    _show(config, first_lines(config, prepared, device, ranks, model))
    check_dtypes(model, FORMATS[config.precision.param_dtype])
    check_room(config, run_dir, model, ranks)
    objective = build_objective(config, device, ranks, tokenizer=prepared.tokenizer)
    add_stored(objective, config, prepared)
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
        schedule=scale_by_phase(build_schedule(config.scheduler, config), config.data),
        scaler=loss_scaler(config.precision, device),
        signals=Signals(config.train.shutdown_timeout_sec, ranks, saves=config.checkpoint.enabled),
    )


def _show(config: Config, lines: Iterable[str]) -> None:
    for line in lines:
        stage(config, line)


def _config_of(run_dir: Path, trust: Sequence[str] | None) -> Config:
    """The newest config in the directory; trust: as in `build_session`."""
    if trust is None:
        return saved_config.load_own(run_dir)
    return saved_config.load_config(saved_config.newest(run_dir), trust=trust)
